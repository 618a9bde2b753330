//! The project's own tasks.
//!
//! ```text
//! cargo xtask test     formats checked, lints, style, documentation links, every test; installs what these need
//! cargo xtask sanitize the codes' tests under the address sanitizer (needs a nightly toolchain)
//! cargo xtask style    the style checks alone
//! cargo xtask lines    lines by crate and the longest files
//! ```

mod style;

use anyhow::{Context, Result, bail};
use std::{env, path::PathBuf, process::Command, time::Instant};

fn main() -> Result<()> {
    env::set_current_dir(root())?;
    match env::args().nth(1).as_deref() {
        Some("test") => test(env::args().skip(2).collect()),
        Some("sanitize") => sanitize(env::args().skip(2).collect()),
        Some("style") => style::check(),
        Some("lines") => style::lines(),
        other => {
            bail!("unknown task {}: try `test`, `sanitize`, `style` or `lines`", other.unwrap_or("(none)"))
        }
    }
}

/// Every check the project has, cheapest first. Arguments go to `cargo test`.
fn test(arguments: Vec<String>) -> Result<()> {
    let start = Instant::now();
    install()?;
    step("format", cargo(&["fmt", "--all", "--check"]))?;
    println!("── style");
    style::check()?;
    step("lints", cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))?;
    let mut documentation =
        cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"]);
    documentation.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    step("documentation", documentation)?;
    let mut tests = cargo(&["test", "--workspace", "--no-fail-fast"]);
    tests.args(arguments);
    step("tests", tests)?;
    println!("── all checks passed in {} s", start.elapsed().as_secs());
    Ok(())
}

/// The kernels are where an address could be wrong: all tests of `codes`, every tier, alignment and length among
/// them, with each access checked. Arguments go to the tests.
fn sanitize(arguments: Vec<String>) -> Result<()> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let mut tests = Command::new("cargo");
    tests.args([
        "+nightly",
        "test",
        "--release",
        "-p",
        "steadfast-codes",
        "--target",
        TARGET,
        "--lib",
        "--tests",
    ]);
    // Optimised, so that they finish in minutes; what a debug build checks is checked all the same.
    for check in ["DEBUG_ASSERTIONS", "OVERFLOW_CHECKS"] {
        tests.env(format!("CARGO_PROFILE_RELEASE_{check}"), "true");
    }
    tests.args(["--target-dir", "target/sanitize", "--"]).args(arguments);
    // The toolchain that runs this task would be taken again.
    tests.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env("RUSTFLAGS", "-Zsanitizer=address");
    step("address sanitizer", tests)
}

/// The formatter and the linter come with most toolchains, but not with all.
fn install() -> Result<()> {
    for (component, probe) in [("rustfmt", "cargo-fmt"), ("clippy", "cargo-clippy")] {
        let present =
            Command::new(probe).arg("--version").output().is_ok_and(|output| output.status.success());
        if !present {
            let mut rustup = Command::new("rustup");
            rustup.args(["component", "add", component]);
            step(&format!("install {component}"), rustup)?;
        }
    }
    Ok(())
}

fn step(name: &str, mut command: Command) -> Result<()> {
    println!("── {name}");
    let start = Instant::now();
    let status = command.status().with_context(|| format!("{name}: {command:?} does not start"))?;
    if !status.success() {
        bail!("{name} failed: {command:?}");
    }
    println!("── {name}: {} s", start.elapsed().as_secs());
    Ok(())
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}
