//! Where a fetched object goes: a file appears under its name only when it is whole.
//!
//! Until then its bytes are in a file beside it, of a name that nobody else has: any number of gets may go to one name, and each
//! puts there all of its own. What links lead to is written, and they stay; so do the permissions of what is replaced, but it is
//! whoever fetched it that owns it then.

use crate::exit::Refusal;
use anyhow::Context;
use rustix::io::Errno;
use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// What a file is made with that was not there, but for what the umask takes away.
const NEW_MODE: u32 = 0o666;
/// Links that lead to one another, at most: as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// The mode of a directory in which all may write, each what is its own.
const STICKY_AND_ALL_WRITE: u32 = 0o1002;
/// What the kernel shows of processes. The links there to open files are those files, whatever name they say.
const PROCESSES: &str = "/proc";

/// Where a fetched object goes.
pub(super) enum Target {
    /// Standard output, by whatever name.
    Stdout,
    /// Written as it comes: a device, a pipe, a file that a process has open.
    Special(PathBuf),
    /// A file, and what becomes it.
    File { path: PathBuf, part: NamedTempFile },
}

impl Target {
    /// What has that name; `-` is standard output.
    ///
    /// # Errors
    /// When nothing can be written there.
    pub(super) fn open(named: &Path) -> anyhow::Result<Self> {
        if named == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let cannot = || format!("cannot write {}", named.display());
        let there = match fs::metadata(named) {
            Ok(there) if there.is_dir() => {
                let why = format!("{} is a directory; name the file to write", named.display());
                return Err(Refusal::Wrong(why).into());
            }
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(cannot),
        };
        let path = followed(named).with_context(cannot)?;
        if is_own_stdout(&path) {
            return Ok(Self::Stdout);
        }
        if path.starts_with(PROCESSES) || there.as_ref().is_some_and(|there| !there.is_file()) {
            return Ok(Self::Special(path));
        }
        let parent = path.parent().context("name the file to write")?;
        // Not that it runs as its owner or group: that is whoever fetched it from now on.
        let replaced = there.map(|there| Permissions::from_mode(there.mode() & 0o777));
        let mode = replaced.clone().unwrap_or_else(|| Permissions::from_mode(NEW_MODE));
        let mut beside = tempfile::Builder::new();
        let part = beside.prefix(".steadfast-").permissions(mode).tempfile_in(parent).with_context(cannot)?;
        if let Some(replaced) = replaced {
            // What the umask took away.
            part.as_file().set_permissions(replaced).with_context(cannot)?;
        }
        Ok(Self::File { path, part })
    }

    /// Takes the object's bytes.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn writer(&self) -> anyhow::Result<Box<dyn Write + Send>> {
        let (path, file) = match self {
            Self::Stdout => return Ok(Box::new(io::stdout())),
            // Of a file that a process has open nothing of before is left, as of any other.
            Self::Special(path) => (path, File::options().write(true).truncate(true).open(path)),
            Self::File { path, part } => (path, part.as_file().try_clone()),
        };
        Ok(Box::new(file.with_context(|| format!("cannot write {}", path.display()))?))
    }

    /// All bytes are there: the file gets its name. Without this nothing is left of it.
    ///
    /// # Errors
    /// When it cannot be given that name.
    pub(super) fn keep(self) -> anyhow::Result<()> {
        if let Self::File { path, part } = self {
            let kept = part.persist(&path).map_err(|refused| refused.error);
            kept.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Where a name leads: along what links say, but for those of [`PROCESSES`].
fn followed(named: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(named)?;
    for _ in 0..LINKS_MAX {
        let (parent, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
        let parent = fs::canonicalize(parent)?;
        let here = parent.join(name);
        match fs::read_link(&here) {
            Ok(_) if is_laid(&here, &parent)? => return Err(io::ErrorKind::PermissionDenied.into()),
            Ok(leads) if !here.starts_with(PROCESSES) => path = parent.join(leads),
            // It is no link, or nothing is there yet.
            _ => return Ok(here),
        }
    }
    Err(Errno::LOOP.into())
}

/// Whether it is a link that another may have laid, in a directory where all may write, such as `/tmp`: the kernel's own rule, for links
/// that are read and not followed by it.
fn is_laid(link: &Path, parent: &Path) -> io::Result<bool> {
    let (link, parent) = (fs::symlink_metadata(link)?, fs::metadata(parent)?);
    Ok(laid(parent.mode(), link.uid(), parent.uid(), rustix::process::geteuid().as_raw()))
}

/// The same by the directory's mode, and by who has the link, who the directory, and who we are.
fn laid(mode: u32, link_uid: u32, parent_uid: u32, own_uid: u32) -> bool {
    let of_all = mode & STICKY_AND_ALL_WRITE == STICKY_AND_ALL_WRITE;
    of_all && link_uid != own_uid && link_uid != parent_uid
}

/// Whether that is what this process has open as its standard output.
fn is_own_stdout(path: &Path) -> bool {
    fs::canonicalize("/proc/self/fd").is_ok_and(|own| path == own.join("1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Seek},
        os::{fd::AsRawFd, unix::fs::symlink},
    };

    fn put(named: &Path, bytes: &[u8]) {
        let target = Target::open(named).unwrap();
        target.writer().unwrap().write_all(bytes).unwrap();
        target.keep().unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn of_two_that_go_to_one_name_each_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        let [first, second] = [(); 2].map(|()| Target::open(&path).unwrap());
        let (mut one, mut two) = (first.writer().unwrap(), second.writer().unwrap());
        for _ in 0..3 {
            one.write_all(b"one").unwrap();
            two.write_all(b"two").unwrap();
        }
        first.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"oneoneone");
        second.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"twotwotwo");
        // One that is given up leaves nothing, and takes nothing along.
        let third = Target::open(&path).unwrap();
        third.writer().unwrap().write_all(b"three").unwrap();
        drop(third);
        assert_eq!(fs::read(&path).unwrap(), b"twotwotwo");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_name_may_be_as_long_as_the_filesystem_takes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n".repeat(255));
        put(&path, b"bytes");
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
    }

    #[test]
    fn modes_are_those_of_any_program_and_of_what_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let [usual, new, old] = ["usual", "new", "old"].map(|name| dir.path().join(name));
        File::create(&usual).unwrap();
        put(&new, b"bytes");
        assert_eq!(mode(&new), mode(&usual));
        // Both more and less than an umask leaves.
        for kept in [0o606, 0o400, 0o4755] {
            fs::write(&old, b"before").unwrap();
            fs::set_permissions(&old, Permissions::from_mode(kept)).unwrap();
            put(&old, b"bytes");
            // It does not run as its owner, who may be another now.
            assert_eq!((mode(&old), fs::read(&old).unwrap()), (kept & 0o777, b"bytes".to_vec()));
            fs::remove_file(&old).unwrap();
        }
    }

    #[test]
    fn links_lead_to_what_is_written_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let [there, link, far, broken, round] =
            ["there", "link", "far", "broken", "round"].map(|name| dir.path().join(name));
        fs::create_dir(dir.path().join("deep")).unwrap();
        fs::write(&there, b"before").unwrap();
        symlink("there", &link).unwrap();
        symlink("deep/../link", &far).unwrap();
        symlink("deep/made", &broken).unwrap();
        symlink("round", &round).unwrap();
        for (named, leads) in [(&link, &there), (&far, &there), (&broken, &dir.path().join("deep/made"))] {
            put(named, b"bytes");
            assert!(fs::symlink_metadata(named).unwrap().is_symlink(), "{}", named.display());
            assert_eq!(fs::read(leads).unwrap(), b"bytes");
            fs::write(leads, b"before").unwrap();
        }
        assert!(Target::open(&round).is_err());
    }

    #[test]
    fn links_of_ones_own_are_followed_where_all_may_write() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let [link, there] = ["link", "there"].map(|name| dir.path().join(name));
        symlink("there", &link).unwrap();
        assert!(!is_laid(&link, dir.path()).unwrap());
        put(&link, b"bytes");
        assert_eq!(fs::read(&there).unwrap(), b"bytes");
        // As root one can lay another's.
        if std::os::unix::fs::lchown(&link, Some(12345), None).is_ok() {
            assert!(is_laid(&link, dir.path()).unwrap());
            assert!(Target::open(&link).is_err());
            fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
            assert!(!is_laid(&link, dir.path()).unwrap());
        }
    }

    #[test]
    fn a_link_is_laid_where_all_may_write_and_neither_we_nor_the_directorys_owner_made_it() {
        let (root, own, other) = (0, 1000, 1001);
        for (mode, link, parent, expected) in [
            (0o41777, other, root, true),
            (0o41777, other, own, true),
            (0o41777, own, root, false),
            (0o41777, root, root, false),
            (0o41777, other, other, false),
            // All may write, and remove what others made.
            (0o40777, other, root, false),
            (0o41775, other, root, false),
            (0o40755, other, root, false),
        ] {
            assert_eq!(laid(mode, link, parent, own), expected, "{mode:o}, {link} in {parent}'s");
        }
        // Root follows no more than others do.
        assert!(laid(0o41777, other, own, root) && !laid(0o41777, other, other, root));
    }

    #[test]
    fn what_is_no_file_is_written_as_it_comes() {
        assert!(matches!(Target::open(Path::new("/dev/null")), Ok(Target::Special(_))));
        for own in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            assert!(matches!(Target::open(Path::new(own)), Ok(Target::Stdout)), "{own}");
        }
        // A file that is open is that file, whatever has its name by now.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("open");
        let mut open = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        open.write_all(b"what was there before").unwrap();
        open.rewind().unwrap();
        fs::remove_file(&path).unwrap();
        let named = format!("/proc/self/fd/{}", open.as_raw_fd());
        let target = Target::open(Path::new(&named)).unwrap();
        assert!(matches!(target, Target::Special(_)));
        target.writer().unwrap().write_all(b"bytes").unwrap();
        target.keep().unwrap();
        let mut written = String::new();
        open.read_to_string(&mut written).unwrap();
        assert_eq!(written, "bytes");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let refused = Target::open(dir.path()).err().unwrap().to_string();
        assert!(refused.contains("is a directory"), "{refused}");
        let nowhere = Target::open(&dir.path().join("missing/file")).err().unwrap().to_string();
        assert!(nowhere.contains("cannot write"), "{nowhere}");
    }
}
