//! `steadfast put`, `get`, `stat`, `rm`.

use super::{connect, connect_with, print_json, show_time, target::Target};
use crate::{
    arguments::{Get, Put, Remove, Stat},
    exit::Refusal,
    progress,
    units::{show_bytes, show_rate},
};
use anyhow::Context;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    path::Path,
    time::Instant,
};
use steadfast_client::{GetOptions, Options, PutError, PutOptions};
use steadfast_protocol::{
    IndexRanges,
    layout::{CodeKind, Holder, Piece, SegmentLayout},
    policy::Pledge,
    words::{counted, counted_are},
};

pub(crate) async fn put(arguments: Put) -> anyhow::Result<()> {
    if let Some(range) = arguments.range {
        return super::update::run(arguments, range).await;
    }
    let Put { file, object, qos, cluster, output, .. } = arguments;
    let (source, size): (Box<dyn Read + Send>, Option<u64>) = if file == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let reading = || format!("cannot read {}", file.display());
        let opened = File::open(&file).with_context(reading)?;
        let metadata = opened.metadata().with_context(reading)?;
        if metadata.is_dir() {
            let why = format!("{} is a directory; put its files one by one", file.display());
            return Err(Refusal::Wrong(why).into());
        }
        if metadata.is_file() {
            let size = metadata.len();
            (Box::new(Announced::new(opened, size).with_context(reading)?), Some(size))
        } else {
            (Box::new(opened), None)
        }
    };
    let bar = progress::bytes(size, output.json);
    let client = connect(&cluster).await?;
    let source = Counted { inner: source, bar: bar.clone() };
    let options = PutOptions { quality: qos.unwrap_or_default() };
    let stored = client.put_with(&object.bucket, &object.key, source, size, &options).await;
    client.tidy().await;
    let stored = stored?;
    bar.finish_and_clear();
    if output.json {
        print_json(&json!({
            "bucket": object.bucket,
            "key": object.key,
            "version": stored.version.to_string(),
            "size": stored.size,
            "stored_bytes": stored.stored_bytes,
            "sent_bytes": stored.sent_bytes,
            "offloaded_bytes": stored.offloaded_bytes,
            "degraded_segments": stored.degraded_segments,
            "seconds": stored.latency.as_secs_f64(),
        }))?;
    } else {
        say!(
            "stored {object}: {} as {} of blocks in {:.2} s ({})",
            show_bytes(stored.size),
            show_bytes(stored.stored_bytes),
            stored.latency.as_secs_f64(),
            show_rate(stored.size, stored.latency)
        )?;
        if stored.degraded_segments > 0 {
            say!(
                "{} stored with fewer chunks than the bucket's policy asks for, because servers are missing: completed once \
                 they are back",
                counted_are(stored.degraded_segments, "segment")
            )?;
        }
    }
    Ok(())
}

pub(crate) async fn get(arguments: Get) -> anyhow::Result<()> {
    let Get { object, file, range, request, qos, cluster, output } = arguments;
    let client = connect_with(&cluster, Options { request, ..cluster.tuning.options() }).await?;
    let target = Target::open(&file)?;
    let to_stdout = matches!(target, Target::Stdout);
    let bar = progress::bytes(None, output.json || to_stdout);
    let sink = Counted { inner: target.writer()?, bar: bar.clone() };
    let options = GetOptions { quality: qos.unwrap_or_default() };
    let start = Instant::now();
    let got = client.get_with(&object.bucket, &object.key, range, sink, &options).await;
    let kept = if got.is_ok() { target.keep() } else { Ok(()) };
    // Until the bytes are in the file: the library's own figure ends when they are ready.
    let took = start.elapsed();
    // However it ended: what it reserved is given back at once, not when its lease ends.
    client.tidy().await;
    let got = got?;
    kept?;
    bar.finish_and_clear();
    // Programs read it in the report, which may go there.
    if !output.json
        && let Some(said) = cut_short(range, got.size)
    {
        tell!("{object} {said}");
    }
    if output.json {
        let report = json!({
            "bucket": object.bucket,
            "key": object.key,
            "version": got.version.to_string(),
            "size": got.size,
            "received_bytes": got.received_bytes,
            "sent_bytes": got.sent_bytes,
            "medium_bytes": got.medium_bytes,
            "used_bytes": got.used_bytes,
            "io_overhead": got.io_overhead(),
            "requested_blocks": got.requested_blocks,
            "extra_blocks": got.extra_blocks,
            "extra_won": got.extra_won,
            "coded_blocks": got.coded_blocks,
            "seconds": took.as_secs_f64(),
        });
        // Standard output has the object.
        if to_stdout { tell!("{report}") } else { print_json(&report)? }
    } else if !to_stdout {
        say!(
            "fetched {object}: {} in {:.2} s ({})",
            show_bytes(got.size),
            took.as_secs_f64(),
            show_rate(got.size, took)
        )?;
    }
    Ok(())
}

/// What is to be said of an object of which so many bytes of a range were read; nothing where those are all.
fn cut_short(range: Option<(u64, Option<u64>)>, read: u64) -> Option<String> {
    let (first, Some(last)) = range? else { return None };
    let size = first.saturating_add(read);
    let (end, bytes) = (size.saturating_sub(1), counted(size, "byte"));
    (size <= last).then(|| format!("has {bytes}: those from {first} to {end} were read, not to {last}"))
}

pub(crate) async fn stat(arguments: Stat) -> anyhow::Result<()> {
    let Stat { object, cluster, output } = arguments;
    let found = connect(&cluster).await?.stat(&object.bucket, &object.key).await?;
    let missing = |segment: &SegmentLayout| segment.missing_chunks(&found.policy);
    let degraded = found.segments.iter().filter(|segment| missing(segment) > 0).count();
    if output.json {
        let segments = found.segments.iter().map(|segment| segment_json(segment, missing(segment)));
        return print_json(&json!({
            "bucket": object.bucket,
            "key": object.key,
            "version": found.object.version.to_string(),
            "size": found.object.size,
            "committed": show_time(found.object.committed),
            "pledge": {"tolerate": found.object.pledge.tolerate, "sites": found.object.pledge.sites},
            "degraded_segments": degraded,
            "segments": Vec::from_iter(segments),
        }));
    }
    say!("{object}")?;
    say!("size       {} ({} bytes)", show_bytes(found.object.size), found.object.size)?;
    say!("version    {}", found.object.version)?;
    say!("committed  {} UTC", show_time(found.object.committed))?;
    if let Some(promise) = promise(found.object.pledge) {
        say!("promises   {promise}")?;
    }
    if degraded > 0 {
        let (all, policy) = (counted(found.segments.len(), "segment"), found.policy);
        say!(
            "degraded   {degraded} of {all} with fewer chunks than `{policy}` asks for: completed once more servers are well \
             (`steadfast repair`: at once)"
        )?;
    }
    // A file may have thousands of holes in a row.
    for run in found.segments.chunk_by(|segment, next| segment.is_hole() && next.is_hole()) {
        let segment = &run[0];
        if segment.is_hole() {
            let bytes = run.iter().map(|segment| segment.length).sum();
            say!("hole       {} of zeros, which nobody stores", show_bytes(bytes))?;
            continue;
        }
        let code = code_name(segment);
        say!(
            "segment    {}: {code}, K = {}, N = {} (D = {:.2}), blocks of {} on {}{}",
            segment.segment,
            segment.code.originals,
            segment.stored_blocks(),
            segment.redundancy(),
            show_bytes(segment.block_bytes.into()),
            counted(segment.holders.len(), "device"),
            lacks(missing(segment))
        )?;
        for holder in &segment.holders {
            say!("           {}  {}: {}", holder.device, counted(holder.count(), "block"), holder.blocks())?;
            // Each is an extent of its own; one is the rule until the object is changed.
            for piece in holder.pieces.iter().filter(|_| holder.pieces.len() > 1) {
                say!("             piece {} of version {}: {}", piece.segment, piece.version, piece.blocks)?;
            }
        }
    }
    Ok(())
}

/// What an object promises beyond its bucket; none where that is nothing.
fn promise(Pledge { tolerate, sites }: Pledge) -> Option<String> {
    let survives = (tolerate > 0).then(|| format!("to survive {}", counted(tolerate, "failure")));
    let lies = (sites > 0).then(|| format!("where it can, to lie on {}", counted(sites, "site")));
    let both: Vec<String> = survives.into_iter().chain(lies).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

/// What is behind the line of a segment that has so many chunks fewer than its bucket's policy; nothing where it has all.
fn lacks(chunks: u32) -> String {
    if chunks == 0 { String::new() } else { format!("; degraded: {} missing", counted(chunks, "chunk")) }
}

/// What a segment's blocks are.
fn code_name(segment: &SegmentLayout) -> String {
    match segment.code.kind {
        _ if segment.is_hole() => "hole".to_owned(),
        CodeKind::Replicated if segment.code.originals == 1 => "copies".to_owned(),
        CodeKind::Replicated if segment.code.originals == segment.stored_blocks() => "stripe".to_owned(),
        CodeKind::Replicated => "rotated copies".to_owned(),
        CodeKind::Lt { c, delta } => format!("LT c={c} delta={delta}"),
        CodeKind::Mix => "mix-b".to_owned(),
        CodeKind::MixA => "mix-a".to_owned(),
        CodeKind::MixC => "mix-c".to_owned(),
        CodeKind::ReedSolomon { data, parity } => format!("rs({},{data})", data + parity),
    }
}

/// A segment as JSON, which has so many chunks fewer than its bucket's policy: names as text, as elsewhere; they do not fit its numbers.
fn segment_json(segment: &SegmentLayout, missing_chunks: u32) -> Value {
    let ranges =
        |blocks: &IndexRanges| Vec::from_iter(blocks.ranges().iter().map(|range| [range.start, range.end]));
    let piece = |piece: &Piece| {
        json!({
            "segment": piece.segment.to_string(),
            "version": piece.version.to_string(),
            "blocks": ranges(&piece.blocks),
        })
    };
    let holder = |holder: &Holder| {
        json!({
            "device": holder.device.to_string(),
            "count": holder.count(),
            "pieces": Vec::from_iter(holder.pieces.iter().map(piece)),
        })
    };
    json!({
        "segment": segment.segment.to_string(),
        "version": segment.version.to_string(),
        "epoch": segment.epoch.0,
        "length": segment.length,
        "code": code_name(segment),
        "originals": segment.code.originals,
        "stored_blocks": segment.stored_blocks(),
        "redundancy": (!segment.is_hole()).then(|| segment.redundancy()),
        "missing_chunks": missing_chunks,
        "block_bytes": segment.block_bytes,
        "granule_bytes": segment.granule_bytes,
        "holders": Vec::from_iter(segment.holders.iter().map(holder)),
    })
}

pub(crate) async fn remove(arguments: Remove) -> anyhow::Result<()> {
    let Remove { object, cluster, output } = arguments;
    let client = connect(&cluster).await?;
    let removed = client.remove(&object.bucket, &object.key).await;
    client.tidy().await;
    removed?;
    if output.json {
        print_json(&json!({ "removed": format!("{}/{}", object.bucket, object.key) }))?;
    } else {
        say!("removed {object}")?;
    }
    Ok(())
}

/// A plain file of so many bytes. A put reads those and no more, as other sources may stay open behind them; that a file has grown
/// meanwhile is seen here.
struct Announced {
    size: u64,
    left: io::Take<File>,
}

impl Announced {
    /// A file that was just opened.
    ///
    /// # Errors
    /// When it has more by now.
    fn new(file: File, size: u64) -> io::Result<Self> {
        let announced = Self { size, left: file.take(size) };
        announced.check()?;
        Ok(announced)
    }

    /// Nothing lies behind its last byte, where that was read.
    fn check(&self) -> io::Result<()> {
        if self.left.limit() > 0 || self.left.get_ref().take(1).read_to_end(&mut Vec::new())? == 0 {
            return Ok(());
        }
        let (announced, given) = (self.size, self.size + 1);
        Err(io::Error::other(PutError::SourceLength { announced, given }))
    }
}

impl Read for Announced {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.left.read(buffer)?;
        self.check()?;
        Ok(read)
    }
}

/// Shows on the bar what passes through.
pub(super) struct Counted<T> {
    pub(super) inner: T,
    pub(super) bar: ProgressBar,
}

impl<T: Seek> Seek for Counted<T> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

impl<T: Read> Read for Counted<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}

impl<T: Write> Write for Counted<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.bar.inc(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_was_cut_short_is_told_and_a_whole_one_is_not() {
        let told = |first, last, read| cut_short(Some((first, last)), read);
        assert_eq!(told(5, Some(9), 5), None);
        assert_eq!(told(5, None, 95), None);
        assert_eq!(cut_short(None, 100), None);
        let said = told(5, Some(100), 95).unwrap();
        assert_eq!(said, "has 100 bytes: those from 5 to 99 were read, not to 100");
        assert!(told(0, Some(u64::MAX - 1), 1).unwrap().starts_with("has 1 byte: those from 0 to 0 "));
    }

    #[test]
    fn a_file_that_has_grown_is_not_taken_for_what_it_was() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        let mut read = |size| {
            file.rewind().unwrap();
            let mut bytes = Vec::new();
            let announced = Announced::new(file.try_clone().unwrap(), size);
            announced.and_then(|mut announced| announced.read_to_end(&mut bytes)).map(|_| bytes)
        };
        assert_eq!(read(3).unwrap(), b"abc");
        // That it is short sees whoever wanted more.
        assert_eq!(read(4).unwrap(), b"abc");
        for size in 0..3 {
            let grown = read(size).unwrap_err().to_string();
            assert!(grown.contains(&format!("announced {size} bytes")), "{grown}");
        }
    }
}
