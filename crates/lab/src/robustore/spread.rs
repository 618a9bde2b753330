//! Units of work on all cores, and the file that an interrupted run goes on from. A unit is a function of the experiment, the
//! seed, its case and its number, so the figures do not depend on which thread did what, nor on how often a run was
//! interrupted.

use crate::Options;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    hash::{DefaultHasher, Hasher},
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

/// A line of the file that a run goes on from.
#[derive(Serialize, Deserialize)]
struct Kept<S> {
    /// Which build of the program did it: another one may draw, or do, otherwise.
    #[serde(default)]
    build: u64,
    experiment: String,
    seed: u64,
    case: String,
    number: u32,
    sample: S,
}

/// A number of this program's own file.
fn build() -> Result<u64> {
    let program =
        std::env::current_exe().and_then(fs::read).context("cannot read this program's own file")?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&program);
    Ok(hasher.finish())
}

/// Whose work it is, and where it is kept.
pub struct Task<'a, U> {
    /// The experiment's name.
    pub experiment: &'a str,
    /// Its seed.
    pub seed: u64,
    /// Where it is kept.
    pub options: &'a Options,
    /// A unit's case, and its number among those of the case.
    pub name: &'a (dyn Fn(U) -> (String, u32) + Sync),
}

/// Does all units of `groups`, those of a group together, by `work`, which gives a sample of each in order.
///
/// # Errors
/// What `work` says, with the case; or the file to resume from cannot be used.
pub fn run<U, S>(
    task: &Task<'_, U>,
    groups: &[Vec<U>],
    work: impl Fn(&[U]) -> Result<Vec<S>> + Sync,
    say: &mut dyn FnMut(&str),
) -> Result<BTreeMap<U, S>>
where
    U: Copy + Ord + Send + Sync,
    S: Serialize + DeserializeOwned + Send,
{
    let &Task { experiment, seed, options, name } = task;
    let all: usize = groups.iter().map(Vec::len).sum();
    let build = options.resume.as_ref().map_or(Ok(0), |_| build())?;
    let mut done = match &options.resume {
        Some(file) if file.exists() => kept(file, task, groups, build)?,
        _ => BTreeMap::new(),
    };
    if !done.is_empty() {
        say(&format!("{} of {all} accesses were done before", done.len()));
    }
    let whole = |group: &&Vec<U>| group.iter().all(|unit| done.contains_key(unit));
    let left: Vec<&Vec<U>> = groups.iter().filter(|group| !whole(group)).collect();
    let mut file = match &options.resume {
        Some(file) => Some(added_to(file).with_context(|| file.display().to_string())?),
        None => None,
    };
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(left.len().max(1));
    let (tell, heard) = std::sync::mpsc::channel::<(&Vec<U>, Result<Vec<S>>)>();
    std::thread::scope(|scope| -> Result<()> {
        for _ in 0..threads {
            let (tell, next, left, work) = (tell.clone(), &next, &left, &work);
            scope.spawn(move || {
                while let Some(&group) = left.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if tell.send((group, work(group))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        let mut said = 0;
        for (group, samples) in heard {
            let (case, number) = name(group[0]);
            let samples = samples.with_context(|| format!("{case}, access {number}"))?;
            for (&unit, sample) in group.iter().zip(samples) {
                if let Some(file) = &mut file {
                    let ((case, number), experiment) = (name(unit), experiment.to_owned());
                    let line = serde_json::to_string(&Kept {
                        build,
                        experiment,
                        seed,
                        case,
                        number,
                        sample: &sample,
                    })?;
                    writeln!(file, "{line}").context("what is done cannot be kept")?;
                }
                done.insert(unit, sample);
            }
            let tenths = done.len() * 10 / all;
            if tenths > said {
                said = tenths;
                say(&format!("{experiment}: {} of {all} accesses", done.len()));
            }
        }
        Ok(())
    })?;
    Ok(done)
}

/// A file, to add lines to. One that was cut short is ended first: the next line is one of its own.
fn added_to(file: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(file)?;
    if let Some(last) = file.metadata()?.len().checked_sub(1) {
        let mut end = [0];
        file.read_exact_at(&mut end, last)?;
        if end != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

/// What a file says was done of these units.
fn kept<U: Copy + Ord, S: DeserializeOwned>(
    file: &Path,
    task: &Task<'_, U>,
    groups: &[Vec<U>],
    build: u64,
) -> Result<BTreeMap<U, S>> {
    let units = groups.iter().flatten();
    let named: BTreeMap<(String, u32), U> = units.map(|&unit| ((task.name)(unit), unit)).collect();
    let mut done = BTreeMap::new();
    let open = File::open(file).with_context(|| file.display().to_string())?;
    for line in BufReader::new(open).lines() {
        // The last line of an interrupted run may be cut short: that access is done again.
        let Ok(kept) = serde_json::from_str::<Kept<S>>(&line?) else { continue };
        if kept.experiment != task.experiment || kept.seed != task.seed {
            continue;
        }
        ensure!(
            kept.build == build,
            "{} has figures of another build of this program: name another file",
            file.display()
        );
        if let Some(&unit) = named.get(&(kept.case, kept.number)) {
            done.insert(unit, kept.sample);
        }
    }
    Ok(done)
}
