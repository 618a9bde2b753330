//! `steadfast bench codes|io`.

use crate::arguments::Bench;
use anyhow::Context;
use steadfast_bench::codes;
use steadfast_lab::io;

pub(crate) async fn run(command: Bench) -> anyhow::Result<()> {
    let say = &mut |text: &str| tell!("· {text}");
    let (output, report, table) = match command {
        Bench::Codes { output, quick, only, tier, seed } => {
            let tier = tier.map(|name| name.parse()).transpose()?;
            let options = codes::Options { quick, only, tier, seed };
            let report = codes::run(&options, say)?;
            if output.json {
                // The table says these itself.
                codes::remarks().iter().for_each(|remark| tell!("{remark}"));
            }
            let table = codes::show(&report);
            (output, report, table)
        }
        Bench::Io { output, policy, quick, only, dir, seed } => {
            let program = std::env::current_exe().context("cannot find this program's own file")?;
            let report =
                io::run(&program, &io::Options { measured: policy.into(), quick, only, dir }, seed, say)
                    .await?;
            let table = io::show(&report) + &io::show_updates(&report) + &io::show_comparisons(&report);
            let table = table.trim_end().to_owned();
            (output, report, table)
        }
        Bench::Access { cluster, object, put, count, seed } => {
            let access = io::Access {
                ingest: cluster.tuning.options().ingest,
                cluster: cluster.cluster,
                put: put.is_some(),
                bucket: object.bucket,
                key: object.key,
                bytes: put.unwrap_or(0),
                count,
                seed,
            };
            return access.run().await;
        }
    };
    if output.json {
        for line in report.json_lines() {
            say!("{line}")?;
        }
    } else {
        say!("{table}")?;
    }
    Ok(())
}
