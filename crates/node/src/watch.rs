//! What a node shows at its admin port.

use crate::{activity::KINDS, report, service::Service};
use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};
use steadfast_admin::{Page, Visible};
use steadfast_protocol::{ClusterId, NodeId, message::DeviceHealth, serve::AdmissionPolicy};
use tokio::sync::watch;

/// A node as its admin port sees it.
pub(crate) struct Watched {
    pub(crate) service: Arc<Service>,
    pub(crate) node: NodeId,
    pub(crate) cluster: ClusterId,
    pub(crate) address: SocketAddr,
    /// The metadata server.
    pub(crate) meta: String,
    pub(crate) registered: watch::Receiver<bool>,
    pub(crate) admission: AdmissionPolicy,
}

const HEALTHS: [(DeviceHealth, &str); 4] = [
    (DeviceHealth::Ok, "ok"),
    (DeviceHealth::Full, "full"),
    (DeviceHealth::Stalled, "stalled"),
    (DeviceHealth::Failed, "failed"),
];

impl Visible for Watched {
    async fn metrics(&self) -> Page {
        let mut page = Page::new();
        self.node(&mut page);
        self.streams(&mut page);
        self.devices(&mut page);
        page
    }

    async fn health(&self) -> Result<(), String> {
        if !*self.registered.borrow() {
            let meta = &self.meta;
            return Err(format!("not registered with the metadata server at {meta}, or it does not answer"));
        }
        for device in self.service.devices.all() {
            if report::device(&device).health == DeviceHealth::Failed {
                let error = device.why_failed().unwrap_or_default();
                return Err(format!("device {} in {} failed: {error}", device.id, device.dir.display()));
            }
        }
        Ok(())
    }
}

impl Watched {
    fn node(&self, page: &mut Page) {
        let activity = &self.service.activity;
        let about = "The storage server: its name, cluster, address, version and who may reserve bandwidth";
        page.gauge("node_info", about).whole(
            &[
                ("node", &self.node.to_string()),
                ("cluster", &self.cluster.to_string()),
                ("address", &self.address.to_string()),
                ("admission", &self.admission.to_string()),
                ("version", env!("CARGO_PKG_VERSION")),
            ],
            1,
        );
        let registered = u64::from(*self.registered.borrow());
        page.gauge("node_registered", "Whether the metadata server knows this node, and answers")
            .whole(&[], registered);
        page.counter("node_heartbeats_failed", "Heartbeats that were not answered")
            .whole(&[], activity.heartbeats_failed_so_far());
        page.gauge("node_contested_devices", "Devices that lie here and that another server has")
            .whole(&[], self.service.devices.contested());
        page.gauge("node_resident_bytes", "Resident memory of the process")
            .whole(&[], report::resident_bytes());
        let (used, streams) = {
            let budget = self.service.budget();
            (budget.used_bytes(), budget.streams())
        };
        page.gauge("node_write_budget_used_bytes", "Bytes that write streams have granted or resident")
            .whole(&[], used);
        page.gauge("node_write_budget_bytes", "Bytes that write streams together may have")
            .whole(&[], self.service.write_budget_bytes);
        page.gauge("node_write_budget_streams", "Write streams that share the budget").whole(&[], streams);
        let ingest = self.service.ingest_budget().set_aside_bytes();
        page.gauge("node_ingest_bytes", "Bytes set aside for segments that the node encodes for clients")
            .whole(&[], ingest);
    }

    fn streams(&self, page: &mut Page) {
        let activity = &self.service.activity;
        let open = self.service.admission().streams();
        page.gauge("node_open_streams", "Streams open now").whole(&[], open.into());
        let admitted = page.counter("node_admitted_streams", "Streams admitted");
        for (kind, count) in KINDS.into_iter().zip(activity.admitted_so_far()) {
            admitted.whole(&[("kind", kind)], count);
        }
        let refused = page.counter("node_refused_streams", "Streams refused as too much");
        for (reason, count) in activity.refused_so_far() {
            refused.whole(&[("reason", &reason)], count);
        }
        let traffic = activity.traffic();
        // By the connection itself, before anybody saw what was asked.
        refused.whole(&[("reason", "connection")], traffic.streams_refused);
        let cancelled =
            page.counter("node_cancelled_streams", "Streams that ended by their opener's wish or loss");
        for (kind, count) in KINDS.into_iter().zip(activity.cancelled_so_far()) {
            cancelled.whole(&[("kind", kind)], count);
        }
        page.gauge("node_open_connections", "Connections open now").whole(&[], traffic.connections);
        for (name, help, bytes) in [
            ("node_sent_bytes", "Bytes that the kernel took for sending, frames included", traffic.sent),
            ("node_received_bytes", "Bytes received, frames included", traffic.received),
            (
                "node_sent_payload_bytes",
                "Bytes of blocks that the kernel took for sending",
                traffic.payload_sent,
            ),
            ("node_received_payload_bytes", "Bytes of blocks received", traffic.payload_received),
            (
                "node_unsent_payload_bytes",
                "Bytes of blocks dropped by a cancel before the kernel had them",
                traffic.payload_unsent,
            ),
        ] {
            page.counter(name, help).whole(&[], bytes);
        }
    }

    fn devices(&self, page: &mut Page) {
        let devices = self.service.devices.all();
        let reports: Vec<_> = devices
            .iter()
            .map(|device| (device, device.id.to_string(), device.lane.status(), report::device(device)))
            .collect();
        let info = page.gauge("device_info", "The directory of a device");
        for (device, id, ..) in &reports {
            info.whole(&[("device", id), ("dir", &device.dir.to_string_lossy())], 1);
        }
        let state = page.gauge("device_state", "1 for the state that a device is in");
        for (_, id, _, report) in &reports {
            for (health, name) in HEALTHS {
                state.whole(&[("device", id), ("state", name)], u64::from(report.health == health));
            }
        }
        macro_rules! each {
            ($kind:ident $name:literal, $help:literal, $status:ident, $report:ident => $whole:expr) => {
                let family = page.$kind($name, $help);
                for (_, id, $status, $report) in &reports {
                    let _ = ($status, $report);
                    family.whole(&[("device", id)], $whole);
                }
            };
        }
        each!(gauge "device_capacity_bytes", "Bytes a device can hold", s, r => r.capacity_bytes);
        each!(gauge "device_free_bytes", "Bytes free", s, r => r.free_bytes);
        each!(gauge "device_queued_operations", "Operations that wait for a device", s, r => s.queued as u64);
        each!(gauge "device_queued_bytes", "Bytes that wait for a device", s, r => s.queued_bytes);
        each!(gauge "device_unflushed_bytes", "Bytes written and not yet flushed", s, r => s.unflushed_bytes);
        each!(gauge "device_read_bytes_per_second", "Measured reading speed while busy; 0 before the first read",
            s, r => r.read_bytes_per_s);
        each!(gauge "device_write_bytes_per_second", "Measured writing speed while busy; 0 before the first write",
            s, r => r.write_bytes_per_s);
        each!(counter "device_medium_read_bytes", "Bytes read from the medium", s, r => r.medium_read_bytes);
        each!(counter "device_medium_written_bytes", "Bytes written to the medium",
            s, r => r.medium_written_bytes);
        each!(counter "device_medium_reads", "Read operations of the medium", s, r => s.counters.reads);
        each!(counter "device_medium_writes", "Write operations of the medium", s, r => s.counters.writes);
        each!(counter "device_flushes", "Flushes of the medium", s, r => s.counters.flushes);
        each!(counter "device_operations", "Reads, writes and other changes served", s, r => s.completed);
        each!(counter "device_stream_read_bytes", "Bytes of blocks read for readers",
            s, r => r.activity.stream_read_bytes);
        each!(counter "device_stream_sent_bytes",
            "Bytes of blocks read for readers and given to their connections; the rest was read for nothing",
            s, r => r.activity.stream_sent_bytes);
        let given_back = page.counter(
            "device_reserve_given_back_bytes",
            "Bytes reserved for the logs of parity chunks that updates did not need",
        );
        for (device, id, ..) in &reports {
            given_back.whole(&[("device", id)], device.reserve_given_back_bytes.load(Ordering::Relaxed));
        }
        each!(counter "device_failed_reads", "Reads that the medium failed", s, r => s.reads.failed);
        each!(counter "device_corrupt_blocks", "Blocks whose checksum failed", s, r => r.corrupt_blocks);
        let lost = page.gauge(
            "device_lost_blocks",
            "Blocks that layouts list on a device and that it did not hold when it was last swept",
        );
        for (device, id, ..) in &reports {
            lost.whole(&[("device", id)], device.blocks_lost.load(Ordering::Relaxed));
        }
        each!(gauge "device_reservations", "Reservations of bandwidth held now",
            s, r => r.activity.reservations.held);
        each!(counter "device_reservations_granted", "Reservations of bandwidth granted",
            s, r => r.activity.reservations.granted);
        each!(counter "device_reservations_refused", "Wishes for bandwidth refused",
            s, r => r.activity.reservations.refused);
        let ended = page.counter(
            "device_reservations_ended",
            "Reservations that ended: given back, expired with their lease, displaced by a higher class",
        );
        for (_, id, _, report) in &reports {
            let counts = report.activity.reservations;
            for (how, count) in [
                ("given_back", counts.given_back),
                ("expired", counts.expired),
                ("displaced", counts.displaced),
            ] {
                ended.whole(&[("device", id), ("how", how)], count);
            }
        }
        let reserved =
            page.gauge("device_reserved_bytes_per_second", "Bandwidth kept for accesses, by what they do");
        for (_, id, _, report) in &reports {
            reserved.whole(&[("device", id), ("access", "read")], report.reserved_read_bytes_per_s);
            reserved.whole(&[("device", id), ("access", "write")], report.reserved_write_bytes_per_s);
        }
        each!(gauge "device_extents", "Extents held", s, r => r.extents);
        each!(gauge "device_fragments", "Runs of free space beyond one", s, r => r.fragments);
        let service = page.gauge("device_service_seconds", "Smoothed time of one read or write");
        for (_, id, status, _) in &reports {
            service.real(&[("device", id)], status.service_time.unwrap_or_default().as_secs_f64());
        }
        let present =
            page.gauge("device_present_operation_seconds", "How long a device is at its present operation");
        for (_, id, status, _) in &reports {
            present.real(&[("device", id)], status.in_flight_age.unwrap_or_default().as_secs_f64());
        }
        let overruns = page.gauge(
            "device_emulation_overruns_ratio",
            "Emulated operations that took longer than their model",
        );
        for (device, id, _, report) in &reports {
            if device.emulation.is_some() {
                overruns.real(&[("device", id)], f64::from(report.overruns_ppm) / 1e6);
            }
        }
    }
}
