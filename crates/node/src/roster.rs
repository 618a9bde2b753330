//! The directories that were added to a node while it ran: it finds them again without being told.
//!
//! A text file, `added`, lies in each directory that the node is started with (the loss of one disk is not to lose the
//! others, nor to keep a new one from taking its place): one line for each device, `DEVICE DIRECTORY`. A line is there before the
//! metadata server hears of the device, and goes when the device is removed from the cluster.

use crate::{NodeError, identity};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use steadfast_protocol::DeviceId;

const FILE: &str = "added";
const HEAD: &str = "steadfast added devices 1";

/// The list of one node.
#[derive(Debug)]
pub(crate) struct Added {
    /// Where it is kept: the directories that the node is started with.
    homes: Vec<PathBuf>,
    /// One change at a time.
    changing: Mutex<()>,
}

impl Added {
    pub(crate) fn new(homes: &[PathBuf]) -> Self {
        Self { homes: homes.to_vec(), changing: Mutex::new(()) }
    }

    /// The directories listed that the node is not started with anyway. Blocks.
    ///
    /// A disk that was added and is not there must not be taken for a new one: its mount point would be formatted.
    pub(crate) fn dirs(&self) -> Result<Vec<PathBuf>, NodeError> {
        let resolve = |dir: &PathBuf| fs::canonicalize(dir).ok();
        let given: Vec<PathBuf> = self.homes.iter().filter_map(resolve).collect();
        let mut dirs = Vec::new();
        for (device, (dir, home)) in self.load()? {
            if resolve(&dir).is_some_and(|dir| given.contains(&dir)) {
                continue;
            }
            let identity = identity::load(&dir)?.filter(|identity| identity.device == device);
            if identity.is_some_and(|identity| identity.removed) {
                continue;
            }
            if identity.is_none() {
                return Err(NodeError::AddedGone { device, dir, list: home.join(FILE) });
            }
            dirs.push(dir);
        }
        Ok(dirs)
    }

    /// Lists a device. Durable when it returns. Blocks.
    pub(crate) fn insert(&self, device: DeviceId, dir: &Path) -> Result<(), NodeError> {
        self.change(|list| drop(list.insert(device, dir.to_owned()))).map(drop)
    }

    /// Forgets a device. Blocks.
    ///
    /// # Errors
    /// Also where a list stays that has it: the next start would look for its disk.
    pub(crate) fn remove(&self, device: DeviceId) -> Result<(), NodeError> {
        self.change(|list| drop(list.remove(&device)))?.map_or(Ok(()), Err)
    }

    /// Changes the list in every home; why it stays as it was in one of them, where it does in some.
    fn change(
        &self,
        change: impl FnOnce(&mut BTreeMap<DeviceId, PathBuf>),
    ) -> Result<Option<NodeError>, NodeError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before: BTreeMap<_, _> =
            self.load()?.into_iter().map(|(device, (dir, _))| (device, dir)).collect();
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(None);
        }
        // A device is found again by one list.
        let (mut stored, mut failed) = (0, None);
        for home in &self.homes {
            match store(home, &after) {
                Ok(()) => stored += 1,
                Err(error) => {
                    tracing::warn!(%error, "a list of added devices stays as it was");
                    failed = Some(error);
                }
            }
        }
        if stored == 0 { failed.map_or(Ok(None), Err) } else { Ok(failed) }
    }

    /// Every device listed, its directory, and where that was read.
    ///
    /// # Errors
    /// Where a list is damaged, or none of several homes can be read.
    fn load(&self) -> Result<BTreeMap<DeviceId, (PathBuf, PathBuf)>, NodeError> {
        let (mut list, mut read, mut failed) = (BTreeMap::new(), 0, None);
        for home in &self.homes {
            let path = home.join(FILE);
            match fs::read_to_string(&path) {
                Ok(text) => {
                    let lines = parse(&text).ok_or(NodeError::AddedDamaged { list: path })?;
                    list.extend(lines.into_iter().map(|(device, dir)| (device, (dir, home.clone()))));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    failed = Some(NodeError::Io { what: "read", path, source });
                    continue;
                }
            }
            read += 1;
        }
        failed.filter(|_| read == 0).map_or(Ok(list), Err)
    }
}

/// Writes it whole or not at all.
fn store(home: &Path, list: &BTreeMap<DeviceId, PathBuf>) -> Result<(), NodeError> {
    let (path, temporary) = (home.join(FILE), home.join("added.new"));
    let write = || {
        let mut file = File::create(&temporary)?;
        writeln!(file, "{HEAD}")?;
        for (device, dir) in list {
            writeln!(file, "{device} {}", dir.display())?;
        }
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(home)?.sync_all()
    };
    write().map_err(|source: io::Error| NodeError::Io { what: "write", path: path.clone(), source })
}

fn parse(text: &str) -> Option<Vec<(DeviceId, PathBuf)>> {
    let mut lines = text.lines();
    if lines.next()? != HEAD {
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

    #[test]
    fn what_is_added_is_found_in_every_home_and_gone_when_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let dir = root.path().join(name);
            fs::create_dir(&dir).unwrap();
            dir
        };
        let (homes, third) = ([dir("first"), dir("second")], dir("the third disk"));
        let device = DeviceId(7);
        let (node, cluster) = (NodeId(1), ClusterId(9));
        let identity = Identity { node, device, cluster, removed: false };
        identity::store(&third, &identity).unwrap();
        let added = Added::new(&homes);
        assert!(added.dirs().unwrap().is_empty());
        added.insert(device, &third).unwrap();
        for homes in [&homes[..], &homes[..1], &homes[1..]] {
            assert_eq!(Added::new(homes).dirs().unwrap(), std::slice::from_ref(&third));
        }
        // Given on the command line too: once is enough.
        assert!(Added::new(&[homes[0].clone(), third.clone()]).dirs().unwrap().is_empty());
        // Removed, and still listed.
        identity::retire(&third, device).unwrap();
        assert!(added.dirs().unwrap().is_empty());
        // Another disk is mounted there, or none.
        identity::store(&third, &Identity { device: DeviceId(8), ..identity }).unwrap();
        assert!(matches!(added.dirs(), Err(NodeError::AddedGone { device: DeviceId(7), .. })));
        added.remove(device).unwrap();
        assert!(added.dirs().unwrap().is_empty());
        // One home's disk is dead: the other has the list. None is too few.
        let fourth = dir("fourth");
        identity::store(&fourth, &Identity { device: DeviceId(9), ..identity }).unwrap();
        let dead = |home: &Path| {
            let _ = fs::remove_file(home.join(FILE));
            fs::create_dir(home.join(FILE)).unwrap();
        };
        dead(&homes[0]);
        added.insert(DeviceId(9), &fourth).unwrap();
        assert_eq!(added.dirs().unwrap(), std::slice::from_ref(&fourth));
        dead(&homes[1]);
        assert!(added.insert(DeviceId(10), &third).is_err() && added.dirs().is_err());
        homes.iter().for_each(|home| fs::remove_dir(home.join(FILE)).unwrap());
        fs::write(homes[1].join(FILE), "nonsense").unwrap();
        assert!(matches!(added.dirs(), Err(NodeError::AddedDamaged { .. })));
    }
}
