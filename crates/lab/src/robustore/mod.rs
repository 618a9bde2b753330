//! The evaluation of the dissertation's chapter 6, from the cores that serve data, under the simulator.
//!
//! Each experiment is a file of parameters beside the paper's values (`parameters/`), and everything else is the same for
//! all of them:
//!
//! | room | what lives there |
//! |---|---|
//! | [`parameters`] | what an experiment varies, and the figures of the paper |
//! | [`scheme`] | the four schemes of the paper, and ours |
//! | [`draw`] | which disks an access uses and how they are: the same for all schemes |
//! | [`access`] | one access in a world of its own |
//! | [`ideal`] | what the same disks allow |
//! | [`sweep`] | all accesses of an experiment, on all cores, and what they come to |

pub mod access;
pub mod draw;
pub mod ideal;
pub mod parameters;
pub mod scheme;
pub mod sweep;

pub use sweep::{run, show};
