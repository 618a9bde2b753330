//! The `steadfast` program: parses the command line, calls the libraries, prints. No logic worth testing alone.

mod arguments;
mod commands;
mod exit;
mod object_name;
mod progress;
mod units;

use arguments::{Arguments, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Servers log to standard error; `STEADFAST_LOG` chooses how much (`debug`, `steadfast_node=trace`).
    let filter = tracing_subscriber::EnvFilter::try_from_env("STEADFAST_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    // One runtime thread a process: a test cluster of sixteen nodes is sixteen of them on two cores.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("steadfast: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(run(arguments.command));
    // A stalled disk may hold a blocking thread; it must not hold the exit.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Demo(arguments) => commands::demo::run(arguments).await,
        Command::Up(arguments) => commands::up::run(arguments).await,
        Command::Meta(arguments) => commands::servers::meta(arguments).await,
        Command::Node(arguments) => commands::servers::node(arguments).await,
        Command::Bucket(arguments) => commands::bucket::run(arguments).await,
        Command::Put(arguments) => commands::objects::put(arguments).await,
        Command::Get(arguments) => commands::objects::get(arguments).await,
        Command::Ls(arguments) => commands::list::run(arguments).await,
        Command::Stat(arguments) => commands::objects::stat(arguments).await,
        Command::Rm(arguments) => commands::objects::remove(arguments).await,
        Command::Status(arguments) => commands::status::run(arguments).await,
        Command::Emulate(arguments) => commands::status::emulate(arguments).await,
        Command::Lab(arguments) => commands::lab::run(arguments).await,
        Command::Bench(arguments) => commands::bench::run(arguments),
    }
}
