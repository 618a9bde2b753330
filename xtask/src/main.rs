//! The project's own tasks.
//!
//! ```text
//! cargo xtask test     formats checked, lints, style, documentation links, every test, the rivals of `bench codes` among them;
//!                      installs what these need; where the toolchain has the library of another architecture, the codes
//!                      compiled for it
//! cargo xtask sanitize the codes' tests under the address sanitizer (needs a nightly toolchain)
//! cargo xtask style    the style checks alone
//! cargo xtask lines    lines by crate and the longest files
//! ```

mod style;

use anyhow::{Context, Result, bail};
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// An architecture for which the kernels have their portable bodies alone.
const ELSEWHERE: &str = "aarch64-unknown-linux-gnu";
/// What `bench codes` measures beside ours stands under a feature that nothing else turns on, so that no other step compiles it. ISA-L
/// is opened at run time, and left out where it is not installed; the C loops of `reed-solomon-erasure` take the compiler that links
/// Rust's programs.
const RIVALS: [&str; 4] = ["-p", "steadfast-bench", "--features", "rivals"];

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
    let mut rivals = cargo(&["clippy"]);
    rivals.args(RIVALS).args(["--all-targets", "--quiet", "--", "-D", "warnings"]);
    step("lints of the rivals", rivals)?;
    let mut documentation =
        cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"]);
    documentation.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    step("documentation", documentation)?;
    elsewhere()?;
    let mut tests = cargo(&["test", "--workspace", "--no-fail-fast"]);
    tests.args(arguments);
    step("tests", tests)?;
    // Theirs alone: the other tests of that crate have just run.
    let mut rivals = cargo(&["test"]);
    rivals.args(RIVALS).args(["--lib", "rivals::"]);
    step("tests of the rivals", rivals)?;
    println!("── all checks passed in {} s", start.elapsed().as_secs());
    Ok(())
}

/// Compiles what the codes have for another architecture, and their tests, where its library is there: a cluster's processors need not
/// be of one kind, and what stands under a condition is read by no other check. Nothing is installed for it.
fn elsewhere() -> Result<()> {
    if !has_library_of(ELSEWHERE) {
        println!("── {ELSEWHERE}: skipped, the toolchain has no library of it");
        return Ok(());
    }
    step(ELSEWHERE, cargo(&["check", "-p", "steadfast-codes", "--tests", "--target", ELSEWHERE, "--quiet"]))
}

/// Whether the toolchain that runs this can compile for `target`.
fn has_library_of(target: &str) -> bool {
    let mut compiler = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let asked = compiler.args(["--print", "target-libdir", "--target", target]).output();
    // It says where that would be, whether it is there or not.
    asked.is_ok_and(|answer| {
        answer.status.success() && Path::new(String::from_utf8_lossy(&answer.stdout).trim()).is_dir()
    })
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

#[cfg(all(test, target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn targets_that_can_be_compiled_for_are_told_from_others() {
        assert!(has_library_of("x86_64-unknown-linux-gnu"), "these tests were compiled for it");
        assert!(!has_library_of("mips-unknown-linux-gnu"), "compilers know it, libraries are not given out");
        assert!(!has_library_of("no-such-target"));
    }
}
