//! A server's part in tests: chunks of the tests' [`layout`], all of whose bytes are zero, and so is their parity, at whatever state.

use crate::reserve::tests::{device_of, layout};
use bytes::Bytes;
use steadfast_disk::{Granule, checksum};
use steadfast_net::Stream;
use steadfast_protocol::{
    BlockIndex, DeviceId,
    layout::ParityGeometry,
    message::{
        self, NodeAnswer, NodeEvent, NodeRequest, ReadDone, ReadPiece, ReadRows, ReadState, Slice, Want,
    },
};

fn shape() -> ParityGeometry {
    ParityGeometry::of_layout(&layout()).expect("it is a segment of chunks")
}

/// The blocks of a device's chunk.
fn blocks_on(device: DeviceId) -> core::ops::Range<BlockIndex> {
    let chunk = (0..shape().chunks).find(|&chunk| device_of(chunk) == device);
    shape().blocks_of(chunk.expect("a device of the layout"))
}

/// Checksums of a block's granules.
fn sums(index: BlockIndex) -> Vec<u32> {
    let (layout, block) = (layout(), vec![0; shape().block_bytes as usize]);
    let granule = Granule::new(layout.granule_bytes).expect("a granule");
    checksum::sums(&block, granule, layout.segment, layout.version, index)
}

/// Answers a request for blocks or rows of a chunk that is in this state.
pub(crate) fn serve(request: &NodeRequest, state: ReadState, stream: Stream) {
    match request {
        NodeRequest::Read { device, pieces } => {
            let named = |piece: &ReadPiece| match &piece.want {
                Want::Blocks(blocks) => blocks.iter().collect(),
                Want::All => blocks_on(*device).collect::<Vec<BlockIndex>>(),
            };
            let wanted: Vec<BlockIndex> = pieces.iter().flat_map(named).collect();
            tokio::spawn(async move {
                // Whoever reads may have enough.
                let _ = blocks(wanted, state, stream).await;
            });
        }
        NodeRequest::ReadRows(ReadRows { device, offset, length, .. }) => {
            let (granule, block) = (u64::from(layout().granule_bytes), u64::from(shape().block_bytes));
            let index = blocks_on(*device).start + (offset / block) as u32;
            let first = (offset % block / granule) as usize;
            let sums = sums(index)[first..][..(u64::from(*length) / granule) as usize].to_vec();
            let answer = message::encode(&NodeAnswer::Rows { version: state.version, sums });
            let rows = Bytes::from(vec![0; *length as usize]);
            tokio::spawn(async move {
                let _ = stream.send(Vec::new(), rows).await;
                let _ = stream.end(answer);
            });
        }
        other => panic!("nothing of a chunk is asked for: {other:?}"),
    }
}

async fn blocks(
    wanted: Vec<BlockIndex>,
    state: ReadState,
    stream: Stream,
) -> Result<(), steadfast_net::Lost> {
    stream.send(message::encode(&NodeEvent::State(state)), Bytes::new()).await?;
    let mut sent_bytes = 0;
    for index in wanted {
        let block = Bytes::from(vec![0; shape().block_bytes as usize]);
        sent_bytes += block.len() as u64;
        let slice = Slice { index, offset: 0, sums: sums(index) };
        stream.send(message::encode(&NodeEvent::Slice(slice)), block).await?;
    }
    let done = ReadDone { medium_bytes: sent_bytes, sent_bytes, corrupt_blocks: 0 };
    stream.end(message::encode(&NodeAnswer::Read(done)))
}
