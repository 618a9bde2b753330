//! `steadfast ls`.

use super::{connect, show_time};
use crate::{
    arguments::{Bucket, List},
    exit::UNSAID,
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

/// A key as it is listed: a terminal is not to obey one that another user chose, a program that reads along gets it as it is.
fn shown(key: &str, to_terminal: bool) -> Cow<'_, str> {
    if !to_terminal || !key.contains(char::is_control) {
        return Cow::Borrowed(key);
    }
    let escaped = |symbol: char| match symbol.is_control() {
        true => symbol.escape_default().to_string(),
        false => symbol.to_string(),
    };
    Cow::Owned(key.chars().map(escaped).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_no_commands() {
        let key = "über/\u{1b}[2J\n";
        assert_eq!(shown(key, true), "über/\\u{1b}[2J\\n");
        assert_eq!(shown(key, false), key);
        assert_eq!(shown("plain key", true), "plain key");
    }
}
