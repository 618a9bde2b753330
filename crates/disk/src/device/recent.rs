//! Records of logs in memory, so that a merge on a disk that positions need not read them back: those appended last, of whole logs
//! as far as they fit. No I/O.
//!
//! A log lies idle or is appended to until it is merged, front to back; what is here of it is always its end. Where all together have
//! more than the bound, the log that was not appended to for longest is forgotten, whole: half of one would save no positioning.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use bytes::Bytes;

use crate::ids::SegmentId;

/// Records of all logs of a device; see the module's doc.
pub(super) struct Recent {
    logs: BTreeMap<SegmentId, Log>,
    /// Logs by their last append.
    by_use: BTreeMap<u64, SegmentId>,
    clock: u64,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct Log {
    /// Number of the first record that is here.
    first: u64,
    records: VecDeque<Bytes>,
    bytes: usize,
    used: u64,
}

impl Log {
    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }
}

impl Recent {
    pub(super) fn new(bytes_max: usize) -> Recent {
        Recent { logs: BTreeMap::new(), by_use: BTreeMap::new(), clock: 0, bytes: 0, bytes_max }
    }

    /// A record was appended to a log.
    pub(super) fn push(&mut self, segment: SegmentId, sequence: u64, payload: Bytes) {
        if self.logs.get(&segment).is_some_and(|log| log.next() != sequence) {
            self.forget(segment);
        }
        let log = self.logs.entry(segment).or_insert_with(|| Log { first: sequence, ..Log::default() });
        log.bytes += payload.len();
        self.bytes += payload.len();
        log.records.push_back(payload);
        self.by_use.remove(&log.used);
        self.clock += 1;
        log.used = self.clock;
        self.by_use.insert(log.used, segment);
        while self.bytes > self.bytes_max
            && let Some((_, &idle)) = self.by_use.first_key_value()
        {
            self.forget(idle);
        }
    }

    /// The first of these records and those behind it, of so many bytes together at most but one at least. Empty: the first is not here.
    pub(super) fn run(&self, segment: SegmentId, sequences: &Range<u64>, bytes_max: u64) -> Vec<Bytes> {
        let Some(log) = self.logs.get(&segment) else { return Vec::new() };
        let Some(skipped) = sequences.start.checked_sub(log.first) else { return Vec::new() };
        let (skipped, asked) = (skipped as usize, sequences.end.saturating_sub(sequences.start) as usize);
        let mut bytes = 0;
        let records = log.records.iter().skip(skipped).take(asked).enumerate();
        let fits = records.take_while(|(number, record)| {
            bytes += record.len() as u64;
            *number == 0 || bytes <= bytes_max
        });
        fits.map(|(_, record)| record.clone()).collect()
    }

    /// Number of the first record of a log that is here.
    pub(super) fn first(&self, segment: SegmentId) -> Option<u64> {
        self.logs.get(&segment).map(|log| log.first)
    }

    /// Records of a log before this one are out of force.
    pub(super) fn begin_at(&mut self, segment: SegmentId, sequence: u64) {
        let Some(log) = self.logs.get_mut(&segment) else { return };
        while log.first < sequence
            && let Some(record) = log.records.pop_front()
        {
            log.first += 1;
            log.bytes -= record.len();
            self.bytes -= record.len();
        }
        if log.records.is_empty() {
            self.forget(segment);
        }
    }

    /// A log is gone, or all that it had.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        if let Some(log) = self.logs.remove(&segment) {
            self.bytes -= log.bytes;
            self.by_use.remove(&log.used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SegmentId = SegmentId(1);
    const B: SegmentId = SegmentId(2);
    const C: SegmentId = SegmentId(3);

    fn bytes(payload: impl AsRef<[u8]>) -> Bytes {
        Bytes::copy_from_slice(payload.as_ref())
    }

    fn lengths(recent: &Recent, segment: SegmentId, sequences: Range<u64>, bytes_max: u64) -> Vec<usize> {
        recent.run(segment, &sequences, bytes_max).iter().map(Bytes::len).collect()
    }

    #[test]
    fn records_are_given_in_their_order_until_they_are_out_of_force() {
        let mut recent = Recent::new(1000);
        (1..=4).for_each(|sequence| recent.push(A, sequence, bytes(vec![0; 10 * sequence as usize])));
        assert_eq!(lengths(&recent, A, 1..5, 1000), [10, 20, 30, 40]);
        assert_eq!(lengths(&recent, A, 2..4, 1000), [20, 30], "no more than asked for");
        assert_eq!(lengths(&recent, A, 2..5, 55), [20, 30], "as many as fit");
        assert_eq!(lengths(&recent, A, 3..5, 0), [30], "one at least");
        assert_eq!((lengths(&recent, A, 5..9, 99).len(), lengths(&recent, B, 1..2, 99).len()), (0, 0));
        recent.begin_at(A, 3);
        assert_eq!(
            (lengths(&recent, A, 2..5, 1000).len(), lengths(&recent, A, 3..5, 1000)),
            (0, vec![30, 40])
        );
        recent.begin_at(A, 5);
        assert_eq!((recent.bytes, recent.logs.len(), recent.by_use.len()), (0, 0, 0));
    }

    #[test]
    fn what_is_here_of_a_log_is_its_end_without_a_gap() {
        let mut recent = Recent::new(1000);
        recent.push(A, 1, bytes([1; 8]));
        // Number 2 was appended before a restart of this log's use.
        recent.push(A, 3, bytes([3; 9]));
        assert_eq!((lengths(&recent, A, 1..4, 99).len(), lengths(&recent, A, 3..4, 99)), (0, vec![9]));
        assert_eq!((recent.first(A), recent.bytes), (Some(3), 9));
    }

    #[test]
    fn the_log_that_rested_longest_goes_first_and_memory_is_bounded() {
        let mut recent = Recent::new(100);
        recent.push(A, 1, bytes([0; 40]));
        recent.push(B, 1, bytes([0; 40]));
        recent.push(A, 2, bytes([0; 10]));
        recent.push(C, 7, bytes([0; 20]));
        assert_eq!(lengths(&recent, B, 1..2, 99).len(), 0);
        assert_eq!((lengths(&recent, A, 1..3, 99), lengths(&recent, C, 7..8, 99)), (vec![40, 10], vec![20]));
        recent.push(C, 8, bytes([0; 101]));
        assert_eq!(
            (recent.bytes, recent.logs.len(), recent.by_use.len()),
            (0, 0, 0),
            "more than all together"
        );
    }
}
