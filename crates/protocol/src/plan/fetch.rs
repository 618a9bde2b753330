//! What each holder of an object is to keep for a read with a wish (§4.3.3, §5.4), and how much the read asks for: what an
//! access schedule is to say (App. B).
//!
//! In time t a holder gives at most its speed times t and no more than it holds, so the read can be over at t when the
//! sum of the lesser of both reaches the data: the same arithmetic serves rateless objects, copies and stripes, whose every
//! holder must give all.
//!
//! A wish for a latency does not by itself mean that everything is asked for. The adaptive rule is about as fast as asking
//! for all while the devices keep their pace, which they promised for as long as the read lasts; what it lacks is the head
//! start where one of them fails: what that was to send is asked of others only then. So the read leaves the rule to the
//! caller (adaptive, mostly) where the wish has time for just that, the share of any one device sent anew by the others,
//! after the time that slow devices take. Where it has not, the blocks that would have to stand in must be on their way
//! before anything fails: everything is asked for, and what that sends in vain is the price of the wish. Not where more
//! such accesses go on at the same time: their waste would hold up each other. Nor is there anything to judge by while no speed is known.

use super::{
    Candidate, Expected, HEADROOM, PlanError, ROUND_TRIPS_GET, Wish,
    pace::{self, Pace},
};
use crate::{
    BlockIndex, DeviceId, IndexRanges,
    layout::{CodeKind, SegmentLayout},
    message::Access,
    read::RequestRule,
};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// What a device holds of what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The device.
    pub device: DeviceId,
    /// Payload bytes of the blocks it holds and may be asked for.
    pub bytes: u64,
    /// Those of further blocks, which are asked for only where others fail.
    pub spare_bytes: u64,
}

/// How a read with a wish goes about.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetch {
    /// Payload bytes per second that each device is to keep.
    pub reserve: Vec<(DeviceId, u64)>,
    /// What the read asks for beyond what it needs, where that is not the caller's to choose: everything, where the latency
    /// wished for by one access alone leaves no time to make good for a device that fails.
    pub rule: Option<RequestRule>,
}

/// What each device holds of some segments, for a read of all their bytes or of a range of them: with each segment come the blocks that are
/// asked for one by one, if they are. Just those count then, and the others can make good for a device that fails. Where one of them
/// is on no device that serves the segment is decoded, of whatever the others hold; copies are not: there another copy counts.
pub fn held<'a>(
    parts: impl IntoIterator<Item = (&'a SegmentLayout, Option<&'a IndexRanges>)>,
    candidates: &[Candidate],
) -> Vec<Holding> {
    let serving: BTreeSet<DeviceId> =
        candidates.iter().filter(|candidate| candidate.serves()).map(|candidate| candidate.device).collect();
    let mut all: BTreeMap<DeviceId, Holding> = BTreeMap::new();
    for (layout, singly) in parts {
        let singly = singly.and_then(|wanted| {
            let mut here = IndexRanges::new();
            let holders = layout.holders.iter().filter(|holder| serving.contains(&holder.device));
            holders.for_each(|holder| here.insert_all(&holder.blocks()));
            match layout.code.kind {
                CodeKind::Replicated => Some(first_copies(wanted, &here, layout.code.originals)),
                _ => wanted.is_subset_of(&here).then(|| wanted.clone()),
            }
        });
        let bytes = |blocks: &IndexRanges| u64::from(blocks.count()) * u64::from(layout.block_bytes);
        for holder in &layout.holders {
            let (device, blocks) = (holder.device, holder.blocks());
            let asked = singly.as_ref().map_or(bytes(&blocks), |wanted| bytes(&blocks.intersection(wanted)));
            let holding = all.entry(device).or_insert(Holding { device, bytes: 0, spare_bytes: 0 });
            holding.bytes += asked;
            holding.spare_bytes += bytes(&blocks) - asked;
        }
    }
    all.into_values().collect()
}

/// Of each original that is wanted the first copy among the blocks that are `here`; itself where there is none: nothing else stands in.
fn first_copies(wanted: &IndexRanges, here: &IndexRanges, originals: u32) -> IndexRanges {
    let end = here.ranges().last().map_or(0, |range| range.end);
    let first = |original: BlockIndex| {
        (original..end).step_by(originals.max(1) as usize).find(|&index| here.contains(index))
    };
    wanted.iter().map(|original| first(original).unwrap_or(original)).collect()
}

/// Plans a read of `length` bytes from `holdings`. A pace that is wished for is not judged while no device's speed is
/// known, unless those that serve do not hold so much.
///
/// # Errors
/// [`PlanError::Bandwidth`] and [`PlanError::Latency`] with what the holders can give.
pub fn fetch(
    holdings: &[Holding],
    candidates: &[Candidate],
    length: u64,
    wish: &Wish,
) -> Result<Fetch, PlanError> {
    let quality = &wish.quality;
    // As long as nothing shows that there is time.
    let mut rule = (quality.latency.is_some() && quality.accesses() == 1).then_some(RequestRule::All);
    let by_device: BTreeMap<DeviceId, &Candidate> = candidates
        .iter()
        .filter(|candidate| candidate.alive)
        .map(|candidate| (candidate.device, candidate))
        .collect();
    let (holders, others): (Vec<(&Holding, &Candidate)>, Vec<_>) = holdings
        .iter()
        .filter(|holding| holding.bytes + holding.spare_bytes > 0)
        .filter_map(|holding| Some((holding, *by_device.get(&holding.device)?)))
        .partition(|(holding, _)| holding.bytes > 0);
    let all: Vec<&Candidate> = holders.iter().map(|&(_, candidate)| candidate).collect();
    let median = pace::median(&all, Access::Read);
    if !quality.wants_pace() || length == 0 || holders.is_empty() {
        return Ok(Fetch { reserve: Vec::new(), rule });
    }
    let held: u64 = holders.iter().map(|(holding, _)| holding.bytes).sum();
    // Blocks are padded, and of a stripe all are needed; what does not exist cannot be asked for.
    let needed = (length as f64).min(held as f64);
    let round_trips = wish.round_trip.saturating_mul(ROUND_TRIPS_GET);
    let wanted_s = wanted_seconds(length, wish, round_trips);
    let serving = holders.iter().filter(|(_, candidate)| candidate.serves());
    let devices = u32::try_from(serving.clone().count()).unwrap_or(u32::MAX);
    let too_slow = |wanted_bytes_per_s, given_bytes_per_s, reserved_bytes_per_s| PlanError::Bandwidth {
        wanted_bytes_per_s,
        accesses: quality.accesses(),
        devices,
        verb: "send it",
        given_bytes_per_s,
        reserved_bytes_per_s,
    };
    let too_late = |wanted, expected, reserved_bytes_per_s| PlanError::Latency {
        bytes: length,
        wanted,
        accesses: quality.accesses(),
        devices,
        verb: "send it",
        expected,
        round_trips,
        reserved_bytes_per_s,
    };
    let Some(median) = median else {
        // Nothing is known: each keeps its part of what it holds, and the nodes decide. Those that refused are asked again
        // only where the others do not hold enough.
        let sum = |of: &[&Holding]| of.iter().map(|holding| holding.bytes).sum::<u64>() as f64;
        let willing = serving.clone().filter(|(_, candidate)| !candidate.refused);
        let mut asked: Vec<&Holding> = willing.map(|&(holding, _)| holding).collect();
        if sum(&asked) < needed {
            asked = serving.map(|&(holding, _)| holding).collect();
        }
        let held = sum(&asked);
        if held < needed {
            return Err(match (quality.bandwidth_bytes_per_s, quality.latency) {
                (Some(wanted), _) => too_slow(wanted, 0, 0),
                (None, wanted) => too_late(wanted.unwrap_or_default(), Expected::NEVER, 0),
            });
        }
        let part = |holding: &Holding| (needed / wanted_s * holding.bytes as f64 / held).ceil() as u64;
        let reserve = asked.into_iter().map(|holding| (holding.device, part(holding).max(1)));
        return Ok(Fetch { reserve: reserve.collect(), rule });
    };
    let accesses = f64::from(quality.accesses());
    let giver = |&(holding, candidate): &(&Holding, &Candidate)| {
        let known = pace::speed_of(candidate, Access::Read);
        let speed = if known > 0 { known as f64 } else { median };
        let pace = Pace::of(candidate, quality.accesses(), speed);
        let (bytes, spare) = (holding.bytes as f64, holding.spare_bytes as f64);
        Giver { device: holding.device, bytes, spare, pace }
    };
    let givers: Vec<Giver> = holders.iter().map(giver).collect();
    // Each of the accesses at the same time gets its part of a device.
    let shortest_s = shortest(&givers, needed, |giver| giver.pace.promised / accesses);
    let unreserved_s =
        shortest(&givers, needed, |giver| (giver.pace.promised + giver.pace.reserved) / accesses);
    let given = |seconds: f64| if seconds.is_finite() { (needed / seconds * accesses) as u64 } else { 0 };
    let reserved_bytes_per_s = given(unreserved_s).saturating_sub(given(shortest_s));
    if let Some(wanted) = quality.bandwidth_bytes_per_s
        && length as f64 / (wanted as f64) < shortest_s * (1.0 - 1e-9)
    {
        return Err(too_slow(wanted, given(shortest_s), reserved_bytes_per_s));
    }
    if let Some(wanted) = quality.latency {
        let useful = givers.iter().map(|giver| giver.pace);
        let mut expected = Pace::together(useful).expected(needed * accesses, round_trips);
        // Who holds too little of it stops giving before the end.
        let by_holding = Duration::try_from_secs_f64(shortest_s).unwrap_or(Duration::MAX);
        expected.late = expected.late.max(by_holding.saturating_add(round_trips));
        if expected.late > wanted {
            return Err(too_late(wanted, expected, reserved_bytes_per_s));
        }
        let able = holders.iter().chain(&others).filter(|(_, candidate)| candidate.serves());
        let all: Vec<Giver> = able.map(giver).collect();
        let in_vain = Duration::try_from_secs_f64(sent_anew(&all, shortest_s)).unwrap_or(Duration::MAX);
        // Another device is asked, and its first block is on its way.
        let made_good = in_vain.saturating_add(wish.round_trip);
        rule = rule.filter(|_| expected.late.saturating_add(made_good) > wanted);
    }
    Ok(Fetch { reserve: spread(&givers, needed * (1.0 + HEADROOM), wanted_s), rule })
}

#[derive(Clone, Copy)]
struct Giver {
    device: DeviceId,
    bytes: f64,
    /// What it has beside those.
    spare: f64,
    pace: Pace,
}

/// In how many seconds the blocks are wanted, by whichever wish is sharper.
pub(super) fn wanted_seconds(length: u64, wish: &Wish, round_trips: Duration) -> f64 {
    let by_bandwidth = wish.quality.bandwidth_bytes_per_s.map(|rate| length as f64 / rate.max(1) as f64);
    let by_latency = wish.quality.latency.map(|latency| latency.saturating_sub(round_trips).as_secs_f64());
    [by_bandwidth, by_latency].into_iter().flatten().fold(f64::INFINITY, f64::min).max(1e-3)
}

/// The shortest time in which the givers give `needed` bytes; infinite where they never do.
fn shortest(givers: &[Giver], needed: f64, rate: impl Fn(&Giver) -> f64) -> f64 {
    // Giver after giver runs dry, the one that holds least for its speed first.
    let mut dry: Vec<(f64, &Giver)> = givers
        .iter()
        .filter(|giver| rate(giver) > 0.0)
        .map(|giver| (giver.bytes / rate(giver), giver))
        .collect();
    dry.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut emptied, mut flowing) = (0.0, dry.iter().map(|(_, giver)| rate(giver)).sum::<f64>());
    for (at, giver) in dry {
        if emptied + flowing * at >= needed * (1.0 - 1e-9) {
            return (needed - emptied) / flowing;
        }
        emptied += giver.bytes;
        flowing -= rate(giver);
    }
    f64::INFINITY
}

/// The longest time that the others take to send what one giver was to send of a read that takes `seconds`; infinite where
/// they do not hold so much more.
fn sent_anew(givers: &[Giver], seconds: f64) -> f64 {
    let share = |giver: &Giver| giver.bytes.min(giver.pace.promised * seconds);
    let spare = |giver: &Giver| giver.bytes - share(giver) + giver.spare;
    let (all_spare, all_pace) =
        givers.iter().fold((0.0, 0.0), |sum, giver| (sum.0 + spare(giver), sum.1 + giver.pace.promised));
    let anew = givers.iter().map(|giver| {
        let lost = share(giver);
        match (all_spare - spare(giver), all_pace - giver.pace.promised) {
            _ if lost == 0.0 => 0.0,
            (held, pace) if held >= lost && pace > 0.0 => lost / pace,
            _ => f64::INFINITY,
        }
    });
    anew.fold(0.0, f64::max)
}

/// What each giver keeps so that `needed` bytes come within `seconds`: the same part of what each can promise, but for
/// those that hold too little to give so much; all they promise where that is less than needed.
fn spread(givers: &[Giver], needed: f64, seconds: f64) -> Vec<(DeviceId, u64)> {
    let most = |giver: &Giver| giver.pace.promised.min(giver.bytes / seconds);
    let wanted = (needed / seconds).min(givers.iter().map(most).sum());
    let (mut low, mut high) = (0.0, 1.0);
    let given = |part: f64| {
        givers.iter().map(|giver| (giver.pace.promised * part).min(giver.bytes / seconds)).sum::<f64>()
    };
    // Forty halvings leave a millionth of a millionth.
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if given(middle) < wanted { low = middle } else { high = middle }
    }
    let keep = |giver: &Giver| (giver.pace.promised * high).min(giver.bytes / seconds) as u64;
    givers.iter().map(|giver| (giver.device, keep(giver))).filter(|&(_, rate)| rate > 0).collect()
}
