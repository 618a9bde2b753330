//! Sizes, rates and spans as people write and read them.

use std::time::Duration;
use steadfast_client::RequestRule;
use steadfast_disk::EmulationSpec;

/// Reads `20GiB`, `100MB`, `4096`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let bytes = amount(text)?;
    if !(1.0..=1e18).contains(&bytes) {
        return Err(format!("`{text}` is out of range: 1 byte to 10^18"));
    }
    // In range and positive: checked above.
    Ok(bytes as u64)
}

/// The same, however many they are.
fn amount(text: &str) -> Result<f64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` is not a size; write for instance 20GiB"))?;
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
    Ok(number * factor)
}

/// The fewest bytes that a new device is given. Picked by eye: its own index takes some 200 KiB, and hardly anything finds room in the rest of
/// a smaller one. The same is asked for where devices are there already, which stay as they are, also those that are smaller: which they
/// are is not known here.
const CAPACITY_MIN: u64 = 1 << 20;

/// As [`bytes()`], and as many as a new device is given at least.
pub(crate) fn capacity(text: &str) -> Result<u64, String> {
    if amount(text)? < CAPACITY_MIN as f64 {
        let least = show_bytes(CAPACITY_MIN);
        return Err(format!("`{text}` is too little for a device, which takes {least} or more"));
    }
    bytes(text)
}

/// Reads the place of a byte in an object.
pub(crate) fn offset(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no place in an object: bytes are counted from 0"))
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
    emulated(text).map(|_| text.to_owned())
}

/// Reads an emulation.
pub(crate) fn emulated(text: &str) -> Result<EmulationSpec, String> {
    text.parse::<EmulationSpec>().map_err(|error| match text.split(',').find(|field| is_no_speed(field)) {
        Some(field) => format!(
            "bad emulation spec at `{}`: a rate is 1B a second or more, for instance 10MB; `stall` is for a \
             device that does not answer, `off` for one that is as fast as it is",
            field.trim()
        ),
        None => format!("{error}"),
    })
}

/// Whether a part of an emulation is a rate of nothing, in whatever unit.
fn is_no_speed(field: &str) -> bool {
    let Some((name, rate)) = field.split_once('=') else { return false };
    let number = rate.trim().trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.');
    matches!(name.trim(), "rate" | "read" | "write") && number.parse::<f64>().is_ok_and(|rate| rate == 0.0)
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

/// Reads what an access wishes for, each wish once and none of them empty: whoever wants nothing leaves the flag out.
pub(crate) fn wishes(text: &str) -> Result<steadfast_client::Quality, String> {
    match text.split(',').position(|wish| wish.trim().is_empty()) {
        Some(_) if text.trim().is_empty() => {
            Err("it names no wish: write for instance bandwidth=400MB, or leave `--qos` out".to_owned())
        }
        Some(before) => {
            Err(format!("wish {} is empty: write NAME=VALUE there, or leave its comma out", before + 1))
        }
        None => text.parse::<steadfast_client::Quality>().map_err(|error| error.to_string()),
    }
}

/// Reads what a get can wish for: what it finds stored, it cannot change.
pub(crate) fn wishes_of_a_get(text: &str) -> Result<steadfast_client::Quality, String> {
    let quality = wishes(text)?;
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
    use steadfast_disk::device::FormatError;

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
        assert!(size("-1").unwrap_err().contains("`-1` is not a size"));
        assert_eq!((capacity("1MiB"), capacity("20GiB")), (Ok(1 << 20), Ok(20 << 30)));
        for little in ["0", "1", "4096", "0GiB", "1MB", "1048575"] {
            let said = capacity(little).unwrap_err();
            assert!(said.starts_with(&format!("`{little}` is too little for a device")), "{said}");
            assert!(said.ends_with("which takes 1.0 MiB or more"), "{said}");
        }
        for wrong in ["", "GiB", "3XB", "2000000000000000000"] {
            assert!(capacity(wrong).is_err(), "{wrong}");
        }
        // What whoever formats a device names as the least, too.
        let least = FormatError::TooSmall { capacity: 0 }.to_string();
        assert!(CAPACITY_MIN == 1 << 20 && least.contains("at least 1 MiB"), "{least}");
        assert_eq!((offset("0"), offset("4096")), (Ok(0), Ok(4096)));
        for wrong in ["-1", "", "4k", "1.5"] {
            assert!(offset(wrong).unwrap_err().contains("counted from 0"), "{wrong}");
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
        for nothing in ["rate=0", "read=0MB", "write=0.0", "rate=0B/s"] {
            let said = emulation(&format!("latency=1ms, {nothing}")).unwrap_err();
            let at = format!("bad emulation spec at `{nothing}`: a rate is 1B a second or more");
            assert!(said.starts_with(&at) && said.contains("`stall`"), "{said}");
        }
        assert_eq!(emulation("rotational=no"), Ok("rotational=no".to_owned()));
        assert!(emulation("rotational=0").unwrap_err().contains("`rotational=0`: expected yes or no"));
        // It is nothing else that is wrong there.
        assert!(emulation("rate=10").unwrap_err().contains("the unit is missing"));
        assert!(emulation("latency=0,rate=1MB").unwrap_err().contains("`latency=0`"));
    }

    #[test]
    fn wishes_are_named() {
        let wish = "bandwidth=400MB,tolerate=3";
        assert_eq!(wishes(wish), Ok(wish.parse::<steadfast_client::Quality>().unwrap()));
        for (text, said) in [
            ("", "it names no wish"),
            (" ", "leave `--qos` out"),
            ("tolerate=3,", "wish 2 is empty"),
            (",tolerate=3", "wish 1 is empty"),
            ("bandwidth=1MB, ,latency=1s", "wish 2 is empty"),
            ("tolerate=3,tolerate=3", "`tolerate` is wished for twice"),
        ] {
            for refused in [wishes(text), wishes_of_a_get(text)] {
                let refused = refused.unwrap_err();
                assert!(refused.contains(said), "{text}: {refused}");
            }
        }
        assert!(wishes_of_a_get(wish).unwrap_err().starts_with("a get takes bandwidth"));
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
