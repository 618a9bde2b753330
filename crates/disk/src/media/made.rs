//! What a device's making made, so that a failure leaves nothing of it behind.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Files and directories that were made for a device: removed again when this is dropped, unless they are kept. A
/// directory in which somebody else put something meanwhile stays.
#[derive(Debug, Default)]
pub struct Made {
    files: Vec<PathBuf>,
    /// The deepest first.
    directories: Vec<PathBuf>,
}

impl Made {
    /// Makes a directory and those above it that are missing.
    ///
    /// # Errors
    /// As [`fs::create_dir_all`].
    pub fn directory(&mut self, path: &Path) -> io::Result<()> {
        // Noted before they are made: of several, some may be made before one fails.
        let missing = |path: &&Path| {
            let found = path.symlink_metadata();
            !path.as_os_str().is_empty() && found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        self.directories.extend(path.ancestors().take_while(missing).map(Path::to_owned));
        fs::create_dir_all(path)
    }

    /// Notes a file that was made.
    pub fn file(&mut self, path: PathBuf) {
        self.files.push(path);
    }

    /// All of it stays.
    pub fn keep(mut self) {
        self.files.clear();
        self.directories.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What cannot be removed stays: the failure that led here is the one to tell.
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        for directory in &self.directories {
            let _ = fs::remove_dir(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_or_came_meanwhile_stays() {
        let place = tempfile::tempdir().unwrap();
        let (there, ours) = (place.path().join("there"), place.path().join("there/a/b"));
        fs::create_dir(&there).unwrap();
        let make = || {
            let mut made = Made::default();
            made.directory(&ours).unwrap();
            fs::write(ours.join("space"), "").unwrap();
            made.file(ours.join("space"));
            made
        };
        drop(make());
        assert_eq!(fs::read_dir(&there).unwrap().count(), 0);
        let made = make();
        fs::write(there.join("a/theirs"), "").unwrap();
        drop(made);
        assert!(!ours.exists() && there.join("a/theirs").exists());
        make().keep();
        drop(Made::default().directory(&ours));
        assert!(ours.join("space").exists());
        // One of several cannot be made.
        let mut made = Made::default();
        made.directory(&place.path().join("c/d").join("e".repeat(300))).unwrap_err();
        drop(made);
        assert!(!place.path().join("c").exists());
    }
}
