//! Starting, names, the metadata server's coming and going, and the sweep.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use common::{Client, Cluster, FakeMeta, WITHIN, blocks, open, told_when};
use std::{fs, os::unix::fs::FileExt, time::Duration};
use steadfast_disk::{Granule, media::OpenFileError};
use steadfast_node::{Node, NodeError, NodeOptions};
use steadfast_protocol::{
    ClusterId, DeviceId, Epoch, IndexRanges, NodeId, SegmentId,
    message::{Fault, MetaFault, NodeAnswer, NodeRequest, SegmentState, Want},
    serve::SweepOptions,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

#[tokio::test]
async fn it_registers_measures_and_registers_again_when_told() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(2);
    options.site = "here".to_owned();
    let node = Node::start(options).await.unwrap();
    node.registered().await;
    {
        let told = cluster.meta.told.lock().unwrap();
        let record = &told.records[0];
        assert_eq!((record.node, record.cluster), (node.id(), Some(ClusterId(77))));
        assert_eq!((record.address.clone(), record.site.as_str()), (node.address().to_string(), "here"));
        let mut devices: Vec<_> = record.devices.iter().map(|device| device.0).collect();
        devices.sort();
        assert_eq!(devices, node.devices());
        assert!(record.devices.iter().all(|device| device.1 > 32 << 20));
    }
    let device = node.devices()[0];
    let written = blocks(1, 0..32, 64 << 10);
    let client = Client::to(&node).await;
    client.write(open(device, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    client.read(device, 1, Want::All, Granule::KIB_64).await.unwrap();
    told_when(&cluster.meta, "measured speeds", |told| {
        let measured = told.last.as_ref().and_then(|beat| beat.devices.iter().find(|d| d.device == device));
        measured.is_some_and(|report| {
            report.read_bytes_per_s > 0 && report.write_bytes_per_s > 0 && report.extents == 1
        })
    })
    .await;
    cluster.meta.told.lock().unwrap().known = false;
    told_when(&cluster.meta, "a second registration", |told| told.records.len() == 2 && told.known).await;
}

#[tokio::test]
async fn it_serves_while_the_metadata_server_is_away_and_finds_it_again() {
    let mut cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let written = blocks(1, 0..3, 64 << 10);
    Client::to(&node).await.write(open(device, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    node.stop().await;
    let address = cluster.meta.address.clone();
    // A closed port: nobody answers there.
    cluster.meta = FakeMeta::start(77).await;
    let mut options = cluster.options(1);
    options.meta = address.clone();
    let node = Node::start(options).await.unwrap();
    let (read, _) = Client::to(&node).await.read(device, 1, Want::All, Granule::KIB_64).await.unwrap();
    assert!(read == written);
    cluster.meta = FakeMeta::start_at(&address, 77).await;
    tokio::time::timeout(WITHIN, node.registered()).await.expect("it registers");
}

#[tokio::test]
async fn two_nodes_on_one_directory() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let second = Node::start(cluster.options(1)).await.unwrap_err();
    assert!(matches!(second, NodeError::Space(OpenFileError::Locked { .. })), "{second}");
    node.stop().await;
    Node::start(cluster.options(1)).await.unwrap().stop().await;
    let mut twice = cluster.options(1);
    twice.dirs.push(twice.dirs[0].join("."));
    assert!(matches!(Node::start(twice).await.unwrap_err(), NodeError::DirectoryTwice { .. }));
    let mut none = cluster.options(1);
    none.dirs.clear();
    assert!(matches!(Node::start(none).await.unwrap_err(), NodeError::NoDirectory));
}

/// Of a disk and its copy one may be out of date: neither is served until somebody says which.
#[tokio::test]
async fn two_directories_with_one_device() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    node.stop().await;
    let [original, copy]: [_; 2] = cluster.dirs(2).try_into().unwrap();
    fs::create_dir(&copy).unwrap();
    for file in ["space", "identity"] {
        fs::copy(original.join(file), copy.join(file)).unwrap();
    }
    let refused = Node::start(cluster.options(2)).await.unwrap_err();
    let NodeError::DeviceTwice { device: twice, dirs } = &refused else { panic!("{refused}") };
    assert_eq!((*twice, dirs), (device, &[original, copy.clone()]));
    fs::remove_dir_all(&copy).unwrap();
    let (_, devices) = devices_of_a_start(cluster.options(1)).await;
    assert_eq!(devices, [device]);
}

/// A node of two devices that has stopped: its name, and the devices in its first and its second directory.
async fn of_two_devices(cluster: &Cluster) -> (NodeId, [DeviceId; 2]) {
    let first = Node::start(cluster.options(1)).await.unwrap();
    let in_first = first.devices()[0];
    first.stop().await;
    let node = Node::start(cluster.options(2)).await.unwrap();
    let second = node.devices().into_iter().find(|&device| device != in_first).unwrap();
    let name = node.id();
    node.stop().await;
    (name, [in_first, second])
}

async fn devices_of_a_start(options: NodeOptions) -> (NodeId, Vec<DeviceId>) {
    let node = Node::start(options).await.unwrap();
    let found = (node.id(), node.devices());
    node.stop().await;
    found
}

#[tokio::test]
async fn a_disk_that_is_wiped_or_not_mounted_is_not_taken_for_a_new_one() {
    let cluster = Cluster::start().await;
    let (name, [gone, kept]) = of_two_devices(&cluster).await;
    cluster.meta.told.lock().unwrap().missing = vec![gone];
    let dir = cluster.dirs(2)[0].clone();
    let space = dir.join("space");
    let image = fs::OpenOptions::new().write(true).open(&space).unwrap();
    let bytes = image.metadata().unwrap().len();
    image.set_len(0).unwrap();
    image.set_len(bytes).unwrap();
    for found in ["blank", "no space file"] {
        // Nothing else is there: the node says why it does not start.
        let error = Node::start(cluster.options(1)).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, NodeError::Gone { device, .. } if device == gone), "{text}");
        assert!(text.contains(found) && text.contains("remove --lost"), "{text}");
        assert_eq!(devices_of_a_start(cluster.options(2)).await, (name, vec![kept]), "{found}");
        let _ = fs::remove_file(&space);
    }
    // As an empty mount point looks, and one that is gone: nothing is made there, however often it starts.
    fs::remove_dir_all(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    for _ in 0..2 {
        assert_eq!(devices_of_a_start(cluster.options(2)).await, (name, vec![kept]));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }
    fs::remove_dir(&dir).unwrap();
    assert_eq!(devices_of_a_start(cluster.options(2)).await, (name, vec![kept]));
    assert!(!dir.exists());
    // Removed from the cluster, it is a new one.
    cluster.meta.told.lock().unwrap().missing.clear();
    let (again, devices) = devices_of_a_start(cluster.options(2)).await;
    assert_eq!((again, devices.len()), (name, 2), "the second directory remembers the node's name");
    assert!(devices.contains(&kept) && !devices.contains(&gone));
    // And as good as any other from then on.
    assert_eq!(devices_of_a_start(cluster.options(2)).await, (name, devices));
}

#[tokio::test]
async fn a_disk_that_is_mounted_elsewhere_is_found_there() {
    let cluster = Cluster::start().await;
    let (name, devices) = of_two_devices(&cluster).await;
    cluster.meta.told.lock().unwrap().missing = devices.to_vec();
    let dirs = cluster.dirs(3);
    fs::rename(&dirs[0], &dirs[2]).unwrap();
    let (_, found) = devices_of_a_start(NodeOptions { dirs: dirs[1..].to_vec(), ..cluster.options(2) }).await;
    assert!(devices.iter().all(|device| found.contains(device)) && found.len() == 2);
    // Where it was is as any new directory.
    let (again, found) = devices_of_a_start(cluster.options(3)).await;
    assert!(devices.iter().all(|device| found.contains(device)) && found.len() == 3 && again == name);
}

/// A link above a mount point names it no less than the mount point itself, also while nothing is mounted there.
#[tokio::test]
async fn a_disk_behind_a_link_is_missed_too() {
    let cluster = Cluster::start().await;
    let root = cluster.dir.path();
    fs::create_dir(root.join("disks")).unwrap();
    std::os::unix::fs::symlink(root.join("disks"), root.join("link")).unwrap();
    let mut options = cluster.options(1);
    options.dirs.push(root.join("link/second"));
    let (_, devices) = devices_of_a_start(options.clone()).await;
    cluster.meta.told.lock().unwrap().missing = devices;
    fs::remove_dir_all(root.join("disks/second")).unwrap();
    assert_eq!(devices_of_a_start(options).await.1.len(), 1);
    assert!(!root.join("disks/second").exists());
}

/// As after a boot that found the disks in another order, and one not at all: where nothing is mounted that one may belong.
#[tokio::test]
async fn disks_that_changed_places_make_no_room_for_a_new_one() {
    let cluster = Cluster::start().await;
    let (name, all) = devices_of_a_start(cluster.options(3)).await;
    cluster.meta.told.lock().unwrap().missing = all.clone();
    let dirs = cluster.dirs(3);
    let away = cluster.dir.path().join("away");
    fs::rename(&dirs[2], &away).unwrap();
    fs::rename(&dirs[1], &dirs[2]).unwrap();
    fs::create_dir(&dirs[1]).unwrap();
    for _ in 0..2 {
        assert_eq!(devices_of_a_start(cluster.options(3)).await.1.len(), 2);
        assert_eq!(fs::read_dir(&dirs[1]).unwrap().count(), 0);
    }
    fs::remove_dir(&dirs[1]).unwrap();
    fs::rename(&away, &dirs[1]).unwrap();
    assert_eq!(devices_of_a_start(cluster.options(3)).await, (name, all));
}

/// One dead disk is not to take the others of its node out.
#[tokio::test]
async fn a_disk_that_does_not_open_is_passed_over() {
    let cluster = Cluster::start().await;
    let (name, [bad, kept]) = of_two_devices(&cluster).await;
    cluster.meta.told.lock().unwrap().missing = vec![bad];
    let dir = cluster.dirs(2)[0].clone();
    let (space, identity) = (dir.join("space"), dir.join("identity"));
    let (whole, text) = (fs::read(&space).unwrap(), fs::read(&identity).unwrap());
    // Its superblocks are overwritten.
    let mut damaged = whole.clone();
    let bytes = damaged.len();
    damaged[..4096].fill(7);
    damaged[bytes - 4096..].fill(7);
    fs::write(&space, &damaged).unwrap();
    assert_eq!(devices_of_a_start(cluster.options(2)).await, (name, vec![kept]));
    let alone = Node::start(cluster.options(1)).await.unwrap_err();
    assert!(matches!(alone, NodeError::Device { .. }), "{alone}");
    // Its directory cannot be read.
    fs::write(&space, &whole).unwrap();
    fs::remove_file(&identity).unwrap();
    fs::create_dir(&identity).unwrap();
    assert_eq!(devices_of_a_start(cluster.options(2)).await, (name, vec![kept]));
    // Nor does it keep a new one from being made.
    let mut options = cluster.options(2);
    options.dirs.push(cluster.dir.path().join("new"));
    assert_eq!(devices_of_a_start(options).await.1.len(), 2);
    // It is back as it was.
    fs::remove_dir(&identity).unwrap();
    fs::write(&identity, &text).unwrap();
    let (_, devices) = devices_of_a_start(cluster.options(2)).await;
    assert!(devices.contains(&bad) && devices.contains(&kept));
}

/// Another server is up under its name, or has its disk: that may be over soon, and is waited for.
#[tokio::test]
async fn a_name_or_a_device_that_another_has_is_waited_for() {
    let cluster = Cluster::start().await;
    let (name, [device, other]) = of_two_devices(&cluster).await;
    let taken = [
        MetaFault::NodeTaken { node: name, address: "elsewhere:1".to_owned(), device: other },
        MetaFault::DeviceTaken { device, node: NodeId(9) },
    ];
    for fault in taken {
        cluster.meta.told.lock().unwrap().refuses = Some(Fault::Meta(fault));
        let mut node = Node::start(cluster.options(1)).await.unwrap();
        let refused = tokio::time::timeout(Duration::from_millis(300), node.failed()).await;
        assert!(refused.is_err(), "{refused:?}");
        cluster.meta.told.lock().unwrap().refuses = None;
        tokio::time::timeout(WITHIN, node.registered()).await.expect("it registers");
        node.stop().await;
    }
    // Moved for good: it gets a name of its own, and keeps that.
    let renamed = NodeOptions { rename: true, ..cluster.options(1) };
    let (new, devices) = devices_of_a_start(renamed).await;
    assert!(new != name && devices == [device]);
    assert_eq!(devices_of_a_start(cluster.options(1)).await, (new, devices));
}

/// How many devices another has that lie here, as the admin port says.
async fn contested(node: &Node) -> String {
    let mut admin = TcpStream::connect(node.admin().unwrap()).await.unwrap();
    admin.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    admin.read_to_string(&mut page).await.unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix("steadfast_node_contested_devices "));
    line.unwrap().to_owned()
}

/// A copy of a disk, or one whose old server counts as alive still, takes none of the others out of service.
#[tokio::test]
async fn a_device_that_another_has_is_set_aside_until_it_has_not() {
    let cluster = Cluster::start().await;
    let (name, [taken, kept]) = of_two_devices(&cluster).await;
    let told =
        |change: fn(&mut common::Told, DeviceId)| change(&mut cluster.meta.told.lock().unwrap(), taken);
    let recorded = || {
        let told = cluster.meta.told.lock().unwrap();
        told.records.last().unwrap().devices.iter().map(|device| device.0).collect::<Vec<_>>()
    };
    // It was not removed.
    told(|told, taken| (told.taken, told.missing) = (vec![taken], vec![taken]));
    let mut options = cluster.options(2);
    options.admin = Some("127.0.0.1:0".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    tokio::time::timeout(WITHIN, node.registered()).await.expect("the other is served");
    assert_eq!((node.id(), node.devices(), recorded()), (name, vec![kept], vec![kept]));
    assert_eq!(contested(&node).await, "1");
    let client = Client::to(&node).await;
    let written = blocks(1, 0..3, 64 << 10);
    client.write(open(kept, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    assert!(client.write(open(taken, 1, 64 << 10, Granule::KIB_64), &written).await.is_err(), "it is closed");
    // Whether the other has it is asked; it is not opened meanwhile, nor asked for.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((node.devices(), cluster.meta.told.lock().unwrap().refused_as_taken), (vec![kept], 1));
    told(|told, _| told.taken.clear());
    told_when(&cluster.meta, "signs of life of both", |told| {
        told.last.as_ref().is_some_and(|beat| beat.devices.len() == 2)
    })
    .await;
    let mut both = recorded();
    both.sort();
    assert_eq!((&both, contested(&node).await.as_str()), (&node.devices(), "0"));
    client.write(open(taken, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    // The other has it again, and this server is not known any more.
    node.stop().await;
    let mut options = cluster.options(2);
    options.taken_for = Duration::from_millis(1);
    let node = Node::start(options).await.unwrap();
    node.registered().await;
    assert_eq!(node.devices(), both);
    told(|told, taken| (told.taken, told.known) = (vec![taken], false));
    told_when(&cluster.meta, "a registration without it", |told| told.known).await;
    // It has had it for long: this may be a copy, which is not to take its place.
    told(|told, _| told.taken.clear());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((node.devices(), recorded()), (vec![kept], vec![kept]));
    // But where a person says so; nothing was done to it.
    let dir = cluster.dirs(1)[0].to_str().unwrap().to_owned();
    let add = NodeRequest::AddDevice { dir, capacity_bytes: None, thick: false };
    assert_eq!(Client::to(&node).await.call(&add, 0).await, Ok(NodeAnswer::Added { device: taken }));
    assert_eq!(node.devices(), both);
    node.stop().await;
    let node = Node::start(cluster.options(2)).await.unwrap();
    assert_eq!((node.id(), node.devices()), (name, both));
    let (read, _) = Client::to(&node).await.read(taken, 1, Want::All, Granule::KIB_64).await.unwrap();
    assert!(read == written);
}

#[tokio::test]
async fn a_device_of_another_cluster() {
    let cluster = Cluster::start().await;
    Node::start(cluster.options(1)).await.unwrap().stop().await;
    let other = FakeMeta::start(88).await;
    let mut options = cluster.options(1);
    options.meta = other.address.clone();
    let mut node = Node::start(options.clone()).await.unwrap();
    let error = node.failed().await;
    node.stop().await;
    assert!(
        matches!(error, NodeError::ForeignCluster { ours: ClusterId(77), theirs: ClusterId(88), .. }),
        "{error}"
    );
    // The same when one more device is to be made, which needs the cluster's name first.
    options.dirs.push(cluster.dir.path().join("new"));
    let error = Node::start(options.clone()).await.unwrap_err();
    assert!(matches!(error, NodeError::ForeignCluster { .. }), "{error}");
    let mut second = cluster.options(1);
    (second.meta, second.dirs) = (other.address.clone(), vec![cluster.dir.path().join("second")]);
    Node::start(second.clone()).await.unwrap().stop().await;
    second.dirs.insert(0, cluster.dirs(1)[0].clone());
    let error = Node::start(second).await.unwrap_err();
    assert!(matches!(error, NodeError::MixedClusters { .. }), "{error}");
    assert!(other.told.lock().unwrap().records.iter().all(|record| record.cluster == Some(ClusterId(88))));
}

#[tokio::test]
async fn a_refusal_for_good_ends_the_node_with_its_reason() {
    let cluster = Cluster::start().await;
    let refused = MetaFault::Invalid("too many".to_owned());
    cluster.meta.told.lock().unwrap().refuses = Some(Fault::Meta(refused));
    let outcome = steadfast_node::run(cluster.options(1), std::future::pending()).await;
    let Err(error @ NodeError::Refused { .. }) = outcome else { panic!("{outcome:?}") };
    assert!(error.to_string().contains("too many"), "{error}");
    cluster.meta.told.lock().unwrap().refuses = None;
    // The directory was given back.
    steadfast_node::run(cluster.options(1), async {}).await.unwrap();
}

#[tokio::test]
async fn a_flipped_bit_is_skipped_counted_and_the_rest_is_read() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let written = blocks(1, 0..8, 64 << 10);
    let client = Client::to(&node).await;
    client.write(open(device, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    // Another group after it: what a device wrote last of all it may take back when it opens.
    client.write(open(device, 2, 64 << 10, Granule::KIB_64), &blocks(2, 0..1, 64 << 10)).await.unwrap();
    node.stop().await;
    let space = cluster.dirs(1)[0].join("space");
    let image = fs::read(&space).unwrap();
    let at = image.windows(4096).position(|window| window == &written[&5][8192..12288]).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&space).unwrap();
    file.write_all_at(&[image[at + 17] ^ 4], at as u64 + 17).unwrap();
    let node = Node::start(cluster.options(1)).await.unwrap();
    let client = Client::to(&node).await;
    let (mut read, done) = client.read(device, 1, Want::All, Granule::KIB_64).await.unwrap();
    assert_eq!(done.corrupt_blocks, 1);
    assert_eq!(client.status().await.devices[0].corrupt_blocks, 1);
    read.insert(5, written[&5].clone());
    assert!(read == written);
}

#[tokio::test]
async fn the_sweep_seals_trims_and_frees_what_it_is_told_and_nothing_else() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.sweep = SweepOptions { interval: Duration::from_millis(20), age_min: Duration::from_millis(40) };
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let committed = |keep: std::ops::Range<u32>, epoch| SegmentState::Committed {
        keep: IndexRanges::from(keep),
        epoch: Epoch(epoch),
    };
    for segment in 1..=5 {
        client
            .write(open(device, segment, 64 << 10, Granule::KIB_64), &blocks(segment, 0..6, 64 << 10))
            .await
            .unwrap();
    }
    // Nobody knows segments yet: questions fail, and nothing is freed.
    told_when(&cluster.meta, "asked in vain", |told| told.asked > 3).await;
    for segment in 1..=5 {
        assert_eq!(client.describe(device, segment).await.unwrap(), (IndexRanges::from(0..6), false));
    }
    cluster.meta.set(1, SegmentState::Pending);
    cluster.meta.set(2, committed(0..4, 3));
    cluster.meta.set(3, committed(0..0, 3));
    cluster.meta.set(4, committed(0..6, 0));
    cluster.meta.set(5, SegmentState::Gone);
    client.status_when("swept", |status| status.devices[0].extents == 3).await;
    let sealed =
        async { while client.describe(device, 2).await.unwrap() != (IndexRanges::from(0..4), true) {} };
    tokio::time::timeout(WITHIN, sealed).await.expect("sealed");
    assert_eq!(client.describe(device, 1).await.unwrap(), (IndexRanges::from(0..6), false));
    // An answer of an older epoch than the device has seen changes nothing.
    assert_eq!(client.describe(device, 4).await.unwrap(), (IndexRanges::from(0..6), false));
    // Amended later: of a sealed extent what the layout lists no more goes.
    cluster.meta.set(2, committed(1..3, 7));
    let trimmed =
        async { while client.describe(device, 2).await.unwrap() != (IndexRanges::from(1..3), true) {} };
    tokio::time::timeout(WITHIN, trimmed).await.expect("trimmed");
    // Removed later: a sealed extent goes at the next sweep.
    cluster.meta.set(2, SegmentState::Gone);
    client.status_when("freed", |status| status.devices[0].extents == 2).await;
    let seal = steadfast_protocol::message::NodeRequest::Seal {
        device,
        segment: SegmentId(1),
        keep: IndexRanges::from(0..6),
    };
    assert_eq!(client.call(&seal, 1).await, Ok(NodeAnswer::Done));
}
