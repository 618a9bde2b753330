//! What clients did, what is kept for them and what is being moved: lines that `status` and `top` share, none wider than
//! 80 columns.

use crate::units::{show_bytes, show_rate};
use core::{fmt, time::Duration};
use serde::Serialize;
use steadfast_protocol::{
    drain::Totals,
    message::{AccessTotals, DeviceReport, DrainPhase, DrainState, Registry, ReservationCounts},
    words::counted,
};

/// A drain whose client said nothing for so long has lost it: it speaks every second. Picked by eye.
const SILENT_MS: u64 = 15_000;

/// Bandwidth kept for accesses on all devices whose servers are alive.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Kept {
    pub(super) reservations: ReservationCounts,
    pub(super) reserved_read_bytes_per_s: u64,
    pub(super) reserved_write_bytes_per_s: u64,
}

impl Kept {
    pub(super) fn of(registry: &Registry) -> Self {
        let mut kept = Self::default();
        let alive = registry.nodes.iter().filter(|node| node.alive);
        alive.flat_map(|node| &node.devices).for_each(|report| kept.add(report));
        kept
    }

    fn add(&mut self, report: &DeviceReport) {
        self.reservations.add(&report.activity.reservations);
        self.reserved_read_bytes_per_s =
            self.reserved_read_bytes_per_s.saturating_add(report.reserved_read_bytes_per_s);
        self.reserved_write_bytes_per_s =
            self.reserved_write_bytes_per_s.saturating_add(report.reserved_write_bytes_per_s);
    }

    /// Nothing where nobody ever wished for bandwidth.
    pub(super) fn line(&self) -> Option<String> {
        let counts = self.reservations;
        (counts != ReservationCounts::default()).then(|| {
            format!(
                "kept   {:.0}/{:.0} MB/s, {} held; {} granted, {} refused, {} expired",
                self.reserved_read_bytes_per_s as f64 / 1e6,
                self.reserved_write_bytes_per_s as f64 / 1e6,
                counts.held,
                counts.granted,
                counts.refused,
                counts.expired
            )
        })
    }
}

/// What a drain or a repair did, in its end.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Moved {
    objects: u64,
    blocks: u64,
    bytes: u64,
    looks: u64,
    /// There may be more: the last look that there might be found some.
    more: bool,
    seconds: f64,
}

impl Moved {
    pub(super) fn of(totals: &Totals, latency: Duration) -> Self {
        let &Totals { objects, blocks, bytes, looks, more, .. } = totals;
        Self { objects, blocks, bytes, looks, more, seconds: latency.as_secs_f64() }
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, blocks, bytes, seconds, .. } = *self;
        let (objects, blocks) = (counted(objects, "object"), counted(blocks, "block"));
        let rate = show_rate(bytes, Duration::from_secs_f64(seconds));
        write!(f, "{objects}, {blocks}, {} in {seconds:.1} s ({rate})", show_bytes(bytes))
    }
}

/// What readers asked for, and what of it moved where.
pub(super) fn reads(accesses: &AccessTotals) -> Vec<String> {
    let share =
        |waste: Option<f64>| waste.map_or_else(|| "-".to_owned(), |waste| format!("{:.1} %", waste * 100.0));
    vec![
        format!(
            "reads  {}, {} used; waste: {} read, {} sent",
            accesses.gets,
            show_bytes(accesses.used_bytes),
            share(accesses.medium_waste()),
            share(accesses.sent_waste())
        ),
        format!(
            "       {} from media, {} sent, {} received",
            show_bytes(accesses.medium_bytes),
            show_bytes(accesses.sent_bytes),
            show_bytes(accesses.received_bytes)
        ),
        format!(
            "extras {} of {} asked for, {} won",
            accesses.extra_blocks,
            counted(accesses.requested_blocks, "block"),
            accesses.extra_won
        ),
    ]
}

pub(super) fn writes(accesses: &AccessTotals) -> String {
    format!(
        "writes {}, {}, {} sent",
        accesses.puts,
        show_bytes(accesses.put_bytes),
        show_bytes(accesses.put_sent_bytes)
    )
}

/// Nothing where no object was changed.
pub(super) fn amends(accesses: &AccessTotals) -> Option<String> {
    (accesses.amends > 0).then(|| {
        format!(
            "amends {}, {} received, {} sent",
            accesses.amends,
            show_bytes(accesses.amend_received_bytes),
            show_bytes(accesses.amend_sent_bytes)
        )
    })
}

/// One line for each drain.
pub(super) fn drains(registry: &Registry) -> impl Iterator<Item = String> {
    registry.drains.iter().map(drain)
}

fn drain(drain: &DrainState) -> String {
    let progress = &drain.progress;
    let what = if progress.lost { "repair" } else { "drain " };
    let first = progress.devices.first().map(ToString::to_string).unwrap_or_default();
    let others = match progress.devices.len() {
        0 | 1 => String::new(),
        several => format!(" +{}", several - 1),
    };
    let mut line = format!(
        "{what} {}{others}: {} of {}, {}",
        first.chars().take(12).collect::<String>(),
        percent(progress.share()),
        show_bytes(progress.bytes_before.max(progress.bytes)),
        counted(progress.objects, "object")
    );
    if progress.stuck > 0 && !is_silent(drain) {
        line += &format!(", {} stuck", progress.stuck);
    }
    match progress.phase {
        DrainPhase::Over if progress.stuck == 0 => line += ", over",
        DrainPhase::Over => line += ", given up",
        _ if is_silent(drain) => line += &format!(", silent {} s", drain.silent_ms / 1000),
        DrainPhase::Settling => line += ", settling",
        DrainPhase::Moving => {}
    }
    line
}

/// Whether nobody is at it any more, although it is not over.
pub(super) fn is_silent(drain: &DrainState) -> bool {
    drain.progress.phase != DrainPhase::Over && drain.silent_ms > SILENT_MS
}

/// Whole percents; 100 only when all is done.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", (share * 100.0).floor())
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_protocol::{DeviceId, message::DrainProgress};

    fn state(phase: DrainPhase, bytes: u64, stuck: u64, silent_ms: u64) -> DrainState {
        let devices = vec![DeviceId(0xabcd << 112), DeviceId(7)];
        let (blocks_before, bytes_before) = (300, 3 << 30);
        let progress = DrainProgress {
            devices,
            phase,
            blocks_before,
            bytes_before,
            objects: 12,
            bytes,
            stuck,
            ..DrainProgress::default()
        };
        DrainState { progress, silent_ms }
    }

    #[test]
    fn drains_say_how_far_they_are_and_whether_somebody_is_at_it() {
        let moving = state(DrainPhase::Moving, 1 << 30, 0, 900);
        assert_eq!(drain(&moving), "drain  abcd00000000 +1: 33% of 3.0 GiB, 12 objects");
        let cut_short = DrainState { silent_ms: 42_000, ..moving.clone() };
        assert!(is_silent(&cut_short) && drain(&cut_short).ends_with("12 objects, silent 42 s"));
        let over = state(DrainPhase::Over, 3 << 30, 0, 42_000);
        assert!(!is_silent(&over) && drain(&over).contains(": 100%") && drain(&over).ends_with(", over"));
        let mut stuck = state(DrainPhase::Over, 2 << 30, 3, 0);
        stuck.progress.lost = true;
        let said = drain(&stuck);
        assert!(said.starts_with("repair abcd") && said.ends_with("3 stuck, given up"), "{said}");
        // Puts that were under way brought more; an empty device is not done before it is over.
        assert_eq!(percent(state(DrainPhase::Settling, 4 << 30, 0, 0).progress.share()), "100%");
        let mut empty = state(DrainPhase::Moving, 0, 0, 0);
        empty.progress.bytes_before = 0;
        assert_eq!(percent(empty.progress.share()), "0%");
        // The longest there can be.
        for mut longest in
            [state(DrainPhase::Moving, 1 << 50, 999, 9_999_000), state(DrainPhase::Over, 1 << 50, 999, 0)]
        {
            longest.progress.objects = 9_999_999;
            assert!(drain(&longest).len() <= 80, "{}", drain(&longest));
        }
    }

    #[test]
    fn what_nobody_did_takes_no_line() {
        assert_eq!((Kept::default().line(), amends(&AccessTotals::default())), (None, None));
        let mut kept = Kept { reserved_read_bytes_per_s: 99_999_000_000, ..Kept::default() };
        let (many, some) = (9_999_999, 99_999);
        kept.reservations = ReservationCounts {
            held: 9999,
            granted: many,
            refused: many,
            expired: some,
            ..Default::default()
        };
        let line = kept.line().unwrap();
        assert!(line.starts_with("kept   99999/0 MB/s, 9999 held; ") && line.len() <= 80, "{line}");
    }
}
