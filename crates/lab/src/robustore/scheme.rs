//! The schemes that are compared: the dissertation's four (§6.2.1, §6.2.6) and ours. Here is where schemes have names; the
//! simulator does not know them.

use super::parameters::Parameters;
use crate::report::NotOffered;
use anyhow::{Result, ensure};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};
use steadfast_codes::rateless::{Code, Kind};
use steadfast_protocol::{
    IndexRanges,
    durability::Rule,
    layout::{CodeKind, CodeSpec},
    plan,
    policy::{Policy, Rateless, RatelessCode, ReplicaRead, Replicated, Stripe},
    read::RequestRule,
};

/// One way to store and fetch an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// RAID-0.
    Stripe,
    /// RRAID-S.
    ReplicatedSpeculative,
    /// RRAID-A.
    ReplicatedAdaptive,
    /// RobuSTore: the dissertation's LT code, everything asked for.
    RatelessLt,
    /// Ours: the mix code B, asked for adaptively.
    RatelessB,
}

/// All of them, in the order shown.
pub const SCHEMES: [Scheme; 5] = [
    Scheme::Stripe,
    Scheme::ReplicatedSpeculative,
    Scheme::ReplicatedAdaptive,
    Scheme::RatelessLt,
    Scheme::RatelessB,
];

/// Blocks are handed to disks in runs of at most this many, as our writer does.
const RUN_MAX: u32 = 16;

/// Graphs by scheme, K, seed and blocks stored.
static MADE: Mutex<BTreeMap<(Scheme, u32, u64, u32), Code>> = Mutex::new(BTreeMap::new());
/// So many of them are kept: those of both coded schemes at 100 accesses and more, about 0.3 MB each ...
const MADE_MAX: usize = 256;
/// ... of at most so many originals.
const MADE_ORIGINALS_MAX: u32 = 2048;

impl Scheme {
    /// Its name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Stripe => "stripe",
            Scheme::ReplicatedSpeculative => "replicated-speculative",
            Scheme::ReplicatedAdaptive => "replicated-adaptive",
            Scheme::RatelessLt => "rateless-lt",
            Scheme::RatelessB => "rateless-b",
        }
    }

    /// The scheme of that name.
    ///
    /// # Errors
    /// Names those there are.
    pub fn named(name: &str) -> Result<Self, NotOffered> {
        let names = SCHEMES.map(Scheme::name).join(", ");
        let found = SCHEMES.into_iter().find(|scheme| scheme.name() == name);
        found.ok_or_else(|| NotOffered(format!("no scheme named `{name}`; there are {names}")))
    }

    /// The parameters as this scheme takes them.
    pub fn parameters(self, parameters: &Parameters) -> Parameters {
        let mut own = parameters.clone();
        if self == Scheme::RatelessB && own.our_block_kib > 0 {
            own.block_kib = own.our_block_kib;
        }
        own
    }

    /// Whether it can have the redundancy asked for: stripes have none, replicas whole copies, and LT needs about half of K
    /// more to decode at all.
    pub fn fits(self, parameters: &Parameters) -> bool {
        let redundancy = parameters.redundancy;
        match self {
            Scheme::Stripe => true,
            Scheme::ReplicatedSpeculative | Scheme::ReplicatedAdaptive => redundancy.fract() == 0.0,
            Scheme::RatelessLt => redundancy >= 0.75,
            Scheme::RatelessB => redundancy >= 0.1,
        }
    }

    /// Whether it is affected by the redundancy: a stripe is the same at every point.
    pub fn redundancy(self, parameters: &Parameters) -> f64 {
        if self == Scheme::Stripe { 0.0 } else { parameters.redundancy }
    }

    /// A bucket's policy that asks for it.
    pub fn policy(self, parameters: &Parameters) -> Policy {
        let coded = |code| {
            Policy::Rateless(Rateless {
                code,
                redundancy: parameters.redundancy,
                tolerate: parameters.tolerate,
                domain: steadfast_protocol::policy::Domain::Device,
                devices: Some(parameters.disks),
            })
        };
        let copies = |read| {
            Policy::Replicated(Replicated {
                copies: parameters.redundancy as u32 + 1,
                read,
                domain: steadfast_protocol::policy::Domain::Device,
                devices: Some(parameters.disks),
            })
        };
        match self {
            Scheme::Stripe => Policy::Stripe(Stripe { devices: Some(parameters.disks) }),
            Scheme::ReplicatedSpeculative => copies(ReplicaRead::Speculative),
            Scheme::ReplicatedAdaptive => copies(ReplicaRead::Adaptive),
            Scheme::RatelessLt => coded(RatelessCode::Lt { c: 1.0, delta: 0.5 }),
            Scheme::RatelessB => coded(RatelessCode::Mix),
        }
    }

    /// How much its reads ask for.
    pub fn rule(self) -> RequestRule {
        match self {
            // §4.1.2, §6.2.1.
            Scheme::RatelessLt | Scheme::ReplicatedSpeculative => RequestRule::AllAtOnce,
            _ => RequestRule::ADAPTIVE,
        }
    }

    /// The durability rule of its writes, and how its write core is asked for.
    pub fn writing(self, parameters: &Parameters) -> (plan::Scheme, Rule) {
        let copies = parameters.redundancy as u32;
        match self {
            Scheme::Stripe => (plan::Scheme::Striped, Rule { redundancy: 0.0, tolerate: 0 }),
            Scheme::ReplicatedSpeculative | Scheme::ReplicatedAdaptive => {
                (plan::Scheme::Striped, Rule { redundancy: 0.0, tolerate: copies })
            }
            Scheme::RatelessLt | Scheme::RatelessB => {
                let rule = Rule { redundancy: parameters.redundancy, tolerate: parameters.tolerate };
                (plan::Scheme::Rateless, rule)
            }
        }
    }

    /// A graph, and its written form.
    ///
    /// # Errors
    /// When there is no such code.
    pub fn code(self, parameters: &Parameters, seed: u64) -> Result<(CodeSpec, Code)> {
        let k = parameters.originals();
        let stored = (f64::from(k) * (1.0 + parameters.redundancy)) as u32;
        let (c, delta) = (1.0, 0.5);
        let (kind, graph) = match self {
            Scheme::Stripe | Scheme::ReplicatedSpeculative | Scheme::ReplicatedAdaptive => {
                (CodeKind::Replicated, Kind::Replicated)
            }
            Scheme::RatelessLt => (CodeKind::Lt { c, delta }, Kind::Lt { c, delta }),
            Scheme::RatelessB => (CodeKind::Mix, Kind::Mix),
        };
        let code = match graph {
            Kind::Replicated => Code::new(graph, k, seed)?,
            _ => self.graph(graph, k, seed, stored)?,
        };
        Ok((CodeSpec { kind, originals: k, seed: code.seed() }, code))
    }

    /// A graph that is checked for `stored` blocks. The accesses of one number have the same at every point of an experiment:
    /// it is made once.
    fn graph(self, kind: Kind, k: u32, seed: u64, stored: u32) -> Result<Code> {
        let name = (self, k, seed, stored);
        let kept = || MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = kept().get(&name) {
            return Ok(made.clone());
        }
        let made = Code::checked(kind, k, seed, stored)?;
        let mut kept = kept();
        if kept.len() >= MADE_MAX {
            kept.clear();
        }
        if k <= MADE_ORIGINALS_MAX {
            kept.insert(name, made.clone());
        }
        Ok(made)
    }

    /// What each of `disks` disks holds of an object that lies on them evenly: copies rotated by one disk (§6.2.1), coded
    /// blocks dealt in runs, originals and repair blocks apart.
    ///
    /// # Errors
    /// When there are fewer blocks than disks could be given.
    pub fn balanced(self, parameters: &Parameters) -> Result<Vec<IndexRanges>> {
        let (k, disks) = (parameters.originals(), parameters.disks);
        let stored = (f64::from(k) * (1.0 + self.redundancy(parameters))).round() as u32;
        ensure!(disks > 0 && stored >= k, "{stored} blocks of K = {k} on {disks} disks");
        let mut held = vec![IndexRanges::new(); disks as usize];
        for index in 0..stored {
            let disk = match self {
                Scheme::Stripe | Scheme::ReplicatedSpeculative | Scheme::ReplicatedAdaptive => {
                    index % k + index / k
                }
                Scheme::RatelessLt => index,
                Scheme::RatelessB => {
                    let run = (k / disks).clamp(1, RUN_MAX);
                    (if index < k { index } else { index - k }) / run
                }
            };
            held[(disk % disks) as usize].insert(index);
        }
        Ok(held)
    }
}
