//! What a node says of itself and its devices, as measured.

use crate::{devices::ServedDevice, service::Service};
use std::sync::atomic::Ordering::Relaxed;
use steadfast_protocol::{
    message::{DeviceActivity, DeviceReport, NodeActivity},
    serve::{HealthFacts, health},
};

/// One device's report; never waits for its medium.
pub(crate) fn device(device: &ServedDevice) -> DeviceReport {
    let status = device.lane.status();
    let facts = HealthFacts {
        failed: status.failed.is_some(),
        reads_fail: status.reads.give_nothing(),
        in_flight: status.in_flight_age,
        flushing: status.flushing,
        service_time: status.service_time,
        flush_time: status.flush_time,
        longest_free_bytes: status.usage.longest,
        refused_as_full: device.refused_as_full(),
    };
    let overruns_ppm = device.emulation.as_ref().map_or(0, |control| {
        let report = control.report();
        u32::try_from(report.overruns.saturating_mul(1_000_000) / report.operations.max(1))
            .unwrap_or(u32::MAX)
    });
    let (reserved_read_bytes_per_s, reserved_write_bytes_per_s) = device.paced.reserved_bytes_per_s();
    DeviceReport {
        device: device.id,
        health: health(&facts),
        capacity_bytes: status.usage.capacity,
        free_bytes: status.usage.free,
        read_bytes_per_s: status.read_bytes_per_s.unwrap_or(0.0) as u64,
        write_bytes_per_s: status.write_bytes_per_s.unwrap_or(0.0) as u64,
        queue_length: u32::try_from(status.queued + device.paced.waiting()).unwrap_or(u32::MAX),
        extents: status.usage.extents,
        // Runs of free space beyond one: what an extent to come would be cut into.
        fragments: status.usage.fragments.saturating_sub(1),
        corrupt_blocks: status.corrupt_blocks,
        medium_read_bytes: status.counters.bytes_read,
        medium_written_bytes: status.counters.bytes_written,
        overruns_ppm,
        activity: DeviceActivity {
            queued_bytes: status.queued_bytes,
            service_ns: status
                .service_time
                .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            medium_reads: status.counters.reads,
            medium_writes: status.counters.writes,
            flushes: status.counters.flushes,
            stream_read_bytes: device.stream_read_bytes.load(Relaxed),
            stream_sent_bytes: device.stream_sent_bytes.load(Relaxed),
            reservations: device.paced.reservations(),
        },
        reserved_read_bytes_per_s,
        reserved_write_bytes_per_s,
        sharing_ppm: device.paced.sharing_ppm(),
    }
}

/// What the node did, for a heartbeat.
pub(crate) fn activity(service: &Service) -> NodeActivity {
    let (done, traffic) = (&service.activity, service.activity.traffic());
    NodeActivity {
        admin: service.admin.get().map(ToString::to_string),
        streams: service.admission().streams(),
        resident_bytes: resident_bytes(),
        admitted: done.admitted_so_far().iter().sum(),
        refused: done.refused_so_far().values().sum(),
        cancelled: done.cancelled_so_far().iter().sum(),
        sent_bytes: traffic.payload_sent,
        unsent_bytes: traffic.payload_unsent,
        received_bytes: traffic.payload_received,
        heartbeats_failed: done.heartbeats_failed_so_far(),
    }
}

/// Resident memory of this process in bytes; 0 where the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
