//! `steadfast sim replay`.

use super::print_json;
use crate::arguments::Sim;
use anyhow::{Context, ensure};
use serde::Serialize;
use std::{
    fs::File,
    io::{BufWriter, Write},
};
use steadfast_lab::robustore::{
    access::Watch,
    replay::{self, Replay, Request},
    scheme::Scheme,
};

/// What is printed of a replay.
#[derive(Serialize)]
struct Shown<'a> {
    experiment: &'a str,
    case: String,
    seed: u64,
    access: u32,
    #[serde(flatten)]
    replay: &'a Replay,
}

pub(crate) fn run(command: Sim) -> anyhow::Result<()> {
    let Sim::Replay { seed, scheme, disks, experiment, point, access, trace, flip, output } = command;
    let scheme = Scheme::named(&scheme)?;
    let request = Request {
        experiment: experiment.unwrap_or_else(|| "robustore/disks".to_owned()),
        point: point.unwrap_or_else(|| format!("disks={disks}")),
        scheme,
        seed,
        number: access,
        watch: Watch { keep_trace: trace.is_some(), flip },
    };
    let replay = replay::run(&request)?;
    if let Some(file) = trace {
        let open = || -> anyhow::Result<()> {
            let mut file = BufWriter::new(File::create(&file)?);
            for record in &replay.records {
                serde_json::to_writer(&mut file, record)?;
                writeln!(file)?;
            }
            Ok(file.flush()?)
        };
        open().with_context(|| file.display().to_string())?;
    }
    let experiment = request.experiment.as_str();
    let case = format!("{} scheme={}", request.point, scheme.name());
    if output.json {
        print_json(&Shown { experiment, case, seed, access, replay: &replay })?;
    } else {
        say!("{experiment} {case}, seed {seed}, access {access}")?;
        say!("trace      {}", replay.hash)?;
        match (&replay.latency, &replay.failure) {
            (Some(latency), _) => say!("latency    {latency:.6} s")?,
            (None, Some(failure)) => say!("failed     {failure}")?,
            (None, None) => {}
        }
        say!("messages   {}", replay.messages)?;
        say!("events     {}", replay.events)?;
        say!(
            "requests   {} of modelled disks, {:.1} million per processor second",
            replay.disk_requests,
            replay.requests_per_cpu_second / 1e6
        )?;
        if let (Some(number), Some(damage)) = (flip, &replay.damage) {
            say!("message {number} was damaged, and {damage}")?;
        }
    }
    // Whoever damages a message of a store without redundancy expects the failure.
    ensure!(replay.failure.is_none() || flip.is_some(), "the access failed");
    Ok(())
}
