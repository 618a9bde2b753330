//! How a bucket's data is protected and reached. A policy is text for people (`rateless:redundancy=0.5,tolerate=2`)
//! and a value for the cores; the words are the papers' (dissertation §5.3.2 for the redundancy D = N/K - 1).

mod parity;
mod pledge;

pub use parity::{
    CHUNKS_MAX, Parity, ParityCode, ParityUpdate, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, reserve_least_bytes,
    window_bytes,
};
pub use pledge::Pledge;

use core::{fmt, str::FromStr};
use serde::{Deserialize, Serialize};

/// The policy of a bucket; stored by place in this list, so new ones come last.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Policy {
    /// Coded blocks on many devices, the first that arrive are enough (RobuSTore).
    Rateless(Rateless),
    /// RAID-0: every block once, no failure survived. The baseline of dissertation ch. 6.
    Stripe(Stripe),
    /// Whole copies of every block, each copy one device further on. The baselines RRAID-S and RRAID-A of dissertation
    /// ch. 6.
    Replicated(Replicated),
    /// Files that change: chunks of a fixed (n, k) code on n devices (CodFS, PLR).
    Parity(Parity),
}

/// Parameters of [`Policy::Rateless`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rateless {
    /// Which rateless code makes the blocks.
    pub code: RatelessCode,
    /// D: blocks stored beyond K, as a share of K; at least this, more where `tolerate` asks for it.
    pub redundancy: f64,
    /// f: failure domains whose loss every acknowledged object survives.
    pub tolerate: u32,
    /// What counts as one failure domain.
    pub domain: Domain,
    /// Devices an object is spread over; the planner's choice when absent.
    pub devices: Option<u32>,
}

/// Parameters of [`Policy::Stripe`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stripe {
    /// Devices an object is spread over; the planner's choice when absent.
    pub devices: Option<u32>,
}

/// Parameters of [`Policy::Replicated`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicated {
    /// Copies of every block; D = copies - 1, and as many failure domains may be lost.
    pub copies: u32,
    /// How objects are read.
    pub read: ReplicaRead,
    /// What counts as one failure domain; the copies of a block are in different ones.
    pub domain: Domain,
    /// Devices an object is spread over at most; the planner's choice when absent.
    pub devices: Option<u32>,
}

/// How replicas are read (dissertation §6.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaRead {
    /// RRAID-S: every copy of every block is asked for at once.
    Speculative,
    /// RRAID-A: one copy of every block is asked for; a device that is done takes over half of what another still owes.
    #[default]
    Adaptive,
}

/// The rateless codes a bucket can choose; stored by place in this list, so new ones come last.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RatelessCode {
    /// Systematic, inactivation decoding, near-ideal reception overhead: variant B, `mix-b` or `mix`. The default.
    Mix,
    /// The dissertation's improved LT code (§5.2.3) with its two parameters.
    Lt {
        /// Scales the robust soliton's spike.
        c: f64,
        /// Bound on the probability that decoding stalls.
        delta: f64,
    },
    /// Variant A, `mix-a`: fewer XORs than B, more blocks where originals come first from unequal disks.
    MixA,
    /// Variant C, `mix-c`: the fewest blocks needed from very unequal disks, the most XORs.
    MixC,
}

/// The codes by the names that a policy's text has for them.
const CODES: [(&str, RatelessCode); 5] = [
    ("mix-a", RatelessCode::MixA),
    ("mix-b", RatelessCode::Mix),
    ("mix-c", RatelessCode::MixC),
    ("mix", RatelessCode::Mix),
    ("lt", LT),
];
/// C = 1, delta = 0.5 are the parameters of the dissertation's evaluation (§6.2.6).
const LT: RatelessCode = RatelessCode::Lt { c: 1.0, delta: 0.5 };

/// The unit of failure that `tolerate` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Domain {
    /// One disk.
    Device,
    /// One storage server and all its disks.
    #[default]
    Node,
    /// All servers registered under one site name.
    Site,
}

/// A policy text that cannot be taken; says which part and what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such policy.
    #[error("unknown policy `{0}`: choose `rateless`, `parity`, `replicated` or `stripe`")]
    UnknownPolicy(String),
    /// No such parameter.
    #[error("unknown parameter `{name}` of policy `{policy}`: it takes {allowed}")]
    UnknownParameter {
        /// The policy it was given to.
        policy: &'static str,
        /// What was written.
        name: String,
        /// The names it takes.
        allowed: &'static str,
    },
    /// A parameter that is there twice.
    #[error("`{0}` is given twice: leave one of them out")]
    Twice(String),
    /// The code by its short name and by its parameter.
    #[error("`lt` and `code=` both set the code: leave one of them out")]
    CodeTwice,
    /// A place for a parameter with none in it: before a comma, behind one, or behind the colon.
    #[error(
        "parameter {place} of policy `{policy}` is empty: write NAME=VALUE there, or leave its comma out, and the colon where \
         there is no parameter at all"
    )]
    Empty {
        /// The policy.
        policy: String,
        /// Which one, counted from 1.
        place: usize,
    },
    /// A value that is not of the parameter's form or outside its range.
    #[error("`{name}={value}` is out of range: it takes {allowed}")]
    BadValue {
        /// The parameter.
        name: String,
        /// What was written.
        value: String,
        /// What it takes.
        allowed: &'static str,
    },
    /// Fewer devices than failure domains.
    #[error("`devices={devices}` are too few for what `{by}` promises: it takes {needed} or more")]
    FewDevices {
        /// What was written.
        devices: u32,
        /// The parameter that asks for more.
        by: &'static str,
        /// The failure domains that there have to be.
        needed: u32,
    },
    /// Space for a log of deltas where there is none.
    #[error(
        "`reserve` is room for deltas beside a parity chunk, and update=fo changes parity in place: leave `reserve` out, or \
         take update=plr"
    )]
    ReserveWithoutLog,
}

/// The most devices one object is spread over.
pub const DEVICES_MAX: u32 = 1024;
const REDUNDANCY_MAX: f64 = 15.0;
const TOLERATE_MAX: u32 = 16;
/// The fewest blocks that are not one small object's copy are 16, and a copy starts one device further on.
const COPIES_MAX: u32 = 16;

impl Default for Rateless {
    /// D = 0.5 and f = 2 nodes: what a 4+2 erasure code stores and survives.
    fn default() -> Self {
        Self { code: RatelessCode::Mix, redundancy: 0.5, tolerate: 2, domain: Domain::Node, devices: None }
    }
}

impl Default for Replicated {
    /// Four copies, what the dissertation stores (D = 3, §6.2.7), on different nodes.
    fn default() -> Self {
        Self { copies: 4, read: ReplicaRead::default(), domain: Domain::Node, devices: None }
    }
}

impl Policy {
    /// f: failure domains whose loss an acknowledged object survives.
    pub fn tolerate(&self) -> u32 {
        match self {
            Policy::Rateless(rateless) => rateless.tolerate,
            Policy::Stripe(_) => 0,
            Policy::Replicated(replicated) => replicated.copies.saturating_sub(1),
            Policy::Parity(parity) => parity.parity(),
        }
    }

    /// Failure domains that an object takes at least.
    pub fn domains(&self) -> u32 {
        match self {
            Policy::Parity(parity) => parity.chunks(),
            _ => self.tolerate() + 1,
        }
    }

    /// What counts as one failure domain.
    pub fn domain(&self) -> Domain {
        match self {
            Policy::Rateless(rateless) => rateless.domain,
            Policy::Stripe(_) => Domain::Device,
            Policy::Replicated(replicated) => replicated.domain,
            Policy::Parity(parity) => parity.domain,
        }
    }

    /// Devices that the policy names a number of.
    pub fn devices(&self) -> Option<u32> {
        match self {
            Policy::Rateless(rateless) => rateless.devices,
            Policy::Stripe(stripe) => stripe.devices,
            Policy::Replicated(replicated) => replicated.devices,
            Policy::Parity(parity) => Some(parity.chunks()),
        }
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (name, rest) =
            text.split_once(':').map_or((text.trim(), None), |(name, rest)| (name.trim(), Some(rest)));
        let policy = match name {
            "rateless" => once(name, rest, |given| rateless(given.iter().copied()).map(Policy::Rateless))?,
            "stripe" => once(name, rest, |given| stripe(given.iter().copied()).map(Policy::Stripe))?,
            "replicated" => {
                once(name, rest, |given| replicated(given.iter().copied()).map(Policy::Replicated))?
            }
            "parity" => once(name, rest, |given| parity::parse(given.iter().copied()).map(Policy::Parity))?,
            other => return Err(PolicyError::UnknownPolicy(other.to_owned())),
        };
        let needed = policy.domains();
        match policy.devices().filter(|&devices| devices < needed) {
            Some(devices) => {
                let by = if matches!(policy, Policy::Replicated(_)) { "copies" } else { "tolerate" };
                Err(PolicyError::FewDevices { devices, by, needed })
            }
            None => Ok(policy),
        }
    }
}

/// Reads the parameters behind the colon of a policy's text, where it has one; each is to be there once. A name that is unknown is told
/// before one that is there twice.
fn once<'a>(
    policy: &str,
    rest: Option<&'a str>,
    read: impl FnOnce(&[(&'a str, &'a str)]) -> Result<Policy, PolicyError>,
) -> Result<Policy, PolicyError> {
    let given = parameters(policy, rest)?;
    let found = read(&given)?;
    for (place, &(name, _)) in given.iter().enumerate() {
        if given.iter().take(place).any(|&(other, _)| other == name) {
            return Err(PolicyError::Twice(name.to_owned()));
        }
    }
    // Only `rateless` takes `lt`, which is short for `code=lt`.
    let has = |wanted: &str| given.iter().any(|&(name, _)| name == wanted);
    if has("lt") && has("code") { Err(PolicyError::CodeTwice) } else { Ok(found) }
}

/// Their names and values. What is empty is refused: whoever wrote that meant something else, and would learn it from how objects are
/// stored.
fn parameters<'a>(policy: &str, rest: Option<&'a str>) -> Result<Vec<(&'a str, &'a str)>, PolicyError> {
    // Not at a comma in parentheses: `code=rs(6,4)`.
    let mut depth = 0u32;
    let outside = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    let mut given = Vec::new();
    if let Some(rest) = rest {
        for (part, place) in rest.split(outside).map(str::trim).zip(1..) {
            if part.is_empty() {
                return Err(PolicyError::Empty { policy: policy.to_owned(), place });
            }
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            given.push((name.trim(), value.trim()));
        }
    }
    Ok(given)
}

fn rateless<'a>(parameters: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Rateless, PolicyError> {
    let mut policy = Rateless::default();
    let (mut written, mut c, mut delta) = ("mix", None, None);
    for (name, value) in parameters {
        match name {
            "redundancy" => policy.redundancy = number(name, value, 0.0..=REDUNDANCY_MAX, "0 to 15")?,
            "tolerate" => policy.tolerate = whole(name, value, 0..=TOLERATE_MAX, "0 to 16")?,
            "devices" => policy.devices = Some(whole(name, value, 1..=DEVICES_MAX, "1 to 1024")?),
            "domain" => policy.domain = domain(name, value)?,
            "code" => {
                let (known, code) = CODES
                    .iter()
                    .find(|(known, _)| *known == value)
                    .ok_or_else(|| bad(name, value, "mix-a, mix-b, mix-c or lt (with c=..,delta=..)"))?;
                (written, policy.code) = (known, *code);
            }
            "lt" if value.is_empty() => (written, policy.code) = ("lt", LT),
            "c" => c = Some(number(name, value, 0.001..=10.0, "0.001 to 10 (with code=lt)")?),
            "delta" => delta = Some(number(name, value, 1e-6..=1.0, "0.000001 to 1 (with code=lt)")?),
            _ => {
                return Err(PolicyError::UnknownParameter {
                    policy: "rateless",
                    name: name.to_owned(),
                    allowed: "redundancy, tolerate, domain, devices, code, c, delta",
                });
            }
        }
    }
    if let RatelessCode::Lt { c: own_c, delta: own_delta } = &mut policy.code {
        *own_c = c.unwrap_or(*own_c);
        *own_delta = delta.unwrap_or(*own_delta);
    } else if c.is_some() || delta.is_some() {
        return Err(bad("code", written, "lt where c or delta is given"));
    }
    Ok(policy)
}

fn stripe<'a>(parameters: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Stripe, PolicyError> {
    let mut policy = Stripe::default();
    for (name, value) in parameters {
        match name {
            "devices" => policy.devices = Some(whole(name, value, 1..=DEVICES_MAX, "1 to 1024")?),
            _ => {
                return Err(PolicyError::UnknownParameter {
                    policy: "stripe",
                    name: name.to_owned(),
                    allowed: "devices",
                });
            }
        }
    }
    Ok(policy)
}

fn replicated<'a>(parameters: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Replicated, PolicyError> {
    let mut policy = Replicated::default();
    for (name, value) in parameters {
        match name {
            "copies" => policy.copies = whole(name, value, 2..=COPIES_MAX, "2 to 16")?,
            "devices" => policy.devices = Some(whole(name, value, 1..=DEVICES_MAX, "1 to 1024")?),
            "domain" => policy.domain = domain(name, value)?,
            "read" => {
                policy.read = match value {
                    "speculative" => ReplicaRead::Speculative,
                    "adaptive" => ReplicaRead::Adaptive,
                    _ => return Err(bad(name, value, "speculative or adaptive")),
                }
            }
            _ => {
                return Err(PolicyError::UnknownParameter {
                    policy: "replicated",
                    name: name.to_owned(),
                    allowed: "copies, read, domain, devices",
                });
            }
        }
    }
    Ok(policy)
}

fn domain(name: &str, value: &str) -> Result<Domain, PolicyError> {
    match value {
        "device" => Ok(Domain::Device),
        "node" => Ok(Domain::Node),
        "site" => Ok(Domain::Site),
        _ => Err(bad(name, value, "device, node or site")),
    }
}

fn number(
    name: &str,
    value: &str,
    range: core::ops::RangeInclusive<f64>,
    allowed: &'static str,
) -> Result<f64, PolicyError> {
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| bad(name, value, allowed))
}

fn whole(
    name: &str,
    value: &str,
    range: core::ops::RangeInclusive<u32>,
    allowed: &'static str,
) -> Result<u32, PolicyError> {
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| bad(name, value, allowed))
}

fn bad(name: &str, value: &str, allowed: &'static str) -> PolicyError {
    PolicyError::BadValue { name: name.to_owned(), value: value.to_owned(), allowed }
}

impl fmt::Display for Policy {
    /// Writes the text that parses back to this policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Rateless(policy) => {
                write!(f, "rateless:")?;
                match policy.code {
                    RatelessCode::Mix => {}
                    RatelessCode::MixA => write!(f, "code=mix-a,")?,
                    RatelessCode::MixC => write!(f, "code=mix-c,")?,
                    RatelessCode::Lt { c, delta } => write!(f, "code=lt,c={c},delta={delta},")?,
                }
                write!(f, "redundancy={},tolerate={}", policy.redundancy, policy.tolerate)?;
                show_domain(f, policy.domain)?;
                policy.devices.map_or(Ok(()), |devices| write!(f, ",devices={devices}"))
            }
            Policy::Stripe(Stripe { devices: Some(devices) }) => write!(f, "stripe:devices={devices}"),
            Policy::Stripe(Stripe { devices: None }) => write!(f, "stripe"),
            Policy::Replicated(policy) => {
                let read = match policy.read {
                    ReplicaRead::Speculative => "speculative",
                    ReplicaRead::Adaptive => "adaptive",
                };
                write!(f, "replicated:copies={},read={read}", policy.copies)?;
                show_domain(f, policy.domain)?;
                policy.devices.map_or(Ok(()), |devices| write!(f, ",devices={devices}"))
            }
            Policy::Parity(policy) => policy.fmt(f),
        }
    }
}

fn show_domain(f: &mut fmt::Formatter<'_>, domain: Domain) -> fmt::Result {
    match domain {
        Domain::Device => write!(f, ",domain=device"),
        Domain::Node => Ok(()),
        Domain::Site => write!(f, ",domain=site"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_agree() {
        for text in [
            "rateless:redundancy=0.5,tolerate=2",
            "rateless:code=lt,c=1,delta=0.5,redundancy=3,tolerate=1",
            "rateless:redundancy=3,tolerate=1,domain=device,devices=64",
            "rateless:code=mix-a,redundancy=0.5,tolerate=2",
            "rateless:code=mix-c,redundancy=3,tolerate=1,devices=6",
            "stripe",
            "stripe:devices=6",
            "replicated:copies=4,read=adaptive",
            "replicated:copies=2,read=speculative,domain=device,devices=64",
        ] {
            let policy: Policy = text.parse().unwrap();
            assert_eq!(policy.to_string(), text);
        }
        assert_eq!("rateless".parse::<Policy>().unwrap(), Policy::Rateless(Rateless::default()));
        assert_eq!("rateless:lt".parse::<Policy>(), "rateless:code=lt".parse::<Policy>());
        for same in ["rateless:code=mix", "rateless:code=mix-b", " rateless "] {
            assert_eq!(same.parse::<Policy>(), "rateless".parse::<Policy>(), "{same}");
        }
    }

    #[test]
    fn bad_texts_name_the_part_and_what_is_allowed() {
        for (text, part) in [
            ("raid6", "raid6"),
            ("rateless:redundancy=-1", "redundancy=-1"),
            ("rateless:redundancy=nan", "redundancy=nan"),
            ("rateless:tolerate=99", "0 to 16"),
            ("rateless:speed=3", "speed"),
            ("rateless:c=1", "lt where c"),
            ("rateless:code=mix-a,delta=0.5", "`code=mix-a` is out of range: it takes lt where c"),
            ("rateless:code=mix-d", "it takes mix-a, mix-b, mix-c or lt"),
            ("rateless:code=", "it takes mix-a, mix-b, mix-c or lt"),
            ("rateless:redundancy=0.5,redundancy=1", "`redundancy` is given twice"),
            ("rateless:code=lt,tolerate=1,code=mix-b", "`code` is given twice"),
            ("rateless:lt,code=mix-b", "`lt` and `code=` both set the code"),
            ("rateless:code=lt,tolerate=1,lt", "`lt` and `code=` both set the code"),
            ("rateless:lt,lt", "`lt` is given twice"),
            // What is unknown is told first.
            ("parity:lt,code=rs(6,4)", "unknown parameter `lt` of policy `parity`"),
            ("stripe:lt,lt,devices=6", "unknown parameter `lt` of policy `stripe`"),
            ("rateless:speed=3,speed=4", "unknown parameter `speed`"),
            ("rateless:tolerate=1, tolerate = 1", "`tolerate` is given twice"),
            ("parity:code=rs(6,4),code=rs(6,4)", "`code` is given twice"),
            ("stripe:devices=6,devices=6", "`devices` is given twice"),
            ("rateless:", "parameter 1 of policy `rateless` is empty"),
            ("stripe: ", "parameter 1 of policy `stripe` is empty"),
            ("rateless:redundancy=1,,tolerate=1", "parameter 2 of policy `rateless` is empty"),
            ("replicated:copies=4,", "parameter 2 of policy `replicated` is empty"),
            ("parity:,code=rs(6,4)", "parameter 1 of policy `parity` is empty"),
            ("raid6:", "unknown policy `raid6`"),
            ("stripe:redundancy=1", "devices"),
            ("replicated:copies=1", "2 to 16"),
            ("replicated:read=all", "speculative or adaptive"),
            ("replicated:redundancy=3", "copies, read, domain, devices"),
            (
                "rateless:devices=2",
                "`devices=2` are too few for what `tolerate` promises: it takes 3 or more",
            ),
            ("replicated:copies=4,devices=3", "`copies` promises: it takes 4"),
        ] {
            let error = text.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
