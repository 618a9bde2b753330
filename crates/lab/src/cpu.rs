//! Processor time of other processes, as the kernel counts it.

use anyhow::{Context, Result};
use std::fs;

/// User and system seconds that these processes have taken so far, together, their ended threads included.
///
/// The kernel gives ticks (10 ms where it counts a hundred a second), so each process may be one tick off: compare
/// spans of many accesses.
///
/// # Errors
/// When one of them is gone.
pub fn seconds(processes: &[u32]) -> Result<f64> {
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    let ticks: Result<u64> = processes.iter().map(|&process| ticks(process)).sum();
    Ok(ticks? as f64 / per_second)
}

fn ticks(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("process {process} has ended"))?;
    of_stat(&text).with_context(|| format!("{path} reads `{text}`"))
}

/// The 14th and 15th fields; the second is a name in brackets that may hold spaces and brackets (proc(5)).
fn of_stat(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_misleads_nobody() {
        let text = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 40 2 0 0";
        assert_eq!(of_stat(text), Some(42));
        assert_eq!(of_stat("7 (a"), None);
        assert_eq!(of_stat("7 (a) S 1"), None);
    }

    #[test]
    fn work_is_counted_and_a_process_that_is_gone_is_named() {
        let this = [std::process::id()];
        let before = seconds(&this).unwrap();
        while seconds(&this).unwrap() - before < 0.03 {
            std::hint::black_box((0..1_000_000u64).map(std::hint::black_box).sum::<u64>());
        }
        assert!(seconds(&[u32::MAX - 1]).unwrap_err().to_string().contains("4294967294"));
    }
}
