//! A running node takes a further device, and lets one go that was removed from the cluster.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use common::{Client, Cluster, blocks, open, told_when};
use std::os::unix::fs::MetadataExt;
use steadfast_disk::Granule;
use steadfast_node::{Node, NodeOptions};
use steadfast_protocol::{
    DeviceId,
    message::{Fault, MetaFault, NodeAnswer, NodeFault, NodeRequest, Want},
};

const CAPACITY: u64 = 32 << 20;

async fn add(client: &Client, dir: &std::path::Path) -> Result<DeviceId, Fault> {
    add_as(client, dir, false).await
}

async fn add_as(client: &Client, dir: &std::path::Path, thick: bool) -> Result<DeviceId, Fault> {
    add_of(client, dir, CAPACITY, thick).await
}

async fn add_of(
    client: &Client,
    dir: &std::path::Path,
    capacity: u64,
    thick: bool,
) -> Result<DeviceId, Fault> {
    let dir = dir.to_str().unwrap().to_owned();
    match client.call(&NodeRequest::AddDevice { dir, capacity_bytes: Some(capacity), thick }, 0).await? {
        NodeAnswer::Added { device } => Ok(device),
        other => panic!("{other:?}"),
    }
}

/// Why a directory cannot be a device.
fn why(refused: Result<DeviceId, Fault>) -> String {
    match refused {
        Err(Fault::Node(NodeFault::NotAdded { detail, .. })) => detail,
        other => panic!("{other:?}"),
    }
}

/// Why a device was not added, which may be well the next time.
fn why_not_now(refused: Result<DeviceId, Fault>) -> String {
    match refused {
        Err(Fault::Node(NodeFault::Invalid(detail))) => detail,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_device_is_added_registered_served_and_found_again() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(2)).await.unwrap();
    node.registered().await;
    let client = Client::to(&node).await;
    let dir = cluster.dir.path().join("a further disk");
    let device = add(&client, &dir).await.unwrap();
    assert_eq!(node.devices().len(), 3);
    {
        let told = cluster.meta.told.lock().unwrap();
        let record = told.records.last().unwrap();
        assert!(record.devices.len() == 3 && record.devices.iter().any(|entry| entry.0 == device));
    }
    told_when(&cluster.meta, "a report of it", |told| {
        told.last.as_ref().is_some_and(|beat| beat.devices.iter().any(|report| report.device == device))
    })
    .await;
    let written = blocks(1, 0..5, 64 << 10);
    client.write(open(device, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    let name = node.id();
    node.stop().await;
    let node = Node::start(cluster.options(2)).await.unwrap();
    assert_eq!((node.id(), node.devices().len()), (name, 3));
    let read = Client::to(&node).await.read(device, 1, Want::All, Granule::KIB_64).await.unwrap();
    assert!(read.0 == written);
}

/// A disk that was added, or given, and is not mounted is no new one: not at a start that is given it, and not to be added again.
#[tokio::test]
async fn a_disk_that_is_not_mounted_is_not_made_anew() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    node.registered().await;
    let dir = cluster.dir.path().join("further");
    let device = add(&Client::to(&node).await, &dir).await.unwrap();
    node.stop().await;
    cluster.meta.told.lock().unwrap().missing = vec![device];
    let disk = cluster.dir.path().join("the disk");
    std::fs::rename(&dir, &disk).unwrap();
    std::fs::create_dir(&dir).unwrap();
    for given in [false, true] {
        let mut options = cluster.options(1);
        options.dirs.extend(given.then(|| dir.clone()));
        let node = Node::start(options).await.unwrap();
        assert_eq!(node.devices().len(), 1, "{given}");
        let said = why(add(&Client::to(&node).await, &dir).await);
        assert!(said.contains("is not there"), "{said}");
        node.stop().await;
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "{given}");
    }
    std::fs::remove_dir(&dir).unwrap();
    std::fs::rename(&disk, &dir).unwrap();
    let node = Node::start(cluster.options(1)).await.unwrap();
    assert!(node.devices().contains(&device));
    node.stop().await;
}

/// A device takes its room at once where that is asked for, or where its node was started so.
#[tokio::test]
async fn a_thick_device_takes_its_room_at_once() {
    let cluster = Cluster::start().await;
    for (started_thick, asked_thick) in [(false, false), (false, true), (true, false)] {
        let options = NodeOptions { thick: started_thick, ..cluster.options(1) };
        let node = Node::start(options).await.unwrap();
        node.registered().await;
        let dir = cluster.dir.path().join(format!("disk {started_thick} {asked_thick}"));
        add_as(&Client::to(&node).await, &dir, asked_thick).await.unwrap();
        let taken = 512 * std::fs::metadata(dir.join("space")).unwrap().blocks();
        let thick = started_thick || asked_thick;
        assert_eq!(taken >= CAPACITY, thick, "{taken} bytes of {CAPACITY} taken");
        node.stop().await;
    }
}

/// What was made for a device that could not be made is gone, whichever step failed; what was there stays.
#[tokio::test]
async fn a_device_that_cannot_be_made_leaves_nothing_behind() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    node.registered().await;
    let client = Client::to(&node).await;
    let dir = cluster.dir.path().join("further/disk");
    // No file can be so large; no device so small.
    for (capacity, reason) in [(u64::MAX, "cannot open"), (8192, "too few for a device")] {
        let said = why(add_of(&client, &dir, capacity, false).await);
        assert!(said.contains(reason), "{said}");
        assert!(!dir.parent().unwrap().exists(), "{reason}");
    }
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("notes"), "mine").unwrap();
    why(add_of(&client, &dir, u64::MAX, false).await);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
    // A killed node may leave an empty space all the same: the capacity is the one wished for now.
    std::fs::write(dir.join("space"), "").unwrap();
    add(&client, &dir).await.unwrap();
    assert_eq!(std::fs::metadata(dir.join("space")).unwrap().len(), CAPACITY);
    assert!(dir.join("notes").exists() && dir.join("identity").exists());
    node.stop().await;
    // At a node's start, too: the devices that could be made are kept.
    let mut options = cluster.options(1);
    options.dirs.extend([cluster.dir.path().join("too/small")]);
    options.capacity_bytes = Some(8192);
    assert!(Node::start(options).await.is_err());
    assert!(!cluster.dir.path().join("too").exists() && cluster.dirs(1)[0].join("space").exists());
}

#[tokio::test]
async fn what_cannot_be_added_is_told_and_leaves_the_node_as_it_was() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    node.registered().await;
    let client = Client::to(&node).await;
    assert!(why(add(&client, "relative".as_ref()).await).contains("full path"));
    assert!(why(add(&client, &cluster.dirs(1)[0]).await).contains("twice"));
    let said = why_not_now(add(&client, "/proc/no/such/place".as_ref()).await);
    assert!(said.starts_with("no device was added in /proc/no/such/place: cannot make"), "{said}");
    let (original, copy) = (cluster.dirs(1).remove(0), cluster.dir.path().join("copy"));
    std::fs::create_dir(&copy).unwrap();
    for file in ["space", "identity"] {
        std::fs::copy(original.join(file), copy.join(file)).unwrap();
    }
    let list = |name| std::fs::read_to_string(original.join(name)).unwrap_or_default();
    let lists = || [list("given"), list("added")];
    let before = lists();
    let said = why(add(&client, &copy).await);
    assert!(said.contains("is a copy of the other"), "{said}");
    assert_eq!(lists(), before);
    let dir = cluster.dir.path().join("further");
    cluster.meta.told.lock().unwrap().refuses = Some(Fault::Meta(MetaFault::Invalid("too many".to_owned())));
    assert!(why_not_now(add(&client, &dir).await).contains("too many"));
    assert_eq!(node.devices().len(), 1);
    cluster.meta.told.lock().unwrap().refuses = None;
    // Made by then: the same device is found and taken.
    let device = add(&client, &dir).await.unwrap();
    // Removed from the cluster: the node is told when it registers again, and serves the others on.
    {
        let mut told = cluster.meta.told.lock().unwrap();
        told.removed = Some(device);
        told.known = false;
    }
    told_when(&cluster.meta, "a registration without it", |told| {
        told.records.last().is_some_and(|record| record.devices.len() == 1) && told.known
    })
    .await;
    assert_eq!(node.devices().len(), 1);
    assert!(!node.devices().contains(&device));
    node.stop().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    assert_eq!(node.devices().len(), 1);
}
