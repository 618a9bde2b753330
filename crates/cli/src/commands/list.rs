//! `steadfast ls`.

use super::{connect, show_time};
use crate::{
    arguments::{Bucket, List},
    units::show_bytes,
};
use serde_json::json;
use std::io::Write;

pub(crate) async fn run(arguments: List) -> anyhow::Result<()> {
    let Some(place) = arguments.place else {
        let List { cluster, output, .. } = arguments;
        return super::bucket::run(Bucket::Ls { cluster, output }).await;
    };
    let (bucket, prefix) = place.split_once('/').unwrap_or((&place, ""));
    let client = connect(&arguments.cluster).await?;
    let mut out = std::io::stdout().lock();
    let mut after = None;
    loop {
        let (objects, more) = client.list(bucket, prefix, after.take(), 1000).await?;
        for object in &objects {
            if arguments.output.json {
                let line = json!({
                    "key": object.key,
                    "size": object.size,
                    "version": object.version.to_string(),
                    "committed": show_time(object.committed),
                });
                writeln!(out, "{line}")?;
            } else if arguments.long {
                writeln!(
                    out,
                    "{:>10}  {}  {}",
                    show_bytes(object.size),
                    show_time(object.committed),
                    object.key
                )?;
            } else {
                writeln!(out, "{}", object.key)?;
            }
        }
        match objects.into_iter().last() {
            Some(last) if more => after = Some(last.key),
            _ => return Ok(()),
        }
    }
}
