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
//! | the same, from disks so unequal that few originals arrive | `mix` C | the least overhead there (0.3 %); 5 % more additions than B's in decoding, from block 2K on half more in encoding |
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
//!   lt, K = 8                 mix, schematic (from K = 128; here 8 columns, S = 3 hidden ones p q r)
//!   x0 x1 x2 x3 x4 x5 x6 x7   x0 x1 x2 x3 x4 x5 x6 x7 | p  q  r
//!    1  .  .  1  .  .  .  .    1  .  .  .  .  .  .  . | .  .  .   original
//!    .  1  .  .  .  1  .  1    .  1  .  .  .  .  .  . | .  .  .   original
//!    .  .  1  .  .  .  .  .        ...
//!    1  .  .  .  1  .  .  .    1  .  .  .  .  1  .  . | .  1  .   repair
//!        ... without end       .  .  1  .  1  .  .  1 | 1  .  1   repair
//!                                  ... without end
//!                             p = sum of the originals that are in p, ...
//!
//!   Reed-Solomon, k = 4, m = 2
//!   x0 x1 x2 x3
//!    1  .  .  .   data
//!    .  1  .  .   data
//!    .  .  1  .   data
//!    .  .  .  1   data
//!    1  1  1  1   parity
//!    1  a  b  c   parity
//! ```
//!
//! *lt*: degrees of the robust soliton distribution with parameters C and δ; neighbours are taken from one random
//! permutation after another, so that all originals are in as many blocks, give or take one (dissertation §5.2.3).
//! Decoded by peeling: a block with one unknown gives it.
//!
//! *mix*: the originals are stored as they are. Every original is in three hidden columns, no two originals share two
//! of them. A repair block is two or three originals and, as B has it, one hidden column, three or four in the first K
//! rows (below 512 originals four or five), which are the ones that come when few originals are missing. Both are walked
//! from permutations, such that the blocks one disk is likely to hold repeat no column.
//! Decoded by peeling with inactivation: where peeling stalls a column is set aside as an unknown, and the unknowns are
//! solved last by an inverse over GF(2). From 128 to 511 originals repair rows have coefficients in GF(256); below, every
//! repair row is dense.
//!
//! From 512 originals the hidden columns are quasi-cyclic: three classes of q = S/3 columns, the originals in blocks of q, and
//! original u of block j in column u of the first class, u + s<sub>j</sub> of the second, u + t<sub>j</sub> of the third:
//!
//! ```text
//!   q = 4          block 0           block 1           block 2
//!                  s = 0, t = 0      s = 1, t = 2      s = 3, t = 1
//!   class 0        1  .  .  .        1  .  .  .        1  .  .  .
//!                  .  1  .  .        .  1  .  .        .  1  .  .
//!                  .  .  1  .        .  .  1  .        .  .  1  .
//!                  .  .  .  1        .  .  .  1        .  .  .  1
//!   class 1        1  .  .  .        .  .  .  1        .  1  .  .
//!                  .  1  .  .        1  .  .  .        .  .  1  .
//!                  .  .  1  .        .  1  .  .        .  .  .  1
//!                  .  .  .  1        .  .  1  .        1  .  .  .
//!   class 2        the same with shifts t
//! ```
//!
//! Few originals that lie in every column an even number of times are what makes a draw of unequal disks need many blocks: no
//! column tells them apart. Here such sets come q at a time, so that most draws of the shifts have none, and one
//! with the fewest is taken.
//!
//! `mix` below K = 128 has no hidden columns, and a repair row has a coefficient of GF(256), none of them zero, at every
//! original; from 128 to 511 it is sparse as drawn above, its ones replaced by such coefficients; from 512 it is over GF(2):
//!
//! ```text
//!   K = 4                     128 <= K < 512, a repair row                    K >= 512, a repair row
//!    1  .  .  .  original      .  a  .  .  b  .  .  . | .  c  d  .            .  1  .  .  1  .  .  . | .  1  1  .
//!    .  1  .  .  original
//!    .  .  1  .  original      original 1 and 4 and hidden columns 1 and 2; resolved over the originals it has
//!    .  .  .  1  original      2 + 2 x 12 ones, since a hidden column sums 3 K/S = 12 of them (S = K/4)
//!    a  b  c  d  repair
//!    e  f  g  h  repair        A and B: S = K/4, C: S = 3K/8
//! ```
//!
//! *replicated* is the identity, again and again: block i is original i mod K (a stripe is N = K, copies are K = 1).
//!
//! *Reed-Solomon*: parity rows such that every square part of them inverts, hence any k of n chunks do. Ours are
//! 1/(y<sub>j</sub> + z<sub>i</sub>) with y and z distinct elements of GF(256), a Cauchy matrix, rows and columns scaled so that
//! the first of each are ones; so n is at most 255.
//!
//! *Cauchy* is Reed-Solomon with coefficients chosen for few ones, run over GF(2). Every chunk is eight packets; a coefficient a becomes the 8 x 8 matrix of bits whose
//! column b is a x<sup>b</sup>, and every one in it a packet to add. With m = 2 the second row is powers of x, and both
//! parities come of one pass, two additions a word whatever k is. Here with three bits a coefficient instead of eight:
//!
//! ```text
//!             chunk 0     chunk 1     chunk 2
//!            0  1  2     0  1  2     0  1  2    packets
//!   parity   1  .  .  |  1  .  .  |  1  .  .    packet 0 = x00 + x10 + x20
//!   chunk 0  .  1  .  |  .  1  .  |  .  1  .
//!            .  .  1  |  .  .  1  |  .  .  1
//!           ----------+-----------+----------
//!   parity   1  .  .  |  .  .  1  |  .  1  .    packet 0 = x00 + x12 + x21
//!   chunk 1  .  1  .  |  1  .  1  |  .  1  1
//!            .  .  1  |  .  1  .  |  1  .  1
//! ```
//!
//! *RDP*, k <= p - 1, p prime: chunks of p - 1 packets. P sums rows; Q sums diagonals, which run through the data and P;
//! one diagonal is not stored. For p = 5, each packet with the number of its diagonal:
//!
//! ```text
//!            x0  x1  x2  x3 | P   Q          P, row r:      x0r + x1r + x2r + x3r
//!   row 0    0   1   2   3  | 4   q0         Q, diagonal d: every packet marked d
//!   row 1    1   2   3   4  | 0   q1         diagonal 4 is stored nowhere
//!   row 2    2   3   4   0  | 1   q2
//!   row 3    3   4   0   1  | 2   q3         an update of x1, row 2 (diagonal 3) changes P's row 2 (diagonal 1):
//!                                            hence q3 and q1, two ranges of Q
//! ```
//!
//! # What they cost
//!
//! `steadfast bench codes` measures all of it on your machine beside other libraries, and `steadfast lab run
//! codes/overhead --plot FILE.svg` the overheads and the trade as a picture. K = 1024, N = 4K; decoding and encoding in
//! blocks read a source or coded block (what is resolved is read, too: one XOR less), for random arrival / 64 unequal disks with the originals first:
//!
//! | | ε, random arrival: mean, p99 | decode | encode | update touches |
//! |---|---|---|---|---|
//! | `lt` C = 1, δ = 0.5 | 40 %, 80 % | 3.4 / 3.2 | 4.9 | 19 |
//! | `lt` C = 0.1, δ = 0.5 | 19 %, 29 % | 4.2 / 3.9 | 10 | 41 |
//! | `mix` A | 0.38 %, 1.07 % | 8.8 / 5.5 | 3.4, columns kept | 57 |
//! | `mix` B | 0.23 %, 0.78 % | 9.5 / 6.9 | 5.9, from block 2K on 3.5, columns kept | 73 |
//! | `mix` C | 0.16 %, 0.68 % | 10 / 7.2 | 5.3, columns kept | 76 |
//! | Reed-Solomon (k, m) | 0 | k a lost chunk | k a parity chunk | m |
//! | Cauchy (k, 2) | 0 | k for one lost chunk or two | k for both parity chunks | 2 |
//! | Cauchy (k, m), m = 3 or 4 | 0 | k where one is lost and the first parity chunk is there, else about 4k each | k the first parity chunk, each other 1.7k to 2.2k (k = 4), 2.8k to 3.1k (k = 32) | m |
//! | RDP, k = p - 1 | 0 | k a lost chunk; up to k = 16 k for two | k a parity chunk; up to k = 16 k for both | 2, with two ranges in Q |
//!
//! Of 10^5 draws of graph and arrival the worst of `mix` B needs 1.9 % more at random arrival, and 2.7 % on 64 unequal disks with the
//! originals first (mean 0.64 %, p99 1.5 %): three minutes each of `steadfast lab run codes/overhead --draws 100000 --case "mix-b K=1024"`,
//! which prints the whole distribution.
//!
//! # Inside
//!
//! The decoders work while blocks arrive: [`crate::rateless::Decoder::push`] keeps the rank,
//! [`crate::rateless::Decoder::advance`] takes sums off the end in idle time, and
//! [`crate::rateless::Decoder::solve`] runs one straight-line program over all blocks, in strips that stay in the cache,
//! inside one function of the widest registers there are ([`crate::kernel`]).

pub mod errata;
