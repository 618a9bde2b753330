//! Sizes, rates and spans as people write and read them.

use std::time::Duration;
use steadfast_client::RequestRule;
use steadfast_disk::EmulationSpec;

/// Reads `20GiB`, `100MB`, `4096`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: f64 = match unit.trim() {
        "" | "B" => 1.0,
        "kB" | "KB" | "k" => 1e3,
        "MB" | "M" => 1e6,
        "GB" | "G" => 1e9,
        "TB" | "T" => 1e12,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        other => return Err(format!("unknown unit `{other}`: use B, kB, MB, GB, TB, KiB, MiB, GiB or TiB")),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` is not a size; write for instance 20GiB"))?;
    let bytes = number * factor;
    if !(1.0..=1e18).contains(&bytes) {
        return Err(format!("`{text}` is out of range: 1 byte to 10^18"));
    }
    // In range and positive: checked above.
    Ok(bytes as u64)
}

/// As [`bytes()`], and nothing at all.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(bytes) => Ok(bytes),
        Err(_) => bytes(text),
    }
}

/// Reads `HOST:PORT`: whether somebody is there is another question.
pub(crate) fn place(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err(format!("`{text}` is no address of a server: write HOST:PORT, for instance 127.0.0.1:7000")),
    }
}

/// Takes what is an emulation, as it was written: it goes on to a server.
pub(crate) fn emulation(text: &str) -> Result<String, String> {
    text.parse::<EmulationSpec>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Reads `A-B` or `A-`, byte positions counted from 0, both included.
pub(crate) fn byte_range(text: &str) -> Result<(u64, Option<u64>), String> {
    let wrong = || format!("`{text}` is not a range: write A-B or A-, bytes counted from 0, both included");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let first: u64 = first.parse().map_err(|_| wrong())?;
    if last.is_empty() {
        return Ok((first, None));
    }
    let last: u64 = last.parse().map_err(|_| wrong())?;
    if last < first || last == u64::MAX {
        return Err(wrong());
    }
    Ok((first, Some(last)))
}

/// Reads `adaptive`, `all`, `all-at-once` or `k+N`.
pub(crate) fn request_rule(text: &str) -> Result<RequestRule, String> {
    match text {
        "adaptive" => Ok(RequestRule::ADAPTIVE),
        "all" => Ok(RequestRule::All),
        "all-at-once" => Ok(RequestRule::AllAtOnce),
        _ => {
            let more = text.strip_prefix("k+").and_then(|more| more.parse().ok());
            more.map(RequestRule::KPlus)
                .ok_or_else(|| format!("`{text}` is not a request rule: write {REQUEST_RULES}"))
        }
    }
}

/// What [`request_rule`] reads, for a person.
pub(crate) const REQUEST_RULES: &str =
    "`adaptive`, `all`, `all-at-once` (without windows), or `k+N` (what is needed and N blocks more)";

/// Reads what a get can wish for: what it finds stored, it cannot change.
pub(crate) fn wishes_of_a_get(text: &str) -> Result<steadfast_client::Quality, String> {
    let quality: steadfast_client::Quality = text.parse().map_err(|error| format!("{error}"))?;
    let steadfast_client::Quality { redundancy, tolerate, devices, sites, .. } = quality;
    if redundancy.is_some() || tolerate.is_some() || devices.is_some() || sites.is_some() {
        return Err("a get takes bandwidth, latency, accesses and priority; how an object is spread was decided when it \
                    was stored"
            .to_owned());
    }
    Ok(quality)
}

/// `1.5 GiB`, `12 KiB`, `7 B`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Megabytes per second (10^6), the disks' own unit.
pub(crate) fn show_rate(bytes: u64, span: Duration) -> String {
    format!("{:.1} MB/s", bytes as f64 / 1e6 / span.as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_rules() {
        assert_eq!(request_rule("adaptive"), Ok(RequestRule::default()));
        assert_eq!(request_rule("all"), Ok(RequestRule::All));
        assert_eq!(request_rule("all-at-once"), Ok(RequestRule::AllAtOnce));
        assert_eq!(request_rule("k+12"), Ok(RequestRule::KPlus(12)));
        for bad in ["", "k", "k+", "k+-1", "k+x", "most"] {
            assert!(request_rule(bad).unwrap_err().contains("`k+N`"), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes("20GiB"), Ok(20 << 30));
        assert_eq!(bytes("1.5MB"), Ok(1_500_000));
        assert_eq!(bytes("4096"), Ok(4096));
        for wrong in ["", "GiB", "-3", "1XB", "0", "1e99"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!((size("0"), size("9007199254740993")), (Ok(0), Ok((1 << 53) + 1)));
        assert_eq!((size("64k"), size("1.5MiB"), size("2G")), (Ok(64_000), Ok(3 << 19), Ok(2_000_000_000)));
        for wrong in ["", "-1", "0MB", "1X"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(show_bytes(1536), "1.5 KiB");
        assert_eq!(show_bytes(7), "7 B");
    }

    #[test]
    fn places_and_emulations() {
        for sound in ["a:1", "127.0.0.1:65535", "[::1]:7000", "host.example:0"] {
            assert_eq!(place(sound), Ok(sound.to_owned()));
        }
        for wrong in ["", "foo", ":1", "a:", "a:b", "a:65536", "http://a", "a:-1"] {
            assert!(place(wrong).unwrap_err().contains("HOST:PORT"), "{wrong}");
        }
        assert_eq!(emulation("rate=10MB"), Ok("rate=10MB".to_owned()));
        assert!(emulation("rate=").unwrap_err().contains("bad emulation spec at `rate=`"));
    }

    #[test]
    fn ranges() {
        assert_eq!(byte_range("0-99"), Ok((0, Some(99))));
        assert_eq!(byte_range("5-"), Ok((5, None)));
        for wrong in ["", "-", "-5", "9-3", "a-b", "1-2-3"] {
            assert!(byte_range(wrong).is_err(), "{wrong}");
        }
    }
}
