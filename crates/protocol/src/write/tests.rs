//! The write cores under a small deterministic model of devices.

mod amend;
mod crowd;
mod ingest;
mod model;
mod parity;
mod rateless;
mod schemes;

use super::*;

/// The seed of a randomised test: `STEADFAST_SEED`, or the one given.
#[allow(clippy::disallowed_methods, reason = "a test may read its seed from the environment")]
fn seed_or(given: u64) -> u64 {
    let seed = std::env::var("STEADFAST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(given);
    println!("STEADFAST_SEED={seed}");
    seed
}
