//! Golden scripts and seeded schedules of the serving cores.

mod admission;
mod behind;
mod fair;
mod health;
mod ingest;
mod inquiry;
mod levels;
mod lull;
mod overwrites;
mod parity_log;
mod read_stream;
mod reservations;
mod reserve;
mod rooms;
mod rows;
mod sharing;
mod sweep;
mod update_window;
mod upkeep;
mod write_stream;

use rand_pcg::Pcg64Mcg;

#[allow(clippy::disallowed_methods, reason = "a test takes its seed from outside")]
fn rng(case: u64) -> Pcg64Mcg {
    let seed =
        std::env::var("STEADFAST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_120u64);
    if case == 0 {
        println!("STEADFAST_SEED={seed}");
    }
    Pcg64Mcg::new(u128::from(seed.wrapping_add(case)) * 2 + 1)
}
