//! How the devices of a cluster do, as `status` and `top` show them.

use super::doings::{is_silent, percent};
use serde::Serialize;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};
use steadfast_protocol::{
    DeviceId, NodeId,
    message::{
        BucketRecord, DeviceHealth, DeviceState, DrainPhase, MISSING_SHOWN_MAX, Registry, ReservationCounts,
    },
    policy::{Domain, Policy},
    straggler::{Pace, straggling},
    words::{counted, counted_are},
};

/// All devices of a registry.
pub(super) struct Devices {
    /// In the order of their servers.
    pub(super) devices: Vec<DeviceNow>,
}

/// A device.
#[derive(Debug, Serialize)]
pub(super) struct DeviceNow {
    #[serde(skip)]
    pub(super) id: DeviceId,
    pub(super) device: String,
    /// Its server's address.
    pub(super) server: String,
    /// Whether that was heard of lately.
    pub(super) alive: bool,
    /// `ok`, `full`, `stalled`, `failed`, `unheard` or `dead`.
    #[serde(rename = "health")]
    pub(super) state: &'static str,
    /// Whether it is to leave, and how far that is.
    pub(super) leaving: Option<Leaving>,
    /// How many times slower than the median it is, where that makes it a straggler.
    pub(super) times_slower: Option<f64>,
    pub(super) capacity_bytes: u64,
    pub(super) used_bytes: u64,
    /// Measured while busy; 0 before the first measurement.
    pub(super) read_speed_bytes_per_s: u64,
    pub(super) write_speed_bytes_per_s: u64,
    pub(super) queued_operations: u32,
    pub(super) queued_bytes: u64,
    /// Smoothed time of one read or write; 0 before the first.
    pub(super) service_s: f64,
    pub(super) corrupt_blocks: u64,
    /// Bandwidth kept for accesses, and what became of wishes for it.
    pub(super) reserved_read_bytes_per_s: u64,
    pub(super) reserved_write_bytes_per_s: u64,
    pub(super) reservations: ReservationCounts,
}

/// A device that takes no new data because it is to leave.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Leaving {
    /// Whether its disk is gone, and what it held is made anew from others.
    pub(super) lost: bool,
    /// The share of what it, and those drained with it, held that lies elsewhere; absent where no drain was heard of
    /// since the metadata server started.
    pub(super) moved: Option<f64>,
    /// Nothing of any object is left on it.
    pub(super) empty: bool,
    /// Nobody is moving what lies there.
    pub(super) abandoned: bool,
}

impl Leaving {
    fn of(registry: &Registry, device: DeviceId) -> Option<Self> {
        if registry.state(device) == DeviceState::Active {
            return None;
        }
        let Some(drain) = registry.drain(device) else {
            return Some(Self { lost: false, moved: None, empty: false, abandoned: true });
        };
        let progress = &drain.progress;
        let over = progress.phase == DrainPhase::Over;
        Some(Self {
            lost: progress.lost,
            moved: Some(progress.share()),
            empty: over && progress.stuck == 0,
            abandoned: is_silent(drain) || over && progress.stuck > 0,
        })
    }

    /// At most nine letters.
    fn word(&self) -> String {
        let what = if self.lost { "lost" } else { "drain" };
        match self.moved {
            _ if self.empty => "empty".to_owned(),
            Some(moved) => format!("{what} {}", percent(moved)),
            None => "draining".to_owned(),
        }
    }
}

impl Devices {
    pub(super) fn of(registry: &Registry) -> Self {
        let mut devices = Vec::new();
        let mut paces = Vec::new();
        for node in &registry.nodes {
            for &(id, capacity_bytes) in &node.record.devices {
                let report = node.devices.iter().find(|report| report.device == id);
                let state = match report.map(|report| report.health) {
                    _ if !node.alive => "dead",
                    None => "unheard",
                    Some(DeviceHealth::Ok) => "ok",
                    Some(DeviceHealth::Full) => "full",
                    Some(DeviceHealth::Stalled) => "stalled",
                    Some(DeviceHealth::Failed) => "failed",
                };
                let pace = report.filter(|_| node.alive).map_or_else(Pace::default, |report| Pace {
                    read_bytes_per_s: report.read_bytes_per_s,
                    write_bytes_per_s: report.write_bytes_per_s,
                    service_ns: report.activity.service_ns,
                });
                paces.push(pace);
                devices.push(DeviceNow {
                    id,
                    device: id.to_string(),
                    server: node.record.address.clone(),
                    alive: node.alive,
                    state,
                    leaving: Leaving::of(registry, id),
                    times_slower: None,
                    capacity_bytes,
                    used_bytes: report
                        .map_or(0, |report| report.capacity_bytes.saturating_sub(report.free_bytes)),
                    read_speed_bytes_per_s: pace.read_bytes_per_s,
                    write_speed_bytes_per_s: pace.write_bytes_per_s,
                    queued_operations: report.map_or(0, |report| report.queue_length),
                    queued_bytes: report.map_or(0, |report| report.activity.queued_bytes),
                    service_s: pace.service_ns as f64 / 1e9,
                    corrupt_blocks: report.map_or(0, |report| report.corrupt_blocks),
                    reserved_read_bytes_per_s: report.map_or(0, |report| report.reserved_read_bytes_per_s),
                    reserved_write_bytes_per_s: report.map_or(0, |report| report.reserved_write_bytes_per_s),
                    reservations: report.map_or_else(Default::default, |report| report.activity.reservations),
                });
            }
        }
        for (device, times_slower) in devices.iter_mut().zip(straggling(&paces)) {
            device.times_slower = times_slower;
        }
        Self { devices }
    }

    /// `6 devices: 5 ok, 1 slow`.
    pub(super) fn summary(&self) -> String {
        let mut by_word: BTreeMap<&str, usize> = BTreeMap::new();
        for device in &self.devices {
            let word = match device.leaving {
                Some(leaving) if leaving.lost => "lost",
                Some(_) if device.alive => "draining",
                _ if device.state == "ok" && device.times_slower.is_some() => "slow",
                _ => device.state,
            };
            *by_word.entry(word).or_default() += 1;
        }
        let words: Vec<String> = by_word.iter().map(|(word, number)| format!("{number} {word}")).collect();
        let devices = counted(self.devices.len(), "device");
        if words.is_empty() { devices } else { format!("{devices}: {}", words.join(", ")) }
    }
}

/// What is to be said of devices that no storage server registers any more; nothing where there are none.
pub(super) fn missing(registry: &Registry) -> Option<String> {
    let count = registry.missing.len();
    let (devices, are) = (counted(count, "device"), if count == 1 { "it" } else { "each" });
    let or_more = if count >= MISSING_SHOWN_MAX { " or more" } else { "" };
    (count > 0).then(|| {
        format!(
            "missing: {devices}{or_more} that no storage server registers any more (`steadfast device ls` names {}): start the \
             server with {are} again, or `steadfast device remove --lost` {are}",
            if count == 1 { "it" } else { "them" }
        )
    })
}

/// Buckets of which as many failure domains have a device out of reach as they tolerate, or more; told for a person. Where anything is
/// `degraded` those whose segments may be are judged by what these survive: which domains hold them is not known here.
pub(super) fn at_risk(
    registry: &Registry,
    devices: &Devices,
    buckets: &[BucketRecord],
    degraded: bool,
) -> Vec<String> {
    let lost: BTreeSet<DeviceId> = devices
        .devices
        .iter()
        .filter(|device| !matches!(device.state, "ok" | "full"))
        // One that was drained holds nothing.
        .filter(|device| !device.leaving.is_some_and(|leaving| leaving.empty))
        .map(|device| device.id)
        .collect();
    let is_empty = |device: DeviceId| Leaving::of(registry, device).is_some_and(|leaving| leaving.empty);
    let held =
        || registry.nodes.iter().flat_map(|node| node.record.devices.iter().map(move |&(id, _)| (node, id)));
    let mut lost_nodes: BTreeSet<NodeId> =
        held().filter(|(_, id)| lost.contains(id)).map(|(node, _)| node.record.node).collect();
    // Also one that is being repaired, until that is done.
    let missing = || registry.missing.iter().filter(|(id, _)| !is_empty(*id));
    lost_nodes.extend(missing().map(|&(_, node)| node));
    let of_lost = registry.nodes.iter().filter(|node| lost_nodes.contains(&node.record.node));
    let lost_sites: BTreeSet<&str> = of_lost.map(|node| node.record.site.as_str()).collect();
    let told = |bucket: &BucketRecord| {
        let tolerate = match &bucket.policy {
            Policy::Parity(parity) if degraded => parity.least_chunks().saturating_sub(parity.data()),
            policy => policy.tolerate(),
        };
        let whole = tolerate == bucket.policy.tolerate();
        let tolerates = if whole { "it tolerates" } else { "what is degraded of it may tolerate" };
        let (lost, what) = match bucket.policy.domain() {
            Domain::Device => (lost.len() + missing().count(), "device"),
            Domain::Node => (lost_nodes.len(), "storage server"),
            Domain::Site => (lost_sites.len(), "site"),
        };
        let name = &bucket.name;
        let (all, lost) = (lost, counted_are(lost, what));
        match all.cmp(&(tolerate as usize)) {
            _ if all == 0 => None,
            Ordering::Less => None,
            Ordering::Equal => {
                Some(format!("bucket {name}: {lost} affected, and {tolerates} no further one"))
            }
            Ordering::Greater => Some(format!(
                "bucket {name}: {lost} affected, {tolerates} {tolerate}: objects may be out of reach"
            )),
        }
    };
    buckets.iter().filter_map(told).collect()
}

impl DeviceNow {
    /// Whether it is not well, or about to leave.
    pub(super) fn is_marked(&self) -> bool {
        self.leaving.is_some() || self.times_slower.is_some() || !matches!(self.state, "ok" | "full")
    }

    /// Its state in a word: `drain 43%` or `lost 43%` for one that is to leave, unless it is ill on its way; `slow 12x` for
    /// a straggler that is otherwise well.
    pub(super) fn word(&self) -> String {
        let well = matches!(self.state, "ok" | "full");
        match (self.leaving, self.times_slower) {
            (Some(leaving), _) if well || leaving.lost => leaving.word(),
            (None, Some(ratio)) if self.state == "ok" => format!("slow {:.0}x", ratio.min(999.0)),
            _ => self.state.to_owned(),
        }
    }
}

/// A span of seconds in few letters.
pub(super) fn show_time(seconds: f64) -> String {
    match seconds {
        0.0 => "-".to_owned(),
        s if s < 0.001 => format!("{:.0} us", s * 1e6),
        s if s < 0.1 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_protocol::{
        Time,
        message::{DrainProgress, DrainState, Standing},
    };

    #[test]
    fn an_empty_cluster_has_no_states_to_list() {
        assert_eq!(Devices::of(&Registry::default()).summary(), "0 devices");
    }

    #[test]
    fn a_missing_device_is_a_risk_until_what_it_held_lies_elsewhere() {
        let (device, node) = (DeviceId(1), NodeId(2));
        let policy = "rateless:redundancy=0.5,tolerate=1,domain=device".parse().unwrap();
        let bucket = BucketRecord { name: "photos".to_owned(), policy, created: Time(0) };
        let mut registry = Registry { missing: vec![(device, node)], ..Registry::default() };
        let buckets = [bucket];
        let told = |registry: &Registry| at_risk(registry, &Devices::of(registry), &buckets, false);
        let risk = ["bucket photos: 1 device is affected, and it tolerates no further one"];
        assert_eq!(told(&registry), risk);
        // `device remove --lost` has it draining: nothing is repaired by that.
        registry.standings.push(Standing { device, arrivals: 0 });
        assert_eq!(told(&registry), risk);
        let progress = DrainProgress { devices: vec![device], lost: true, ..DrainProgress::default() };
        registry.drains.push(DrainState { progress, silent_ms: 0 });
        assert_eq!(told(&registry), risk);
        registry.drains[0].progress.phase = DrainPhase::Over;
        assert!(told(&registry).is_empty());
        registry.drains[0].progress.stuck = 1;
        assert_eq!(told(&registry), risk);
    }

    #[test]
    fn what_is_degraded_is_at_risk_before_what_is_whole() {
        let bucket = |name: &str, policy: &str| BucketRecord {
            name: name.to_owned(),
            policy: policy.parse().unwrap(),
            created: Time(0),
        };
        let buckets =
            [bucket("files", "parity:code=rs(6,4),least=5,domain=device"), bucket("photos", "rateless")];
        let told = |lost: u128, degraded: bool| {
            let missing = (0..lost).map(|device| (DeviceId(device), NodeId(1))).collect();
            let registry = Registry { missing, ..Registry::default() };
            at_risk(&registry, &Devices::of(&registry), &buckets, degraded)
        };
        assert!(told(1, false).is_empty());
        assert_eq!(
            told(1, true),
            ["bucket files: 1 device is affected, and what is degraded of it may tolerate no further one"]
        );
        let risks = told(2, true);
        assert!(
            risks.len() == 1 && risks[0].ends_with("may tolerate 1: objects may be out of reach"),
            "{risks:?}"
        );
        assert_eq!(told(2, false), ["bucket files: 2 devices are affected, and it tolerates no further one"]);
    }
}
