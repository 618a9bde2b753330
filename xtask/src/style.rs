//! Style is a test: the house's rules that a compiler does not know.

use anyhow::{Context, Result, bail};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// One concept a file: a file past this is two concepts.
const LINES_MAX: usize = 800;

/// Which crates each may depend on; an arrow only ever points down.
const FLOORS: &[&[&str]] = &[
    &["codes", "disk", "report"],
    &["protocol"],
    &["net", "admin", "sim"],
    &["transfer"],
    &["client", "meta", "node", "bench"],
    &["lab"],
    &["cli"],
];

/// Runs every check and names every offence.
pub(crate) fn check() -> Result<()> {
    let mut offences = Vec::new();
    let sources = sources(Path::new("."))?;
    for file in &sources {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let lines = text.lines().count();
        if lines > LINES_MAX {
            offences.push(format!(
                "{}: {lines} lines, more than {LINES_MAX}: split it by concept",
                file.display()
            ));
        }
        unexplained_allowances(file, &text, &mut offences);
    }
    orphans(&sources, &mut offences)?;
    dependencies(&mut offences)?;
    for offence in &offences {
        eprintln!("{offence}");
    }
    if offences.is_empty() { Ok(()) } else { bail!("{} offences against the style", offences.len()) }
}

/// Prints lines by crate, sources apart from tests, and the longest files.
pub(crate) fn lines() -> Result<()> {
    let mut by_crate: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut longest = Vec::new();
    for file in sources(Path::new("."))? {
        let lines = fs::read_to_string(&file)?.lines().count();
        let text = file.to_string_lossy().into_owned();
        let name = text.strip_prefix("./crates/").and_then(|rest| rest.split('/').next()).unwrap_or("xtask");
        let counts = by_crate.entry(name.to_owned()).or_default();
        if text.contains("/tests/") || text.ends_with("/tests.rs") || text.contains("/examples/") {
            counts.1 += lines;
        } else {
            counts.0 += lines;
        }
        longest.push((lines, text));
    }
    println!("{:<10} {:>8} {:>8}", "crate", "source", "tests");
    for (name, (source, tests)) in &by_crate {
        println!("{name:<10} {source:>8} {tests:>8}");
    }
    let (source, tests) = by_crate.values().fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
    println!("{:<10} {source:>8} {tests:>8}", "all");
    longest.sort_unstable_by(|a, b| b.cmp(a));
    println!("\nlongest files");
    for (lines, file) in longest.iter().take(5) {
        println!("{lines:>6} {}", file.trim_start_matches("./"));
    }
    Ok(())
}

/// Every Rust file of the workspace, in a fixed order.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(sources(&path)?);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// A lint is allowed for a reason or not at all.
fn unexplained_allowances(file: &Path, text: &str, offences: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        let attribute = line.trim_start();
        if !attribute.starts_with("#[allow(")
            && !attribute.starts_with("#![allow(")
            && !attribute.starts_with("#[ignore")
        {
            continue;
        }
        let whole: String = core::iter::once(attribute)
            .chain(text.lines().skip(number + 1).take(6))
            .take_while(|line| !line.trim_start().starts_with("fn "))
            .collect();
        if !whole.contains("reason") && !whole.starts_with("#[ignore =") {
            offences.push(format!("{}:{}: allowed without a `reason`", file.display(), number + 1));
        }
    }
}

/// A module file that no `mod` names, or a test folder's file that no test target is, never runs.
fn orphans(sources: &[PathBuf], offences: &mut Vec<String>) -> Result<()> {
    for file in sources {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let folder = file.parent().unwrap_or(Path::new("."));
        let folder_name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_root = ["lib", "main", "mod", "build"].contains(&stem.as_str())
            || ["tests", "examples", "benches", "bin"].contains(&folder_name.as_str())
                && folder.parent().is_some_and(|parent| parent.join("Cargo.toml").exists());
        if is_root && stem != "mod" {
            continue;
        }
        let (name, parents) = if stem == "mod" {
            (folder_name.clone(), module_files(folder.parent().unwrap_or(folder)))
        } else {
            (stem, module_files(folder))
        };
        let named = parents.iter().any(|parent| {
            fs::read_to_string(parent).is_ok_and(|text| {
                text.lines().any(|line| {
                    let line = line.trim_start();
                    let seen = ["pub(crate) ", "pub(super) ", "pub "];
                    let line = seen.iter().find_map(|seen| line.strip_prefix(seen)).unwrap_or(line);
                    line == format!("mod {name};")
                })
            })
        });
        if !named {
            offences.push(format!("{}: no file has `mod {name};`, so it is never compiled", file.display()));
        }
    }
    Ok(())
}

/// The files that may declare modules lying in `folder`.
fn module_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        ["lib.rs", "main.rs", "mod.rs"].iter().map(|name| folder.join(name)).collect();
    files.push(folder.with_extension("rs"));
    if folder.file_name().is_some_and(|name| name == "tests") {
        files.extend(sources(folder).unwrap_or_default());
    }
    files
}

/// Crates depend downwards only, and every outside crate is explained where the architecture is.
fn dependencies(offences: &mut Vec<String>) -> Result<()> {
    let floor_of = |name: &str| FLOORS.iter().position(|floor| floor.contains(&name));
    for (floor, name) in
        FLOORS.iter().enumerate().flat_map(|(floor, names)| names.iter().map(move |name| (floor, name)))
    {
        let manifest = fs::read_to_string(format!("crates/{name}/Cargo.toml"))?;
        for line in manifest.lines() {
            let Some(dependency) = line.strip_prefix("steadfast-").and_then(|rest| rest.split('.').next())
            else {
                continue;
            };
            if floor_of(dependency).is_none_or(|below| below >= floor) {
                offences
                    .push(format!("crates/{name}: depends on {dependency}, which is not on a lower floor"));
            }
        }
    }
    let manifest = fs::read_to_string("Cargo.toml")?;
    let architecture = fs::read_to_string("ARCHITECTURE.md")?;
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    for name in section.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.trim()) {
        if !name.starts_with('#')
            && !name.starts_with("steadfast-")
            && !architecture.contains(&format!("`{name}`"))
        {
            offences.push(format!("ARCHITECTURE.md: says nothing of the dependency `{name}`"));
        }
    }
    Ok(())
}
