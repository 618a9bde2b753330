//! `steadfast completions` and `steadfast man`: the command line's own description, for shells and for `man`.

use crate::{arguments::Arguments, exit::UNSAID};
use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write a page for the program and one for each command here; the program's alone is printed when absent
    pub(crate) dir: Option<PathBuf>,
}

pub(crate) fn completions(arguments: &Completions) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "steadfast", &mut script);
    io::stdout().lock().write_all(&script).context(UNSAID)
}

pub(crate) fn man(arguments: &Man) -> anyhow::Result<()> {
    let Some(dir) = &arguments.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Arguments::command()).render(&mut page)?;
        return io::stdout().lock().write_all(&page).context(UNSAID);
    };
    let cannot = || format!("cannot write manual pages to {}", dir.display());
    fs::create_dir_all(dir).with_context(cannot)?;
    clap_mangen::generate_to(Arguments::command(), dir).with_context(cannot)?;
    say!(
        "manual pages are in {}; `man -l {}` shows the first",
        dir.display(),
        dir.join("steadfast.1").display()
    )
}
