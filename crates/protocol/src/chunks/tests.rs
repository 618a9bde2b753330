//! Scripts of the cores that ask for chunks, and random nodes for the gather.

mod fence;
mod gather;
mod parities;

use crate::{layout::ParityGeometry, message::ChunkVersions, read::Cause};

/// Two data chunks, two parity chunks, three blocks each.
const SHAPE: ParityGeometry = ParityGeometry { chunks: 4, data: 2, blocks: 3, block_bytes: 4096 };

fn unreachable() -> Cause {
    Cause::Unreachable("its node is down".to_owned())
}

fn of_data(version: u64) -> ChunkVersions {
    ChunkVersions { version, held: Vec::new() }
}

fn of_parity(held: [u64; 2]) -> ChunkVersions {
    ChunkVersions { version: 0, held: (0..).zip(held).collect() }
}
