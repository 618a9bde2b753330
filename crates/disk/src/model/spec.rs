//! What a modelled disk is, as text.
//!
//! ```text
//! spec  = MODEL *( ":" field )                              MODEL = "ata7200"
//! field = "bf=" SECTORS | "p=" SHARE | "run=" SECTORS | "background=" TIME | "policy=" ( "fcfs" | "sptf" )
//!       | "dilation=" TIMES | "seed=" NUMBER
//! ```
//!
//! `bf` is the blocking factor, 8 to 1024 sectors, and `p` the probability of sequential access, 0 to 1 (§6.2.6);
//! `run` ends what is sequential after so many sectors, 8 to 2^31; `background` is the mean time between the requests
//! of others, without it there are none. `ata7200` alone is the disk at its best: 1024 sectors, sequential. `TIME` is
//! a number with ns, us, ms or s. `dilation` is for machines too slow to carry as many disks as an experiment has: all
//! that the disk does takes so many times as long, 1 to 1000.

use std::{fmt, str::FromStr};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::{
    background::{Background, Load},
    drive::{Drive, Policy},
    measure::BLOCKING_FACTORS,
    mechanics::Mechanics,
    mix,
    placement::{Layout, Placement},
    scale,
};

/// Disks that are modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriveModel {
    /// [`super::ATA_7200`].
    #[default]
    Ata7200,
}

/// A modelled disk; [`DriveSpec::drive`] makes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DriveSpec {
    /// Which disk.
    pub model: DriveModel,
    /// Sectors of a request, [`BLOCKING_FACTORS`]' first to last.
    pub blocking_factor: u32,
    /// Probability that a request follows the one before, 0 to 1.
    pub sequential: f64,
    /// Sectors after which a sequence ends in any case, at least 8; `None`: where probability ends it.
    pub run_sectors: Option<u32>,
    /// Mean time between requests of others in nanoseconds, [`INTERVAL_NS`]; `None`: there are none.
    pub background_ns: Option<u64>,
    /// Order of service.
    pub policy: Policy,
    /// How many times as long as the model's everything takes, [`DILATION`].
    pub dilation: u32,
    /// Seed of the layout's and the background's places and times.
    pub seed: u64,
}

/// Limits of the background's interval: below a request's own time at a tenth of the rotation nothing is left.
pub const INTERVAL_NS: std::ops::RangeInclusive<u64> = 1_000_000..=3_600_000_000_000;

/// Limits of the dilation: more would let nanoseconds of a long run leave their type.
pub const DILATION: std::ops::RangeInclusive<u32> = 1..=1000;

/// The interval of the competitive loads, 6 to 200 ms (§6.2.6).
pub const DRAWN_INTERVAL_NS: std::ops::RangeInclusive<u64> = 6_000_000..=200_000_000;

/// What a transfer keeps at the disk by shortest positioning time first: 24 KiB, six requests at a blocking factor
/// of 8, three at 16, one from 32 on. Fitted to Table 6-1, where random requests of 8 and 16 sectors take 7.9
/// and 10.8 ms, less than the 12.7 ms of a random place (see [`crate::model::measure`]).
pub const OUTSTANDING_SECTORS: u32 = 48;

/// A text or a value that describes no modelled disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad drive at `{field}`: {reason}; example: ata7200:bf=64:p=0:background=20ms")]
pub struct DriveSpecError {
    /// The field that was not understood.
    pub field: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Default for DriveSpec {
    fn default() -> DriveSpec {
        DriveSpec {
            model: DriveModel::Ata7200,
            blocking_factor: 1024,
            sequential: 1.0,
            run_sectors: None,
            background_ns: None,
            policy: Policy::Fcfs,
            dilation: 1,
            seed: 0,
        }
    }
}

impl DriveSpec {
    /// A random in-disk layout as §6.2.6 draws it: a blocking factor of 8, 16, ... 1024 and a probability of
    /// sequential access of 0 or 1, each as likely as the others; no background.
    pub fn draw_layout(seed: u64) -> DriveSpec {
        let mut random = Pcg64::seed_from_u64(mix(seed, LAYOUT_DRAW));
        let factor = scale(random.next_u64(), BLOCKING_FACTORS.len() as u64);
        DriveSpec {
            blocking_factor: BLOCKING_FACTORS[factor as usize],
            sequential: scale(random.next_u64(), 2) as f64,
            policy: Policy::Sptf,
            seed: random.next_u64(),
            ..DriveSpec::default()
        }
    }

    /// A random competitive load as §6.2.6 draws it: requests of others about every 6 to 200 ms, evenly; the
    /// layout is the best.
    pub fn draw_background(seed: u64) -> DriveSpec {
        let mut random = Pcg64::seed_from_u64(mix(seed, BACKGROUND_DRAW));
        let (least, most) = DRAWN_INTERVAL_NS.into_inner();
        DriveSpec {
            background_ns: Some(least + scale(random.next_u64(), most - least + 1)),
            seed: random.next_u64(),
            ..DriveSpec::default()
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The first that is out of its range, with the range.
    pub fn check(&self) -> Result<(), DriveSpecError> {
        let fail = |field: &str, reason| Err(DriveSpecError { field: field.to_owned(), reason });
        if !(8..=1024).contains(&self.blocking_factor) {
            return fail("bf", "a blocking factor is 8 to 1024 sectors");
        }
        if !(0.0..=1.0).contains(&self.sequential) {
            return fail("p", "a probability is 0 to 1");
        }
        if self.run_sectors.is_some_and(|sectors| !(8..=1 << 31).contains(&sectors)) {
            return fail("run", "a run is 8 to 2147483648 sectors");
        }
        if self.background_ns.is_some_and(|interval| !INTERVAL_NS.contains(&interval)) {
            return fail("background", "an interval is 1ms to 3600s");
        }
        if !DILATION.contains(&self.dilation) {
            return fail("dilation", "a dilation is 1 to 1000");
        }
        Ok(())
    }

    /// The disk, at rest at time 0. Values out of range count as the nearest in it.
    pub fn drive(&self) -> Drive {
        let mechanics = match self.model {
            DriveModel::Ata7200 => Mechanics::ata_7200(),
        };
        let disk = mechanics.geometry().clone();
        let layout =
            Layout::new(self.blocking_factor.clamp(8, 1024), self.sequential, mix(self.seed, LAYOUT));
        let layout = Layout { run_sectors: self.run_sectors, ..layout };
        let mut drive = Drive::new(mechanics, Placement::new(&layout, &disk))
            .dilated(self.dilation.clamp(*DILATION.start(), *DILATION.end()));
        if self.policy == Policy::Sptf {
            drive = drive.shortest_first(OUTSTANDING_SECTORS);
        }
        if let Some(interval_ns) = self.background_ns {
            let load = Load::every(
                interval_ns.clamp(*INTERVAL_NS.start(), *INTERVAL_NS.end()),
                mix(self.seed, BACKGROUND),
            );
            drive = drive.with_background(Background::new(&load, &disk));
        }
        drive
    }
}

// One random stream for each purpose.
const LAYOUT: u64 = 1;
const BACKGROUND: u64 = 2;
const LAYOUT_DRAW: u64 = 3;
const BACKGROUND_DRAW: u64 = 4;

impl FromStr for DriveSpec {
    type Err = DriveSpecError;

    fn from_str(text: &str) -> Result<DriveSpec, DriveSpecError> {
        let mut fields = text.split(':').map(str::trim);
        let model = fields.next().unwrap_or_default();
        if model != "ata7200" {
            return Err(DriveSpecError { field: model.to_owned(), reason: "the known disk is ata7200" });
        }
        let mut spec = DriveSpec::default();
        for field in fields {
            let fail = |reason| DriveSpecError { field: field.to_owned(), reason };
            match field.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
                Some(("bf", v)) => {
                    spec.blocking_factor = v.parse().map_err(|_| fail("expected a number of sectors"))?;
                }
                Some(("p", v)) => {
                    spec.sequential = v.parse().map_err(|_| fail("expected a number from 0 to 1"))?
                }
                Some(("run", v)) => {
                    spec.run_sectors = Some(v.parse().map_err(|_| fail("expected a number of sectors"))?);
                }
                Some(("background", v)) => {
                    spec.background_ns = Some(crate::media::parse_time_ns(v).map_err(fail)?);
                }
                Some(("policy", "fcfs")) => spec.policy = Policy::Fcfs,
                Some(("policy", "sptf")) => spec.policy = Policy::Sptf,
                Some(("policy", _)) => return Err(fail("the policies are fcfs and sptf")),
                Some(("dilation", v)) => {
                    spec.dilation = v.parse().map_err(|_| fail("expected a whole number of times"))?;
                }
                Some(("seed", v)) => spec.seed = v.parse().map_err(|_| fail("expected a whole number"))?,
                _ => return Err(fail("known are bf=, p=, run=, background=, policy=, dilation=, seed=")),
            }
            spec.check().map_err(|error| fail(error.reason))?;
        }
        Ok(spec)
    }
}

impl fmt::Display for DriveSpec {
    /// Writes the text form; parsing it gives the same spec.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DriveModel::Ata7200 = self.model;
        write!(f, "ata7200:bf={}:p={}", self.blocking_factor, self.sequential)?;
        if let Some(sectors) = self.run_sectors {
            write!(f, ":run={sectors}")?;
        }
        if let Some(ns) = self.background_ns {
            write!(f, ":background={ns}ns")?;
        }
        if self.policy == Policy::Sptf {
            write!(f, ":policy=sptf")?;
        }
        if self.dilation > 1 {
            write!(f, ":dilation={}", self.dilation)?;
        }
        write!(f, ":seed={}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn text_round_trips() {
        let mut specs: Vec<DriveSpec> = (0..20).map(DriveSpec::draw_layout).collect();
        specs.extend((0..20).map(DriveSpec::draw_background));
        specs.push(DriveSpec { sequential: 0.3, policy: Policy::Sptf, ..DriveSpec::draw_background(7) });
        specs.push(DriveSpec { dilation: 4, run_sectors: Some(2048), ..DriveSpec::draw_layout(7) });
        for spec in specs {
            assert_eq!(spec.check(), Ok(()));
            assert_eq!(spec.to_string().parse(), Ok(spec), "{spec}");
        }
        assert_eq!("ata7200".parse(), Ok(DriveSpec::default()));
        let spec: DriveSpec = "ata7200:bf=64:p=0:background=20ms:policy=sptf:seed=9".parse().unwrap();
        assert_eq!((spec.blocking_factor, spec.background_ns, spec.seed), (64, Some(20_000_000), 9));
    }

    #[test]
    fn bad_text_is_refused_with_the_field() {
        for (text, field) in [
            ("", ""),
            ("st31200n", "st31200n"),
            ("ata7200:bf=4", "bf=4"),
            ("ata7200:bf=2048", "bf=2048"),
            ("ata7200:p=1.5:seed=1", "p=1.5"),
            ("ata7200:p=nan", "p=nan"),
            ("ata7200:background=0ms", "background=0ms"),
            ("ata7200:background=6", "background=6"),
            ("ata7200:run=0", "run=0"),
            ("ata7200:policy=scan", "policy=scan"),
            ("ata7200:dilation=0", "dilation=0"),
            ("ata7200:dilation=1001", "dilation=1001"),
            ("ata7200:dilation=1.5", "dilation=1.5"),
            ("ata7200:seed=-1", "seed=-1"),
            ("ata7200:fast", "fast"),
            ("ata7200:", ""),
        ] {
            assert_eq!(text.parse::<DriveSpec>().map_err(|e| e.field), Err(field.to_owned()), "{text}");
        }
    }

    /// A dilated disk does the same in another time: what is asked so many times later is over so many times later.
    #[test]
    fn dilation_stretches_everything() {
        for spec in [DriveSpec::draw_layout(3), DriveSpec::draw_background(4)] {
            let [mut plain, mut slow] = [1, 5].map(|dilation| DriveSpec { dilation, ..spec }.drive());
            let mut now_ns = 0;
            for step in 0..200 {
                let offset = (step % 7) << 22;
                assert_eq!(
                    slow.estimate(5 * now_ns, offset, false),
                    5 * plain.estimate(now_ns, offset, false)
                );
                let over_ns = plain.transfer(now_ns, offset, 1 << 20, step % 3 == 0);
                assert_eq!(slow.transfer(5 * now_ns, offset, 1 << 20, step % 3 == 0), 5 * over_ns);
                now_ns = over_ns + step * 10_000;
            }
            assert_eq!((slow.free_ns(), slow.work()), (5 * plain.free_ns(), plain.work()));
        }
    }

    /// Each of the sixteen layouts is drawn about as often; intervals are even over their range.
    #[test]
    fn draws_are_even() {
        let mut counts = BTreeMap::new();
        for seed in 0..3200 {
            let spec = DriveSpec::draw_layout(seed);
            *counts.entry((spec.blocking_factor, spec.sequential as u64)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 16);
        assert!(counts.values().all(|n| (140..260).contains(n)), "{counts:?}");
        let intervals = (0..1000).filter_map(|seed| DriveSpec::draw_background(seed).background_ns);
        let mean = intervals.map(|ns| ns as f64 / 1e6).sum::<f64>() / 1000.0;
        assert!((mean - 103.0).abs() < 6.0, "{mean}");
    }
}
