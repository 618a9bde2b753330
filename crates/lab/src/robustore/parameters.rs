//! What an experiment varies and what it keeps, read from its file; and the figures of the paper beside it.

use super::settings::Draws;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The files of all experiments, by name.
const FILES: [(&str, &str); 22] = [
    ("robustore/disks", include_str!("parameters/disks.toml")),
    ("robustore/blocksize", include_str!("parameters/blocksize.toml")),
    ("robustore/latency", include_str!("parameters/latency.toml")),
    ("robustore/latency-small", include_str!("parameters/latency-small.toml")),
    ("robustore/latency-seen", include_str!("parameters/latency-seen.toml")),
    ("robustore/redundancy-read", include_str!("parameters/redundancy-read.toml")),
    ("robustore/redundancy-write", include_str!("parameters/redundancy-write.toml")),
    ("robustore/redundancy-unbalanced", include_str!("parameters/redundancy-unbalanced.toml")),
    ("robustore/competing-homogeneous", include_str!("parameters/competing-homogeneous.toml")),
    ("robustore/competing-read", include_str!("parameters/competing-read.toml")),
    ("robustore/competing-write", include_str!("parameters/competing-write.toml")),
    ("robustore/competing-unbalanced", include_str!("parameters/competing-unbalanced.toml")),
    ("robustore/cache", include_str!("parameters/cache.toml")),
    ("robustore/many-clients", include_str!("parameters/many-clients.toml")),
    ("robustore/competing-scattered", include_str!("parameters/competing-scattered.toml")),
    ("robustore/parts", include_str!("parameters/parts.toml")),
    ("robustore/parts-far", include_str!("parameters/parts-far.toml")),
    ("robustore/parts-far-large", include_str!("parameters/parts-far-large.toml")),
    ("robustore/scattered", include_str!("parameters/scattered.toml")),
    ("robustore/write-scattered", include_str!("parameters/write-scattered.toml")),
    ("robustore/slowest", include_str!("parameters/slowest.toml")),
    ("robustore/real-64", include_str!("parameters/real-64.toml")),
];
const BASELINE: &str = include_str!("parameters/baseline.toml");

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// It reads what lies evenly on all disks.
    Read,
    /// It writes.
    Write,
    /// It reads what an earlier write placed, when the disks have been drawn anew.
    Reread,
}

/// What makes disks unequal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variation {
    /// Where data lies on them (§6.3.1).
    Layout,
    /// What else they have to do, drawn for each (§6.3.2); they have the best of layouts.
    Load,
}

/// Whether the slowest kind of disk (Table 6-1: eight sectors a request, none sequential) is among those of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slowest {
    /// As it is drawn: one disk in sixteen.
    Drawn,
    /// It never is: such a disk is drawn again.
    Never,
    /// It always is: the first disk of the access is one.
    Always,
}

impl Slowest {
    fn name(self) -> &'static str {
        match self {
            Slowest::Drawn => "drawn",
            Slowest::Never => "never",
            Slowest::Always => "always",
        }
    }
}

/// One point of an experiment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Accesses of each scheme.
    pub accesses: u32,
    /// The same of a quick run.
    pub quick_accesses: u32,
    /// What they do.
    pub access: Access,
    /// H: disks that an access uses.
    pub disks: u32,
    /// Disks there are.
    pub disks_of: u32,
    /// Disks of one storage server.
    pub disks_per_node: u32,
    /// MiB of an object.
    pub object_mib: u32,
    /// KiB of a block.
    pub block_kib: u32,
    /// KiB of a block in our own scheme; 0 is the same as in the others.
    pub our_block_kib: u32,
    /// KiB that a message carries at most.
    pub payload_kib: u32,
    /// Whether the last block of one disk is asked for from a second one too, where replicas are read adaptively.
    pub races: bool,
    /// D.
    pub redundancy: f64,
    /// f.
    pub tolerate: u32,
    /// Milliseconds.
    pub round_trip_ms: f64,
    /// Milliseconds before an access reaches its disks.
    pub opening_ms: f64,
    /// MB/s at which the last block is decoded.
    pub decode_mb_per_s: f64,
    /// What makes disks unequal.
    pub variation: Variation,
    /// Whether the slowest kind is among them, where layouts make them unequal.
    pub slowest: Slowest,
    /// KiB of an object that lie together on a disk at most; 0: all of a disk's part does, where the disk is sequential.
    pub run_kib: u32,
    /// Whether the disks' servers have seen how fast they are, and clients have heard of it, when the access begins.
    pub seen: bool,
    /// Milliseconds between background requests, at least and at most.
    pub load_interval_ms: [f64; 2],
    /// Accesses that follow one another in one world.
    pub sequence: u32,
    /// Accesses of such a sequence before those that count.
    pub warm_accesses: u32,
    /// Objects that its accesses choose from; 0: each access has its own.
    pub objects: u32,
    /// MiB of each storage server's cache; 0: none.
    pub cache_mib: u32,
    /// MB/s at which it gives what it has.
    pub cache_mb_per_s: f64,
    /// Clients that read at once.
    pub clients: u32,
    /// How many times as long as the model's everything takes at a disk.
    pub dilation: u32,
}

/// An experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// The figures of the dissertation that it makes.
    pub figures: String,
    /// What it shows.
    pub shows: String,
    /// The parameter that varies.
    pub varies: String,
    /// Each point: its name and its parameters.
    pub points: Vec<(String, Parameters)>,
    /// The paper's figures: case, metric, value.
    paper: BTreeMap<String, BTreeMap<String, f64>>,
    /// Axes that are logarithmic: `x`, and metrics.
    pub log: Vec<String>,
    /// Where and why we differ from the paper, by metric; `all` is of the whole.
    pub notes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    figures: String,
    shows: String,
    varies: String,
    values: Vec<toml::Value>,
    #[serde(default)]
    baseline: toml::Table,
    #[serde(default)]
    paper: BTreeMap<String, BTreeMap<String, f64>>,
    #[serde(default)]
    log: Vec<String>,
    #[serde(default)]
    notes: BTreeMap<String, String>,
}

/// All experiments: name, and what each shows.
pub fn list() -> impl Iterator<Item = (&'static str, String)> {
    FILES.iter().map(|(name, text)| {
        let file = parse(name, text).expect("the program's own files are good: a test reads them all");
        (*name, super::settings::line(&file.shows, &file.figures))
    })
}

/// The experiment of that name; none of another.
///
/// # Errors
/// When its file says something impossible.
pub fn find(name: &str) -> Option<Result<Experiment>> {
    let (name, text) = FILES.iter().find(|(known, _)| *known == name)?;
    Some(parse(name, text))
}

fn parse(name: &'static str, text: &str) -> Result<Experiment> {
    let file: File = toml::from_str(text).with_context(|| format!("the parameters of {name}"))?;
    let baseline: toml::Table = toml::from_str(BASELINE).context("the baseline's parameters")?;
    ensure!(!file.values.is_empty(), "{name}: `values` is empty: name at least one");
    let mut points = Vec::new();
    for value in &file.values {
        let mut table = baseline.clone();
        table.extend(file.baseline.clone());
        let Some(kept) = table.get(&file.varies) else {
            bail!("{name}: `varies` names `{}`, which is no parameter", file.varies);
        };
        let value = match (kept, value) {
            // Whole numbers are written without a point.
            (toml::Value::Float(_), toml::Value::Integer(whole)) => toml::Value::Float(*whole as f64),
            _ => value.clone(),
        };
        table.insert(file.varies.clone(), value);
        let parameters: Parameters = table.try_into().with_context(|| format!("the parameters of {name}"))?;
        parameters.check().with_context(|| name.to_owned())?;
        let label = match &label_of(&parameters, &file.varies) {
            Some(value) => format!("{}={value}", file.varies),
            None => file.varies.clone(),
        };
        points.push((label, parameters));
    }
    let File { figures, shows, varies, paper, log, notes, .. } = file;
    Ok(Experiment { name, figures, shows, varies, points, paper, log, notes })
}

fn label_of(parameters: &Parameters, name: &str) -> Option<String> {
    Some(match name {
        "disks" => parameters.disks.to_string(),
        "object_mib" => parameters.object_mib.to_string(),
        "block_kib" => parameters.block_kib.to_string(),
        "redundancy" => parameters.redundancy.to_string(),
        "round_trip_ms" => parameters.round_trip_ms.to_string(),
        "load_interval_ms" => parameters.load_interval_ms[0].to_string(),
        "cache_mib" => parameters.cache_mib.to_string(),
        "clients" => parameters.clients.to_string(),
        "slowest" => parameters.slowest.name().to_owned(),
        "run_kib" => parameters.run_kib.to_string(),
        "races" => parameters.races.to_string(),
        "seen" => parameters.seen.to_string(),
        _ => return None,
    })
}

impl Parameters {
    /// # Errors
    /// Names the value that is out of its range.
    pub fn check(&self) -> Result<()> {
        let within = |name: &str, value: f64, low: f64, high: f64| {
            ensure!((low..=high).contains(&value), "`{name}` is {value}: it can be {low} to {high}");
            Ok(())
        };
        within("accesses", self.accesses.into(), 1.0, 1e6)?;
        within("quick_accesses", self.quick_accesses.into(), 1.0, 1e6)?;
        within("disks_of", self.disks_of.into(), 1.0, 10_000.0)?;
        within("disks", self.disks.into(), 1.0, self.disks_of.into())?;
        within("disks_per_node", self.disks_per_node.into(), 1.0, self.disks_of.into())?;
        within("object_mib", self.object_mib.into(), 1.0, 1024.0)?;
        within("block_kib", self.block_kib.into(), 64.0, f64::from(self.object_mib) * 1024.0)?;
        if self.our_block_kib > 0 {
            within("our_block_kib", self.our_block_kib.into(), 64.0, self.block_kib.into())?;
        }
        within("payload_kib", self.payload_kib.into(), 64.0, 65_536.0)?;
        within("redundancy", self.redundancy, 0.0, 15.0)?;
        within("tolerate", self.tolerate.into(), 0.0, f64::from(self.disks - 1))?;
        within("round_trip_ms", self.round_trip_ms, 0.0, 10_000.0)?;
        within("opening_ms", self.opening_ms, 0.0, 10_000.0)?;
        within("decode_mb_per_s", self.decode_mb_per_s, 1.0, 1e6)?;
        within("load_interval_ms", self.load_interval_ms[0], 1.0, self.load_interval_ms[1])?;
        within("load_interval_ms", self.load_interval_ms[1], self.load_interval_ms[0], 1e6)?;
        within("sequence", self.sequence.into(), 1.0, 1000.0)?;
        within("warm_accesses", self.warm_accesses.into(), 0.0, 1000.0)?;
        within("objects", self.objects.into(), 0.0, 1000.0)?;
        within("cache_mib", self.cache_mib.into(), 0.0, 65_536.0)?;
        within("cache_mb_per_s", self.cache_mb_per_s, 1.0, 1e6)?;
        within("clients", self.clients.into(), 1.0, 1000.0)?;
        within("run_kib", self.run_kib.into(), 0.0, f64::from(1 << 20))?;
        within("dilation", self.dilation.into(), 1.0, 1000.0)?;
        ensure!(
            self.sequence == 1 || self.access == Access::Read && self.objects > 0,
            "`sequence` is {}: accesses follow one another only where they read, and `objects` says how many there are",
            self.sequence
        );
        ensure!(
            self.slowest == Slowest::Drawn || self.variation == Variation::Layout,
            "`slowest` is {}: disks are of kinds only where `variation` is layout",
            self.slowest.name()
        );
        ensure!(
            !self.seen || self.access != Access::Write && self.sequence == 1 && self.clients == 1,
            "`seen` is true: speeds are known only to a single read in a world of its own"
        );
        ensure!(
            u64::from(self.object_mib) * 1024 % u64::from(self.block_kib) == 0,
            "`block_kib` is {}: {} MiB are not a whole number of such blocks",
            self.block_kib,
            self.object_mib
        );
        Ok(())
    }

    /// Accesses of each scheme.
    pub fn draws(&self) -> Draws {
        Draws { usual: self.accesses, quick: self.quick_accesses }
    }

    /// Bytes of an object.
    pub fn object_bytes(&self) -> u64 {
        u64::from(self.object_mib) << 20
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.block_kib << 10
    }

    /// Bytes that a message carries at most.
    pub fn payload_bytes_max(&self) -> u32 {
        self.payload_kib << 10
    }

    /// K.
    pub fn originals(&self) -> u32 {
        u32::try_from(self.object_bytes() / u64::from(self.block_bytes())).expect("at most 2^14")
    }
}

impl Experiment {
    /// The paper's figure, where it gives one.
    pub fn paper(&self, case: &str, metric: &str) -> Option<f64> {
        self.paper.get(case)?.get(metric).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_the_papers_cases_are_cases() {
        for (name, _) in FILES {
            let experiment = find(name).unwrap().unwrap();
            assert!(!experiment.points.is_empty());
            for case in experiment.paper.keys() {
                let (point, scheme) = case.split_once(" scheme=").expect("a case names its scheme");
                assert!(experiment.points.iter().any(|(label, _)| label == point), "{name}: {case}");
                assert!(
                    super::super::scheme::SCHEMES.iter().any(|known| known.name() == scheme),
                    "{name}: {case}"
                );
            }
        }
    }

    #[test]
    fn impossible_values_are_named_with_what_is_possible() {
        let parse = |text: &str| format!("{:#}", parse("x", text).unwrap_err());
        let good = "figures = \"\"\nshows = \"\"\n";
        let says = |text: &str, words: &str| {
            let error = parse(&format!("{good}{text}"));
            assert!(error.contains(words), "{error}");
        };
        says("varies = \"disks\"\nvalues = [0]", "`disks` is 0: it can be 1 to 128");
        says("varies = \"disks\"\nvalues = [200]", "`disks` is 200: it can be 1 to 128");
        says("varies = \"disk\"\nvalues = [2]", "`varies` names `disk`, which is no parameter");
        says("varies = \"disks\"\nvalues = []", "`values` is empty");
        says("varies = \"disks\"\nvalues = [2]\nvalue = 3", "unknown field `value`");
        says("varies = \"disks\"\nvalues = [2]\n[baseline]\nspeed = 3", "unknown field `speed`");
        says("varies = \"block_kib\"\nvalues = [768]", "not a whole number of such blocks");
        says("varies = \"sequence\"\nvalues = [2]", "`objects` says how many there are");
        says("varies = \"cache_mib\"\nvalues = [-1]", "invalid value: integer `-1`");
        says("varies = \"access\"\nvalues = [\"delete\"]", "delete");
        says("varies = \"slowest\"\nvalues = [\"sometimes\"]", "sometimes");
        says(
            "varies = \"slowest\"\nvalues = [\"never\"]\n[baseline]\nvariation = \"load\"",
            "`slowest` is never",
        );
        says("varies = \"seen\"\nvalues = [true]\n[baseline]\naccess = \"write\"", "`seen` is true");
        says("varies = \"dilation\"\nvalues = [0]", "`dilation` is 0: it can be 1 to 1000");
    }
}
