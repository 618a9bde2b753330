//! Directories of experiments, removed when dropped, or when the program has to end before that; those of programs that were killed,
//! by the next one on that host. Whoever uses one holds a lock in it, which the kernel takes back however that program ends.

use anyhow::{Context, Result};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use tempfile::{Builder, TempDir};

/// Those that are there.
static ALL: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// What their names begin with.
const PREFIX: &str = "steadfast-";
/// The file whose lock says that a directory is used.
const LOCK: &str = "in-use.lock";

/// A directory removed when dropped.
pub(crate) struct Scratch {
    dir: TempDir,
    in_memory: bool,
    /// Where the filesystem has locks.
    _lock: Option<File>,
}

impl Scratch {
    /// In memory where the machine has `room_bytes` of it to spare, else on disk.
    pub(crate) fn new(room_bytes: u64) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        // Before it is asked how much room there is.
        remove_dead(memory);
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
        let dir = dir.map_or_else(std::env::temp_dir, Path::to_owned);
        remove_dead(&dir);
        Ok(Self::known(builder().tempdir_in(dir).context("cannot make a temporary directory")?, false))
    }

    fn known(dir: TempDir, in_memory: bool) -> Self {
        ALL.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.path().to_owned());
        // Without a lock nobody takes it for one of a dead program, and nobody removes it either.
        let lock = lock(dir.path()).ok();
        Self { dir, in_memory, _lock: lock }
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
        // The lock last, unlike whoever removes the directory after this.
        let _ = remove_dir(self.dir.path());
        ALL.lock().unwrap_or_else(PoisonError::into_inner).remove(self.dir.path());
    }
}

fn builder() -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(PREFIX);
    builder
}

/// Takes the lock of a directory that was just made. It gets its name when it is held: by that name it is always somebody's.
fn lock(dir: &Path) -> io::Result<File> {
    let unnamed = dir.join("in-use.new");
    let mut file = File::create(&unnamed)?;
    file.try_lock()?;
    file.write_all(&holder(dir))?;
    fs::rename(unnamed, dir.join(LOCK))?;
    Ok(file)
}

/// What the lock says: whose it is and of which directory. Other hosts may not hear of locks on what they share, and a directory that
/// somebody copied is not ours to remove.
fn holder(dir: &Path) -> Vec<u8> {
    let name = dir.file_name().unwrap_or_default().as_encoded_bytes();
    [rustix::system::uname().nodename().to_bytes(), b" ", name].concat()
}

/// Removes what programs left in `place` that were killed.
fn remove_dead(place: &Path) {
    let dirs = fs::read_dir(place).into_iter().flatten().filter_map(Result::ok);
    for dir in dirs.filter(|dir| dir.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))) {
        // Held until all is gone, so that two programs do not meet there.
        let Some(_lock) = lock_of_dead(&dir.path()) else { continue };
        tracing::info!(dir = %dir.path().display(), "left by a program that was killed: removed");
        remove(BTreeSet::from([dir.path()]));
    }
}

/// The lock of a directory of ours that nobody uses any more; none of anything else.
fn lock_of_dead(dir: &Path) -> Option<File> {
    let own = |path: &Path| {
        let found = fs::symlink_metadata(path).ok()?;
        (found.uid() == rustix::process::geteuid().as_raw()).then_some(found)
    };
    let path = dir.join(LOCK);
    if !own(dir)?.is_dir() || !own(&path)?.is_file() {
        return None;
    }
    let file = File::open(&path).ok()?;
    file.try_lock().ok()?;
    // Another may have removed it before we had the lock.
    (fs::read(path).ok()? == holder(dir)).then_some(file)
}

/// Removes the directories of all experiments that go on: for a program that ends where it stands.
pub fn remove_all() {
    remove(std::mem::take(&mut *ALL.lock().unwrap_or_else(PoisonError::into_inner)));
}

fn remove(all: BTreeSet<PathBuf>) {
    for dir in all {
        // Servers may be making files there.
        let removed = (0..5).find_map(|_| remove_dir(&dir).ok());
        if removed.is_none()
            && let Err(error) = remove_dir(&dir)
        {
            tracing::warn!(dir = %dir.display(), %error, "a temporary directory stays");
        }
    }
}

/// Removes a directory of ours if it is there, its lock last: what a removal leaves that is interrupted is found by the next program.
fn remove_dir(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        let path = entry.path();
        gone(if entry.file_type()?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) })?;
    }
    gone(fs::remove_file(dir.join(LOCK)))?;
    gone(fs::remove_dir(dir))
}

/// What is not there is removed: others may be at it, too.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
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

    #[test]
    fn what_a_killed_program_left_goes_with_the_next_and_nothing_else_does() {
        let place = tempfile::tempdir().unwrap();
        let made = |name: &str| {
            let dir = place.path().join(name);
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("file"), "some").unwrap();
            dir
        };
        let (dead, unlocked, others) = (made("steadfast-dead"), made("steadfast-by-hand"), made("other"));
        // As of a program that is gone: its locks are, too.
        for dir in [&dead, &others] {
            drop(lock(dir).unwrap());
        }
        let linked = place.path().join("steadfast-link");
        std::os::unix::fs::symlink(&others, &linked).unwrap();
        // One that was copied to be kept, and one that is another host's.
        let (copied, foreign) = (made("steadfast-copied"), made("steadfast-foreign"));
        fs::copy(dead.join(LOCK), copied.join(LOCK)).unwrap();
        fs::write(foreign.join(LOCK), "another-host steadfast-foreign").unwrap();
        let used = Scratch::within(Some(place.path())).unwrap();
        let next = Scratch::within(Some(place.path())).unwrap();
        let there = [&dead, &unlocked, &others, &linked, &copied, &foreign].map(|dir| dir.exists());
        assert_eq!(there, [false, true, true, true, true, true]);
        assert!(used.path().exists() && next.path().exists() && others.join("file").exists());
    }
}
