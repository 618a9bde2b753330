//! `steadfast demo`.

use crate::arguments::Demo;
use anyhow::Context;

pub(crate) async fn run(arguments: Demo) -> anyhow::Result<()> {
    let seed = arguments.seed.unwrap_or_else(super::lab::fresh_seed);
    let json = arguments.output.json;
    let demo = steadfast_lab::demo::Demo {
        program: std::env::current_exe().context("cannot find this program's own file")?,
        file: arguments.file,
        seed,
        keep: arguments.keep.clone(),
    };
    eprintln!("seed {seed}: `steadfast demo --seed {seed}` draws the same disks");
    let report = demo.run(&mut |text| eprintln!("· {text}")).await?;
    if json {
        report.json_lines().for_each(|line| println!("{line}"));
        return Ok(());
    }
    println!("\n{}", steadfast_lab::demo::show(&report));
    println!("\nNext: run a cluster of your own and keep a file in it:");
    println!(
        "  steadfast up --dir /tmp/steadfast          (8 storage servers of 2 devices; prints its address)"
    );
    println!("  steadfast demo YOUR-FILE --seed {seed}     (the same disks with your own data)");
    if let Some(dir) = arguments.keep {
        println!(
            "  steadfast up --dir {} --nodes 16 --devices 4 --emulate off     (this demo's cluster)",
            dir.display()
        );
    }
    Ok(())
}
