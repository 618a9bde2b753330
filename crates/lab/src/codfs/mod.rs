//! The evaluation of *Parity Logging with Reserved Space* (Chan et al., FAST '14), whose prototype is CodFS; cited as PLR §.
//!
//! | room | what lives there |
//! |---|---|
//! | [`checker`] | every order of events of a few updates, crashes included |
//! | [`reserve`] | the space reserved for deltas, and the merges that too little of it costs (Figures 9 and 10) |
//! | [`storm`] | updates on real devices while nodes lose power |
//! | [`harvard`] | a generated stand-in for the trace of §6.3.2 |
//!
//! Errata and what the text leaves open:
//!
//! - §6.3.2 has Γ = 0.12 at the end with "around 13 % of parity chunks" without reserve. With segments of 16 MiB under
//!   (10, 8) and reserves in multiples of the chunk (§4.2.2) one chunk each for the other 87 % is 0.174 already; 0.12 takes
//!   40 % without any.
//! - By Algorithm 1 a chunk whose utility was ever above zero keeps its last chunk of reserve: ⌊(1 − u)·r / chunk⌋ is below
//!   r / chunk for every u > 0. Which utility a chunk begins with is not said: with one above zero none ever ends without.
//! - Algorithm 1 shrinks before it merges: the log would be cut while it is in use.
//!
//! [`steadfast_protocol::serve::Reserve`] says what it does about the last two.

pub mod checker;
pub mod harvard;
pub mod reserve;
pub mod storm;
