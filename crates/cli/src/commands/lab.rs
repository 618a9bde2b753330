//! `steadfast lab list|run|report`.

use crate::{arguments::Lab, exit::Refusal, figures};
use anyhow::Context;
use std::{
    fs::File,
    io::{ErrorKind, Seek, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

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
            // Before an hour's run, not after it.
            names.iter().try_for_each(|name| steadfast_lab::known(name))?;
            if plot.is_some() {
                names.iter().try_for_each(|name| steadfast_lab::has_picture(name))?;
            }
            names.iter().try_for_each(|name| options.check(name))?;
            let mut plot = plot.map(Plot::open).transpose()?;
            for name in names {
                tell!("{name}, seed {seed}");
                let shown = name.clone();
                let report =
                    figures::begin(seed, output.json, move |report| steadfast_lab::show(&shown, report));
                let say = &mut |text: &str| tell!("· {text}");
                let report = steadfast_lab::run(&name, &program, report, &options, say).await?;
                figures::print()?;
                if let Some(plot) = &mut plot {
                    plot.write(&steadfast_lab::picture(&name, &report)?)?;
                }
            }
        }
        Lab::Report { results, output } => {
            check_page_is_no_result(&results, &output)?;
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

/// A page in the place of what it is made of would be all that is left of hours of runs.
fn check_page_is_no_result(results: &[PathBuf], output: &Path) -> Result<(), Refusal> {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let page = file(output);
    match results.iter().find(|result| page.is_some() && file(result) == page) {
        Some(result) => Err(Refusal::Wrong(format!(
            "{} holds the results themselves: give the page another name with --output",
            result.display()
        ))),
        None => Ok(()),
    }
}

/// A file for a picture: opened before the run that draws it, removed again where that made none.
struct Plot {
    path: PathBuf,
    file: File,
    /// It was made here, and is empty yet.
    unwritten: bool,
}

impl Plot {
    fn open(path: PathBuf) -> anyhow::Result<Self> {
        let (file, unwritten) = match File::create_new(&path) {
            // What is there stays until there is a new picture. A link may name a file that is not there yet.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (File::options().write(true).create(true).truncate(false).open(&path), false)
            }
            made => (made, true),
        };
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, file, unwritten })
    }

    fn write(&mut self, picture: &str) -> anyhow::Result<()> {
        let mut write = || {
            // Not of what is no file, such as a pipe.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
                self.file.rewind()?;
            }
            self.file.write_all(picture.as_bytes())
        };
        write().with_context(|| format!("cannot write {}", self.path.display()))?;
        self.unwritten = false;
        Ok(())
    }
}

impl Drop for Plot {
    fn drop(&mut self) {
        // Another may have taken its name in the meantime.
        let named = || {
            let (ours, there) = (self.file.metadata().ok()?, std::fs::symlink_metadata(&self.path).ok()?);
            Some((ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        };
        if self.unwritten && named() == Some(true) {
            // An empty file is all that would be left.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A seed from the clock, small enough to type again.
pub(crate) fn fresh_seed() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |since| u64::from(since.subsec_nanos()) % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_picture_stays_until_there_is_a_new_one_and_no_empty_file_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("picture.svg");
        drop(Plot::open(path.clone()).unwrap());
        assert!(!path.exists(), "nothing was drawn");
        // The last is shorter than what it replaces.
        for picture in ["a picture", "a longer picture", "short"] {
            let mut plot = Plot::open(path.clone()).unwrap();
            plot.write(picture).unwrap();
            drop(plot);
            // A run that draws none.
            drop(Plot::open(path.clone()).unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), picture);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_page_does_not_replace_its_results() {
        let dir = tempfile::tempdir().unwrap();
        let [result, link, page] = ["runs.jsonl", "link", "report.html"].map(|name| dir.path().join(name));
        fs::write(&result, "figures").unwrap();
        std::os::unix::fs::symlink(&result, &link).unwrap();
        let check = |output: &Path| check_page_is_no_result(std::slice::from_ref(&result), output);
        assert!(check(&page).is_ok(), "it is not there yet");
        fs::write(&page, "an earlier page").unwrap();
        assert!(check(&page).is_ok());
        assert!(check(&result).is_err() && check(&link).is_err());
        assert_eq!(fs::read_to_string(&result).unwrap(), "figures");
    }

    #[test]
    fn what_has_taken_a_pictures_name_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["picture.svg", "other"].map(|name| dir.path().join(name));
        let plot = Plot::open(path.clone()).unwrap();
        fs::write(&other, "another's").unwrap();
        fs::rename(&other, &path).unwrap();
        drop(plot);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
        // Nor is a name missed that is gone.
        fs::remove_file(&path).unwrap();
        let plot = Plot::open(path.clone()).unwrap();
        fs::remove_file(&path).unwrap();
        drop(plot);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
