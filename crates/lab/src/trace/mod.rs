//! Recorded requests of real systems, as they are published: one reader for each form, plain or gzip, told apart by
//! what the file says and not by its name.
//!
//! | form | its first line | times |
//! |---|---|---|
//! | [`Form::CloudPhysics`] | `version,time,op,size,lbn` | not to be used: only the order is |
//! | [`Form::Workstation`] | `time_s,dev,lbn_sector,size_bytes,op,sync,...` | seconds |
//! | [`Form::WebSearch`] | five numbers: nanoseconds, device, sector, sectors, 1 for a read | nanoseconds |
//!
//! [`TraceSummary`] counts what the PLR paper's Tables 1 and 2 have; [`CompactingMap`] puts all regions that a trace
//! touches side by side, so that it can be replayed into one small file.
//!
//! Invariants: a request has at least one byte and ends below 2^64; times never go back, and lie within 600 years; after an error
//! nothing more is read. The bytes themselves are in no trace.

mod compact;
mod error;
mod lines;
mod summary;
#[cfg(test)]
mod tests;

pub use compact::{CompactingMap, FilePiece, REGION_BYTES};
pub use error::TraceError;
pub use summary::{BLOCK_BYTES, TraceSummary};

use core::time::Duration;
use flate2::bufread::MultiGzDecoder;
use lines::Lines;
use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

/// A sector of all three forms.
const SECTOR_BYTES: u64 = 512;
/// The first bytes of gzip (RFC 1952 §2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Columns of the workstation's trace; those behind `sync` may differ.
const WORKSTATION: &str = "time_s,dev,lbn_sector,size_bytes,op,sync,";
const CLOUD_PHYSICS: &str = "version,time,op,size,lbn";

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// From the trace's start; none where its times are not to be used.
    pub at: Option<Duration>,
    /// Which of the trace's devices.
    pub device: u32,
    /// Where on it.
    pub offset_bytes: u64,
    /// How much.
    pub bytes: u32,
    /// Whether it writes.
    pub write: bool,
}

/// The form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One virtual machine's block requests, SCSI operations in hexadecimal.
    CloudPhysics,
    /// HP Labs' traces as DiskSim's kit has them: a workstation's disks.
    Workstation,
    /// MQSim's traces of a search engine's disks, without a header.
    WebSearch,
}

/// The requests of a trace, in order.
pub struct Trace {
    form: Form,
    lines: Lines<Box<dyn BufRead + Send>>,
    /// Where there is no header the first line was read to tell the form.
    first: Option<TraceRequest>,
    last: Duration,
    ended: bool,
}

impl Trace {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be read, is empty, or is in none of the known forms.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let read = |source| TraceError::Read { line: 0, source };
        Self::new(File::open(path).map_err(read)?)
    }

    /// Reads from anything that gives the bytes of such a file.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub fn new(input: impl Read + Send + 'static) -> Result<Self, TraceError> {
        let mut input = BufReader::new(input);
        let read = |source| TraceError::Read { line: 0, source };
        let packed = input.fill_buf().map_err(read)?.starts_with(&GZIP);
        let input: Box<dyn BufRead + Send> = match packed {
            true => Box::new(BufReader::new(MultiGzDecoder::new(input))),
            false => Box::new(input),
        };
        let mut lines = Lines::new(input);
        let (line, text) = lines.next()?.ok_or(TraceError::Empty)?;
        let (form, first) = if text == CLOUD_PHYSICS {
            (Form::CloudPhysics, None)
        } else if text.starts_with(WORKSTATION) {
            (Form::Workstation, None)
        } else {
            // A line of five numbers and nothing else can only be this one.
            let unknown = |_| TraceError::Unknown { text: text.chars().take(80).collect() };
            (Form::WebSearch, Some(web_search(line, text).map_err(unknown)?))
        };
        Ok(Self { form, lines, first, last: Duration::ZERO, ended: false })
    }

    /// Its form.
    pub fn form(&self) -> Form {
        self.form
    }

    fn read(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        let request = match self.first.take() {
            Some(first) => first,
            None => {
                let Some((line, text)) = self.lines.next()? else { return Ok(None) };
                match self.form {
                    Form::CloudPhysics => cloud_physics(line, text)?,
                    Form::Workstation => workstation(line, text)?,
                    Form::WebSearch => web_search(line, text)?,
                }
            }
        };
        let at = request.at.unwrap_or(self.last);
        if at < self.last {
            return Err(TraceError::Back { line: self.lines.number(), at, last: self.last });
        }
        self.last = at;
        Ok(Some(request))
    }
}

impl Iterator for Trace {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// A line's columns, by number from 1.
struct Columns<'a, const N: usize> {
    line: u64,
    texts: [&'a str; N],
}

impl<'a, const N: usize> Columns<'a, N> {
    /// # Errors
    /// When there are not just so many.
    fn split(line: u64, text: &'a str, separator: char) -> Result<Self, TraceError> {
        let mut texts = [""; N];
        let mut count = 0;
        for column in text.split(separator) {
            if let Some(place) = texts.get_mut(count) {
                *place = column;
            }
            count += 1;
        }
        if count != N {
            return Err(TraceError::Columns { line, count, expected: N });
        }
        Ok(Self { line, texts })
    }

    fn wrong(&self, column: usize, expected: &'static str) -> TraceError {
        TraceError::Column {
            line: self.line,
            column: column + 1,
            text: self.texts[column].to_owned(),
            expected,
        }
    }

    fn number(&self, column: usize, expected: &'static str) -> Result<u64, TraceError> {
        self.texts[column].parse().map_err(|_| self.wrong(column, expected))
    }

    fn device(&self, column: usize) -> Result<u32, TraceError> {
        self.texts[column].parse().map_err(|_| self.wrong(column, "the number of a device"))
    }

    /// Where a request lies: its sector in one column and its length, in units of `unit`, in another.
    fn place(&self, sector: usize, length: usize, unit: u64) -> Result<(u64, u32), TraceError> {
        let offset = self.number(sector, "a sector")?.checked_mul(SECTOR_BYTES);
        let offset = offset.ok_or_else(|| self.wrong(sector, "a sector that ends below 2^64 bytes"))?;
        let bytes = self.number(length, "a length")?.checked_mul(unit);
        let bytes = bytes
            .and_then(|bytes| u32::try_from(bytes).ok())
            .filter(|&bytes| bytes > 0 && offset.checked_add(bytes.into()).is_some());
        Ok((offset, bytes.ok_or_else(|| self.wrong(length, "a length of 1 byte to 4 GiB"))?))
    }
}

/// `1,5633898,2a,512,42932745`: SCSI's READ(10) is 28, WRITE(10) 2a.
fn cloud_physics(line: u64, text: &str) -> Result<TraceRequest, TraceError> {
    let columns = Columns::<5>::split(line, text, ',')?;
    let write = match columns.texts[2] {
        "2a" => true,
        "28" => false,
        _ => return Err(columns.wrong(2, "28 (read) or 2a (write)")),
    };
    let (offset_bytes, bytes) = columns.place(4, 3, 1)?;
    Ok(TraceRequest { at: None, device: 0, offset_bytes, bytes, write })
}

/// `0.022479,1,1040,4096,R,S,0.076,10.038,1`.
fn workstation(line: u64, text: &str) -> Result<TraceRequest, TraceError> {
    let columns = Columns::<9>::split(line, text, ',')?;
    let at = seconds(columns.texts[0]);
    let at = at.ok_or_else(|| columns.wrong(0, "seconds below 2^32 with up to nine decimals"))?;
    let device = columns.device(1)?;
    let write = match columns.texts[4] {
        "W" => true,
        "R" => false,
        _ => return Err(columns.wrong(4, "R or W")),
    };
    let (offset_bytes, bytes) = columns.place(2, 3, 1)?;
    Ok(TraceRequest { at: Some(at), device, offset_bytes, bytes, write })
}

/// `11413000 0 657728 16 1`.
fn web_search(line: u64, text: &str) -> Result<TraceRequest, TraceError> {
    let columns = Columns::<5>::split(line, text, ' ')?;
    let at = Duration::from_nanos(columns.number(0, "nanoseconds")?);
    let device = columns.device(1)?;
    let write = match columns.texts[4] {
        "0" => true,
        "1" => false,
        _ => return Err(columns.wrong(4, "0 (write) or 1 (read)")),
    };
    let (offset_bytes, bytes) = columns.place(2, 3, SECTOR_BYTES)?;
    Ok(TraceRequest { at: Some(at), device, offset_bytes, bytes, write })
}

/// Seconds with decimals, exactly: a float has not the digits of a week in microseconds and of their sums. Those of any calendar
/// fit, and can be added to a clock's time.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 9 {
        return None;
    }
    let nanos = part.parse::<u32>().ok()? * 10u32.pow(9 - part.len() as u32);
    Some(Duration::new(whole.parse::<u32>().ok()?.into(), nanos))
}
