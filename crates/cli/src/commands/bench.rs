//! `steadfast bench codes|io`.

use crate::{arguments::Bench, figures};
use anyhow::Context;
use steadfast_bench::codes;
use steadfast_lab::io;

pub(crate) async fn run(command: Bench) -> anyhow::Result<()> {
    let say = &mut |text: &str| tell!("· {text}");
    match command {
        Bench::Codes { output, quick, only, tier, seed } => {
            let tier = tier.map(|name| codes::tier(&name)).transpose()?;
            let report = figures::begin(seed, output.json, codes::show);
            codes::run(&codes::Options { quick, only, tier }, report, say)?;
            if output.json {
                // The table says these itself.
                codes::remarks().iter().for_each(|remark| tell!("{remark}"));
            }
        }
        Bench::Io { output, policy, quick, only, dir, seed } => {
            let program = std::env::current_exe().context("cannot find this program's own file")?;
            let report = figures::begin(seed, output.json, |report| {
                let table = io::show(report) + &io::show_updates(report) + &io::show_comparisons(report);
                table.trim_end().to_owned()
            });
            let options = io::Options { measured: policy.into(), quick, only, dir };
            io::run(&program, &options, report, say).await?;
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
    }
    figures::print()
}
