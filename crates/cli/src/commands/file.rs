//! `steadfast write` and `steadfast truncate`: files, which grow and shrink.

use super::{connect, print_json, update};
use crate::{
    arguments::{Truncate, Write},
    exit::Refusal,
    object_name::ObjectName,
    progress,
    units::show_bytes,
};
use anyhow::Context;
use serde_json::json;
use std::{
    fs::File,
    io::{Read, Seek},
    sync::Arc,
    time::Instant,
};
use steadfast_client::{
    AmendError, Client, ClientError, FileCounts, FileError, FileOptions, PutOptions, Quality,
};
use steadfast_protocol::message::MetaFault;

/// Bytes read from the source at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Writes over bytes that are there as `put --range` does; behind the end, or where there is no object, through a file handle.
pub(crate) async fn write(arguments: Write) -> anyhow::Result<()> {
    let Write { object, offset, file, create, qos, cluster, output } = arguments;
    let (source, length) = update::open(&file)?;
    let client = Arc::new(connect(&cluster).await?);
    // Of the same file: whoever reads it begins anew.
    let again = source.try_clone().with_context(|| format!("cannot read {}", file.display()))?;
    let options = PutOptions { quality: qos.unwrap_or_default() };
    let within = update::change(&client, &object, (offset, length), source, &options, output.json).await;
    let written = match within {
        Err(error) if grows(&error, create) => {
            if options.quality == Quality::default() {
                let made = Made { create, missing: is_missing(&error) };
                let longer = lengthen(&client, &object, (offset, length), again, made, output.json).await;
                longer.map(Written::Longer)
            } else {
                Err(error.context("a wish is granted where bytes are changed that are there"))
            }
        }
        within => within.map(Written::Within),
    };
    client.tidy().await;
    match written? {
        Written::Within(changed) => changed.tell(&object, output.json),
        Written::Longer(longer) => longer.tell(&object, output.json),
    }
}

/// What a write did.
enum Written {
    /// Over bytes that were there.
    Within(update::Changed),
    /// Through a file handle.
    Longer(Longer),
}

/// Whether an object is made where there is none, and whether there was none.
#[derive(Clone, Copy)]
struct Made {
    create: bool,
    missing: bool,
}

/// What was written through a file handle.
struct Longer {
    first: u64,
    length: u64,
    size_before: u64,
    size: u64,
    counts: FileCounts,
    seconds: f64,
}

/// Whether an update failed because the object has to become longer first.
fn grows(error: &anyhow::Error, create: bool) -> bool {
    matches!(error.downcast_ref(), Some(AmendError::Extends { .. })) || create && is_missing(error)
}

/// Whether it failed because there is no such object.
fn is_missing(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(AmendError::Metadata(ClientError::Refused(MetaFault::NoObject { .. })))
    )
}

/// Writes `length` bytes of a file from byte `first` on.
async fn lengthen(
    client: &Arc<Client>,
    object: &ObjectName,
    (first, length): (u64, u64),
    mut source: File,
    Made { create, missing }: Made,
    json: bool,
) -> anyhow::Result<Longer> {
    let start = Instant::now();
    source.rewind()?;
    let mut piece;
    (source, piece) = read(source, length).await?;
    if missing {
        // What is refused leaves no empty object.
        let policy = client.bucket(&object.bucket).await?.policy;
        client.check_room(&policy, first.saturating_add(length)).await?;
    }
    let options = FileOptions { create, ..FileOptions::default() };
    let file = client.open_file_with(&object.bucket, &object.key, &options).await.map_err(plain)?;
    let size_before = file.size();
    let bar = progress::bytes(Some(length), json);
    let mut at = 0;
    while at < length {
        file.write_at(first + at, &piece).await.map_err(plain)?;
        at += piece.len() as u64;
        bar.inc(piece.len() as u64);
        (source, piece) = read(source, length - at).await?;
    }
    file.sync().await.map_err(plain)?;
    bar.finish_and_clear();
    let (size, counts, seconds) = (file.size(), file.counts(), start.elapsed().as_secs_f64());
    Ok(Longer { first, length, size_before, size, counts, seconds })
}

impl Longer {
    fn tell(&self, object: &ObjectName, json: bool) -> anyhow::Result<()> {
        let Self { first, length, size_before, size, counts, seconds } = self;
        if json {
            return print_json(&json!({
                "bucket": object.bucket,
                "key": object.key,
                "first": first,
                "length": length,
                "size_before": size_before,
                "size": size,
                "in_place_bytes": counts.in_place_bytes,
                "segments_anew": counts.segments_anew,
                "segments_added": counts.segments_added,
                "seconds": seconds,
            }));
        }
        say!(
            "wrote {} of {object} from byte {first} on: it has {size} bytes now, {size_before} before, in {seconds:.2} s",
            show_bytes(*length)
        )
    }
}

/// The next bytes of a source that has `left` of them to give.
async fn read(mut source: File, left: u64) -> anyhow::Result<(File, Vec<u8>)> {
    let wanted = PIECE_BYTES.min(usize::try_from(left).unwrap_or(PIECE_BYTES));
    let reading = tokio::task::spawn_blocking(move || {
        let mut piece = vec![0; wanted];
        source.read_exact(&mut piece).map(|()| (source, piece))
    });
    reading.await?.context("cannot read what is to be stored")
}

/// Gives an object another size.
pub(crate) async fn truncate(arguments: Truncate) -> anyhow::Result<()> {
    let Truncate { object, size, cluster, output } = arguments;
    let client = connect(&cluster).await?;
    let resized = client.truncate(&object.bucket, &object.key, size).await.map_err(plain);
    client.tidy().await;
    let resized = resized?;
    if resized.size != size {
        let said =
            format!("{object} has {} bytes now: another writer gave it that size just after", resized.size);
        return Err(Refusal::Changed(said).into());
    }
    if output.json {
        return print_json(&json!({
            "bucket": object.bucket,
            "key": object.key,
            "version": resized.version.to_string(),
            "size_before": resized.size_before,
            "size": resized.size,
            "segments_stored": resized.segments_stored,
            "written_bytes": resized.written_bytes,
            "seconds": resized.latency.as_secs_f64(),
        }));
    }
    say!(
        "{object} has {size} bytes now, {} before, in {:.2} s",
        resized.size_before,
        resized.latency.as_secs_f64()
    )?;
    Ok(())
}

/// The error within, whose kind says more.
fn plain(error: FileError) -> anyhow::Error {
    match error {
        FileError::Metadata(error) => error.into(),
        FileError::Read(error) => error.into(),
        FileError::Write(error) => error.into(),
        other => other.into(),
    }
}
