//! What an access wants of the cluster: quality of service on open (dissertation §4.3.1, App. B).
//!
//! A wish is text for people (`bandwidth=400MB,latency=200ms,redundancy=1,tolerate=2,devices=16,sites=2,accesses=4`) and
//! a value for the planner, which turns it into devices, D and the request rule, or says what the cluster can give.
//! What is not wished for is as the bucket's policy says; a wish can raise what a bucket promises and never lower it.
//!
//! Of App. B's dimensions jitter and cost are left out: nothing here is priced, and spread is kept small by design.

use super::PlanError;
use crate::{
    message::Priority,
    policy::{DEVICES_MAX, Pledge, Policy},
    serve::LEASE_MAX,
};
use core::{fmt, str::FromStr, time::Duration};

/// What an access wants; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    /// Payload bytes per second of this access.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// From the call to its end.
    pub latency: Option<Duration>,
    /// D: blocks stored beyond K, as a share of K.
    pub redundancy: Option<f64>,
    /// f: failure domains whose loss it survives.
    pub tolerate: Option<u32>,
    /// Devices it is spread over, exactly; an object that is stored as copies has one on each of f + 1.
    pub devices: Option<u32>,
    /// Sites it is spread over, at least.
    pub sites: Option<u32>,
    /// Accesses like this one that go on at the same time, this one included.
    pub accesses: Option<u32>,
    /// Nobody waits for it: nodes that admit by priority may pass it over.
    pub background: bool,
}

/// A wish that cannot be read; says which part and what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QualityError {
    /// No such part.
    #[error(
        "unknown wish `{0}`: choose among bandwidth, latency, redundancy, tolerate, devices, sites, accesses and priority"
    )]
    Unknown(String),
    /// A part that is there twice.
    #[error("`{0}` is wished for twice")]
    Twice(String),
    /// A value that is not of the part's form or outside its range.
    #[error("`{name}={value}` cannot be: {name} takes {allowed}")]
    BadValue {
        /// The part.
        name: String,
        /// What was written.
        value: String,
        /// What it takes.
        allowed: &'static str,
    },
    /// Fewer devices than sites.
    #[error("{devices} devices cannot be on {sites} sites: wish for more devices or fewer sites")]
    MoreSitesThanDevices {
        /// Devices wished for.
        devices: u32,
        /// Sites wished for.
        sites: u32,
    },
}

const ACCESSES_MAX: u32 = 1024;

impl Quality {
    /// Whether bandwidth is to be kept for the access: the only wishes that cost a round trip.
    pub fn wants_pace(&self) -> bool {
        self.bandwidth_bytes_per_s.is_some() || self.latency.is_some()
    }

    /// Its class alone, which can always be granted.
    pub fn class(self) -> Self {
        Self { background: self.background, ..Self::default() }
    }

    /// The class of the access's streams.
    pub fn priority(&self) -> Priority {
        if self.background { Priority::Background } else { Priority::Foreground }
    }

    /// Accesses at the same time, this one included.
    pub fn accesses(&self) -> u32 {
        self.accesses.unwrap_or(1).max(1)
    }

    /// These wishes, and `defaults` where there is none.
    pub fn or(self, defaults: Quality) -> Self {
        Self {
            bandwidth_bytes_per_s: self.bandwidth_bytes_per_s.or(defaults.bandwidth_bytes_per_s),
            latency: self.latency.or(defaults.latency),
            redundancy: self.redundancy.or(defaults.redundancy),
            tolerate: self.tolerate.or(defaults.tolerate),
            devices: self.devices.or(defaults.devices),
            sites: self.sites.or(defaults.sites),
            accesses: self.accesses.or(defaults.accesses),
            background: self.background || defaults.background,
        }
    }

    /// What an object that is put so promises beyond its bucket.
    pub fn pledge(&self) -> Pledge {
        Pledge { tolerate: self.tolerate.unwrap_or(0), sites: self.sites.unwrap_or(0) }
    }

    /// These wishes, and no less than what the object promises.
    pub fn under(self, pledge: Pledge) -> Self {
        // A wish for nothing is none.
        let most = |wish: Option<u32>, promised: u32| {
            if promised > wish.unwrap_or(0) { Some(promised) } else { wish }
        };
        Self { tolerate: most(self.tolerate, pledge.tolerate), sites: most(self.sites, pledge.sites), ..self }
    }

    /// The policy that an object is stored under: the bucket's, raised by what is wished for.
    ///
    /// # Errors
    /// [`PlanError::BelowBucket`] for less than the bucket promises; [`PlanError::Unsupported`] for what its policy has
    /// not.
    pub fn policy(&self, bucket: &Policy) -> Result<Policy, PlanError> {
        let mut policy = *bucket;
        if let Policy::Rateless(rateless) = &mut policy {
            if let Some(redundancy) = self.redundancy {
                at_least("redundancy", redundancy, rateless.redundancy)?;
                rateless.redundancy = redundancy;
            }
            if let Some(tolerate) = self.tolerate {
                at_least("tolerate", tolerate.into(), rateless.tolerate.into())?;
                rateless.tolerate = tolerate;
            }
            rateless.devices = self.devices.or(rateless.devices);
            return Ok(policy);
        }
        if let Policy::Stripe(stripe) = &mut policy {
            stripe.devices = self.devices.or(stripe.devices);
        }
        let parity = match bucket {
            Policy::Parity(parity) => Some(parity),
            _ => None,
        };
        let unsupported = |wish| Err(PlanError::Unsupported { wish, policy: bucket.to_string() });
        match (self.redundancy, self.tolerate, self.devices) {
            (Some(_), _, _) => unsupported("redundancy"),
            // Where the chunks of each segment go is the policy's own wish.
            _ if parity.is_some() && self.sites.is_some() => unsupported("sites"),
            (None, Some(tolerate), None) if let Some(parity) = parity => {
                if tolerate > parity.parity() {
                    return unsupported("further parity chunks");
                }
                at_least("tolerate", tolerate.into(), (parity.least_chunks() - parity.data()).into())?;
                Ok(policy)
            }
            (None, Some(_), _) => unsupported("tolerate"),
            (None, None, Some(_)) if !matches!(bucket, Policy::Stripe(_)) => unsupported("devices"),
            _ => Ok(policy),
        }
    }

    /// How long what is reserved for an access is kept unless renewed: twice what it is expected to take, and long enough
    /// that a renewal may be lost.
    pub fn lease(&self, length: u64) -> Duration {
        let by_bandwidth = self.bandwidth_bytes_per_s.map(|rate| length as f64 / rate.max(1) as f64);
        let expected = by_bandwidth.or(self.latency.map(|latency| latency.as_secs_f64())).unwrap_or(0.0);
        let twice = (2.0 * expected).min(LEASE.1.as_secs_f64());
        Duration::from_secs_f64(twice).clamp(LEASE.0, LEASE.1)
    }
}

/// The shortest and the longest lease that a client asks for: what it holds back should it die. Picked by eye: two
/// seconds let a renewal be lost on a slow link, ten are what one waits for a program to come back.
const LEASE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
const _: () = assert!(LEASE.1.as_secs() <= LEASE_MAX.as_secs());

fn at_least(wish: &'static str, wanted: f64, bucket: f64) -> Result<(), PlanError> {
    if wanted < bucket {
        return Err(PlanError::BelowBucket { wish, wanted: wanted.to_string(), bucket: bucket.to_string() });
    }
    Ok(())
}

impl FromStr for Quality {
    type Err = QualityError;

    fn from_str(text: &str) -> Result<Self, QualityError> {
        let mut quality = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return Err(QualityError::Twice(name.to_owned()));
            }
            let whole = |max: u32, least: u32, allowed| {
                value
                    .parse()
                    .ok()
                    .filter(|number| (least..=max).contains(number))
                    .ok_or_else(|| bad(name, value, allowed))
            };
            match name {
                "bandwidth" => quality.bandwidth_bytes_per_s = Some(rate(name, value)?),
                "latency" => quality.latency = Some(span(name, value)?),
                "redundancy" => {
                    let number = value.parse().ok().filter(|number| (0.0..=15.0).contains(number));
                    quality.redundancy = Some(number.ok_or_else(|| bad(name, value, "0 to 15"))?);
                }
                "tolerate" => quality.tolerate = Some(whole(16, 0, "0 to 16")?),
                "devices" => quality.devices = Some(whole(DEVICES_MAX, 1, "1 to 1024")?),
                "sites" => quality.sites = Some(whole(DEVICES_MAX, 1, "1 to 1024")?),
                "accesses" => quality.accesses = Some(whole(ACCESSES_MAX, 1, "1 to 1024")?),
                "priority" => {
                    quality.background = match value {
                        "background" => true,
                        "foreground" => false,
                        _ => return Err(bad(name, value, "foreground or background")),
                    }
                }
                _ => return Err(QualityError::Unknown(name.to_owned())),
            }
            seen.push(name);
        }
        match (quality.devices, quality.sites) {
            (Some(devices), Some(sites)) if devices < sites => {
                Err(QualityError::MoreSitesThanDevices { devices, sites })
            }
            _ => Ok(quality),
        }
    }
}

/// `400MB`, `1.5GiB`, with or without `/s`.
fn rate(name: &str, value: &str) -> Result<u64, QualityError> {
    const UNITS: [(&str, f64); 10] = [
        ("", 1.0),
        ("B", 1.0),
        ("kB", 1e3),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
    ];
    let number = amount(value.strip_suffix("/s").unwrap_or(value), &UNITS);
    // In range and positive: checked here.
    let bytes = number.filter(|bytes| (1.0..=1e15).contains(bytes)).map(|bytes| bytes as u64);
    bytes.ok_or_else(|| bad(name, value, "bytes per second, for instance 400MB or 1.5GiB"))
}

/// `200ms`, `1.5s`, `800us`.
fn span(name: &str, value: &str) -> Result<Duration, QualityError> {
    let seconds = amount(value, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)]);
    let span = seconds.filter(|seconds| (1e-6..=86_400.0).contains(seconds)).map(Duration::from_secs_f64);
    span.ok_or_else(|| bad(name, value, "a span, for instance 200ms or 1.5s, at most a day"))
}

fn amount(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(known, _)| *known == unit.trim())?;
    Some(number.parse::<f64>().ok()? * factor)
}

fn bad(name: &str, value: &str, allowed: &'static str) -> QualityError {
    QualityError::BadValue { name: name.to_owned(), value: value.to_owned(), allowed }
}

impl fmt::Display for Quality {
    /// Writes the text that parses back to this wish; nothing for none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut part = |name: &str, value: Option<String>| {
            parts.extend(value.map(|value| format!("{name}={value}")));
        };
        part("bandwidth", self.bandwidth_bytes_per_s.map(|rate| format!("{rate}B")));
        part("latency", self.latency.map(|latency| format!("{}s", latency.as_secs_f64())));
        part("redundancy", self.redundancy.map(|number| number.to_string()));
        part("tolerate", self.tolerate.map(|number| number.to_string()));
        part("devices", self.devices.map(|number| number.to_string()));
        part("sites", self.sites.map(|number| number.to_string()));
        part("accesses", self.accesses.map(|number| number.to_string()));
        part("priority", self.background.then(|| "background".to_owned()));
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_agree() {
        let text = "bandwidth=400MB,latency=200ms,redundancy=1,tolerate=2,devices=16,sites=2,accesses=4";
        let quality: Quality = text.parse().unwrap();
        assert_eq!(
            quality,
            Quality {
                bandwidth_bytes_per_s: Some(400_000_000),
                latency: Some(Duration::from_millis(200)),
                redundancy: Some(1.0),
                tolerate: Some(2),
                devices: Some(16),
                sites: Some(2),
                accesses: Some(4),
                background: false,
            }
        );
        for text in [text, "", "bandwidth=1.5GiB/s", "latency=800us,priority=background", " sites = 3 , "] {
            let quality: Quality = text.parse().unwrap();
            assert_eq!(quality.to_string().parse::<Quality>().unwrap(), quality, "{quality}");
        }
        assert!(!"devices=4".parse::<Quality>().unwrap().wants_pace());
        let class: Quality = "latency=1s,tolerate=2,priority=background".parse::<Quality>().unwrap().class();
        assert_eq!(class.to_string(), "priority=background");
        assert_eq!(class.priority(), Priority::Background);
    }

    #[test]
    fn bad_texts_name_the_part_and_what_is_allowed() {
        for (text, said) in [
            ("speed=3", "`speed`"),
            ("bandwidth=0", "`bandwidth=0`"),
            ("bandwidth=-1MB", "for instance 400MB"),
            ("bandwidth=9XB", "for instance 400MB"),
            ("bandwidth=1e400MB", "bandwidth takes"),
            ("latency=200", "for instance 200ms"),
            ("latency=nans", "a span"),
            ("latency=999999999999s", "at most a day"),
            ("redundancy=nan", "0 to 15"),
            ("tolerate=17", "0 to 16"),
            ("devices=0", "1 to 1024"),
            ("accesses=four", "1 to 1024"),
            ("priority=high", "foreground or background"),
            ("sites=2,sites=3", "`sites` is wished for twice"),
            ("devices=2,sites=3", "2 devices cannot be on 3 sites"),
            ("bandwidth", "`bandwidth=`"),
        ] {
            let error = text.parse::<Quality>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn an_object_keeps_what_it_promises_and_a_wish_can_raise_it() {
        let under = |wish: &str, tolerate, sites| {
            wish.parse::<Quality>().unwrap().under(Pledge { tolerate, sites }).to_string()
        };
        assert_eq!(under("", 0, 0), "");
        assert_eq!(under("tolerate=0", 0, 0), "tolerate=0");
        assert_eq!(under("tolerate=2,redundancy=1", 3, 2), "redundancy=1,tolerate=3,sites=2");
        assert_eq!(under("tolerate=4,sites=3", 3, 2), "tolerate=4,sites=3");
        let pledge = |wish: &str| wish.parse::<Quality>().unwrap().pledge();
        assert_eq!(pledge("tolerate=3,sites=2,devices=8"), Pledge { tolerate: 3, sites: 2 });
        assert_eq!(pledge("redundancy=2,latency=1s"), Pledge::default());
    }

    #[test]
    fn a_bucket_can_be_raised_and_not_lowered() {
        let bucket: Policy = "rateless:redundancy=0.5,tolerate=2".parse().unwrap();
        let under = |wish: &str, bucket: &Policy| {
            wish.parse::<Quality>().unwrap().policy(bucket).map(|policy| policy.to_string())
        };
        assert_eq!(under("bandwidth=1MB", &bucket).unwrap(), bucket.to_string());
        assert_eq!(
            under("redundancy=1,tolerate=3,devices=9", &bucket).unwrap(),
            "rateless:redundancy=1,tolerate=3,devices=9"
        );
        let lowered = under("tolerate=1", &bucket).unwrap_err().to_string();
        assert!(lowered.contains("tolerate=1") && lowered.contains("bucket's 2"), "{lowered}");
        assert!(under("redundancy=0.2", &bucket).is_err());
        let stripe: Policy = "stripe".parse().unwrap();
        assert_eq!(under("devices=3", &stripe).unwrap(), "stripe:devices=3");
        let unsupported = under("redundancy=1", &stripe).unwrap_err().to_string();
        assert!(unsupported.contains("redundancy") && unsupported.contains("stripe"), "{unsupported}");
    }

    #[test]
    fn leases_follow_the_access_within_bounds() {
        let lease = |text: &str, length| text.parse::<Quality>().unwrap().lease(length);
        assert_eq!(lease("bandwidth=100MB", 300_000_000), Duration::from_secs(6));
        assert_eq!(lease("bandwidth=1B", u64::MAX), Duration::from_secs(10));
        assert_eq!(lease("latency=10ms", 5), Duration::from_secs(2));
    }
}
