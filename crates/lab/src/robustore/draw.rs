//! Which disks an access uses, in which order, and how each of them is. A draw depends on the seed and on the access's number
//! alone, so every scheme and every point of an experiment meets the same disks.

use super::parameters::{Parameters, Variation};
use rand_core::Rng;
use steadfast_disk::model::{Drive, DriveSpec};
use steadfast_protocol::Time;
use steadfast_sim::{
    Medium,
    random::{self, Purpose},
};

/// The disks of one access, in the order in which the layout names them.
#[derive(Clone, Debug)]
pub struct Draw {
    /// All different.
    pub disks: Vec<Disk>,
    /// For the code's graph.
    pub code_seed: u64,
    /// For the world.
    pub seed: u64,
}

/// One disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disk {
    /// Its number among all.
    pub number: u32,
    /// How it is.
    pub spec: DriveSpec,
}

impl Draw {
    /// Access `number` under `seed`; `again`: how often the disks changed since.
    pub fn new(parameters: &Parameters, seed: u64, number: u32, again: u32) -> Self {
        let entity = u64::from(number);
        let mut choice = random::stream(seed, Purpose::Choice, entity);
        let chosen = random::choose(&mut choice, parameters.disks as usize, parameters.disks_of as usize);
        let mut all = random::stream(seed, Purpose::Device, entity << 8 | u64::from(again));
        let seeds: Vec<u64> = (0..parameters.disks_of).map(|_| all.next_u64()).collect();
        let disk = |number: usize| Disk { number: number as u32, spec: spec(parameters, seeds[number]) };
        Self {
            disks: chosen.into_iter().map(disk).collect(),
            code_seed: random::stream(seed, Purpose::Code, entity).next_u64(),
            seed: random::stream(seed, Purpose::Contents, entity).next_u64(),
        }
    }
}

/// One disk, drawn from `seed`.
fn spec(parameters: &Parameters, seed: u64) -> DriveSpec {
    match parameters.variation {
        Variation::Layout => DriveSpec::draw_layout(seed),
        Variation::Load => {
            let [least, most] = parameters.load_interval_ms;
            let mut random = random::stream(seed, Purpose::Device, 0);
            let interval_ms = least + (most - least) * random::unit(&mut random);
            // Milliseconds of an interval fit nanoseconds.
            let background_ns = Some((interval_ms * 1e6) as u64);
            DriveSpec { background_ns, seed, ..DriveSpec::default() }
        }
    }
}

impl Disk {
    /// The disk as it is when the access begins.
    pub fn medium(&self) -> impl Medium + use<> {
        Modelled(self.spec.drive())
    }
}

/// A modelled disk as a medium.
struct Modelled(Drive);

impl Medium for Modelled {
    fn transfer(&mut self, start: Time, offset: u64, bytes: u64, writes: bool) -> Time {
        Time(self.0.transfer(start.0, offset, bytes, writes))
    }
}
