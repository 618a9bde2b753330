//! The layout planner: how many devices an access uses, and which (dissertation §5.3.1).
//!
//! - *How many*: no fewer than the wanted bandwidth divided by the average device's; with no wish, every usable
//!   device up to [`DEVICES_DEFAULT_MAX`]; never so many that a device expects fewer than [`BLOCKS_PER_DEVICE_MIN`]
//!   blocks, unless failure domains ask for them.
//! - *Which*: alive, healthy, with room; then lightly loaded, with larger free space, measured fast, taken in turn from
//!   every failure domain and site; a little chance mixes them, so that not every object lands on the same ones.
//!
//! Also [`segments`]: how an object is cut, and [`feasible`]: whether a cluster can meet a policy at all.
//!
//! Left out: admission (each node decides for itself) and the availability history of a device (not measured yet).

mod choose;
mod segment;
#[cfg(test)]
mod tests;

pub use choose::{candidates, choose, feasible};
pub use segment::{SegmentPlan, segments};

use crate::{DeviceId, NodeId, message::DeviceHealth, policy::Policy, write::Target};

/// Devices an object is spread over when neither the policy nor the caller asks for a number. 64 is the
/// dissertation's: enough devices of 20 MB/s to fill a link of 10 Gb/s (§5.3.1).
pub const DEVICES_DEFAULT_MAX: u32 = 64;
/// Blocks a device should expect at least: below this, opening it costs more than it brings. Picked by eye.
pub const BLOCKS_PER_DEVICE_MIN: u32 = 4;

/// A device that could be chosen, as last heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The device.
    pub device: DeviceId,
    /// The node that serves it.
    pub node: NodeId,
    /// Its node's site.
    pub site: String,
    /// Bytes free.
    pub free_bytes: u64,
    /// Requests waiting in its queue.
    pub queue_length: u32,
    /// Measured reading speed in bytes per second; 0 before the first measurement.
    pub read_bytes_per_s: u64,
    /// Measured writing speed in bytes per second; 0 before the first measurement.
    pub write_bytes_per_s: u64,
    /// Whether its node was heard of lately.
    pub alive: bool,
    /// How it is.
    pub health: DeviceHealth,
}

/// What is to be stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// The bucket's policy.
    pub policy: Policy,
    /// Bytes to store with this choice of devices: a segment or a whole object.
    pub length: u64,
    /// Wanted bandwidth in payload bytes per second; none for as much as the devices give.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Mixes devices of about equal merit.
    pub seed: u64,
}

/// Which devices to use, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The devices to write to.
    pub devices: Vec<Planned>,
    /// Devices to turn to when one of those fails, in this order.
    pub spares: Vec<Planned>,
    /// Failure domains over both; they are numbered from 0.
    pub domains: u32,
}

/// A device of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The device.
    pub device: DeviceId,
    /// The node that serves it.
    pub node: NodeId,
    /// Its failure domain, below [`Plan::domains`].
    pub domain: u32,
    /// The share of all blocks it is expected to take, by measured speed; the devices' add up to 1, a spare's is 0.
    pub share: f64,
    /// Measured writing speed in bytes per second, the median of the others where it was not measured; 0 where none
    /// was.
    pub write_bytes_per_s: u64,
}

impl Plan {
    /// The devices and the spares as a write core takes them.
    pub fn targets(&self) -> (Vec<Target>, Vec<Target>) {
        let targets = |planned: &[Planned]| {
            let target = |planned: &Planned| Target {
                device: planned.device,
                domain: planned.domain,
                write_bytes_per_s: planned.write_bytes_per_s,
            };
            planned.iter().map(target).collect()
        };
        (targets(&self.devices), targets(&self.spares))
    }
}

/// How a segment is written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Coded blocks, N floats.
    Rateless,
    /// RAID-0.
    Striped,
    /// Copies of one block.
    Replicated,
}

/// Why no plan can be made. The numbers say what is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too few failure domains or devices.
    #[error(
        "the policy needs {needed} {domain} that can take data, {available} can: {} missing",
        needed.saturating_sub(*available)
    )]
    Unmet {
        /// `nodes`, `devices` or `sites`.
        domain: &'static str,
        /// How many the policy needs.
        needed: u32,
        /// How many there are.
        available: u32,
    },
    /// Too little room.
    #[error(
        "{needed_bytes} bytes with redundancy do not fit: {free_bytes} bytes are free on the devices that can take data; \
         delete objects or add devices"
    )]
    Space {
        /// Bytes that would be stored, redundancy included.
        needed_bytes: u64,
        /// Bytes free on devices that are alive and well.
        free_bytes: u64,
    },
}
