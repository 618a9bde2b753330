//! The model of an emulated medium, and its text form.
//!
//! ```text
//! spec  = "off" | field *( "," field )
//! field = "rate=" RATE | "read=" RATE | "write=" RATE | "latency=" TIME | "jitter=" SHARE | "seed=" NUMBER
//!       | "stall" | "error" | "error=" SHARE | "full" | "drive=" DRIVE | "rotational=" ( "yes" | "no" )
//! RATE  = number with B, kB, MB, GB (powers of 1000), KiB, MiB or GiB: bytes a second ("100MB")
//! TIME  = number with ns, us, ms or s                              SHARE = number from 0 to 1
//! ```
//!
//! `rate` sets both directions. `rate=100MB,latency=5ms,jitter=0.1,stall` is a disk of 100 MB/s that would
//! position in 5 ms (10 % more or less) if it answered at all.
//!
//! `DRIVE` is a modelled disk ([`crate::model::spec`]), by whose mechanics every operation then takes its time, in
//! place of rate, latency and jitter: `drive=ata7200:bf=64:p=0:background=20ms`.
//!
//! `rotational` says how the medium is written to, as a rotating disk or not, whatever it is modelled as and whatever the system says of
//! it: virtual disks often claim to rotate. It takes no time itself.

use std::{fmt, str::FromStr};

use crate::model::DriveSpec;

/// What an emulated medium does to its operations; `EmulationSpec::default()` is `off`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EmulationSpec {
    /// Bytes a second while reading; `None`: as fast as the medium below.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes a second while writing.
    pub write_bytes_per_s: Option<f64>,
    /// Positioning: paid by every read or write that does not continue where the last one ended.
    pub latency_ns: u64,
    /// Each operation's time is multiplied by a factor drawn evenly from `1 - jitter ..= 1 + jitter`.
    pub jitter: f64,
    /// Seed of the jitter and of the errors.
    pub seed: u64,
    /// No operation ends until the model is redrawn.
    pub stalled: bool,
    /// Share of reads, writes and flushes that fail.
    pub error_rate: f64,
    /// No new space can be allocated.
    pub full: bool,
    /// The disk whose mechanics give the times; rates, latency and jitter then say nothing.
    pub drive: Option<DriveSpec>,
    /// Whether it passes for a rotating disk, whose places are dear ([`super::Medium::positions`]); `None`: as drive, rates and latency
    /// have it, and without any of these as the medium below says.
    pub rotational: Option<bool>,
}

/// A text that is no emulation spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad emulation spec at `{field}`: {reason}; example: rate=100MB,latency=5ms,jitter=0.1")]
pub struct ParseSpecError {
    /// The field that was not understood.
    pub field: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl EmulationSpec {
    /// No emulation at all.
    pub const OFF: EmulationSpec = EmulationSpec {
        read_bytes_per_s: None,
        write_bytes_per_s: None,
        latency_ns: 0,
        jitter: 0.0,
        seed: 0,
        stalled: false,
        error_rate: 0.0,
        full: false,
        drive: None,
        rotational: None,
    };

    /// The same rate both ways and nothing else.
    pub fn rate(bytes_per_s: f64) -> EmulationSpec {
        EmulationSpec {
            read_bytes_per_s: Some(bytes_per_s),
            write_bytes_per_s: Some(bytes_per_s),
            ..Self::OFF
        }
    }

    /// A modelled disk and nothing else.
    pub fn drive(drive: DriveSpec) -> EmulationSpec {
        EmulationSpec { drive: Some(drive), ..Self::OFF }
    }

    /// Whether operations take the model's time at all.
    pub fn has_timing(&self) -> bool {
        self.read_bytes_per_s.is_some()
            || self.write_bytes_per_s.is_some()
            || self.latency_ns > 0
            || self.drive.is_some()
    }
}

impl FromStr for EmulationSpec {
    type Err = ParseSpecError;

    fn from_str(text: &str) -> Result<Self, ParseSpecError> {
        let mut spec = EmulationSpec::OFF;
        if text.trim() == "off" {
            return Ok(spec);
        }
        for field in text.split(',') {
            let field = field.trim();
            let fail = |reason| ParseSpecError { field: field.to_owned(), reason };
            let (key, value) = match field.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (field, None),
            };
            match (key, value) {
                ("rate", Some(v)) => {
                    let rate = parse_rate(v).map_err(fail)?;
                    (spec.read_bytes_per_s, spec.write_bytes_per_s) = (Some(rate), Some(rate));
                }
                ("read", Some(v)) => spec.read_bytes_per_s = Some(parse_rate(v).map_err(fail)?),
                ("write", Some(v)) => spec.write_bytes_per_s = Some(parse_rate(v).map_err(fail)?),
                ("latency", Some(v)) => spec.latency_ns = parse_time_ns(v).map_err(fail)?,
                ("jitter", Some(v)) => spec.jitter = parse_share(v).map_err(fail)?,
                ("seed", Some(v)) => spec.seed = v.parse().map_err(|_| fail("expected a whole number"))?,
                ("stall", None) => spec.stalled = true,
                ("error", None) => spec.error_rate = 1.0,
                ("error", Some(v)) => spec.error_rate = parse_share(v).map_err(fail)?,
                ("full", None) => spec.full = true,
                ("drive", Some(v)) => {
                    let drive = v.parse::<DriveSpec>();
                    spec.drive = Some(drive.map_err(|error| ParseSpecError {
                        field: format!("drive={v}"),
                        reason: error.reason,
                    })?);
                }
                ("rotational", Some(v)) => spec.rotational = Some(parse_yes_or_no(v).map_err(fail)?),
                _ => {
                    return Err(fail(
                        "known are off, rate=, read=, write=, latency=, jitter=, seed=, stall, error[=], \
                         full, drive=, rotational=",
                    ));
                }
            }
        }
        let rated = spec.read_bytes_per_s.is_some() || spec.write_bytes_per_s.is_some();
        if spec.drive.is_some() && (rated || spec.latency_ns > 0 || spec.jitter > 0.0) {
            let reason = "a drive has its own times: leave rate, read, write, latency and jitter away";
            return Err(ParseSpecError { field: text.trim().to_owned(), reason });
        }
        Ok(spec)
    }
}

impl fmt::Display for EmulationSpec {
    /// Writes the text form; parsing it gives the same spec, without what a drive makes meaningless.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = Vec::new();
        match (self.read_bytes_per_s, self.write_bytes_per_s) {
            _ if self.drive.is_some() => {}
            (Some(r), Some(w)) if r == w => fields.push(format!("rate={r}B")),
            (read, write) => {
                fields.extend(read.map(|r| format!("read={r}B")));
                fields.extend(write.map(|w| format!("write={w}B")));
            }
        }
        if let Some(drive) = self.drive {
            fields.push(format!("drive={drive}"));
        }
        if self.latency_ns > 0 && self.drive.is_none() {
            fields.push(format!("latency={}ns", self.latency_ns));
        }
        if self.jitter > 0.0 && self.drive.is_none() {
            fields.push(format!("jitter={}", self.jitter));
        }
        if self.seed != 0 {
            fields.push(format!("seed={}", self.seed));
        }
        if self.stalled {
            fields.push("stall".to_owned());
        }
        if self.error_rate > 0.0 {
            fields.push(format!("error={}", self.error_rate));
        }
        if self.full {
            fields.push("full".to_owned());
        }
        if let Some(rotational) = self.rotational {
            fields.push(format!("rotational={}", if rotational { "yes" } else { "no" }));
        }
        if fields.is_empty() { f.write_str("off") } else { f.write_str(&fields.join(",")) }
    }
}

fn split_unit(text: &str) -> Result<(f64, &str), &'static str> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or("the unit is missing")?;
    let number = text[..at].trim().parse::<f64>().map_err(|_| "expected a number and a unit")?;
    if !number.is_finite() || number < 0.0 {
        return Err("expected a number that is not negative");
    }
    Ok((number, &text[at..]))
}

fn parse_rate(text: &str) -> Result<f64, &'static str> {
    let (number, unit) = split_unit(text)?;
    let factor = match unit.strip_suffix("/s").unwrap_or(unit) {
        "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1048576.0,
        "GiB" => 1073741824.0,
        _ => return Err("units of a rate are B, kB, MB, GB, KiB, MiB, GiB"),
    };
    let rate = number * factor;
    // Slower than a byte a second is what `stall` is for; it also keeps every time in range.
    if rate < 1.0 {
        Err("a rate is at least 1B; use `stall` for a device that does not answer")
    } else {
        Ok(rate)
    }
}

pub(crate) fn parse_time_ns(text: &str) -> Result<u64, &'static str> {
    let (number, unit) = split_unit(text)?;
    let factor = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err("units of a time are ns, us, ms, s"),
    };
    let ns = number * factor;
    if ns > 3.6e12 { Err("a latency is at most one hour") } else { Ok(ns as u64) }
}

fn parse_share(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1"),
    }
}

fn parse_yes_or_no(text: &str) -> Result<bool, &'static str> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("expected yes or no"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in [
            "off",
            "rate=100MB",
            "read=1MiB,write=2GB,latency=5ms,jitter=0.1,stall",
            "error=0.25,full,seed=9",
            "drive=ata7200:bf=64:p=0:background=20ms:policy=sptf:seed=4",
            "drive=ata7200,stall,error=0.5",
            "rotational=no",
            "rate=100MB,rotational=yes",
        ] {
            let spec: EmulationSpec = text.parse().unwrap();
            assert_eq!(spec.to_string().parse::<EmulationSpec>().unwrap(), spec, "{text} -> {spec}");
        }
        let spec: EmulationSpec = "rate=100MB, latency=5ms".parse().unwrap();
        assert_eq!((spec.read_bytes_per_s, spec.latency_ns), (Some(1e8), 5_000_000));
        let spec: EmulationSpec = "rotational=no".parse().unwrap();
        assert_eq!(spec, EmulationSpec { rotational: Some(false), ..EmulationSpec::OFF });
        assert_eq!(EmulationSpec::default(), EmulationSpec::OFF);
        assert_eq!(EmulationSpec::OFF.to_string(), "off");
    }

    #[test]
    fn bad_text_is_refused() {
        for text in [
            "",
            "rate",
            "rate=100",
            "rate=-1MB",
            "rate=0MB",
            "rate=NaNMB",
            "latency=5",
            "jitter=2",
            "slow",
            "off,stall",
            "stall=1",
            "drive",
            "drive=ata7200:bf=3",
            "drive=ata7200,rate=1MB",
            "latency=1ms,drive=ata7200",
            "rotational",
            "rotational=",
            "rotational=1",
        ] {
            assert!(text.parse::<EmulationSpec>().is_err(), "{text}");
        }
        let refused = "stall, rotational=maybe".parse::<EmulationSpec>().unwrap_err();
        assert_eq!((&*refused.field, refused.reason), ("rotational=maybe", "expected yes or no"));
    }
}
