//! Experiments on real local clusters: the demo, the six devices, and their reports.
//!
//! | room | what lives there |
//! |---|---|
//! | [`cluster`] | processes: started by running the program again, killed, restarted, stopped |
//! | [`disks`] | speeds as the dissertation draws them; the any-K ideal and the write limit |
//! | [`demo`], [`six_devices`] | the experiments |
//! | [`original`], [`report`] | the bytes stored and compared; the figures printed |

pub mod cluster;
pub mod demo;
pub mod disks;
pub mod original;
pub mod report;
pub mod six_devices;

use anyhow::{Context, Result, bail};
use report::Report;
use std::path::Path;

/// What a server prints once it serves, followed by its address.
pub const LISTENING: &str = "listening on ";

/// The experiments, by name, and what each shows.
pub const EXPERIMENTS: [(&str, &str); 2] = [
    ("demo", "64 unequal disks, three schemes, then failures and a speculative write"),
    ("six-devices", "64 MiB objects on six devices of 100 MB/s, one of them slow or stalled"),
];

/// Runs the experiment of that name with `program` as the servers' executable.
///
/// # Errors
/// When there is no such experiment or it fails.
pub async fn run(name: &str, program: &Path, seed: u64, say: &mut dyn FnMut(&str)) -> Result<Report> {
    match name {
        "demo" => demo::Demo { program: program.to_owned(), file: None, seed, keep: None }.run(say).await,
        "six-devices" => six_devices::run(program, seed, say).await,
        _ => bail!("no experiment named `{name}`"),
    }
}

/// An experiment's report as a table for people.
pub fn show(name: &str, report: &Report) -> String {
    match name {
        "demo" => demo::show(report),
        _ => six_devices::show(report),
    }
}

/// A directory in memory where the machine has one with `room_bytes` free, else on disk; removed when dropped.
fn scratch_dir(room_bytes: u64) -> Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("steadfast-");
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).is_ok_and(|space| space.f_bavail * space.f_frsize >= room_bytes);
    if room && let Ok(dir) = builder.tempdir_in(memory) {
        return Ok(dir);
    }
    builder.tempdir().context("cannot make a temporary directory")
}

/// Touches `bytes` of memory once (half of what is free at most) and gives them back. A virtual machine's memory is
/// slow (about 0.5 GB/s) the first time it is touched, whoever does it; untouched, that would be measured instead of
/// the disks.
fn pretouch_memory(bytes: u64) {
    const PIECE: u64 = 64 << 20;
    let free = rustix::system::sysinfo().freeram;
    let pieces = bytes.min(free as u64 / 2) / PIECE;
    let touched: Vec<Vec<u8>> = (0..pieces).map(|_| vec![1; PIECE as usize]).collect();
    drop(core::hint::black_box(touched));
}
