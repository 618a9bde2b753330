//! What one frame shows, from two registries a while apart.

use crate::{
    commands::{
        doings::{self, Kept},
        health::{DeviceNow, Devices},
    },
    harmless::harmless,
    units::show_bytes,
};
use serde::Serialize;
use std::{borrow::Cow, collections::BTreeSet, time::Duration};
use steadfast_client::Degraded;
use steadfast_protocol::{
    DeviceId,
    message::{AccessTotals, DeviceReport, DrainState, Registry},
    words::counted,
};

/// A frame.
#[derive(Debug, Serialize)]
pub(super) struct Frame {
    cluster: String,
    servers: usize,
    servers_alive: usize,
    streams: u64,
    refused_streams: u64,
    cancelled_streams: u64,
    /// Bytes per second that all media read and wrote; absent before there is a frame to compare with.
    read_bytes_per_s: Option<f64>,
    write_bytes_per_s: Option<f64>,
    /// Bytes of blocks per second that servers sent, and dropped unsent because of a cancel.
    sent_bytes_per_s: Option<f64>,
    unsent_bytes_per_s: Option<f64>,
    /// Bandwidth kept for accesses.
    kept: Kept,
    /// What clients did since the metadata server started, as they say.
    accesses: AccessTotals,
    /// Bytes read from media, and sent, beyond what readers used, as a share of it.
    medium_waste: Option<f64>,
    sent_waste: Option<f64>,
    stragglers: Vec<String>,
    /// Devices being emptied together, how far that is, and when that was last heard of.
    drains: Vec<DrainState>,
    /// The drains as text.
    #[serde(skip)]
    drain_lines: Vec<String>,
    /// Segments with fewer chunks than their buckets' codes, and the bytes of what they lack; of very many the first.
    degraded_segments: u64,
    degraded_bytes: u64,
    /// Devices that no storage server registers any more and that were not removed: of very many the first.
    missing_devices: Vec<String>,
    /// Devices that were removed from the cluster since this began to watch.
    removed: Vec<String>,
    /// Addresses of storage servers that have no device.
    servers_without_devices: Vec<String>,
    devices: Vec<DeviceLine>,
}

#[derive(Debug, Serialize)]
struct DeviceLine {
    #[serde(flatten)]
    now: DeviceNow,
    /// What the medium moved between the frames, per second.
    medium_read_bytes_per_s: Option<f64>,
    medium_write_bytes_per_s: Option<f64>,
}

/// A line of text.
pub(super) struct Line {
    pub(super) text: String,
    /// Whether it names a device that is not well.
    pub(super) marked: bool,
}

impl Frame {
    /// The frame of a registry; rates are taken against one that is so much older.
    pub(super) fn of(now: &Registry, before: Option<(&Registry, Duration)>) -> Self {
        let alive = || now.nodes.iter().filter(|node| node.alive);
        let sum = |count: fn(&steadfast_protocol::message::NodeActivity) -> u64| -> u64 {
            alive().map(|node| count(&node.activity)).fold(0, u64::saturating_add)
        };
        // Node by node: one that began again since counts from then.
        let nodes_rate = |count: fn(&steadfast_protocol::message::NodeActivity) -> u64| {
            let (before, span) = before?;
            let moved = alive().filter_map(|node| {
                let old = before.nodes.iter().find(|old| old.record.node == node.record.node)?;
                count(&node.activity).checked_sub(count(&old.activity))
            });
            Some(moved.fold(0, u64::saturating_add) as f64 / span.as_secs_f64())
        };
        let devices: Vec<DeviceLine> = Devices::of(now)
            .devices
            .into_iter()
            .map(|device| {
                let rate = |count: fn(&DeviceReport) -> u64| {
                    let (before, span) = before.filter(|_| device.alive)?;
                    let moved =
                        count(report(now, device.id)?).checked_sub(count(report(before, device.id)?))?;
                    Some(moved as f64 / span.as_secs_f64())
                };
                DeviceLine {
                    medium_read_bytes_per_s: rate(|report| report.medium_read_bytes),
                    medium_write_bytes_per_s: rate(|report| report.medium_written_bytes),
                    now: device,
                }
            })
            .collect();
        let all = |rate: fn(&DeviceLine) -> Option<f64>| {
            before.map(|_| devices.iter().filter_map(rate).sum::<f64>())
        };
        Self {
            cluster: now.cluster.to_string(),
            servers: now.nodes.len(),
            servers_alive: alive().count(),
            streams: sum(|activity| activity.streams.into()),
            refused_streams: sum(|activity| activity.refused),
            cancelled_streams: sum(|activity| activity.cancelled),
            read_bytes_per_s: all(|line| line.medium_read_bytes_per_s),
            write_bytes_per_s: all(|line| line.medium_write_bytes_per_s),
            sent_bytes_per_s: nodes_rate(|activity| activity.sent_bytes),
            unsent_bytes_per_s: nodes_rate(|activity| activity.unsent_bytes),
            kept: Kept::of(now),
            accesses: now.accesses,
            medium_waste: now.accesses.medium_waste(),
            sent_waste: now.accesses.sent_waste(),
            stragglers: devices
                .iter()
                .filter(|line| line.now.times_slower.is_some())
                .map(|line| line.now.device.clone())
                .collect(),
            drains: now.drains.clone(),
            drain_lines: doings::drains(now).collect(),
            degraded_segments: 0,
            degraded_bytes: 0,
            missing_devices: now.missing.iter().map(|(device, _)| device.to_string()).collect(),
            removed: Vec::new(),
            servers_without_devices: now
                .nodes
                .iter()
                .filter(|node| node.record.devices.is_empty())
                .map(|node| node.record.address.clone())
                .collect(),
            devices,
        }
    }

    /// Notes devices that were seen earlier, are not registered any more and are not missed.
    pub(super) fn note_removed(&mut self, seen: &BTreeSet<DeviceId>) {
        let here: BTreeSet<DeviceId> = self.devices.iter().map(|line| line.now.id).collect();
        let gone = seen.difference(&here).map(ToString::to_string);
        self.removed = gone.filter(|device| !self.missing_devices.contains(device)).collect();
    }

    /// Notes what is degraded.
    pub(super) fn note_degraded(&mut self, found: &Degraded) {
        self.degraded_segments = found.segments;
        self.degraded_bytes = found.lacking_bytes;
    }

    /// The frame as text, none of it wider than `columns`, at most `rows` lines: devices that are not well first where
    /// not all fit.
    pub(super) fn lines(&self, columns: usize, rows: usize) -> Vec<Line> {
        let mut lines: Vec<Line> = self.head().into_iter().map(|text| Line { text, marked: false }).collect();
        let room = rows.saturating_sub(lines.len());
        let mut devices: Vec<Line> = self.devices.iter().map(DeviceLine::line).collect();
        if devices.len() > room {
            devices.sort_by_key(|line| !line.marked);
            let left_out = devices.len() - room.saturating_sub(1);
            devices.truncate(room.saturating_sub(1));
            devices.push(Line { text: format!("and {} more", counted(left_out, "device")), marked: false });
        }
        lines.extend(devices);
        lines.truncate(rows);
        for line in &mut lines {
            // Servers chose their addresses.
            if let Cow::Owned(text) = harmless(&line.text) {
                line.text = text;
            }
            if line.text.chars().count() > columns {
                line.text = line.text.chars().take(columns).collect();
            }
        }
        lines
    }

    fn head(&self) -> Vec<String> {
        let accesses = &self.accesses;
        let mut head = vec![
            format!(
                "cluster {}: {} of {} servers alive; streams {}, slow devices {}",
                self.cluster.chars().take(12).collect::<String>(),
                self.servers_alive,
                self.servers,
                self.streams,
                self.stragglers.len()
            ),
            format!(
                "now    media read {}, written {}, sent {}, unsent {} MB/s",
                rate(self.read_bytes_per_s),
                rate(self.write_bytes_per_s),
                rate(self.sent_bytes_per_s),
                rate(self.unsent_bytes_per_s)
            ),
        ];
        head.extend(doings::reads(accesses));
        head.push(format!(
            "{}; streams {} cancelled, {} refused",
            doings::writes(accesses),
            self.cancelled_streams,
            self.refused_streams
        ));
        head.extend(doings::amends(accesses));
        head.extend(self.kept.line());
        head.extend(self.drain_lines.iter().cloned());
        if self.degraded_segments > 0 {
            let (segments, bytes) =
                (counted(self.degraded_segments, "segment"), show_bytes(self.degraded_bytes));
            head.push(format!("degraded {segments}, {bytes} of chunks missing"));
        }
        for (what, devices) in [("missing", &self.missing_devices), ("removed", &self.removed)] {
            if !devices.is_empty() {
                let first = |device: &String| device.chars().take(8).collect::<String>();
                head.push(format!("{what} {}", devices.iter().map(first).collect::<Vec<_>>().join(" ")));
            }
        }
        if !self.servers_without_devices.is_empty() {
            head.push(format!("without devices {}", self.servers_without_devices.join(" ")));
        }
        head.push(format!(
            "{:<8} {:<15} {:<9} {:>5} {:>5} {:>9} {:>5} {:>8} {:>4}",
            "DEVICE", "SERVER", "STATE", "READ", "WRITE", "SPEED r/w", "QUEUE", "SERVICE", "USED"
        ));
        head
    }
}

impl DeviceLine {
    fn line(&self) -> Line {
        let device = &self.now;
        let speed = |speed: u64| if speed == 0 { "-".to_owned() } else { mega(speed as f64) };
        let used = device.used_bytes as f64 / device.capacity_bytes.max(1) as f64;
        // The end tells servers of one machine apart.
        let skipped = device.server.chars().count().saturating_sub(15);
        let text = format!(
            "{:<8} {:<15} {:<9} {:>5} {:>5} {:>9} {:>5} {:>8} {:>3.0}%",
            device.device.chars().take(8).collect::<String>(),
            device.server.chars().skip(skipped).collect::<String>(),
            device.word(),
            rate(self.medium_read_bytes_per_s),
            rate(self.medium_write_bytes_per_s),
            format!("{}/{}", speed(device.read_speed_bytes_per_s), speed(device.write_speed_bytes_per_s)),
            device.queued_operations,
            super::super::health::show_time(device.service_s),
            used * 100.0
        );
        Line { text, marked: device.is_marked() }
    }
}

fn report(registry: &Registry, device: DeviceId) -> Option<&DeviceReport> {
    registry.nodes.iter().flat_map(|node| &node.devices).find(|report| report.device == device)
}

/// Megabytes per second; a dash where there is nothing to compare with.
fn rate(bytes_per_s: Option<f64>) -> String {
    bytes_per_s.map_or_else(|| "-".to_owned(), mega)
}

fn mega(bytes_per_s: f64) -> String {
    let rate = bytes_per_s / 1e6;
    if rate == 0.0 || rate >= 9.95 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_protocol::{
        ClusterId, NodeId,
        message::{
            DeviceActivity, DeviceHealth, DrainPhase, DrainProgress, NodeActivity, NodeRecord, NodeState,
            Standing,
        },
    };

    /// Six devices of which the last is slow, each having read so many bytes.
    fn registry(read: u64) -> Registry {
        let node = |number: u128| NodeState {
            record: NodeRecord {
                node: NodeId(number),
                cluster: None,
                address: format!("192.168.100.100:{}", 50_000 + number),
                site: String::new(),
                devices: vec![(DeviceId(number << 100), 1 << 40)],
            },
            alive: number != 0,
            silent_ms: Some(6000),
            devices: vec![DeviceReport {
                device: DeviceId(number << 100),
                health: DeviceHealth::Ok,
                capacity_bytes: 1 << 40,
                free_bytes: 1 << 39,
                read_bytes_per_s: if number == 5 { 10_000_000 } else { 1_000_000_000 },
                write_bytes_per_s: 1_000_000_000,
                queue_length: 12_345,
                extents: 0,
                fragments: 0,
                corrupt_blocks: 0,
                medium_read_bytes: read,
                medium_written_bytes: 0,
                overruns_ppm: 0,
                reserved_read_bytes_per_s: 0,
                reserved_write_bytes_per_s: 0,
                sharing_ppm: [0; 4],
                activity: DeviceActivity {
                    service_ns: if number == 5 { 123_456_700 } else { 1_234_567 },
                    ..DeviceActivity::default()
                },
            }],
            activity: NodeActivity {
                sent_bytes: read,
                cancelled: 9999,
                refused: 9999,
                ..NodeActivity::default()
            },
        };
        let accesses = AccessTotals {
            gets: 1_000_000,
            used_bytes: 1 << 50,
            received_bytes: 1 << 51,
            medium_bytes: 1 << 51,
            puts: 1_000_000,
            put_bytes: 1023 << 40,
            put_sent_bytes: 1 << 51,
            ..AccessTotals::default()
        };
        Registry { cluster: ClusterId(7), nodes: (0..6).map(node).collect(), accesses, ..Registry::default() }
    }

    #[test]
    fn a_frame_fits_eighty_columns_and_marks_the_slow_and_the_dead() {
        let (before, now) = (registry(0), registry(2_000_000_000));
        let frame = Frame::of(&now, Some((&before, Duration::from_secs(2))));
        assert_eq!(frame.stragglers.len(), 1);
        let lines = frame.lines(1000, usize::MAX);
        let text: String = lines.iter().map(|line| format!("{}\n", line.text)).collect();
        assert!(lines.iter().all(|line| line.text.chars().count() <= 80), "{text}");
        let marked: Vec<&str> =
            lines.iter().filter(|line| line.marked).map(|line| line.text.as_str()).collect();
        assert_eq!(marked.len(), 2, "{text}");
        assert!(marked[0].contains("dead") && marked[1].contains("slow 100x"), "{text}");
        assert!(lines[1].text.contains("media read 5000"), "five of six are alive: {text}");
        // Not all fit: those that are not well come first.
        let few = frame.lines(40, 10);
        assert_eq!((few.len(), few[7].marked, few[8].marked), (10, true, true));
        assert!(few.iter().all(|line| line.text.chars().count() <= 40));
        assert_eq!(few[9].text, "and 4 devices more");
    }

    #[test]
    fn a_server_without_devices_is_named_and_no_name_moves_the_cursor() {
        let mut now = registry(0);
        let shown = |now: &Registry| -> Vec<String> {
            Frame::of(now, None).lines(200, usize::MAX).into_iter().map(|line| line.text).collect()
        };
        assert!(!shown(&now).iter().any(|line| line.starts_with("without devices")));
        now.nodes[3].record.devices.clear();
        now.nodes[3].record.address = "\x1b[2J:1".to_owned();
        let lines = shown(&now);
        assert!(lines.iter().any(|line| line == "without devices \\u{1b}[2J:1"), "{lines:?}");
        assert!(!lines.concat().contains(char::is_control));
    }

    #[test]
    fn what_is_degraded_is_shown_while_anything_is() {
        let mut frame = Frame::of(&registry(0), None);
        let shown = |frame: &Frame| {
            let lines = frame.lines(80, usize::MAX);
            lines.into_iter().map(|line| line.text).find(|text| text.starts_with("degraded"))
        };
        assert_eq!(shown(&frame), None);
        frame.note_degraded(&Degraded { segments: 1, lacking_bytes: 4 << 20, more: false });
        assert_eq!(shown(&frame).as_deref(), Some("degraded 1 segment, 4.0 MiB of chunks missing"));
        frame.note_degraded(&Degraded::default());
        assert_eq!(shown(&frame), None);
    }

    #[test]
    fn devices_that_leave_are_shown_until_they_are_gone() {
        let mut now = registry(0);
        let leaving = DeviceId(2 << 100);
        now.standings.push(Standing { device: leaving, arrivals: 0 });
        let word = |now: &Registry| {
            let frame = Frame::of(now, None);
            let line = frame.devices.iter().find(|line| line.now.id == leaving).unwrap();
            (line.line().marked, line.now.word())
        };
        // No drain was heard of.
        assert_eq!(word(&now), (true, "draining".to_owned()));
        let progress = DrainProgress {
            devices: vec![leaving],
            bytes_before: 200,
            bytes: 86,
            ..DrainProgress::default()
        };
        now.drains.push(DrainState { progress, silent_ms: 0 });
        assert_eq!(word(&now).1, "drain 43%");
        now.drains[0].progress.lost = true;
        assert_eq!(word(&now).1, "lost 43%");
        let frame = Frame::of(&now, None);
        let lines = frame.lines(1000, usize::MAX);
        assert!(lines.iter().all(|line| line.text.chars().count() <= 80));
        assert!(lines.iter().any(|line| line.text.starts_with("repair 000000") && line.text.contains("43%")));
        now.drains[0].progress.phase = DrainPhase::Over;
        assert_eq!(word(&now).1, "empty");
        // Removed while somebody watches.
        let seen = now.nodes.iter().map(|node| node.record.devices[0].0).collect();
        now.nodes.remove(2);
        now.standings.clear();
        now.drains.clear();
        let mut missed = now.clone();
        missed.missing.push((leaving, NodeId(3)));
        let mut frame = Frame::of(&missed, None);
        frame.note_removed(&seen);
        assert!(frame.removed.is_empty());
        assert!(frame.lines(80, 30).iter().any(|line| line.text.starts_with("missing 00000020")));
        let mut frame = Frame::of(&now, None);
        frame.note_removed(&seen);
        assert_eq!(frame.removed, [leaving.to_string()]);
        assert!(frame.lines(80, 30).iter().any(|line| line.text.starts_with("removed 00000020")));
    }

    #[test]
    fn a_server_that_began_again_has_no_rate() {
        let (before, now) = (registry(5), registry(1));
        let frame = Frame::of(&now, Some((&before, Duration::from_secs(1))));
        assert_eq!((frame.read_bytes_per_s, frame.sent_bytes_per_s), (Some(0.0), Some(0.0)));
        assert!(frame.devices.iter().all(|line| line.medium_read_bytes_per_s.is_none()));
    }
}
