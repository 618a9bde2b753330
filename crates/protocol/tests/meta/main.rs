//! The metadata cores over a store in memory: rules by event lists, and random interleavings against a plain model.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

mod amendments;
mod beside;
mod damage;
mod degraded;
mod files;
mod holes;
mod model;
mod names;
mod puts;
mod registry;
mod requests;
mod restarts;
mod standing;
mod support;
mod sweeps;
