//! The choice of devices.

use super::{
    BLOCKS_PER_DEVICE_MIN, Candidate, DEVICES_DEFAULT_MAX, HEADROOM, Plan, PlanError, Planned,
    ROUND_TRIPS_PUT, Wanted, Wish,
    pace::{self, Pace, Together},
    segments, spares,
    spread::Spread,
};
use crate::{
    DeviceId,
    durability::Rule,
    message::{Access, DeviceHealth, NodeState, Registry},
    policy::{Domain, Parity, Policy},
};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};

/// What chance adds to or takes from a device's merit, in all: it mixes about equals.
const CHANCE: f64 = 0.1;
/// The same where a segment lies on few devices and is the first of its object: one half as good as another is chosen less often and not
/// never, or small objects would keep to the few best. Picked by eye. Later segments take turns.
const CHANCE_PARITY: f64 = 1.0;

/// So many requests in a device's queue halve its merit.
const QUEUE_NOW: f64 = 4.0;
/// The same for later segments of an object: what waits there when the object begins is done by then, more or less.
const QUEUE_LATER: f64 = 16.0;
/// With less than this of the median speed a device gets a later segment only where no other can: picked by eye, what chance never made
/// good for a first one.
const LAGGARD_SHARE: f64 = 1.0 / 3.0;

/// Every registered device that takes new data as a candidate, in the registry's order: one that is draining does not, what lies on it
/// is about to leave.
pub fn candidates(registry: &Registry) -> Vec<Candidate> {
    let leaving: BTreeSet<DeviceId> = registry.standings.iter().map(|standing| standing.device).collect();
    let mut all = holders(registry);
    all.retain(|candidate| !leaving.contains(&candidate.device));
    all
}

/// Every registered device as one that may hold data already, in the registry's order: what is draining serves what it holds. A device
/// without a report yet is taken as it registered: empty, its speed unknown.
pub fn holders(registry: &Registry) -> Vec<Candidate> {
    let of_node = |node: &crate::message::NodeState| {
        let reports: BTreeMap<_, _> = node.devices.iter().map(|report| (report.device, report)).collect();
        let candidate = |&(device, capacity): &(crate::DeviceId, u64)| {
            let report = reports.get(&device);
            Candidate {
                device,
                node: node.record.node,
                site: node.record.site.clone(),
                free_bytes: report.map_or(capacity, |report| report.free_bytes),
                queue_length: report.map_or(0, |report| report.queue_length),
                read_bytes_per_s: report.map_or(0, |report| report.read_bytes_per_s),
                write_bytes_per_s: report.map_or(0, |report| report.write_bytes_per_s),
                alive: node.alive,
                health: report.map_or(DeviceHealth::Ok, |report| report.health),
                reserved_read_bytes_per_s: report.map_or(0, |report| report.reserved_read_bytes_per_s),
                reserved_write_bytes_per_s: report.map_or(0, |report| report.reserved_write_bytes_per_s),
                sharing_ppm: report.map_or([0; 4], |report| report.sharing_ppm),
                refused: false,
                given: 0,
            }
        };
        node.record.devices.iter().map(candidate).collect::<Vec<_>>()
    };
    registry.nodes.iter().flat_map(of_node).collect()
}

/// Whether a device answers reads and changes of what it holds, as far as is known: one without a report yet is taken to.
pub(super) fn serves(registry: &Registry, device: DeviceId) -> bool {
    let holds = |node: &&NodeState| node.record.devices.iter().any(|&(other, _)| other == device);
    registry.nodes.iter().filter(|node| node.alive).find(holds).is_some_and(|node| {
        let report = node.devices.iter().find(|report| report.device == device);
        report.is_none_or(|report| matches!(report.health, DeviceHealth::Ok | DeviceHealth::Full))
    })
}

/// Whether the cluster as registered can meet `policy`: asked when a bucket is made. Nodes that are down and devices
/// that are full count; they may come back.
///
/// # Errors
/// [`PlanError::Unmet`] with what is missing.
pub fn feasible(policy: &Policy, registry: &Registry) -> Result<(), PlanError> {
    feasible_among(policy, &candidates(registry))
}

/// As [`feasible`], of the candidates that a cluster has. Of a policy nothing counts but its failure domains and its number of devices.
///
/// # Errors
/// As that.
pub fn feasible_among(policy: &Policy, candidates: &[Candidate]) -> Result<(), PlanError> {
    enough_domains(policy, &candidates.iter().collect::<Vec<_>>())?;
    let needed = policy.devices().unwrap_or(1);
    let available = count(candidates.len());
    if available < needed {
        return Err(PlanError::Unmet { domain: "devices", needed, available });
    }
    Ok(())
}

/// Chooses devices for `wanted` among `candidates`, with no wish beyond it.
///
/// # Errors
/// As [`choose_for`].
pub fn choose(candidates: &[Candidate], wanted: &Wanted) -> Result<Plan, PlanError> {
    choose_for(candidates, wanted, &Wish::default())
}

/// Chooses devices for `wanted` among `candidates`, as few as meet the wish. The policy in `wanted` is the one that
/// [`super::Quality::policy`] gave. A pace that is wished for is not judged while no device's speed is known.
///
/// Where too few domains for a segment's chunks can take data, even with those that stall, the plan is for as many chunks as there are
/// domains that serve, if the policy and the wish allow it ([`Parity::degraded`]). So it is where a pace is wished for that those that
/// stall cannot promise: all chunks wait for the slowest.
///
/// # Errors
/// [`PlanError::Unmet`] when too few domains or devices can take data, those that stall counted; [`PlanError::Room`] where they are full;
/// [`PlanError::Space`] when what is to be stored does not fit on those that can; [`PlanError::TooFew`], [`PlanError::FewDevices`],
/// [`PlanError::FewCopies`], [`PlanError::Bandwidth`], [`PlanError::Latency`] for a wish that cannot be met, with what can.
pub fn choose_for(candidates: &[Candidate], wanted: &Wanted, wish: &Wish) -> Result<Plan, PlanError> {
    use PlanError::{Bandwidth, Latency, Unmet};
    match (choose_all(candidates, wanted, wish), wish.fewest(&wanted.policy)) {
        (Err(error @ (Unmet { .. } | Bandwidth { .. } | Latency { .. })), Some(parity)) => {
            match (degraded(candidates, &parity), error) {
                (Some(fewer), _) => {
                    choose_all(candidates, &Wanted { policy: Policy::Parity(fewer), ..*wanted }, wish)
                }
                (None, Unmet { domain, available, .. }) => {
                    Err(Unmet { domain, needed: parity.least_chunks(), available })
                }
                (None, error) => Err(error),
            }
        }
        (plan, _) => plan,
    }
}

/// The policy with as many chunks as there are domains that serve, or that only stall where no others are enough; none where that is
/// no use. Full devices count: what they lack is room, and fewer chunks would hide that.
fn degraded(candidates: &[Candidate], parity: &Parity) -> Option<Parity> {
    let of = |health: &[DeviceHealth]| {
        let those = candidates.iter().filter(|one| one.alive && health.contains(&one.health));
        count(count_domains(parity.domain, &those.collect::<Vec<_>>()))
    };
    let serving = of(&[DeviceHealth::Ok, DeviceHealth::Full]);
    let domains = match parity.degraded(serving) {
        Some(_) => serving,
        None => of(&[DeviceHealth::Ok, DeviceHealth::Full, DeviceHealth::Stalled]),
    };
    parity.degraded(domains)
}

/// As [`choose_for`], for all chunks of a parity segment.
fn choose_all(candidates: &[Candidate], wanted: &Wanted, wish: &Wish) -> Result<Plan, PlanError> {
    let policy = &wanted.policy;
    let segment = segments(wanted.length, policy)[0];
    let block_bytes = u64::from(segment.geometry.block_bytes);
    let (originals, room_bytes) = match policy {
        Policy::Parity(parity) => {
            let chunk_bytes = u64::from(segment.geometry.originals / parity.data()) * block_bytes;
            (segment.geometry.originals.into(), chunk_bytes + parity.reserve_of(chunk_bytes))
        }
        _ => (wanted.length.div_ceil(block_bytes).max(1), block_bytes),
    };
    // Not dead, failed, stalled, full; room for a block at least, or for a chunk and what is kept beside it.
    let healthy = |candidate: &&Candidate| candidate.alive && candidate.health == DeviceHealth::Ok;
    let roomy = |candidate: &&Candidate| candidate.free_bytes >= room_bytes;
    let mut usable: Vec<&Candidate> = candidates.iter().filter(healthy).filter(roomy).collect();
    // The last resort, which a store under load came to need: a stall may be over before the first block is sent, and
    // who is refused stores nothing.
    if enough_domains(policy, &usable).is_err() {
        let stalled = |candidate: &&Candidate| candidate.alive && candidate.health == DeviceHealth::Stalled;
        usable.extend(candidates.iter().filter(stalled).filter(roomy));
    }
    let free_bytes = candidates.iter().filter(healthy).map(|candidate| candidate.free_bytes).sum();
    let least_bytes = (wanted.length as f64 * (1.0 + redundancy(policy, segment.scheme))) as u64;
    let full = candidates.iter().any(|candidate| candidate.alive && candidate.health == DeviceHealth::Full);
    if let Err(unmet) = enough_domains(policy, &usable) {
        // Where room is what is missing, say so: more devices of the same fullness would not help.
        let serving = |c: &&Candidate| c.alive && matches!(c.health, DeviceHealth::Ok | DeviceHealth::Full);
        let roomy = enough_domains(policy, &candidates.iter().filter(serving).collect::<Vec<_>>()).is_ok();
        let short = full || candidates.iter().any(|c| healthy(&c) && c.free_bytes < room_bytes);
        return Err(match unmet {
            PlanError::Unmet { domain, needed, available } if roomy && short && least_bytes <= free_bytes => {
                PlanError::Room { domain, needed, available, bytes: room_bytes }
            }
            _ if roomy && short => PlanError::Space { needed_bytes: least_bytes, free_bytes },
            unmet => unmet,
        });
    }

    let speeds = Speeds::of(&usable);
    let promise = Promise::of(wanted, wish, &usable, segment.scheme);
    rank(&mut usable, policy.domain(), &speeds, &promise, wanted.seed);
    if promise.is_blind() {
        // Nothing else tells those that would refuse again from the others.
        usable.sort_by_key(|candidate| candidate.refused);
    }
    usable.sort_by_key(|candidate| candidate.health != DeviceHealth::Ok);
    if segment.scheme == super::Scheme::Parity {
        deal_chunks(&mut usable, policy, wanted.seed);
    }
    let spread = Spread::new(policy, wish.quality.sites.unwrap_or(0));
    judge_spread(&spread, policy, segment.scheme, wish, &usable)?;
    let mut count_wanted = how_many(policy, wanted, &usable, &speeds, originals, segment.scheme);
    let is_fixed = segment.scheme == super::Scheme::Replicated || policy.devices().is_some();
    let mut least = fewest(policy, segment.scheme, &usable);
    if is_fixed {
        count_wanted = count_wanted.max(spread.least().0);
        spread.put_first(&mut usable, count_wanted);
    } else {
        least = spread.shortest(&usable, least);
        count_wanted = count_wanted.max(least);
    }
    if promise.wants_pace() && segment.scheme != super::Scheme::Replicated {
        let domains = domains_of_first(policy.domain(), &usable);
        let stored = |devices: usize| stored_blocks(policy, segment.scheme, originals, domains[devices]);
        let numbers = if is_fixed { count_wanted..=count_wanted } else { least..=usable.len() };
        let stretch = |devices| stored(devices) as f64 / originals as f64;
        count_wanted = promise.fewest(&usable, numbers, stretch)?;
    }
    if segment.scheme == super::Scheme::Striped && policy.tolerate() > 0 {
        count_wanted = spread.put_rounds_first(&mut usable, count_wanted);
    }

    // A share goes by speed; a device without room for its share makes way for the next, which makes shares larger.
    loop {
        let chosen = &usable[..count_wanted];
        let domains = count_domains(policy.domain(), chosen);
        let stored = stored_blocks(policy, segment.scheme, originals, domains);
        let total_speed: f64 = chosen.iter().map(|candidate| promise.weight(candidate, &speeds)).sum();
        let even = segment.scheme != super::Scheme::Rateless;
        let share = |candidate: &Candidate| {
            if even { 1.0 / chosen.len() as f64 } else { promise.weight(candidate, &speeds) / total_speed }
        };
        let needed =
            |candidate: &Candidate| (stored as f64 * share(candidate) * block_bytes as f64).ceil() as u64;
        let tight = chosen.iter().position(|candidate| candidate.free_bytes < needed(candidate));
        if let Some(position) = tight {
            // N floats: one that fills up is left by the writer. Only a stripe needs every share to fit, but no plan
            // is made that cannot fit as a whole.
            let room: u64 = usable.iter().map(|candidate| candidate.free_bytes).sum();
            if room < stored * block_bytes {
                return Err(PlanError::Space { needed_bytes: stored * block_bytes, free_bytes });
            }
            if usable.len() > 1 && (segment.scheme == super::Scheme::Striped || usable.len() > count_wanted) {
                let mut rest = usable.clone();
                rest.remove(position);
                if let Some(devices) = wish.quality.devices {
                    enough_room(devices, count(rest.len()), needed(chosen[position]))?;
                }
                if enough_domains(policy, &rest).is_ok() && spread.has_sites(&rest) {
                    count_wanted = count_wanted.min(rest.len());
                    usable = rest;
                    if segment.scheme == super::Scheme::Striped && policy.tolerate() > 0 {
                        count_wanted = spread.put_rounds_first(&mut usable, count_wanted);
                    } else {
                        spread.put_first(&mut usable, count_wanted);
                    }
                    continue;
                }
            }
            if segment.scheme == super::Scheme::Striped {
                return Err(PlanError::Space { needed_bytes: stored * block_bytes, free_bytes });
            }
        }
        let shares: Vec<f64> = chosen.iter().map(|candidate| share(candidate)).collect();
        let stretch = stored as f64 / originals as f64;
        let reserve_bytes_per_s = promise.reserve(chosen, stretch);
        let used = chosen.iter().map(|candidate| domain_name(policy.domain(), candidate)).collect();
        let most = spares::most(count_wanted, policy.tolerate());
        let others = spares::kept(usable[count_wanted..].to_vec(), most, used, |candidate| {
            domain_name(policy.domain(), candidate)
        });
        let kept: Vec<&Candidate> = chosen.iter().copied().chain(others).collect();
        let mut plan = number_domains(policy, &kept, &shares, &speeds);
        for planned in &mut plan.devices {
            planned.reserve_bytes_per_s = (reserve_bytes_per_s * planned.share).ceil() as u64;
        }
        return Ok(plan);
    }
}

/// D as the planner counts it.
fn redundancy(policy: &Policy, scheme: super::Scheme) -> f64 {
    match (policy, scheme) {
        (Policy::Rateless(rateless), super::Scheme::Rateless) => rateless.redundancy,
        (_, super::Scheme::Replicated | super::Scheme::Striped) => f64::from(policy.tolerate()),
        (Policy::Parity(_), _) => Rule::of(policy).redundancy,
        _ => 0.0,
    }
}

/// Blocks that will be stored on devices in so many `domains`: what D asks for, or f where those are few.
fn stored_blocks(policy: &Policy, scheme: super::Scheme, originals: u64, domains: usize) -> u64 {
    if let Policy::Parity(parity) = policy {
        return originals / u64::from(parity.data()) * u64::from(parity.chunks());
    }
    let by_redundancy = 1.0 + redundancy(policy, scheme);
    let (f, domains) = (f64::from(policy.tolerate()), domains as f64);
    let by_loss = match scheme {
        super::Scheme::Rateless if domains > f => domains / (domains - f),
        _ => 1.0,
    };
    (originals as f64 * by_redundancy.max(by_loss)).ceil() as u64
}

fn how_many(
    policy: &Policy,
    wanted: &Wanted,
    usable: &[&Candidate],
    speeds: &Speeds,
    originals: u64,
    scheme: super::Scheme,
) -> usize {
    let domains = policy.tolerate() as usize + 1;
    if scheme == super::Scheme::Replicated {
        return domains;
    }
    if let Some(asked) = policy.devices() {
        return (asked as usize).clamp(domains.min(usable.len()), usable.len());
    }
    let least = fewest(policy, scheme, usable);
    let by_bandwidth = match wanted.bandwidth_bytes_per_s {
        Some(bandwidth) if speeds.mean > 0.0 => (bandwidth as f64 / speeds.mean).ceil() as usize,
        _ => DEVICES_DEFAULT_MAX as usize,
    };
    let blocks = (originals as f64 * (1.0 + redundancy(policy, scheme))) as usize;
    let by_blocks = blocks / BLOCKS_PER_DEVICE_MIN as usize;
    by_bandwidth.min(by_blocks).max(least).clamp(1, usable.len())
}

/// Enough domains that f costs no more room than D allows: d / (d - f) <= 1 + D.
fn fewest(policy: &Policy, scheme: super::Scheme, usable: &[&Candidate]) -> usize {
    let domains = policy.tolerate() as usize + 1;
    let (d, f) = (redundancy(policy, scheme), f64::from(policy.tolerate()));
    let roomy = if d > 0.0 { (f * (1.0 + d) / d - 1e-9).ceil() as usize } else { domains };
    domains.max(roomy.min(usable.len())).clamp(1, usable.len())
}

/// Whether the wishes for devices and sites can be met together with the policy.
fn judge_spread(
    spread: &Spread,
    policy: &Policy,
    scheme: super::Scheme,
    wish: &Wish,
    usable: &[&Candidate],
) -> Result<(), PlanError> {
    if let Some(wanted) = wish.quality.devices {
        enough("devices", wanted, count(usable.len()))?;
        let (needed, domain) = spread.least();
        let needed = count(needed);
        if wanted < needed {
            return Err(PlanError::FewDevices { wanted, needed, domain });
        }
    }
    if let Some(wanted) = wish.quality.sites {
        enough("sites", wanted, count(count_domains(Domain::Site, usable)))?;
        let copies = policy.tolerate() + 1;
        // A block that is the whole object has no more.
        if scheme == super::Scheme::Replicated && wanted > copies {
            return Err(PlanError::FewCopies { wanted, copies });
        }
    }
    Ok(())
}

fn enough_room(needed: u32, available: u32, bytes: u64) -> Result<(), PlanError> {
    let domain = "devices";
    if available < needed { Err(PlanError::Room { domain, needed, available, bytes }) } else { Ok(()) }
}

fn enough(wish: &'static str, wanted: u32, available: u32) -> Result<(), PlanError> {
    if available < wanted { Err(PlanError::TooFew { wish, wanted, available }) } else { Ok(()) }
}

/// A wish for a pace, and what devices can promise towards it.
struct Promise<'a> {
    wanted: &'a Wanted,
    wish: &'a Wish,
    /// Stands in for a speed that was not measured; none where no speed was.
    median: Option<f64>,
    scheme: super::Scheme,
}

impl<'a> Promise<'a> {
    fn of(wanted: &'a Wanted, wish: &'a Wish, usable: &[&Candidate], scheme: super::Scheme) -> Self {
        Self { wanted, wish, median: pace::median(usable, Access::Write), scheme }
    }

    fn wants_pace(&self) -> bool {
        self.wish.quality.wants_pace()
    }

    /// Whether a pace is wished for, and no speed is known to judge it by.
    fn is_blind(&self) -> bool {
        self.wants_pace() && self.median.is_none()
    }

    /// What one device can promise; none without a wish, or while no speed is known.
    fn pace(&self, candidate: &Candidate) -> Option<Pace> {
        let known = pace::speed_of(candidate, Access::Write);
        let speed = if known > 0 { known as f64 } else { self.median? };
        self.wants_pace().then(|| Pace::of(candidate, self.wish.quality.accesses(), speed))
    }

    /// What a device counts in shares and in the ranking.
    fn weight(&self, candidate: &Candidate, speeds: &Speeds) -> f64 {
        self.pace(candidate).map_or_else(|| speeds.write(candidate), |pace| pace.promised.max(1.0))
    }

    fn together(&self, chosen: &[&Candidate]) -> Option<Pace> {
        let mut together = Together::default();
        for candidate in chosen {
            together.add(self.pace(candidate)?);
        }
        Some(self.as_one(&together))
    }

    /// What the devices counted in give an object of this scheme.
    fn as_one(&self, together: &Together) -> Pace {
        match self.scheme {
            super::Scheme::Rateless => together.at_once(),
            _ => together.in_step(),
        }
    }

    fn round_trips(&self) -> core::time::Duration {
        self.wish.round_trip.saturating_mul(ROUND_TRIPS_PUT)
    }

    /// The least number of devices of `numbers`, the first of `usable`, that meets the wish; `stretch` says how many
    /// times the data so many store.
    fn fewest(
        &self,
        usable: &[&Candidate],
        numbers: core::ops::RangeInclusive<usize>,
        stretch: impl Fn(usize) -> f64,
    ) -> Result<usize, PlanError> {
        let (least, most) = numbers.into_inner();
        let (mut best, mut together) = (None, Together::default());
        for (devices, candidate) in (1..=most).zip(usable) {
            let Some(pace) = self.pace(candidate) else {
                // Nothing is known: the nodes decide.
                return Ok(devices.max(least));
            };
            together.add(pace);
            if devices < least {
                continue;
            }
            match self.judge(devices, &self.as_one(&together), stretch(devices)) {
                Ok(()) => return Ok(devices),
                Err((given, error)) => {
                    if best.as_ref().is_none_or(|&(most, _)| given > most) {
                        best = Some((given, error));
                    }
                }
            }
        }
        Err(best.expect("there is a device at least, or the domains were too few").1)
    }

    /// Whether so many devices, which give `pace` together, meet the wish; if not, the payload pace and why.
    fn judge(&self, devices: usize, pace: &Pace, stretch: f64) -> Result<(), (u64, PlanError)> {
        let quality = &self.wish.quality;
        let (accesses, devices) = (quality.accesses(), count(devices));
        let given = (pace.promised / stretch) as u64;
        let reserved_bytes_per_s = (pace.reserved / stretch) as u64;
        if let Some(wanted_bytes_per_s) = quality.bandwidth_bytes_per_s
            && given < wanted_bytes_per_s.saturating_mul(accesses.into())
        {
            let error = PlanError::Bandwidth {
                wanted_bytes_per_s,
                accesses,
                devices,
                verb: "take data",
                given_bytes_per_s: given,
                reserved_bytes_per_s,
            };
            return Err((given, error));
        }
        if let Some(wanted) = quality.latency {
            let bytes = self.wanted.length as f64 * stretch * f64::from(accesses);
            let expected = pace.expected(bytes, self.round_trips());
            if expected.late > wanted {
                let error = PlanError::Latency {
                    bytes: self.wanted.length,
                    wanted,
                    accesses,
                    devices,
                    verb: "take data",
                    expected,
                    round_trips: self.round_trips(),
                    reserved_bytes_per_s,
                };
                return Err((given, error));
            }
        }
        Ok(())
    }

    /// Bytes per second, redundancy counted, that the chosen devices together are to keep for this access.
    fn reserve(&self, chosen: &[&Candidate], stretch: f64) -> f64 {
        let quality = &self.wish.quality;
        let for_latency = quality.latency.map_or(0.0, |latency| {
            let left = latency.saturating_sub(self.round_trips()).as_secs_f64();
            self.wanted.length as f64 / left.max(1e-3)
        });
        let wanted = for_latency.max(quality.bandwidth_bytes_per_s.unwrap_or(0) as f64) * stretch;
        let most = self.together(chosen).map_or(f64::INFINITY, |pace| pace.promised);
        // Never more than they can promise, and not so little that rounding loses it.
        (wanted * (1.0 + HEADROOM)).min(most.max(wanted))
    }
}

/// Measured speeds; the median stands in where none was measured.
struct Speeds {
    median: f64,
    mean: f64,
}

impl Speeds {
    fn of(usable: &[&Candidate]) -> Self {
        let mut known: Vec<u64> =
            usable.iter().map(|candidate| candidate.write_bytes_per_s).filter(|&speed| speed > 0).collect();
        known.sort_unstable();
        let median = known.get(known.len() / 2).map_or(0.0, |&speed| speed as f64);
        let unknown = (usable.len() - known.len()) as f64;
        let mean = (known.iter().sum::<u64>() as f64 + unknown * median) / usable.len().max(1) as f64;
        Self { median, mean }
    }

    /// In bytes per second; 1 for all when none was measured, so that shares come out equal.
    fn write(&self, candidate: &Candidate) -> f64 {
        match candidate.write_bytes_per_s {
            0 => self.median.max(1.0),
            speed => speed as f64,
        }
    }
}

/// Sorts best first, taking failure domains, nodes and sites in turn.
fn rank(usable: &mut Vec<&Candidate>, domain: Domain, speeds: &Speeds, promise: &Promise<'_>, seed: u64) {
    let roomiest = usable.iter().map(|candidate| candidate.free_bytes).max().unwrap_or(1).max(1) as f64;
    let mut random = Pcg64Mcg::new(u128::from(seed) << 64 | 0x5eed);
    // Of an object of which some is stored.
    let turns = usable.iter().any(|candidate| candidate.given > 0);
    let chance = if promise.scheme == super::Scheme::Parity && !turns { CHANCE_PARITY } else { CHANCE };
    let mut weights: Vec<f64> = usable.iter().map(|candidate| promise.weight(candidate, speeds)).collect();
    weights.sort_unstable_by(f64::total_cmp);
    let little = weights.get(weights.len() / 2).map_or(0.0, |median| LAGGARD_SHARE * median);
    // One that is far slower would still be at its only chunk when the others are done with theirs.
    let lags = |candidate: &Candidate| turns && promise.weight(candidate, speeds) < little;
    let mut scored: Vec<(f64, &Candidate)> = usable
        .iter()
        .map(|&candidate| {
            // Speed as left by the queue, favouring room; chance mixes about equals (§5.3.1: mixed selection).
            let load = 1.0 + f64::from(candidate.queue_length) / if turns { QUEUE_LATER } else { QUEUE_NOW };
            let room = 0.5 + 0.5 * candidate.free_bytes as f64 / roomiest;
            let draw = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let luck = 1.0 + chance * (draw - 0.5);
            // Those of equal merit have equally many chunks in the end, and one half as good has half as many.
            let turn = 1.0 + f64::from(candidate.given);
            (promise.weight(candidate, speeds) / load * room * luck / turn, candidate)
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.device.cmp(&b.1.device)));
    // The n-th best of a node comes after the (n - 1)-th best of every other node.
    let mut by_node: BTreeMap<_, u32> = BTreeMap::new();
    let mut rounds: Vec<(u32, &Candidate)> = scored
        .iter()
        .map(|&(_, candidate)| {
            let turn = by_node.entry(candidate.node).or_default();
            *turn += 1;
            (*turn, candidate)
        })
        .collect();
    rounds.sort_by_key(|&(turn, _)| turn);
    let mut by_site: BTreeMap<(u32, &str), u32> = BTreeMap::new();
    let mut keyed: Vec<((bool, u32, u32), &Candidate)> = rounds
        .into_iter()
        .map(|(turn, candidate)| {
            // Sites as domains take turns over all their devices; otherwise within each round of nodes.
            let round = if domain == Domain::Site { 0 } else { turn };
            let site = by_site.entry((round, candidate.site.as_str())).or_default();
            *site += 1;
            ((lags(candidate), round, *site), candidate)
        })
        .collect();
    keyed.sort_by_key(|&(key, _)| key);
    *usable = keyed.into_iter().map(|(_, candidate)| candidate).collect();
}

/// Puts the best device of each failure domain first, and deals the policy's chunks to the best of those as chance has it:
/// else all data would be read from the faster ones, and all deltas go to the slower. A put deals them anew ([`super::Dealt`]).
fn deal_chunks(usable: &mut Vec<&Candidate>, policy: &Policy, seed: u64) {
    let mut seen = BTreeSet::new();
    let (mut first, rest): (Vec<&Candidate>, Vec<&Candidate>) =
        usable.iter().partition(|candidate| seen.insert(domain_name(policy.domain(), candidate)));
    let mut random = Pcg64Mcg::new(u128::from(seed) << 64 | 0xdea1);
    let chunks = first.len().min(policy.domains() as usize);
    for last in (1..chunks).rev() {
        first.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
    *usable = first.into_iter().chain(rest).collect();
}

fn enough_domains(policy: &Policy, usable: &[&Candidate]) -> Result<(), PlanError> {
    let needed = policy.domains();
    let available = count(count_domains(policy.domain(), usable));
    let domain = plural(policy.domain());
    if available < needed { Err(PlanError::Unmet { domain, needed, available }) } else { Ok(()) }
}

/// What an error calls failure domains.
pub(super) fn plural(domain: Domain) -> &'static str {
    match domain {
        Domain::Device => "devices",
        Domain::Node => "nodes",
        Domain::Site => "sites",
    }
}

pub(super) fn domain_name(domain: Domain, candidate: &Candidate) -> (u128, &str) {
    match domain {
        Domain::Device => (candidate.device.0, ""),
        Domain::Node => (candidate.node.0, ""),
        Domain::Site => (0, &candidate.site),
    }
}

fn count_domains(domain: Domain, usable: &[&Candidate]) -> usize {
    let mut names: Vec<_> = usable.iter().map(|candidate| domain_name(domain, candidate)).collect();
    names.sort_unstable();
    names.dedup();
    names.len()
}

/// The failure domains of the first of these devices, by how many those are.
fn domains_of_first(domain: Domain, usable: &[&Candidate]) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let mut domains = vec![0];
    domains.extend(usable.iter().map(|candidate| {
        seen.insert(domain_name(domain, candidate));
        seen.len()
    }));
    domains
}

/// Numbers the domains in the order they appear; the first `shares.len()` devices are used, the others are spares.
fn number_domains(policy: &Policy, usable: &[&Candidate], shares: &[f64], speeds: &Speeds) -> Plan {
    let domain = policy.domain();
    let mut numbers: BTreeMap<(u128, &str), u32> = BTreeMap::new();
    let mut planned: Vec<Planned> = usable
        .iter()
        .enumerate()
        .map(|(position, candidate)| {
            let next = count(numbers.len());
            Planned {
                device: candidate.device,
                node: candidate.node,
                domain: *numbers.entry(domain_name(domain, candidate)).or_insert(next),
                share: shares.get(position).copied().unwrap_or(0.0),
                write_bytes_per_s: match candidate.write_bytes_per_s {
                    0 => speeds.median as u64,
                    speed => speed,
                },
                reserve_bytes_per_s: 0,
            }
        })
        .collect();
    let spares = planned.split_off(shares.len());
    let stalled = usable[..shares.len()].iter().any(|candidate| candidate.health == DeviceHealth::Stalled);
    Plan { policy: *policy, stalled, devices: planned, spares, domains: count(numbers.len()) }
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}
