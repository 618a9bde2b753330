//! What each device is to keep for a change of some bytes with a wish (dissertation §4.3.4, §5.4).
//!
//! A change reads the old blocks concerned and writes the new ones, each on the device that holds it: no other can do that
//! for it, so as with a stripe it is over when the device is that has most to do for its speed. What a device would do
//! that refused, that stalls or that is out of reach, is written by the others, each as much as it can promise.
//!
//! Left out: repair blocks that are minted where a device is found lost; they take what the reservation leaves.

use super::{
    Candidate, Expected, HEADROOM, PlanError, ROUND_TRIPS_UPDATE, Wish,
    fetch::wanted_seconds,
    pace::{self, Pace},
};
use crate::{
    DeviceId, IndexRanges,
    layout::{Holder, SegmentLayout},
    message::Access,
};
use std::collections::BTreeMap;

/// What a change does on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The device.
    pub device: DeviceId,
    /// Payload bytes of the blocks that are read there.
    pub read_bytes: u64,
    /// Payload bytes of the blocks that are written there.
    pub write_bytes: u64,
}

/// What a change does on each device: it reads some blocks there and writes others.
pub fn parts(layout: &SegmentLayout, read: &IndexRanges, written: &IndexRanges) -> Vec<Part> {
    let bytes = |blocks: &IndexRanges, of: &IndexRanges| {
        u64::from(blocks.intersection(of).count()) * u64::from(layout.block_bytes)
    };
    let part = |holder: &Holder| {
        let held = holder.blocks();
        let (read_bytes, write_bytes) = (bytes(&held, read), bytes(&held, written));
        Part { device: holder.device, read_bytes, write_bytes }
    };
    let parts = layout.holders.iter().map(part);
    parts.filter(|part| part.read_bytes + part.write_bytes > 0).collect()
}

/// What each device is to keep, as bytes per second written: a reservation is a share of its time, and what is read goes
/// under it too. A pace that is wished for is not judged while no device's speed is known. `length` is the number of
/// bytes that the caller changes.
///
/// # Errors
/// [`PlanError::Bandwidth`] and [`PlanError::Latency`] with what the devices can give.
pub fn revise(
    parts: &[Part],
    candidates: &[Candidate],
    length: u64,
    wish: &Wish,
) -> Result<Vec<(DeviceId, u64)>, PlanError> {
    let quality = &wish.quality;
    if !quality.wants_pace() || length == 0 || parts.is_empty() {
        return Ok(Vec::new());
    }
    let serving: BTreeMap<DeviceId, &Candidate> = candidates
        .iter()
        .filter(|candidate| candidate.serves())
        .map(|candidate| (candidate.device, candidate))
        .collect();
    let here: Vec<(&Part, &Candidate)> =
        parts.iter().filter_map(|part| Some((part, *serving.get(&part.device)?))).collect();
    let known: Vec<&Candidate> = here.iter().map(|&(_, candidate)| candidate).collect();
    let round_trips = wish.round_trip.saturating_mul(ROUND_TRIPS_UPDATE);
    let wanted_s = wanted_seconds(length, wish, round_trips);
    let devices = u32::try_from(here.len()).unwrap_or(u32::MAX);
    let too_slow = |wanted_bytes_per_s, given_bytes_per_s, reserved_bytes_per_s| PlanError::Bandwidth {
        wanted_bytes_per_s,
        accesses: quality.accesses(),
        devices,
        verb: "change it",
        given_bytes_per_s,
        reserved_bytes_per_s,
    };
    let too_late = |wanted, expected, reserved_bytes_per_s| PlanError::Latency {
        bytes: length,
        wanted,
        accesses: quality.accesses(),
        devices,
        verb: "change it",
        expected,
        round_trips,
        reserved_bytes_per_s,
    };
    let Some(median) = pace::median(&known, Access::Write) else {
        // Nothing is known: each keeps its part, and the nodes decide.
        let part = |part: &Part| ((part.read_bytes + part.write_bytes) as f64 / wanted_s).ceil() as u64;
        let willing = here.iter().filter(|(_, candidate)| !candidate.refused);
        let kept: Vec<_> = willing.map(|(of, _)| (of.device, part(of).max(1))).collect();
        return match (kept.is_empty(), quality.bandwidth_bytes_per_s) {
            (false, _) => Ok(kept),
            (true, Some(wanted)) => Err(too_slow(wanted, 0, 0)),
            (true, None) => Err(too_late(quality.latency.unwrap_or_default(), Expected::NEVER, 0)),
        };
    };
    let speed = |candidate: &Candidate, access| match pace::speed_of(candidate, access) {
        0 => median,
        known => known as f64,
    };
    // Reading in terms of writing: both take the device's time.
    let cost = |part: &Part, candidate: &Candidate| {
        let reading = speed(candidate, Access::Write) / speed(candidate, Access::Read);
        part.read_bytes as f64 * reading + part.write_bytes as f64
    };
    let workers: Vec<Worker> = here
        .iter()
        .filter(|(_, candidate)| !candidate.refused)
        .map(|&(part, candidate)| Worker {
            device: part.device,
            cost: cost(part, candidate),
            pace: Pace::of(candidate, quality.accesses(), speed(candidate, Access::Write)),
        })
        .collect();
    let own: u64 = workers
        .iter()
        .filter_map(|worker| parts.iter().find(|part| part.device == worker.device))
        .map(|part| part.write_bytes)
        .sum();
    let homeless = parts.iter().map(|part| part.write_bytes).sum::<u64>().saturating_sub(own) as f64;
    let promised: f64 = workers.iter().map(|worker| worker.pace.promised).sum();
    let load =
        |worker: &Worker| worker.cost + homeless * worker.pace.promised / promised.max(f64::MIN_POSITIVE);
    let accesses = f64::from(quality.accesses());
    let slowest = |rate: fn(&Pace) -> f64| {
        let seconds =
            workers.iter().map(|worker| load(worker) * accesses / rate(&worker.pace).max(f64::MIN_POSITIVE));
        seconds.fold(if workers.is_empty() { f64::INFINITY } else { 0.0 }, f64::max)
    };
    let shortest_s = slowest(|pace| pace.promised);
    let unreserved_s = slowest(|pace| pace.promised + pace.reserved);
    let given = |seconds: f64| (length as f64 / seconds * accesses) as u64;
    let reserved_bytes_per_s = given(unreserved_s).saturating_sub(given(shortest_s));
    if let Some(wanted) = quality.bandwidth_bytes_per_s
        && length as f64 / (wanted as f64) < shortest_s * (1.0 - 1e-9)
    {
        return Err(too_slow(wanted, given(shortest_s), reserved_bytes_per_s));
    }
    if let Some(wanted) = quality.latency {
        let mut expected = Expected { mean: round_trips, late: round_trips };
        for worker in &workers {
            let own = worker.pace.expected(load(worker) * accesses, round_trips);
            expected = Expected { mean: expected.mean.max(own.mean), late: expected.late.max(own.late) };
        }
        if workers.is_empty() {
            expected = Expected::NEVER;
        }
        if expected.late > wanted {
            return Err(too_late(wanted, expected, reserved_bytes_per_s));
        }
    }
    let keep = |worker: &Worker| {
        (load(worker) * (1.0 + HEADROOM) / wanted_s).min(worker.pace.promised).ceil() as u64
    };
    Ok(workers.iter().map(|worker| (worker.device, keep(worker))).filter(|&(_, rate)| rate > 0).collect())
}

struct Worker {
    device: DeviceId,
    /// Bytes written, and those read in terms of them.
    cost: f64,
    pace: Pace,
}
