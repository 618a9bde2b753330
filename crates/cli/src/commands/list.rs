//! `steadfast ls`.

use super::{connect, show_time};
use crate::{
    arguments::{Bucket, List},
    exit::UNSAID,
    harmless::harmless,
    units::show_bytes,
};
use anyhow::Context;
use serde_json::json;
use std::{
    borrow::Cow,
    io::{IsTerminal, Write},
};

pub(crate) async fn run(arguments: List) -> anyhow::Result<()> {
    let Some(place) = arguments.place else {
        let List { cluster, output, .. } = arguments;
        return super::bucket::run(Bucket::Ls { cluster, output }).await;
    };
    let (bucket, prefix) = place.split_once('/').unwrap_or((&place, ""));
    let client = connect(&arguments.cluster).await?;
    let mut out = std::io::stdout().lock();
    let to_terminal = out.is_terminal();
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
                format!("{size:>10}  {committed}  {}", shown(&object.key, to_terminal))
            } else {
                shown(&object.key, to_terminal).into_owned()
            };
            writeln!(out, "{line}").context(UNSAID)?;
        }
        match objects.into_iter().last() {
            Some(last) if more => after = Some(last.key),
            _ => return Ok(()),
        }
    }
}

/// A key as it is listed: a program that reads along gets it as it is.
fn shown(key: &str, to_terminal: bool) -> Cow<'_, str> {
    if to_terminal { harmless(key) } else { Cow::Borrowed(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_needs_care() {
        let key = "über/\u{1b}[2J\n";
        assert_eq!(shown(key, true), harmless(key));
        assert_eq!(shown(key, false), key);
    }
}
