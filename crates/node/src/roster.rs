//! Which devices a node has and where they lie, so that a disk that is not mounted is told from a new one: its mount point would be
//! formatted.
//!
//! Two text files lie in each directory that the node is started with (the loss of one disk is not to lose the others, nor to keep a
//! new one from taking its place; of a node with one directory nothing says what it had once that is not mounted), one line for each device, `DEVICE DIRECTORY`: `given`, the devices in those directories as they were
//! when the node last started; and `added`, those that were added while it ran, which it finds again without being told. A
//! line is there before the metadata server hears of the device, and goes when the device was removed from the cluster.

use crate::{NodeError, identity};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use steadfast_protocol::DeviceId;

/// Devices and their directories.
pub(crate) type Places = BTreeMap<DeviceId, PathBuf>;

/// A kind of list.
struct List {
    file: &'static str,
    head: &'static str,
}

const GIVEN: List = List { file: "given", head: "steadfast given devices 1" };
/// Links that one name may lead over (`MAXSYMLINKS`, path_resolution(7)).
const LINKS_MAX: usize = 40;
const ADDED: List = List { file: "added", head: "steadfast added devices 1" };

/// The lists of one node.
#[derive(Debug)]
pub(crate) struct Roster {
    /// Where they are kept: the directories that the node is started with.
    homes: Vec<PathBuf>,
    /// One change at a time.
    changing: Mutex<()>,
}

/// A directory's name without links, whether or not it is there: where it is missing, by what is there above it.
pub(crate) fn resolve(dir: &Path) -> PathBuf {
    let mut path = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    // A link whose target is missing leads on; as many links in turn as the system follows.
    for _ in 0..LINKS_MAX {
        if let Ok(real) = fs::canonicalize(&path) {
            return real;
        }
        let Some(parent) = path.parent() else { return path };
        match fs::read_link(&path) {
            Ok(target) => path = parent.join(target),
            Err(_) => return path.file_name().map_or(path.clone(), |name| resolve(parent).join(name)),
        }
    }
    path
}

/// Whether a list can have this directory: it is a line of text.
pub(crate) fn is_plain(dir: &Path) -> bool {
    dir.to_str().is_some_and(|name| !name.contains(char::is_control))
}

impl Roster {
    pub(crate) fn new(homes: &[PathBuf]) -> Self {
        Self { homes: homes.to_vec(), changing: Mutex::new(()) }
    }

    /// What the directories that it is started with had when it last started. Blocks.
    ///
    /// # Errors
    /// Where a list is damaged, or none of several homes can be read.
    pub(crate) fn given(&self) -> Result<Places, NodeError> {
        self.load(&GIVEN)
    }

    /// What was added while it ran. Blocks.
    ///
    /// # Errors
    /// As [`Self::given`].
    pub(crate) fn added(&self) -> Result<Places, NodeError> {
        self.load(&ADDED)
    }

    /// The device that is listed in a directory; `None` where none is, or those that are are `served`. Blocks.
    ///
    /// # Errors
    /// As [`Self::given`].
    pub(crate) fn had(&self, dir: &Path, served: &Places) -> Result<Option<DeviceId>, NodeError> {
        let dir = resolve(dir);
        let listed = self.given()?.into_iter().chain(self.added()?);
        let mut here = listed.filter(|(device, at)| !served.contains_key(device) && resolve(at) == dir);
        Ok(here.next().map(|(device, _)| device))
    }

    /// Lists what the directories that it is started with have now, and has every home list all that was added. Blocks.
    ///
    /// # Errors
    /// Where no list could be written.
    pub(crate) fn set_given(&self, places: &Places) -> Result<(), NodeError> {
        self.change(&GIVEN, |list| list.clone_from(places))?;
        self.change(&ADDED, |_| {}).map(drop)
    }

    /// Lists a device that is added; where it was listed as added before. Durable when it returns. Blocks.
    ///
    /// # Errors
    /// As [`Self::set_given`].
    pub(crate) fn insert(&self, device: DeviceId, dir: &Path) -> Result<Option<PathBuf>, NodeError> {
        let mut before = None;
        self.change(&ADDED, |list| before = list.insert(device, dir.to_owned()))?;
        Ok(before)
    }

    /// The device is not added after all: it is listed as it was `before`, also where it was given. Blocks.
    ///
    /// # Errors
    /// Also where a list stays that has it in the new place.
    pub(crate) fn take_back(&self, device: DeviceId, before: Option<PathBuf>) -> Result<(), NodeError> {
        let as_before = |list: &mut Places| match before {
            Some(dir) => drop(list.insert(device, dir)),
            None => drop(list.remove(&device)),
        };
        self.change(&ADDED, as_before)?.map_or(Ok(()), Err)
    }

    /// Forgets a device that was removed from the cluster, as far as that is possible now. Blocks.
    pub(crate) fn forget(&self, device: DeviceId) {
        if let Err(error) = self.remove(device) {
            tracing::warn!(%device, %error, "a device that was removed stays listed");
        }
    }

    /// Forgets a device. Blocks.
    ///
    /// # Errors
    /// Also where a list stays that has it: the next start would look for its disk.
    pub(crate) fn remove(&self, device: DeviceId) -> Result<(), NodeError> {
        // Both, whatever becomes of the first: what stays in one home is gone from the others.
        let changed = [&ADDED, &GIVEN].map(|list| {
            let stays = self.change(list, |places| drop(places.remove(&device)))?;
            stays.map_or(Ok(()), Err)
        });
        changed.into_iter().collect()
    }

    /// Changes a list in every home; why it stays as it was in one of them, where it does in some.
    fn change(&self, list: &List, change: impl FnOnce(&mut Places)) -> Result<Option<NodeError>, NodeError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut places = self.load(list)?;
        change(&mut places);
        // A device is found again by one list. Where no device is, no disk may be mounted.
        let (mut stored, mut failed) = (0, None);
        for home in self.homes.iter().filter(|home| home.join(identity::FILE).exists()) {
            // One that cannot be read is not what it should be.
            let is_so = read(home, list).is_ok_and(|listed| listed.unwrap_or_default() == places);
            match if is_so { Ok(()) } else { store(home, list, &places) } {
                Ok(()) => stored += 1,
                Err(error) => {
                    tracing::warn!(%error, "a list of devices stays as it was");
                    failed = Some(error);
                }
            }
        }
        if stored > 0 {
            return Ok(failed);
        }
        Err(failed.unwrap_or_else(|| NodeError::NoHome { homes: self.homes.clone() }))
    }

    /// Every device listed and its directory.
    fn load(&self, list: &List) -> Result<Places, NodeError> {
        let (mut places, mut found, mut failed) = (Places::new(), 0, None);
        for home in &self.homes {
            match read(home, list) {
                Ok(listed) => places.extend(listed.into_iter().flatten()),
                Err(error @ NodeError::ListDamaged { .. }) => return Err(error),
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            }
            found += 1;
        }
        failed.filter(|_| found == 0).map_or(Ok(places), Err)
    }
}

/// What one home lists; `None` where it has no list.
fn read(home: &Path, list: &List) -> Result<Option<Places>, NodeError> {
    let path = home.join(list.file);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let lines = parse(&text, list).ok_or(NodeError::ListDamaged { list: path })?;
            Ok(Some(lines.into_iter().collect()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(NodeError::Io { what: "read", path, source }),
    }
}

/// Writes it whole or not at all.
fn store(home: &Path, list: &List, places: &Places) -> Result<(), NodeError> {
    let (path, temporary) = (home.join(list.file), home.join(format!("{}.new", list.file)));
    let write = || {
        let mut file = File::create(&temporary)?;
        writeln!(file, "{}", list.head)?;
        for (device, dir) in places {
            writeln!(file, "{device} {}", dir.display())?;
        }
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(home)?.sync_all()
    };
    write().map_err(|source: io::Error| NodeError::Io { what: "write", path: path.clone(), source })
}

fn parse(text: &str, list: &List) -> Option<Vec<(DeviceId, PathBuf)>> {
    let mut lines = text.lines();
    if lines.next()? != list.head {
        return None;
    }
    lines
        .map(|line| {
            let (device, dir) = line.split_once(' ')?;
            Some((device.parse().ok()?, PathBuf::from(dir)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use steadfast_protocol::{ClusterId, NodeId};

    /// A directory that is a device's.
    fn device_in(root: &Path, name: &str, device: u128) -> PathBuf {
        let dir = root.join(name);
        fs::create_dir(&dir).unwrap();
        let (node, cluster) = (NodeId(1), ClusterId(9));
        let identity = Identity { node, device: DeviceId(device), cluster, removed: false };
        identity::store(&dir, &identity).unwrap();
        dir
    }

    #[test]
    fn what_is_listed_is_found_in_every_home_and_gone_when_removed() {
        let root = tempfile::tempdir().unwrap();
        let homes = [device_in(root.path(), "first", 1), device_in(root.path(), "second", 2)];
        let third = device_in(root.path(), "the third disk", 7);
        let roster = Roster::new(&homes);
        assert!(roster.added().unwrap().is_empty() && roster.given().unwrap().is_empty());
        roster.insert(DeviceId(7), &third).unwrap();
        let given: Places = [(DeviceId(1), homes[0].clone()), (DeviceId(2), homes[1].clone())].into();
        roster.set_given(&given).unwrap();
        let expected: Places = [(DeviceId(7), third.clone())].into();
        for homes in [&homes[..], &homes[..1], &homes[1..]] {
            assert_eq!(Roster::new(homes).added().unwrap(), expected);
            assert_eq!(Roster::new(homes).given().unwrap(), given);
        }
        assert_eq!(roster.had(&third, &Places::new()).unwrap(), Some(DeviceId(7)));
        assert_eq!(roster.had(&third, &expected).unwrap(), None);
        // What is not added after all is listed as it was.
        let elsewhere = root.path().join("elsewhere");
        for (device, before) in [(7, Some(&third)), (2, None)] {
            let had = roster.insert(DeviceId(device), &elsewhere).unwrap();
            assert_eq!(had.as_ref(), before);
            roster.take_back(DeviceId(device), had).unwrap();
            assert_eq!((roster.added().unwrap(), roster.given().unwrap()), (expected.clone(), given.clone()));
        }
        // A home that lacks a list gets it with the next start.
        fs::remove_file(homes[1].join(ADDED.file)).unwrap();
        roster.set_given(&given).unwrap();
        assert_eq!(Roster::new(&homes[1..]).added().unwrap(), expected);
        for device in [7, 2] {
            roster.remove(DeviceId(device)).unwrap();
        }
        assert!(roster.added().unwrap().is_empty());
        assert_eq!(roster.given().unwrap().into_keys().collect::<Vec<_>>(), [DeviceId(1)]);
    }

    #[test]
    fn one_home_is_enough_and_none_is_too_few() {
        let root = tempfile::tempdir().unwrap();
        let homes = [device_in(root.path(), "first", 1), device_in(root.path(), "second", 2)];
        let further = device_in(root.path(), "further", 9);
        let roster = Roster::new(&homes);
        let dead = |home: &Path| {
            let _ = fs::remove_file(home.join(ADDED.file));
            fs::create_dir(home.join(ADDED.file)).unwrap();
        };
        dead(&homes[0]);
        roster.insert(DeviceId(9), &further).unwrap();
        assert_eq!(roster.added().unwrap().into_values().collect::<Vec<_>>(), std::slice::from_ref(&further));
        roster.set_given(&[(DeviceId(9), further.clone())].into()).unwrap();
        assert!(roster.remove(DeviceId(9)).is_err(), "a list stays as it was");
        assert!(roster.given().unwrap().is_empty(), "and the other does not");
        roster.insert(DeviceId(9), &further).unwrap();
        dead(&homes[1]);
        assert!(roster.insert(DeviceId(10), &further).is_err() && roster.added().is_err());
        homes.iter().for_each(|home| fs::remove_dir(home.join(ADDED.file)).unwrap());
        fs::write(homes[1].join(ADDED.file), "nonsense").unwrap();
        assert!(matches!(roster.added(), Err(NodeError::ListDamaged { .. })));
        // A home whose disk is not mounted gets none: it would lie under the disk.
        let empty = root.path().join("mount point");
        fs::create_dir(&empty).unwrap();
        let roster = Roster::new(&[homes[0].clone(), empty.clone()]);
        roster.insert(DeviceId(9), &further).unwrap();
        assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
        assert_eq!(roster.added().unwrap().len(), 1);
    }

    #[test]
    fn a_directory_that_is_missing_has_the_name_that_it_had() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let disk = root.join("disk");
        fs::create_dir_all(disk.join("steadfast")).unwrap();
        std::os::unix::fs::symlink("disk", root.join("link")).unwrap();
        std::os::unix::fs::symlink(disk.join("steadfast"), root.join("straight")).unwrap();
        let names = ["disk/steadfast", "link/steadfast", "straight", "disk/../disk/steadfast"];
        let all = || names.map(|name| resolve(&root.join(name)));
        assert_eq!(
            all(),
            [disk.join("steadfast"), disk.join("steadfast"), disk.join("steadfast"), disk.join("steadfast")]
        );
        fs::remove_dir(disk.join("steadfast")).unwrap();
        assert_eq!(
            all(),
            [disk.join("steadfast"), disk.join("steadfast"), disk.join("steadfast"), disk.join("steadfast")]
        );
        std::os::unix::fs::symlink("circle", root.join("circle")).unwrap();
        resolve(&root.join("circle"));
    }

    #[test]
    fn a_directory_that_is_no_line_of_text_is_not_plain() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        assert!(is_plain(Path::new("/mnt/d 1/ü")));
        assert!(!is_plain(Path::new("/mnt/d\n1")) && !is_plain(Path::new(OsStr::from_bytes(b"/mnt/\xff"))));
    }
}
