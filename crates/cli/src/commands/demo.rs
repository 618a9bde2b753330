//! `steadfast demo`.

use crate::{arguments::Demo, figures};
use anyhow::Context;

pub(crate) async fn run(arguments: Demo) -> anyhow::Result<()> {
    let seed = arguments.seed.unwrap_or_else(super::lab::fresh_seed);
    let json = arguments.output.json;
    let demo = steadfast_lab::demo::Demo {
        program: std::env::current_exe().context("cannot find this program's own file")?,
        file: arguments.file,
        keep: arguments.keep.clone(),
    };
    tell!("seed {seed}: `steadfast demo --seed {seed}` draws the same disks");
    let report = figures::begin(seed, json, |report| format!("\n{}", steadfast_lab::demo::show(report)));
    demo.run(report, &mut |text| tell!("· {text}")).await?;
    figures::print()?;
    if json {
        return Ok(());
    }
    say!("\nNext: run a cluster of your own and keep a file in it:")?;
    say!(
        "  steadfast up --dir /tmp/steadfast          (8 storage servers of 2 devices; prints its address)"
    )?;
    say!("  steadfast demo YOUR-FILE --seed {seed}     (the same disks with your own data)")?;
    if let Some(dir) = arguments.keep {
        say!(
            "  steadfast up --dir {} --nodes 16 --devices 4 --emulate off     (this demo's cluster)",
            dir.display()
        )?;
    }
    Ok(())
}
