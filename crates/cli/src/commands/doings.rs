//! What clients did and what is kept for them: lines that `status` and `top` share, none wider than
//! 80 columns.

use crate::units::show_bytes;
use serde::Serialize;
use steadfast_protocol::message::{AccessTotals, DeviceReport, Registry, ReservationCounts};

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
            "extras {} of {} blocks asked for, {} won",
            accesses.extra_blocks, accesses.requested_blocks, accesses.extra_won
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

#[cfg(test)]
mod tests {
    use super::*;

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
