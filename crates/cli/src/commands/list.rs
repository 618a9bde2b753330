//! `steadfast ls`.

use super::{connect, show_time};
use crate::{
    arguments::{Bucket, List},
    exit::UNSAID,
    units::show_bytes,
};
use anyhow::Context;
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
            let (size, committed) = (show_bytes(object.size), show_time(object.committed));
            let line = if arguments.output.json {
                let line = json!({
                    "key": object.key,
                    "size": object.size,
                    "version": object.version.to_string(),
                    "committed": committed,
                });
                line.to_string()
            } else if arguments.long {
                format!("{size:>10}  {committed}  {}", object.key)
            } else {
                object.key.clone()
            };
            writeln!(out, "{line}").context(UNSAID)?;
        }
        match objects.into_iter().last() {
            Some(last) if more => after = Some(last.key),
            _ => return Ok(()),
        }
    }
}
