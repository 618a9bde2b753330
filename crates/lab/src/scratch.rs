//! Directories of experiments, removed when dropped, or when the program has to end before that.

use anyhow::{Context, Result};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use tempfile::{Builder, TempDir};

/// Those that are there.
static ALL: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A directory removed when dropped.
pub(crate) struct Scratch {
    dir: TempDir,
    in_memory: bool,
}

impl Scratch {
    /// In memory where the machine has `room_bytes` of it to spare, else on disk.
    pub(crate) fn new(room_bytes: u64) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let room =
            rustix::fs::statvfs(memory).is_ok_and(|space| space.f_bavail * space.f_frsize >= room_bytes);
        // What is not free is mostly cache; what is free and not taken serves the processes themselves.
        let free = rustix::system::sysinfo().freeram as u64;
        if room
            && free / 4 * 3 >= room_bytes
            && let Ok(dir) = builder().tempdir_in(memory)
        {
            return Ok(Self::known(dir, true));
        }
        Self::within(None)
    }

    /// In a directory, or in the system's place for temporary files.
    pub(crate) fn within(dir: Option<&Path>) -> Result<Self> {
        let made = match dir {
            Some(dir) => builder().tempdir_in(dir),
            None => builder().tempdir(),
        };
        Ok(Self::known(made.context("cannot make a temporary directory")?, false))
    }

    fn known(dir: TempDir, in_memory: bool) -> Self {
        ALL.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.path().to_owned());
        Self { dir, in_memory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn in_memory(&self) -> bool {
        self.in_memory
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        ALL.lock().unwrap_or_else(PoisonError::into_inner).remove(self.dir.path());
    }
}

fn builder() -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix("steadfast-");
    builder
}

/// Removes the directories of all experiments that go on: for a program that ends where it stands.
pub fn remove_all() {
    remove(std::mem::take(&mut *ALL.lock().unwrap_or_else(PoisonError::into_inner)));
}

fn remove(all: BTreeSet<PathBuf>) {
    for dir in all {
        // Servers may be making files there.
        let removed = (0..5).find_map(|_| fs::remove_dir_all(&dir).ok());
        if removed.is_none()
            && let Err(error) = fs::remove_dir_all(&dir)
        {
            tracing::warn!(dir = %dir.display(), %error, "a temporary directory stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_known_until_it_goes() {
        let [dropped, kept] = [(); 2].map(|()| Scratch::within(None).unwrap());
        let paths = [dropped.path().to_owned(), kept.path().to_owned()];
        fs::write(kept.path().join("file"), "some").unwrap();
        drop(dropped);
        assert_eq!(paths.each_ref().map(|path| path.exists()), [false, true]);
        assert!(ALL.lock().unwrap().contains(&paths[1]) && !ALL.lock().unwrap().contains(&paths[0]));
        remove(BTreeSet::from([paths[1].clone()]));
        assert!(!paths[1].exists());
    }
}
