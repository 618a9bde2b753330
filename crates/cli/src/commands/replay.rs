//! `steadfast replay`: a recorded trace's requests, made of an object of this cluster.

use super::{connect, print_json};
use crate::{arguments::Replay, progress, units::show_bytes};
use std::{fmt::Display, sync::Arc};
use steadfast_lab::replay::{self, Latency, Options, Outcome, Requests, Step};
use steadfast_protocol::words::counted;

pub(crate) async fn run(arguments: Replay) -> anyhow::Result<()> {
    let Replay { trace, bucket, key, size, limit, depth, sync, paced, cache, cluster, output } = arguments;
    let requests = Requests::read(&trace, limit, size)?;
    let client = Arc::new(connect(&cluster).await?);
    let bar = progress::count(requests.count(), output.json);
    let cache_bytes = cache.unwrap_or(steadfast_client::FileOptions::default().cache_bytes);
    let options = Options { bucket, key, size, depth: depth.into(), sync, paced, cache_bytes, seed: SEED };
    let object = format!("{}/{}", options.bucket, options.key);
    let (shown, stored) = (bar.clone(), object.clone());
    let step = move |step| match step {
        Step::Storing(bytes) => shown.set_message(format!("storing {stored}, {}", show_bytes(bytes))),
        Step::Request => {
            if shown.position() == 0 {
                shown.set_message("");
            }
            shown.inc(1);
        }
    };
    let outcome = replay::run(&client, requests, options, step).await;
    bar.finish_and_clear();
    // What was stored anew leaves old blocks behind.
    client.tidy().await;
    let outcome = outcome?;
    if output.json {
        return print_json(&outcome);
    }
    show(&object, &outcome)
}

/// The bytes written are made from this; nobody chooses among them.
const SEED: u64 = 1;

fn show(object: &str, outcome: &Outcome) -> anyhow::Result<()> {
    let Outcome {
        requests,
        requests_per_s,
        seconds,
        reads,
        reads_kept,
        read_bytes,
        writes,
        written_bytes,
        ..
    } = outcome;
    let stored = if outcome.stored { ", stored for this" } else { "" };
    say!("object     {object}, {}{stored}", show_bytes(outcome.object_bytes))?;
    if outcome.folded_regions > 0 {
        say!("           {} MiB of the trace share their place with others", outcome.folded_regions)?;
    }
    say!("requests   {requests} in {seconds:.2} s, {requests_per_s:.0} a second")?;
    let kept = if *reads_kept > 0 { format!(" ({reads_kept} pieces from memory)") } else { String::new() };
    say!("reads      {reads}, {}{kept}{}", show_bytes(*read_bytes), show_latency(outcome.read_latency))?;
    say!("writes     {writes}, {}{}", show_bytes(*written_bytes), show_latency(outcome.write_latency))?;
    let in_place = show_bytes(outcome.in_place_bytes);
    say!("stored     {}", show_stored(&in_place, outcome.segments_anew, outcome.syncs, outcome.evictions))?;
    Ok(())
}

fn show_stored(in_place: &str, anew: impl Display, syncs: impl Display, for_room: impl Display) -> String {
    format!(
        "{in_place} in place, {} anew; {}, {for_room} for room",
        counted(anew, "segment"),
        counted(syncs, "sync")
    )
}

fn show_latency(latency: Option<Latency>) -> String {
    let show = |Latency { p50_ms, p95_ms, p99_ms, max_ms }| {
        format!(": p50 {p50_ms:.2} ms, p95 {p95_ms:.2} ms, p99 {p99_ms:.2} ms, max {max_ms:.2} ms")
    };
    latency.map(show).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!(show_stored("4 KiB", 1, 1, 0), "4 KiB in place, 1 segment anew; 1 sync, 0 for room");
        assert_eq!(show_stored("4 KiB", 0, 2, 1), "4 KiB in place, 0 segments anew; 2 syncs, 1 for room");
    }
}
