//! `steadfast bench codes`.

use crate::arguments::Bench;
use steadfast_bench::codes;

pub(crate) fn run(command: Bench) -> anyhow::Result<()> {
    let Bench::Codes { output, quick, only, tier, seed } = command;
    let tier = tier.map(|name| name.parse()).transpose()?;
    let options = codes::Options { quick, only, tier, seed };
    let report = codes::run(&options, &mut |case| eprintln!("· {case}"))?;
    if output.json {
        // The table says these itself.
        codes::remarks().iter().for_each(|remark| eprintln!("{remark}"));
        report.json_lines().for_each(|line| println!("{line}"));
    } else {
        println!("{}", codes::show(&report));
    }
    Ok(())
}
