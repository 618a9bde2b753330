//! Why a node does not start, or stops.

use std::{io, path::PathBuf};
use steadfast_disk::{
    ClusterId, DeviceId,
    device::{FormatError, OpenError},
    media::{MediumError, OpenFileError},
};
use steadfast_net::ConnectError;
use steadfast_protocol::{message::Fault, serve::ReserveError};

/// Why a node does not start, or stops.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// No directory was given.
    #[error("a node needs at least one directory for a device")]
    NoDirectory,
    /// A directory was given twice.
    #[error("{} is given twice: one directory is one device", dir.display())]
    DirectoryTwice {
        /// The directory.
        dir: PathBuf,
    },
    /// A directory to add that is not named in full.
    #[error("{} is not a full path: name the directory as the storage server sees it, from `/` on", dir.display())]
    Relative {
        /// As given.
        dir: PathBuf,
    },
    /// A directory whose name no list can have.
    #[error("the name of {} is not one line of text: give the directory another", dir.display())]
    Name {
        /// The directory.
        dir: PathBuf,
    },
    /// No directory that the node was started with has a device now.
    #[error(
        "none of the directories that this node was started with has a device now, so none can keep the list of devices ({homes:?})"
    )]
    NoHome {
        /// The directories.
        homes: Vec<PathBuf>,
    },
    /// A list of devices does not parse.
    #[error("{} is damaged: put the directories of this node on its command line, and remove the file", list.display())]
    ListDamaged {
        /// The list.
        list: PathBuf,
    },
    /// How reserves are to be managed makes no sense.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The space of a device could not be opened or made; another node may have it.
    #[error(transparent)]
    Space(#[from] OpenFileError),
    /// A device is there and cannot be used.
    #[error("the device in {} cannot be used: {source}", dir.display())]
    Device {
        /// Its directory.
        dir: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// A device that was here is gone.
    #[error(
        "device {device} was in {} and is not there ({found}): mount or put back its disk; if it is lost, repair what it \
         held with `steadfast device remove --lost {device}`, and start the server again, which then takes the directory for a new \
         device",
        dir.display()
    )]
    Gone {
        /// Its directory.
        dir: PathBuf,
        /// The device that was there.
        device: DeviceId,
        /// What is there now.
        found: &'static str,
    },
    /// A directory whose device was removed from the cluster is to be a device.
    #[error(
        "device {device} in {} was removed from the cluster: empty the directory to make a new device of it",
        dir.display()
    )]
    Removed {
        /// The directory.
        dir: PathBuf,
        /// The device that was there.
        device: DeviceId,
    },
    /// Two directories have one device, as a copy of a disk has.
    #[error(
        "device {device} is in {} and in {}: one is a copy of the other, and may lack what was written last; keep the one \
         that is up to date, and unmount or empty the other directory",
        dirs[0].display(),
        dirs[1].display()
    )]
    DeviceTwice {
        /// The device that is in both.
        device: DeviceId,
        /// The directories.
        dirs: [PathBuf; 2],
    },
    /// Devices of two clusters.
    #[error(
        "the device in {} belongs to cluster {theirs}, others here to {ours}: give each cluster a node of its own",
        dir.display()
    )]
    MixedClusters {
        /// The directory.
        dir: PathBuf,
        /// The cluster of the devices before it.
        ours: ClusterId,
        /// This device's.
        theirs: ClusterId,
    },
    /// The devices belong to another cluster than the metadata server.
    #[error(
        "the devices here belong to cluster {ours}, the metadata server {meta} to {theirs}: name the right metadata \
         server, or other directories"
    )]
    ForeignCluster {
        /// The devices' cluster.
        ours: ClusterId,
        /// The metadata server's.
        theirs: ClusterId,
        /// Its address.
        meta: String,
    },
    /// The metadata server does not take this node.
    #[error("the metadata server {meta} refused this node: {fault}")]
    Refused {
        /// Its address.
        meta: String,
        /// Why.
        fault: Fault,
    },
    /// What answers at the metadata server's address is none.
    #[error("{meta} is no metadata server of this kind: {source}")]
    NotMeta {
        /// The address.
        meta: String,
        /// What it did.
        source: ConnectError,
    },
    /// A new device could not be made.
    #[error("no device could be made in {}: {source}", dir.display())]
    Format {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: FormatError,
    },
    /// A new device's space could not be taken whole.
    #[error("{} cannot take its whole capacity: {source}; give a smaller --capacity, or do without --thick", dir.display())]
    Fill {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: steadfast_disk::media::MediumError,
    },
    /// A filesystem without room for a device.
    #[error("{} has {free_bytes} bytes free: too few for a device", dir.display())]
    NoRoom {
        /// The directory.
        dir: PathBuf,
        /// Bytes free on its filesystem.
        free_bytes: u64,
    },
    /// A medium failed while a device was made.
    #[error("the medium in {} failed: {source}", dir.display())]
    Medium {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: MediumError,
    },
    /// The operating system refused something.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The address to listen on cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A part of the node ended that should not.
    #[error("an internal task ended: {detail}")]
    Task {
        /// How.
        detail: String,
    },
}
