//! Which disks an access uses, in which order, and how each of them is. A draw depends on the seed and on the access's number
//! alone, so every scheme and every point of an experiment meets the same disks.

use super::parameters::{Parameters, Slowest, Variation};
use rand_core::Rng;
use steadfast_disk::model::{Drive, DriveSpec};
use steadfast_protocol::{DeviceId, Time};
use steadfast_sim::{
    Medium,
    random::{self, Purpose},
};

/// The disks of one access, in the order in which the layout names them.
#[derive(Clone, Debug)]
pub struct Draw {
    /// All different.
    pub disks: Vec<Disk>,
    /// Which object of its sequence it reads; 0 where it has its own.
    pub object: u32,
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
        Self::of(parameters, seed, number.into(), number / parameters.sequence, again)
    }

    /// Access `number` of those that come before the ones that count in a sequence.
    pub fn before(parameters: &Parameters, seed: u64, sequence: u32, number: u32) -> Self {
        // Beyond the numbers of accesses that count.
        let access = 1 << 48 | u64::from(sequence) << 16 | u64::from(number);
        Self::of(parameters, seed, access, sequence, 0)
    }

    fn of(parameters: &Parameters, seed: u64, access: u64, sequence: u32, again: u32) -> Self {
        // The disks' state is the access's; what is read, and where it lies, is the object's.
        let object = (parameters.objects > 0).then(|| {
            let mut choice = random::stream(seed, Purpose::Choice, 1 << 50 | access);
            random::below(&mut choice, parameters.objects.into()) as u32
        });
        let entity = object.map_or(access, |object| 1 << 49 | u64::from(sequence) << 16 | u64::from(object));
        let mut choice = random::stream(seed, Purpose::Choice, entity);
        let chosen = random::choose(&mut choice, parameters.disks as usize, parameters.disks_of as usize);
        let mut all = random::stream(seed, Purpose::Device, access << 8 | u64::from(again));
        let seeds: Vec<u64> = (0..parameters.disks_of).map(|_| all.next_u64()).collect();
        let disk = |(place, number): (usize, usize)| {
            let spec = spec(parameters, seeds[number], place == 0);
            Disk { number: number as u32, spec }
        };
        Self {
            disks: chosen.into_iter().enumerate().map(disk).collect(),
            object: object.unwrap_or(0),
            code_seed: random::stream(seed, Purpose::Code, entity).next_u64(),
            seed: random::stream(seed, Purpose::Contents, entity).next_u64(),
        }
    }
}

/// One disk, drawn from `seed`; `first` of an access or not.
fn spec(parameters: &Parameters, seed: u64, first: bool) -> DriveSpec {
    let spec = match parameters.variation {
        Variation::Layout => layout(parameters.slowest, seed, first),
        Variation::Load => {
            let [least, most] = parameters.load_interval_ms;
            let mut random = random::stream(seed, Purpose::Device, 0);
            let interval_ms = least + (most - least) * random::unit(&mut random);
            // Milliseconds of an interval fit nanoseconds.
            let background_ns = Some((interval_ms * 1e6) as u64);
            DriveSpec { background_ns, seed, ..DriveSpec::default() }
        }
    };
    // Two sectors a KiB.
    let run_sectors = (parameters.run_kib > 0).then_some(2 * parameters.run_kib);
    DriveSpec { dilation: parameters.dilation, run_sectors, ..spec }
}

fn layout(slowest: Slowest, seed: u64, first: bool) -> DriveSpec {
    let is_slowest = |spec: &DriveSpec| spec.blocking_factor == 8 && spec.sequential == 0.0;
    let drawn = DriveSpec::draw_layout(seed);
    match slowest {
        Slowest::Never if is_slowest(&drawn) => {
            let mut seeds = random::stream(seed, Purpose::Device, 1);
            let mut again = std::iter::repeat_with(|| DriveSpec::draw_layout(seeds.next_u64()));
            again.find(|spec| !is_slowest(spec)).expect("fifteen in sixteen are of another kind")
        }
        Slowest::Always if first => DriveSpec { blocking_factor: 8, sequential: 0.0, ..drawn },
        Slowest::Drawn | Slowest::Never | Slowest::Always => drawn,
    }
}

impl Disk {
    /// Its name in a world.
    pub fn device(&self) -> DeviceId {
        DeviceId(self.number.into())
    }

    /// Bytes per second that it is seen to read: of 16 MiB, or what it reads of it in a second.
    pub fn read_bytes_per_s(&self) -> u64 {
        let (mut medium, mut now, mut bytes) = (self.medium(), Time(0), 0);
        while bytes < 16 << 20 && now < Time(1_000_000_000) {
            now = medium.transfer(now, bytes, 1 << 20, false);
            bytes += 1 << 20;
        }
        (bytes as f64 / now.since(Time(0)).as_secs_f64()) as u64
    }

    /// The disk as it is when the access begins, at time 0.
    pub fn medium(&self) -> impl Medium + use<> {
        self.medium_at(Time(0))
    }

    /// The disk as it is when the access begins, at `at`.
    pub fn medium_at(&self, at: Time) -> impl Medium + use<> {
        Modelled { drive: self.spec.drive(), begin: at }
    }
}

/// A modelled disk as a medium.
struct Modelled {
    drive: Drive,
    /// The drive's own time begins here.
    begin: Time,
}

impl Medium for Modelled {
    fn transfer(&mut self, start: Time, offset: u64, bytes: u64, writes: bool) -> Time {
        let own = start.since(self.begin).as_nanos() as u64;
        Time(self.begin.0 + self.drive.transfer(own, offset, bytes, writes))
    }

    fn requests(&self) -> u64 {
        let work = self.drive.work();
        work.foreground_requests + work.background_requests
    }
}

#[cfg(test)]
mod tests {
    use super::{super::parameters, *};

    /// The first `disks=64` access of a seed, with something changed.
    fn drawn(seed: u64, change: impl Fn(&mut Parameters)) -> Draw {
        let experiment = parameters::find("robustore/slowest").unwrap().unwrap();
        let mut parameters = experiment.points[0].1.clone();
        change(&mut parameters);
        parameters.check().unwrap();
        Draw::new(&parameters, seed, 0, 0)
    }

    #[test]
    fn the_slowest_kind_is_there_as_it_is_asked_for_and_nothing_else_changes() {
        let slowest = |disk: &Disk| disk.spec.blocking_factor == 8 && disk.spec.sequential == 0.0;
        let mut replaced = 0;
        for seed in 0..50 {
            let [plain, never, always] = [Slowest::Drawn, Slowest::Never, Slowest::Always]
                .map(|slowest| drawn(seed, |parameters| parameters.slowest = slowest).disks);
            assert!(!never.iter().any(slowest));
            assert!(slowest(&always[0]));
            assert_eq!(always[1..], plain[1..]);
            for (own, other) in plain.iter().zip(&never) {
                assert!(slowest(own) || own == other);
                replaced += u32::from(slowest(own));
            }
        }
        // 3200 disks, one in sixteen.
        assert!((140..260).contains(&replaced), "{replaced}");
    }

    #[test]
    fn runs_and_dilation_reach_every_disk_and_known_speeds_are_those_of_the_disk() {
        let plain = drawn(1, |_| ()).disks;
        let changed = drawn(1, |parameters| (parameters.run_kib, parameters.dilation) = (1024, 4)).disks;
        for (plain, changed) in plain.iter().zip(&changed) {
            assert_eq!(changed.spec, DriveSpec { run_sectors: Some(2048), dilation: 4, ..plain.spec });
            let slowed = Disk { spec: DriveSpec { dilation: 4, ..plain.spec }, ..*plain };
            let (fast, slow) = (plain.read_bytes_per_s() as f64, slowed.read_bytes_per_s() as f64);
            // The slower one is watched over fewer of its bytes.
            assert!((0.3e6..60e6).contains(&fast) && (3.2..5.0).contains(&(fast / slow)), "{fast} {slow}");
        }
    }
}
