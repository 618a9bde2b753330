//! Which code to take, what each looks like, and what it costs. Nothing here but text; [`errata`] tells where the papers
//! and our measurements differ.
//!
//! # Symbols
//!
//! | | |
//! |---|---|
//! | K, k | original blocks (rateless) or data chunks (MDS) of one segment |
//! | N | blocks stored; D = N/K - 1 is the redundancy |
//! | n, m | n = k + m chunks, m of them parity |
//! | x<sub>i</sub> | original i, a slice of bytes; sums of slices are XOR |
//! | S | hidden parity columns of the mix codes |
//! | ε | reception overhead: blocks needed / K - 1 |
//! | u | stored blocks that an update of one original touches |
//! | GF(256) | GF(2)\[x\] / (x⁸ + x⁴ + x³ + x² + 1), one byte an element |
//!
//! # Which one
//!
//! | you have | take | because |
//! |---|---|---|
//! | a large object on many unequal disks, written once | `mix` B | any K and about 0.2 % more blocks give it back; blocks without end for whoever is fast |
//! | the same, and a slow processor | `mix` A | fewer additions than B's; 0.4 % more blocks, from very unequal disks 3 % |
//! | the same, from disks so unequal that few originals arrive | `mix` C | the least overhead there (0.3 %), half more additions |
//! | fewer than 128 originals | `mix` (dense GF(256) rows below) | sparse rows waste a block in a hundred there; dense ones none |
//! | files that change, a few chunks | Reed-Solomon | exactly any k of n; an update touches m chunks |
//! | m = 2, XOR only | RDP | the fewest additions there are for two lost chunks |
//! | XOR only, any m | Cauchy | Reed-Solomon's promise by XOR schedules |
//! | the dissertation's figures | `lt` | to compare with; nothing else speaks for it |
//!
//! Small update cost and small overhead exclude each other in any linear code: an original held by u of N blocks is
//! unseen by M random ones with probability (1 - M/N)<sup>u</sup>, so ε is at least about 4 (1 - (0.56/K)<sup>1/u</sup>) - 1
//! for N = 4K. With u = 20 that is a fifth; B's u of about 74 leaves 0.2 %. Files that change want an MDS code.
//!
//! # The matrices
//!
//! Rows are what is stored, columns the originals; a dot is a zero.
//!
//! ```text
//!   lt, K = 8                 mix, K = 8 (S = 3 hidden columns p q r)         Reed-Solomon, k = 4, m = 2
//!   x0 x1 x2 x3 x4 x5 x6 x7   x0 x1 x2 x3 x4 x5 x6 x7 | p  q  r               x0 x1 x2 x3
//!    1  .  .  1  .  .  .  .    1  .  .  .  .  .  .  . | .  .  .   original     1  .  .  .   data
//!    .  1  .  .  .  1  .  1    .  1  .  .  .  .  .  . | .  .  .   original     .  1  .  .   data
//!    .  .  1  .  .  .  .  .        ...                                         .  .  1  .   data
//!    1  .  .  .  1  .  .  .    1  .  .  .  .  1  .  . | .  1  .   repair       .  .  .  1   data
//!        ... without end       .  .  1  .  1  .  .  1 | 1  .  1   repair       a  b  c  d   parity
//!                                  ... without end                             e  f  g  h   parity
//!                             p = sum of the originals that are in p, ...
//! ```
//!
//! *lt*: degrees of the robust soliton distribution with parameters C and δ; neighbours are taken from one random
//! permutation after another, so that all originals are in as many blocks, give or take one (dissertation §5.2.3).
//! Decoded by peeling: a block with one unknown gives it.
//!
//! *mix*: the originals are stored as they are. Every original is in three hidden columns, no two originals share two
//! of them. A repair block is two or three originals and one to four hidden columns (more in the first K
//! rows, which are the ones that come when few originals are missing), both walked from permutations.
//! Decoded by peeling with inactivation: where peeling stalls a column is set aside as an unknown, and the unknowns are
//! solved last by an inverse over GF(2). From 128 to 511 originals repair rows have coefficients in GF(256); below, every
//! repair row is dense.
//!
//! *Reed-Solomon*: parity rows such that every square part of them inverts, hence any k of n chunks do.
//!
//! *Cauchy*: the same matrix over GF(2): each element becomes an 8 x 8 matrix of bits, each chunk eight packets, each one a
//! packet to add. *RDP*: chunks of p - 1 rows, p prime; one parity chunk sums rows, the other diagonals through data and
//! row parity.
//!
//! # What they cost
//!
//! `steadfast bench codes` measures all of it on your machine beside other libraries, and `steadfast lab run
//! codes/overhead` the overheads. In slices read a block (K = 1024):
//!
//! | | ε, random arrival: mean, p99 | decode | encode | update touches |
//! |---|---|---|---|---|
//! | `lt` C = 1, δ = 0.5 | 40 %, 79 % | 3 | 4.9 | 20 |
//! | `mix` A | 0.38 %, 0.98 % | fewer than B: 1.15 times its speed | | 57 |
//! | `mix` B | 0.23 %, 0.78 % | 13 | 3.5 to 6.5, columns kept | 74 |
//! | `mix` C | 0.16 %, 0.68 % | more than B: 0.6 times its speed | | 76 |
//! | Reed-Solomon (k, m) | 0 | k a lost chunk | k a parity chunk | m |
//!
//! # Inside
//!
//! The decoders work while blocks arrive: [`crate::rateless::Decoder::push`] keeps the rank,
//! [`crate::rateless::Decoder::advance`] takes sums off the end in idle time, and
//! [`crate::rateless::Decoder::solve`] runs one straight-line program over all blocks, in strips that stay in the cache,
//! inside one function of the widest registers there are ([`crate::kernel`]).

pub mod errata;
