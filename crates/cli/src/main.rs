//! The `steadfast` program: parses the command line, calls the libraries, prints. No logic worth testing alone.

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "say!, announce! and tell! do not panic where nobody reads"
)]

/// `println!`, with an error in place of a panic: a reader that has seen enough (`| head`) ends the command quietly.
macro_rules! say {
    ($($text:tt)*) => {{
        use anyhow::Context as _;
        use std::io::Write as _;
        writeln!(std::io::stdout().lock(), $($text)*).context($crate::exit::UNSAID)
    }};
}

/// `println!`, for what a server says of itself: it serves on whether or not somebody reads that.
macro_rules! announce {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout().lock(), $($text)*);
    }};
}

/// `eprintln!`, for what the command goes on after: a cluster does not end because nobody reads what is said of it.
macro_rules! tell {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($text)*);
    }};
}

mod arguments;
mod commands;
mod config;
mod exit;
mod figures;
mod harmless;
mod logging;
mod object_name;
mod progress;
mod trace;
mod tuning;
mod units;

use arguments::{Arguments, Command};
use clap::{CommandFactory, FromArgMatches};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(problems) => {
            tell!("steadfast: {problems}");
            return ExitCode::from(exit::WRONG_COMMAND);
        }
    };
    let Arguments { config, log_format, log, command } = arguments;
    let usual = if matches!(command, Command::Meta(_) | Command::Node(_)) { "info" } else { "warn" };
    if let Err(error) = logging::start(log_format, log.as_deref(), usual) {
        tell!("steadfast: {error}");
        return ExitCode::from(exit::WRONG_COMMAND);
    }
    if let Some(config) = config.filter(|config| !config.as_os_str().is_empty()) {
        tracing::debug!(file = %config.display(), "configuration taken");
    }
    // One runtime thread a process: a test cluster of sixteen nodes is sixteen of them on two cores.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tell!("steadfast: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Servers that this program starts log as it does.
    let mut environment = vec![("STEADFAST_LOG_FORMAT".to_owned(), log_format.name().to_owned())];
    environment.extend(log.map(|filter| ("STEADFAST_LOG".to_owned(), filter)));
    let outcome = runtime.block_on(run(command, environment));
    // A stalled disk may hold a blocking thread; it must not hold the exit.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// The command line, with the configuration file's values where it says nothing.
fn parse() -> Result<Arguments, config::Problems> {
    let settings = match config::named(std::env::args_os()).map(|file| config::read(&file)) {
        Some(Ok(settings)) => settings,
        // What helps to mend a file does not need it.
        Some(Err(problems)) if needs_settings() => return Err(problems),
        Some(Err(_)) | None => config::Settings::default(),
    };
    let mut command = config::apply(Arguments::command(), &settings);
    let matches = command.get_matches_mut();
    Ok(Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit()))
}

/// Whether the command takes anything from a configuration file.
fn needs_settings() -> bool {
    match Arguments::command().try_get_matches() {
        Ok(matches) => !matches!(matches.subcommand_name(), Some("config" | "completions" | "man")),
        Err(said) => said.use_stderr(),
    }
}

async fn run(command: Command, environment: Vec<(String, String)>) -> anyhow::Result<()> {
    match command {
        Command::Demo(arguments) => commands::stop::until_stopped(commands::demo::run(arguments)).await,
        Command::Up(arguments) => commands::up::run(arguments, environment).await,
        Command::Meta(arguments) => commands::servers::meta(arguments).await,
        Command::Node(arguments) => commands::servers::node(arguments).await,
        Command::Bucket(arguments) => commands::bucket::run(arguments).await,
        Command::Put(arguments) => commands::objects::put(arguments).await,
        Command::Write(arguments) => commands::file::write(arguments).await,
        Command::Truncate(arguments) => commands::file::truncate(arguments).await,
        Command::Get(arguments) => commands::stop::until_stopped(commands::objects::get(arguments)).await,
        Command::Ls(arguments) => commands::list::run(arguments).await,
        Command::Stat(arguments) => commands::objects::stat(arguments).await,
        Command::Tune(arguments) => commands::tune::run(arguments).await,
        Command::Rm(arguments) => commands::objects::remove(arguments).await,
        Command::Status(arguments) => commands::status::run(arguments).await,
        Command::Device(command) => commands::device::run(command).await,
        Command::Repair(arguments) => commands::repair::run(arguments).await,
        Command::Emulate(arguments) => commands::status::emulate(arguments).await,
        Command::Replay(arguments) => commands::replay::run(arguments).await,
        Command::Lab(arguments) => commands::stop::until_stopped(commands::lab::run(arguments)).await,
        Command::Sim(command) => commands::sim::run(command),
        Command::Bench(arguments) => commands::stop::until_stopped(commands::bench::run(arguments)).await,
        Command::Top(arguments) => commands::top::run(arguments).await,
        Command::Config(command) => commands::config::run(command),
        Command::Completions(arguments) => commands::documents::completions(&arguments),
        Command::Man(arguments) => commands::documents::man(&arguments),
    }
}
