//! The policy `parity`: files that change, under a fixed (n, k) code (CodFS §3, PLR §3.1): k data chunks and n - k parity
//! chunks of each segment, every chunk on a device of its own in a failure domain of its own.
//!
//! Text: `parity:code=rs(6,4),segment=16MiB,update=plr,reserve=4MiB,domain=node,least=5`. Each part may be left out.

use super::{Domain, PolicyError, bad, domain, show_domain};
use crate::{
    layout::ParityGeometry, message::UPDATE_BYTES_MAX, serve::parity_log::LOG_RECORD_OVERHEAD_BYTES,
};
use core::fmt;
use serde::{Deserialize, Serialize};

/// Parameters of [`Policy::Parity`](super::Policy::Parity).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parity {
    /// Which code, and its shape.
    pub code: ParityCode,
    /// Bytes of an object in each segment but the last: whole MiB.
    pub segment_bytes: u64,
    /// How parity is kept up when data changes.
    pub update: ParityUpdate,
    /// Bytes kept beside each parity chunk for deltas; as many as the chunk has where absent. See
    /// [`Parity::reserve_of`].
    pub reserve_bytes: Option<u64>,
    /// What counts as one failure domain; each chunk of a segment is in another.
    pub domain: Domain,
    /// Chunks that a segment is stored with at least, while fewer failure domains serve than the code has chunks: from k + 1 to n;
    /// n where absent, so that nothing is acknowledged that does not survive the loss of any n - k. See [`Parity::degraded`].
    pub least_chunks: Option<u32>,
}

/// The fixed codes a bucket can choose; stored by place in this list, so new ones come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParityCode {
    /// Systematic Reed-Solomon over GF(2^8).
    ReedSolomon {
        /// n: chunks of a segment.
        chunks: u32,
        /// k: those of them that are data.
        data: u32,
    },
}

/// How parity follows data that changes (PLR §3.2); stored by place in this list, so new ones come last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParityUpdate {
    /// Parity logging with reserved space: deltas go to a log beside the parity chunk, and are merged later.
    #[default]
    Plr,
    /// Full overwrite: parity is changed in place.
    Fo,
}

/// The most chunks of a segment. The codes go to 255; each chunk takes a failure domain of its own, and a degraded read k
/// of them. Picked by eye: twice the widest stripes in use (CodFS evaluates up to 16), and a set of chunks fits a word.
pub const CHUNKS_MAX: u32 = 32;
/// Segments are from here ...
pub const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// ... to here: what a degraded read of one byte may take to decode, and what a lost device costs another at once.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// CodFS's default (§5.1).
const SEGMENT_BYTES: u64 = 16 << 20;
/// A delta changes whole granules, and a log of them has no part of one.
const RESERVE_UNIT: u64 = crate::layout::PARITY_GRANULE_BYTES as u64;

const CODES: &str = "rs(n,k) with 1 <= k < n <= 32: the only code of such buckets";

const LEAST: &str = "k + 1 to n: the chunks that a segment is stored with at least while nodes are missing";

impl Default for Parity {
    /// (6, 4): CodFS's default (§5.1), stores what D = 0.5 does and survives two nodes.
    fn default() -> Self {
        Self {
            code: ParityCode::ReedSolomon { chunks: 6, data: 4 },
            segment_bytes: SEGMENT_BYTES,
            update: ParityUpdate::default(),
            reserve_bytes: None,
            domain: Domain::Node,
            least_chunks: None,
        }
    }
}

impl Parity {
    /// n: chunks of a segment, and failure domains that it takes.
    pub fn chunks(&self) -> u32 {
        let ParityCode::ReedSolomon { chunks, .. } = self.code;
        chunks
    }

    /// k: data chunks.
    pub fn data(&self) -> u32 {
        let ParityCode::ReedSolomon { data, .. } = self.code;
        data
    }

    /// n - k: parity chunks, and failure domains that may be lost.
    pub fn parity(&self) -> u32 {
        self.chunks().saturating_sub(self.data())
    }

    /// Chunks that a segment is stored with at least.
    pub fn least_chunks(&self) -> u32 {
        self.least_chunks.unwrap_or(u32::MAX).min(self.chunks())
    }

    /// The policy by which a segment is stored while `domains` failure domains serve: with so many chunks and fewer of them
    /// parity. None where those are all, or fewer than the bucket wants at least.
    pub fn degraded(&self, domains: u32) -> Option<Self> {
        let code = ParityCode::ReedSolomon { chunks: domains, data: self.data() };
        (self.least_chunks()..self.chunks()).contains(&domains).then_some(Self { code, ..*self })
    }

    /// Bytes kept beside a parity chunk of `chunk_bytes`: none where parity changes in place.
    pub fn reserve_of(&self, chunk_bytes: u64) -> u64 {
        match self.update {
            ParityUpdate::Plr => self.reserve_bytes.unwrap_or(chunk_bytes),
            ParityUpdate::Fo => 0,
        }
    }
}

/// What a record takes in a log beyond the bytes that change, at most: what it takes beside its granules, and the granule that an
/// update reaches into at either side.
const RECORD_OVERHEAD: u64 = LOG_RECORD_OVERHEAD_BYTES + 2 * RESERVE_UNIT;

/// Bytes of one data chunk's updates that may be uncommitted at a time where parity is overwritten in place: devices hold what
/// they replaced until then. Picked by eye: a few of the largest.
const IN_PLACE_WINDOW_BYTES: u64 = 256 << 10;

/// Bytes of records of one of `data` data chunks that may be uncommitted at a time, beside a parity chunk with a reserve of
/// `reserve_bytes`: so many of every data chunk take half the reserve, so that they fit it wherever its head stands. Without a
/// reserve parity is overwritten in place.
pub fn window_bytes(reserve_bytes: u64, data: u32) -> u64 {
    match reserve_bytes {
        0 => IN_PLACE_WINDOW_BYTES,
        reserve => reserve / 2 / u64::from(data.max(1)),
    }
}

/// The smallest reserve beside parity of `data` data chunks that takes any change in place: one with less, but none at all, would
/// refuse what was planned when it had more.
pub fn reserve_least_bytes(data: u32) -> u64 {
    2 * u64::from(data) * (RECORD_OVERHEAD + u64::from(UPDATE_BYTES_MAX))
}

impl Parity {
    /// Bytes of records of one data chunk that may be uncommitted at a time, beside a parity chunk of `chunk_bytes`: see
    /// [`window_bytes`].
    pub fn window_bytes(&self, chunk_bytes: u64) -> u64 {
        window_bytes(self.reserve_of(chunk_bytes), self.data())
    }

    /// The most bytes of one change in place, whole granules; none where there is too little room for a log.
    pub fn update_bytes_max(&self, chunk_bytes: u64) -> Option<u32> {
        let room =
            self.window_bytes(chunk_bytes).saturating_sub(RECORD_OVERHEAD) / RESERVE_UNIT * RESERVE_UNIT;
        u32::try_from(room.min(UPDATE_BYTES_MAX.into())).ok().filter(|bytes| *bytes > 0)
    }

    /// Whether a full segment can be changed in place.
    pub fn changes_in_place(&self) -> bool {
        self.update_bytes_max(ParityGeometry::of(self, self.segment_bytes).chunk_bytes()).is_some()
    }

    /// The smallest reserve, but none at all, with which there are changes in place.
    pub fn reserve_min(&self) -> u64 {
        2 * u64::from(self.data()) * (RECORD_OVERHEAD + RESERVE_UNIT)
    }

    /// Bytes to keep beside a chunk of `chunk_bytes`, data or parity, for changes in place; none where there are none.
    pub fn kept_beside(&self, chunk: u32, chunk_bytes: u64) -> Option<u64> {
        self.update_bytes_max(chunk_bytes)?;
        Some(if chunk < self.data() { 0 } else { self.reserve_of(chunk_bytes) })
    }
}

pub(super) fn parse<'a>(parameters: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Parity, PolicyError> {
    let mut policy = Parity::default();
    for (name, value) in parameters {
        match name {
            "code" => policy.code = code(value).ok_or_else(|| bad(name, value, CODES))?,
            "segment" => {
                let segment = bytes(value).filter(|bytes| {
                    (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(bytes)
                        && bytes.is_multiple_of(SEGMENT_BYTES_MIN)
                });
                policy.segment_bytes =
                    segment.ok_or_else(|| bad(name, value, "1MiB to 64MiB, in whole MiB"))?;
            }
            "update" => {
                policy.update = match value {
                    "plr" => ParityUpdate::Plr,
                    "fo" => ParityUpdate::Fo,
                    _ => {
                        return Err(bad(
                            name,
                            value,
                            "plr (deltas in reserved space) or fo (parity in place)",
                        ));
                    }
                }
            }
            "reserve" => {
                let reserve = bytes(value)
                    .filter(|bytes| *bytes <= SEGMENT_BYTES_MAX && bytes.is_multiple_of(RESERVE_UNIT));
                let allowed = "0 to 64MiB, in whole 4KiB; as much as a chunk where it is not given";
                policy.reserve_bytes = Some(reserve.ok_or_else(|| bad(name, value, allowed))?);
            }
            "domain" => policy.domain = domain(name, value)?,
            "least" => {
                let least = value.parse().map_err(|_| bad(name, value, LEAST))?;
                policy.least_chunks = Some(least);
            }
            _ => {
                return Err(PolicyError::UnknownParameter {
                    policy: "parity",
                    name: name.to_owned(),
                    allowed: "code, segment, update, reserve, domain, least",
                });
            }
        }
    }
    if policy.update == ParityUpdate::Fo && policy.reserve_bytes.is_some() {
        return Err(PolicyError::ReserveWithoutLog);
    }
    if let Some(least) = policy.least_chunks
        && !(policy.data() + 1..=policy.chunks()).contains(&least)
    {
        return Err(bad("least", &least.to_string(), LEAST));
    }
    Ok(policy)
}

/// `rs(6,4)`.
fn code(text: &str) -> Option<ParityCode> {
    let (chunks, data) =
        text.strip_prefix("rs")?.trim().strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    let (chunks, data) = (chunks.trim().parse().ok()?, data.trim().parse().ok()?);
    let fits = data >= 1 && data < chunks && chunks <= CHUNKS_MAX;
    fits.then_some(ParityCode::ReedSolomon { chunks, data })
}

const UNITS: [(&str, u64); 3] = [("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];

/// `16MiB`, `64KiB`, `4096`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(known, _)| *known == unit.trim())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, factor): &&(&str, u64)| self.0 >= *factor && self.0.is_multiple_of(*factor);
        let (unit, factor) = UNITS.iter().find(whole).unwrap_or(&("", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl fmt::Display for Parity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParityCode::ReedSolomon { chunks, data } = self.code;
        let update = match self.update {
            ParityUpdate::Plr => "plr",
            ParityUpdate::Fo => "fo",
        };
        write!(f, "parity:code=rs({chunks},{data}),segment={},update={update}", Bytes(self.segment_bytes))?;
        if let Some(reserve) = self.reserve_bytes {
            write!(f, ",reserve={}", Bytes(reserve))?;
        }
        show_domain(f, self.domain)?;
        match self.least_chunks {
            Some(least) => write!(f, ",least={least}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::{Domain, Parity, ParityCode, ParityUpdate, Policy};

    #[test]
    fn text_and_value_agree() {
        for text in [
            "parity:code=rs(6,4),segment=16MiB,update=plr",
            "parity:code=rs(6,4),segment=16MiB,update=plr,reserve=4MiB",
            "parity:code=rs(32,1),segment=64MiB,update=fo,domain=device",
            "parity:code=rs(2,1),segment=1MiB,update=plr,reserve=0,domain=site",
            "parity:code=rs(9,6),segment=3MiB,update=plr,reserve=68KiB",
            "parity:code=rs(9,6),segment=3MiB,update=plr,domain=device,least=7",
            "parity:code=rs(6,4),segment=16MiB,update=fo,least=6",
        ] {
            let policy: Policy = text.parse().unwrap();
            assert_eq!(policy.to_string(), text);
        }
        assert_eq!("parity".parse::<Policy>().unwrap(), Policy::Parity(Parity::default()));
        let spaced: Policy = "parity: reserve=65536, code = rs( 10 , 8 ) ,domain=device".parse().unwrap();
        let expected = Parity {
            code: ParityCode::ReedSolomon { chunks: 10, data: 8 },
            reserve_bytes: Some(65536),
            domain: Domain::Device,
            ..Parity::default()
        };
        assert_eq!(spaced, Policy::Parity(expected));
        assert_eq!((spaced.tolerate(), spaced.domains(), spaced.devices()), (2, 10, Some(10)));
    }

    #[test]
    fn bad_texts_name_the_part_and_what_is_allowed() {
        for (text, part) in [
            ("parity:code=rs(4,4)", "`code=rs(4,4)` is out of range: it takes rs(n,k) with 1 <= k < n <= 32"),
            ("parity:code=rs(4,0)", "1 <= k"),
            ("parity:code=rs(33,30)", "n <= 32"),
            ("parity:code=rs(6", "rs(n,k)"),
            ("parity:code=rs(6,4", "rs(n,k)"),
            ("parity:code=rs(6,4))", "rs(n,k)"),
            ("parity:code=rs", "rs(n,k)"),
            ("parity:code=rdp(6,4)", "the only code of such buckets"),
            ("parity:code=rs(6,4)x", "rs(n,k)"),
            ("parity:segment=1GiB", "1MiB to 64MiB"),
            ("parity:segment=512KiB", "`segment=512KiB`"),
            ("parity:segment=1500KiB", "whole MiB"),
            ("parity:segment=99999999999999999999MiB", "1MiB to 64MiB"),
            ("parity:update=pl", "plr (deltas in reserved space) or fo"),
            ("parity:reserve=5000", "whole 4KiB"),
            ("parity:update=fo,reserve=4MiB", "update=fo changes parity in place"),
            ("parity:reserve=0,update=fo", "leave `reserve` out"),
            ("parity:devices=4", "it takes code, segment, update, reserve, domain, least"),
            ("parity:least=4", "`least=4` is out of range: it takes k + 1 to n"),
            ("parity:code=rs(9,6),least=10", "k + 1 to n"),
            ("parity:least=6,code=rs(5,4)", "k + 1 to n"),
            ("parity:least=all", "k + 1 to n"),
            ("parity:domain=rack", "device, node or site"),
            ("raid6", "`parity`"),
        ] {
            let error = text.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_reserve_takes_changes_in_place_or_says_how_large_it_must_be() {
        for (code, data) in [("rs(6,4)", 4), ("rs(3,2)", 2), ("rs(16,12)", 12)] {
            let with = |reserve: u64| match format!("parity:code={code},reserve={reserve}").parse() {
                Ok(Policy::Parity(parity)) => parity,
                other => panic!("{other:?}"),
            };
            let min = with(4096).reserve_min();
            assert!(!with(4096).changes_in_place() && !with(min - 4096).changes_in_place(), "{code}");
            assert!(with(min).changes_in_place() && with(0).changes_in_place());
            assert_eq!(with(min).update_bytes_max(1 << 20), Some(4096));
            // What is uncommitted of all chunks fits half the reserve, each update with what it takes beside its bytes.
            for reserve in [min, 1 << 20, 4 << 20] {
                let parity = with(reserve);
                let largest = parity.update_bytes_max(1 << 20).map(u64::from).unwrap_or(0);
                assert!(data * (largest + 4 * 4096) <= reserve / 2);
                assert!(data * parity.window_bytes(1 << 20) <= reserve / 2);
            }
            assert_eq!(
                (with(min).kept_beside(data as u32, 1 << 20), with(min).kept_beside(0, 1 << 20)),
                (Some(min), Some(0))
            );
            assert_eq!(with(4096).kept_beside(0, 1 << 20), None);
        }
    }

    #[test]
    fn the_reserve_is_the_chunk_unless_something_else_is_said() {
        let parity = |text: &str| match text.parse() {
            Ok(Policy::Parity(parity)) => parity,
            other => panic!("{other:?}"),
        };
        assert_eq!(parity("parity").reserve_of(8192), 8192);
        assert_eq!(parity("parity:reserve=0").reserve_of(8192), 0);
        assert_eq!(parity("parity:reserve=4MiB").reserve_of(8192), 4 << 20);
        let in_place = parity("parity:update=fo");
        assert_eq!((in_place.update, in_place.reserve_of(8192)), (ParityUpdate::Fo, 0));
    }
}
