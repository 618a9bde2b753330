//! A small file beside each device's space: which node serves it, which device and cluster it is. It is how a device
//! whose space was wiped is told from a new directory, and how a node keeps its name when its first disk is replaced.

use crate::NodeError;
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
};
use steadfast_protocol::{ClusterId, DeviceId, NodeId};

/// Its name in the device's directory.
pub(crate) const FILE: &str = "identity";
const HEAD: &str = "steadfast device identity 1";
/// The line behind the others where the device was removed.
const REMOVED: &str = "removed";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) node: NodeId,
    pub(crate) device: DeviceId,
    pub(crate) cluster: ClusterId,
    /// The device was removed from the cluster: it is served no more, and its directory still says whose it was.
    pub(crate) removed: bool,
}

/// The identity in `dir`; `None` where there is none, or one that does not parse (the superblock has the say).
pub(crate) fn load(dir: &Path) -> Result<Option<Identity>, NodeError> {
    match fs::read_to_string(dir.join(FILE)) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
            Ok(None)
        }
        Err(source) => Err(NodeError::Io { what: "read", path: dir.join(FILE), source }),
    }
}

/// Writes it whole or not at all.
pub(crate) fn store(dir: &Path, identity: &Identity) -> Result<(), NodeError> {
    let temporary = dir.join("identity.new");
    let Identity { node, device, cluster, removed } = identity;
    let mut text = format!("{HEAD}\nnode {node}\ndevice {device}\ncluster {cluster}\n");
    if *removed {
        text.push_str(REMOVED);
        text.push('\n');
    }
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, dir.join(FILE))?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|source| {
        // Gone already where it has its name.
        let _ = fs::remove_file(&temporary);
        NodeError::Io { what: "write", path: dir.join(FILE), source }
    })
}

/// Notes in `dir` that this device was removed from its cluster, where it is still that device's directory.
pub(crate) fn retire(dir: &Path, device: DeviceId) -> Result<(), NodeError> {
    match load(dir)? {
        Some(identity) if identity.device == device && !identity.removed => {
            store(dir, &Identity { removed: true, ..identity })
        }
        _ => Ok(()),
    }
}

/// A name that nobody else draws.
pub(crate) fn random_u128() -> Result<u128, NodeError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    File::open(path).and_then(|mut file| file.read_exact(&mut bytes)).map_err(|source| NodeError::Io {
        what: "read",
        path: path.into(),
        source,
    })?;
    Ok(u128::from_le_bytes(bytes))
}

fn parse(text: &str) -> Option<Identity> {
    let mut lines = text.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    Some(Identity {
        node: field("node")?.parse().ok()?,
        device: field("device")?.parse().ok()?,
        cluster: field("cluster")?.parse().ok()?,
        removed: lines.next() == Some(REMOVED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_as_it_went_and_nonsense_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), None);
        let (node, device, cluster) = (NodeId(7), DeviceId(u128::MAX), ClusterId(9));
        let identity = Identity { node, device, cluster, removed: false };
        store(dir.path(), &identity).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(identity));
        // Emptied and used again meanwhile: another device's.
        retire(dir.path(), DeviceId(8)).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(identity));
        retire(dir.path(), device).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(Identity { removed: true, ..identity }));
        for text in ["", "something", HEAD, "steadfast device identity 1\nnode x\ndevice 1\ncluster 2\n"] {
            fs::write(dir.path().join(FILE), text).unwrap();
            assert_eq!(load(dir.path()).unwrap(), None, "{text:?}");
        }
        assert_ne!(random_u128().unwrap(), random_u128().unwrap());
    }
}
