//! `steadfast lab list|run|report`.

use crate::{arguments::Lab, figures};
use anyhow::{Context, bail};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) async fn run(command: Lab) -> anyhow::Result<()> {
    match command {
        Lab::List => {
            let all = steadfast_lab::list();
            let widest = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            for (name, about) in all {
                say!("{name:<widest$} {about}")?;
            }
        }
        Lab::Run { names, output, seed, draws, case, quick, resume, plot } => {
            let options = steadfast_lab::Options { draws, case, quick, resume };
            let seed = seed.unwrap_or_else(fresh_seed);
            let program = std::env::current_exe().context("cannot find this program's own file")?;
            if plot.is_some() {
                names.iter().try_for_each(|name| steadfast_lab::has_picture(name))?;
            }
            // Before an hour's run, not after it.
            let known = steadfast_lab::list();
            if let Some(name) = names.iter().find(|name| !known.iter().any(|(known, _)| known == name)) {
                bail!("no experiment named `{name}`; `steadfast lab list` names them");
            }
            names.iter().try_for_each(|name| options.check(name))?;
            for name in names {
                tell!("{name}, seed {seed}");
                let shown = name.clone();
                let report =
                    figures::begin(seed, output.json, move |report| steadfast_lab::show(&shown, report));
                let say = &mut |text: &str| tell!("· {text}");
                let report = steadfast_lab::run(&name, &program, report, &options, say).await?;
                if let Some(file) = &plot {
                    let picture = steadfast_lab::picture(&name, &report)?;
                    std::fs::write(file, picture).with_context(|| file.display().to_string())?;
                }
                figures::print()?;
            }
        }
        Lab::Report { results, output } => {
            let page = steadfast_lab::page::render(&steadfast_lab::page::read(&results)?)?;
            std::fs::write(&output, page.html).with_context(|| output.display().to_string())?;
            if !page.missing.is_empty() {
                tell!("missing, because the results have nothing of them: {}", page.missing.join(", "));
            }
            say!("{}", output.display())?;
        }
    }
    Ok(())
}

/// A seed from the clock, small enough to type again.
pub(crate) fn fresh_seed() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |since| u64::from(since.subsec_nanos()) % 1_000_000)
}
