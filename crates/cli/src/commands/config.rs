//! `steadfast config`.

use crate::config;
use clap::Subcommand;
use std::path::PathBuf;
use steadfast_protocol::words::counted;

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Look a configuration file over: every unknown key, wrong type and wrong range, with its line
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print a configuration file with every key, each explained and commented out
    Example,
}

pub(crate) fn run(command: Config) -> anyhow::Result<()> {
    match command {
        Config::Check { file } => {
            let settings = config::read(&file)?;
            say!("{}: {}, all good", file.display(), counted(settings.len(), "key"))?;
        }
        Config::Example => say!("{}", config::schema::example(false).trim_end())?,
    }
    Ok(())
}
