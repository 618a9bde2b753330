//! `steadfast put --range`, and `steadfast write` where it comes to the same: changes bytes of an object that is there.

use super::{connect, objects::Counted, print_json};
use crate::{arguments::Put, exit::Refusal, object_name::ObjectName, progress, units::show_bytes};
use anyhow::Context;
use serde_json::json;
use std::{
    fs::{self, File},
    io::{self, Seek},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};
use steadfast_client::{AmendReport, Client, PutOptions};
use steadfast_protocol::words::counted;

/// Stores the file over the bytes from `first` on, up to `last` where that is named.
pub(crate) async fn run(arguments: Put, (first, last): (u64, Option<u64>)) -> anyhow::Result<()> {
    let Put { file, object, qos, cluster, output, .. } = arguments;
    let (source, length) = open(&file)?;
    if let Some(last) = last
        && length != last - first + 1
    {
        let said = format!(
            "{} has {length} bytes, but --range {first}-{last} names {}: name as many, or write --range {first}-",
            file.display(),
            last - first + 1
        );
        return Err(Refusal::Wrong(said).into());
    }
    let client = connect(&cluster).await?;
    let options = PutOptions { quality: qos.unwrap_or_default() };
    let changed = change(&client, &object, (first, length), source, &options, output.json).await;
    client.tidy().await;
    changed?.tell(&object, output.json)
}

/// Bytes of an object that were changed.
pub(super) struct Changed {
    first: u64,
    length: u64,
    report: AmendReport,
}

/// Stores `length` bytes of a file over those from `first` on.
pub(super) async fn change(
    client: &Client,
    object: &ObjectName,
    (first, length): (u64, u64),
    source: File,
    options: &PutOptions,
    json: bool,
) -> anyhow::Result<Changed> {
    let bar = progress::bytes(Some(length), json);
    let source = Counted { inner: source, bar: bar.clone() };
    let report = client.update_with(&object.bucket, &object.key, first, source, options).await?;
    bar.finish_and_clear();
    Ok(Changed { first, length, report })
}

impl Changed {
    /// Says what was done; after the client has tidied up, since nobody may read it.
    pub(super) fn tell(&self, object: &ObjectName, json: bool) -> anyhow::Result<()> {
        let Self { first, length, report: changed } = self;
        if json {
            let mut line = report(object, changed);
            line["first"] = json!(first);
            line["length"] = json!(length);
            print_json(&line)
        } else if changed.in_place_bytes == *length && *length > 0 {
            say!(
                "changed {} of {object} from byte {first} on, where they lie, in {:.4} s",
                show_bytes(*length),
                changed.latency.as_secs_f64()
            )
        } else {
            say!(
                "changed {} of {object} from byte {first} on: {} read, {} of {} written ({}) in {:.2} s",
                show_bytes(*length),
                counted(changed.read_blocks, "block"),
                changed.written_blocks,
                changed.stored_after,
                show_bytes(changed.written_bytes),
                changed.latency.as_secs_f64()
            )
        }
    }
}

/// A file that can be read again, from its begin, and its length; standard input, and what a pipe gives, is kept in one without a name.
pub(super) fn open(file: &Path) -> anyhow::Result<(File, u64)> {
    if file == Path::new("-") {
        return kept(&mut io::stdin()).context("cannot keep standard input");
    }
    let wrong = |why| Refusal::Wrong(format!("{} {why}", file.display()));
    if file.is_dir() {
        return Err(wrong("is a directory; name the file that has the new bytes").into());
    }
    let reading = || format!("cannot read {}", file.display());
    let mut source = File::open(file).with_context(reading)?;
    let kind = source.metadata().with_context(reading)?.file_type();
    if kind.is_char_device() && !is_null(&source).with_context(reading)? {
        return Err(wrong("is a device whose bytes may have no end; `-` takes standard input").into());
    }
    if kind.is_fifo() || kind.is_socket() {
        return kept(&mut source).with_context(|| format!("cannot keep what {} gives", file.display()));
    }
    let length = source.seek(io::SeekFrom::End(0)).with_context(reading)?;
    source.rewind()?;
    Ok((source, length))
}

/// Whether it is the device that has no bytes.
fn is_null(source: &File) -> io::Result<bool> {
    Ok(source.metadata()?.rdev() == fs::metadata("/dev/null")?.rdev())
}

/// What can be read once, kept in a file without a name.
fn kept(once: &mut impl io::Read) -> anyhow::Result<(File, u64)> {
    let mut kept = tempfile::tempfile()?;
    let length = io::copy(once, &mut kept)?;
    kept.rewind()?;
    Ok((kept, length))
}

/// What a change of an object took, for `--json`.
pub(crate) fn report(object: &ObjectName, changed: &AmendReport) -> serde_json::Value {
    json!({
        "bucket": object.bucket,
        "key": object.key,
        "version": changed.version.to_string(),
        "originals": changed.originals,
        "stored_before": changed.stored_before,
        "stored": changed.stored_after,
        "redundancy_before": changed.redundancy_before(),
        "redundancy": changed.redundancy(),
        "read_blocks": changed.read_blocks,
        "read_bytes": changed.read_bytes,
        "decoded_segments": changed.decoded_segments,
        "written_blocks": changed.written_blocks,
        "written_bytes": changed.written_bytes,
        "in_place_bytes": changed.in_place_bytes,
        "merged_blocks": changed.merged_blocks,
        "dropped_blocks": changed.dropped_blocks,
        "freed_bytes": changed.freed_bytes,
        "seconds": changed.latency.as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::{Read, Write};

    #[test]
    fn what_a_pipe_gives_is_kept_and_what_has_no_end_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, file) = (dir.path().join("pipe"), dir.path().join("file"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::write(&file, [7; 5000]).unwrap();
        let written = pipe.clone();
        let writer = std::thread::spawn(move || {
            File::options().write(true).open(written).unwrap().write_all(&[7; 5000]).unwrap();
        });
        for given in [&pipe, &file] {
            let (mut source, length) = open(given).unwrap();
            let mut bytes = Vec::new();
            source.read_to_end(&mut bytes).unwrap();
            assert!(length == 5000 && bytes == [7; 5000], "{length}");
        }
        writer.join().unwrap();
        for (wrong, why) in [(Path::new("/dev/zero"), "no end"), (dir.path(), "directory")] {
            let error = open(wrong).unwrap_err();
            assert!(error.is::<Refusal>() && error.to_string().contains(why), "{error}");
        }
    }
}
