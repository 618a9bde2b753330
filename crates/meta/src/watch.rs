//! What a metadata server shows at its admin port.

use crate::Service;
use std::{sync::Arc, time::Duration};
use steadfast_admin::{Page, Visible};
use steadfast_protocol::{
    message::{DeviceHealth, DrainState, Registry},
    meta::Counted,
    straggler::{Pace, straggling},
};
use tokio::{task::spawn_blocking, time::timeout};

/// How long a page waits for the registry, which lies in the store; what the disk holds up is left out of it.
const REGISTRY_WITHIN: Duration = Duration::from_secs(1);

/// A metadata server as its admin port sees it.
pub(crate) struct Watched(pub(crate) Arc<Service>);

impl Visible for Watched {
    async fn metrics(&self) -> Page {
        let mut page = Page::new();
        let service = &self.0;
        page.gauge("meta_info", "The metadata server: its cluster and version")
            .whole(&[("cluster", &service.cluster().to_string()), ("version", env!("CARGO_PKG_VERSION"))], 1);
        service.activity.show(&mut page);
        page.gauge("meta_store_open", "Whether the store is open, took the last change and answers")
            .whole(&[], u64::from(service.store().check().is_ok()));
        page.gauge("meta_store_bytes", "Bytes of the store's file").whole(&[], service.store().file_bytes());
        self.records(&mut page).await;
        if let Ok(Ok(registry)) = timeout(REGISTRY_WITHIN, service.registry()).await {
            cluster(&mut page, &registry);
            slow(&mut page, &registry);
            clients(&mut page, &registry);
        }
        page
    }

    async fn health(&self) -> Result<(), String> {
        self.0.store().check().map_err(|error| format!("the metadata store failed: {error}"))
    }
}

impl Watched {
    /// Records by kind. The first question has them counted; they are left out while that takes longer, and while the store is not well: it
    /// is opened again and again then, for which a count gives up.
    async fn records(&self, page: &mut Page) {
        let store = self.0.store();
        if store.census().is_unknown() && store.check().is_ok() {
            let store = Arc::clone(store);
            // Goes on when it takes longer.
            let _ = timeout(REGISTRY_WITHIN, spawn_blocking(move || store.count())).await;
        }
        let records = page.gauge(
            "meta_records",
            "Buckets, objects, puts that have begun and not ended, segments with fewer chunks than their bucket's code",
        );
        for (kind, number) in store.census().known().unwrap_or_default() {
            let kind = match kind {
                Counted::Bucket => "bucket",
                Counted::Object => "object",
                Counted::Intent => "intent",
                Counted::Degraded => "degraded_segment",
            };
            records.whole(&[("kind", kind)], number);
        }
    }
}

fn cluster(page: &mut Page, registry: &Registry) {
    let alive = registry.nodes.iter().filter(|node| node.alive).count() as u64;
    let nodes = page.gauge("meta_nodes", "Storage servers by whether they were heard of lately");
    nodes.whole(&[("state", "alive")], alive);
    nodes.whole(&[("state", "dead")], registry.nodes.len() as u64 - alive);
    let mut by_state = [("ok", 0), ("full", 0), ("stalled", 0), ("failed", 0), ("unheard", 0)];
    for node in &registry.nodes {
        for &(device, _) in &node.record.devices {
            let report = node.devices.iter().find(|report| report.device == device);
            let state = match report.filter(|_| node.alive).map(|report| report.health) {
                Some(DeviceHealth::Ok) => 0,
                Some(DeviceHealth::Full) => 1,
                Some(DeviceHealth::Stalled) => 2,
                Some(DeviceHealth::Failed) => 3,
                None => 4,
            };
            by_state[state].1 += 1;
        }
    }
    let devices = page.gauge("meta_devices", "Devices as last reported; unheard: of dead or silent servers");
    for (state, number) in by_state {
        devices.whole(&[("state", state)], number);
    }
    page.gauge(
        "meta_missing_devices",
        "Devices that no storage server registers any more and that were not removed; of very many the first",
    )
    .whole(&[], registry.missing.len() as u64);
    page.gauge("meta_draining_devices", "Devices that take no new data")
        .whole(&[], registry.standings.len() as u64);
    let drained = page.gauge(
        "meta_drained_ratio",
        "The share of what a draining device and those drained with it held that lies elsewhere by now",
    );
    for DrainState { progress, .. } in &registry.drains {
        for device in &progress.devices {
            drained.real(&[("device", &device.to_string())], progress.share());
        }
    }
}

/// The stragglers that `steadfast status --json` lists: by the same rule, of what their servers said last. Where one is draining, full,
/// stalled or failed besides, the table of `status` says that of it instead.
fn slow(page: &mut Page, registry: &Registry) {
    let (mut devices, mut paces) = (Vec::new(), Vec::new());
    for node in registry.nodes.iter().filter(|node| node.alive) {
        for report in &node.devices {
            if node.record.devices.iter().any(|&(device, _)| device == report.device) {
                devices.push(report.device);
                paces.push(Pace {
                    read_bytes_per_s: report.read_bytes_per_s,
                    write_bytes_per_s: report.write_bytes_per_s,
                    service_ns: report.activity.service_ns,
                });
            }
        }
    }
    let found = straggling(&paces);
    let slow = devices.iter().zip(found).filter_map(|(device, times)| Some((device, times?)));
    let slow: Vec<_> = slow.collect();
    page.gauge(
        "meta_slow_devices",
        "Stragglers as `status --json` lists them: far slower than the median of their peers",
    )
    .whole(&[], slow.len() as u64);
    let by = page.gauge(
        "meta_device_times_slower",
        "How many times slower than the median of its peers a device is, of those that are far slower",
    );
    for (device, times) in slow {
        by.real(&[("device", &device.to_string())], times);
    }
}

fn clients(page: &mut Page, registry: &Registry) {
    let accesses = &registry.accesses;
    for (name, help, count) in [
        ("meta_client_gets", "Objects read, as clients say", accesses.gets),
        ("meta_client_used_bytes", "Bytes that readers used, as clients say", accesses.used_bytes),
        ("meta_client_received_bytes", "Bytes of blocks that reached readers", accesses.received_bytes),
        ("meta_client_sent_bytes", "Bytes of blocks sent to readers", accesses.sent_bytes),
        ("meta_client_medium_read_bytes", "Bytes read from media for readers", accesses.medium_bytes),
        ("meta_client_requested_blocks", "Blocks that readers asked for", accesses.requested_blocks),
        (
            "meta_client_extra_blocks",
            "Blocks asked for because others that were asked for before were late",
            accesses.extra_blocks,
        ),
        ("meta_client_extra_blocks_won", "Extra blocks that came before those", accesses.extra_won),
        ("meta_client_puts", "Objects stored, as clients say", accesses.puts),
        ("meta_client_put_bytes", "Bytes of the objects stored, as clients say", accesses.put_bytes),
        ("meta_client_put_sent_bytes", "Bytes of blocks sent to store them", accesses.put_sent_bytes),
        (
            "meta_client_amends",
            "Changes that stored some of an object anew, or moved it, as clients say: not those made in place",
            accesses.amends,
        ),
        (
            "meta_client_amend_received_bytes",
            "Bytes of blocks that reached clients for changes",
            accesses.amend_received_bytes,
        ),
        ("meta_client_amend_sent_bytes", "Bytes of blocks sent for changes", accesses.amend_sent_bytes),
    ] {
        page.counter(name, help).whole(&[], count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MetaOptions, store::WriteError};
    use steadfast_admin::Format;
    use steadfast_protocol::{
        DeviceId, NodeId,
        message::{DeviceReport, NodeRecord, NodeState},
    };

    /// A server of one device that reads so many bytes a second.
    fn node(number: u128, alive: bool, read_bytes_per_s: u64) -> NodeState {
        let device = DeviceId(number);
        let report = DeviceReport {
            device,
            health: DeviceHealth::Ok,
            capacity_bytes: 1 << 30,
            free_bytes: 1 << 29,
            read_bytes_per_s,
            write_bytes_per_s: 0,
            queue_length: 0,
            extents: 0,
            fragments: 0,
            corrupt_blocks: 0,
            medium_read_bytes: 0,
            medium_written_bytes: 0,
            overruns_ppm: 0,
            activity: Default::default(),
            reserved_read_bytes_per_s: 0,
            reserved_write_bytes_per_s: 0,
            sharing_ppm: [0; 4],
        };
        let (address, site) = (format!("here:{number}"), "default".to_owned());
        let devices = vec![(device, 1 << 30)];
        let record = NodeRecord { node: NodeId(number), cluster: None, address, site, devices };
        NodeState { record, alive, silent_ms: Some(0), devices: vec![report], activity: Default::default() }
    }

    fn lines(nodes: Vec<NodeState>) -> Vec<String> {
        let mut page = Page::new();
        slow(&mut page, &Registry { nodes, ..Registry::default() });
        let text = page.text(Format::Prometheus);
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    /// As on a full disk: the database is opened again at every attempt, and each question to the admin port would have all counted anew.
    #[tokio::test]
    async fn nothing_is_counted_while_the_store_takes_no_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let service =
            Service::open(&MetaOptions::new(dir.path(), "127.0.0.1:0")).expect("an empty directory");
        let watched = Watched(Arc::new(service));
        let store = watched.0.store();
        let (file, away) = (dir.path().join("meta.redb"), dir.path().join("away"));
        std::fs::rename(&file, &away).expect("it is there");
        let broken = store.write(|_| panic!("as redb does on a page that it cannot read"));
        assert!(matches!(broken, Err::<(), _>(WriteError::Unread(_))));
        assert!(matches!(store.write(|_| ()), Err(WriteError::Unwritten(_))));
        std::fs::rename(&away, &file).expect("it is there");
        // It is open again, and whether it takes changes is not known.
        assert_eq!(store.write(|_| ()), Ok(()));
        assert!(store.check().is_err());
        watched.metrics().await;
        assert!(store.census().is_unknown());
        let change = store.write(|batch| batch.transact(|txn| txn.put(vec![0x20, 1], vec![1])));
        assert_eq!((change, store.check()), (Ok(()), Ok(())));
        watched.metrics().await;
        assert_eq!(store.census().known().expect("it is counted")[&Counted::Object], 1);
    }

    #[test]
    fn devices_far_slower_than_their_peers_are_counted_and_named() {
        let fast = |number| node(number, true, 100_000_000);
        let mut nodes: Vec<NodeState> = (1..=5).map(fast).collect();
        assert_eq!(lines(nodes.clone()), ["steadfast_meta_slow_devices 0"]);
        // One that is dead is not slow, however slow it was.
        nodes.extend([node(6, true, 10_000_000), node(7, false, 1_000_000)]);
        let name = DeviceId(6).to_string();
        let slower = format!("steadfast_meta_device_times_slower{{device=\"{name}\"}} 10.0");
        assert_eq!(lines(nodes.clone()), ["steadfast_meta_slow_devices 1", &slower]);
        // Nor is one that its server does not register any more.
        nodes[5].record.devices.clear();
        assert_eq!(lines(nodes), ["steadfast_meta_slow_devices 0"]);
    }
}
