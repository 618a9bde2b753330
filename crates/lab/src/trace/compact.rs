//! Where a trace's blocks lie in one dense file: regions of 1 MiB side by side, in the order in which they were first
//! touched. What lay together within a region lies together, at the same offset of it; what lay far apart on a large
//! device does not any more, so seeks between regions are shorter than they were.

use super::TraceRequest;
use std::collections::BTreeMap;

/// What is kept together. Picked by eye: longer than all but the very largest requests of the known traces (the search
/// engine's has two of up to 1.1 MB), short enough that a region touched once does not take much of the file.
pub const REGION_BYTES: u64 = 1 << 20;

/// 100 MB of memory; the largest known trace touches a thousandth of them.
const REGIONS_MAX: usize = 1 << 20;

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePiece {
    /// Where in the file.
    pub offset_bytes: u64,
    /// How much.
    pub bytes: u32,
}

/// The map from devices to the file.
#[derive(Clone, Debug)]
pub struct CompactingMap {
    places: BTreeMap<(u32, u64), u64>,
    regions_max: u64,
}

impl CompactingMap {
    /// A map into a file of at most `file_bytes_max`, one region at least. Regions beyond it are folded: they lie
    /// where the first ones do, in turn, which cuts the working set and leaves the locality within a region as it is.
    pub fn new(file_bytes_max: u64) -> Self {
        Self { places: BTreeMap::new(), regions_max: (file_bytes_max / REGION_BYTES).max(1) }
    }

    /// Where a request lies: one piece, or more where it crosses regions that do not lie side by side.
    pub fn pieces(&mut self, request: &TraceRequest) -> Vec<FilePiece> {
        let mut pieces: Vec<FilePiece> = Vec::with_capacity(1);
        let (mut at, mut left) = (request.offset_bytes, u64::from(request.bytes));
        while left > 0 {
            let within = at % REGION_BYTES;
            let bytes = left.min(REGION_BYTES - within);
            let new = self.places.len() as u64;
            let place =
                *self.places.entry((request.device, at / REGION_BYTES)).or_insert(new) % self.regions_max;
            let offset_bytes = place * REGION_BYTES + within;
            match pieces.last_mut() {
                Some(last) if last.offset_bytes + u64::from(last.bytes) == offset_bytes => {
                    last.bytes += bytes as u32;
                }
                _ => pieces.push(FilePiece { offset_bytes, bytes: bytes as u32 }),
            }
            at += bytes;
            left -= bytes;
        }
        pieces
    }

    /// Whether it covers so much that more would not find memory: some 10^6 regions of 1 MiB.
    pub fn is_full(&self) -> bool {
        self.places.len() >= REGIONS_MAX
    }

    /// Regions touched, folded ones too.
    pub fn regions(&self) -> u64 {
        self.places.len() as u64
    }

    /// The size of the file that holds every piece given so far.
    pub fn file_bytes(&self) -> u64 {
        self.regions().min(self.regions_max) * REGION_BYTES
    }
}
