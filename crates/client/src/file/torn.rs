//! Reads through a handle of bytes that others change meanwhile: no granule is torn.

use super::*;
use crate::reserve::tests::{client, device_of, found, layout, serving};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use steadfast_disk::{Tag, checksum};
use steadfast_net::Stream;
use steadfast_protocol::{
    layout::PARITY_GRANULE_BYTES,
    message::{self, Fault, NodeAnswer, NodeRequest},
};

const GRANULE: usize = PARITY_GRANULE_BYTES as usize;

/// Answers a request for rows of the first chunk, all of whose bytes are `byte`.
fn serve(request: &NodeRequest, byte: u8, stream: Stream) {
    match request {
        NodeRequest::ReadRows(rows) if rows.device == device_of(0) => {
            let (layout, bytes) = (layout(), vec![byte; rows.length as usize]);
            let (segment, version) = (layout.segment, layout.version);
            // The chunk's blocks are the segment's first.
            let block_bytes = u64::from(layout.block_bytes);
            let (index, within) = ((rows.offset / block_bytes) as u32, (rows.offset % block_bytes) as u32);
            let granules = bytes.chunks(GRANULE).zip(within / PARITY_GRANULE_BYTES..);
            let tag = |granule_number| Tag { segment, version, index, granule_number };
            let sums = granules.map(|(bytes, number)| checksum::sum(bytes, &tag(number))).collect();
            let answer = message::encode(&NodeAnswer::Rows { version: 0, sums });
            tokio::spawn(async move {
                // Whoever reads may have gone.
                let _ = stream.send(Vec::new(), bytes.into()).await;
                let _ = stream.end(answer);
            });
        }
        // Where the processor is busy others may be asked to stand in.
        _ => stream.fail(&Fault::Cancelled),
    }
}

/// A handle that keeps what it has read, of an object whose first chunk has this in every byte.
async fn opened(stored: &Arc<AtomicU8>) -> File {
    let stored = Arc::clone(stored);
    let address = serving(move |request, stream| serve(&request, stored.load(Relaxed), stream)).await;
    let client = Arc::new(client(&address, Vec::new()));
    client.pool.connection(&address).await.unwrap();
    let found = found();
    let options = FileOptions { fresh_for: Duration::MAX, ..FileOptions::default() };
    let sizes = (found.object.size, found.object.size);
    let inner = Inner::new(&client, ("data", "object"), found, sizes, Duration::ZERO, &options);
    inner.into()
}

#[tokio::test]
async fn a_page_whose_head_was_read_before_another_client_stored_it_is_of_one_time() {
    let stored = Arc::new(AtomicU8::new(1));
    let file = opened(&stored).await;
    assert_eq!(file.read_at(0, 64).await.unwrap()[..], [1; 64]);
    stored.store(2, Relaxed);
    assert_eq!(file.read_at(0, GRANULE).await.unwrap()[..], [1; GRANULE], "all of it is kept");
    assert_eq!(file.counts().reads_kept, 1);
    // Beside what is fetched now, each page whole.
    let both = [vec![1u8; GRANULE - 100], vec![2; GRANULE + 100]].concat();
    assert_eq!(file.read_at(100, 2 * GRANULE).await.unwrap(), both);
    // What the handle writes it reads at once, over what it has.
    file.write_at(10, &[7; 20]).await.unwrap();
    let own = [vec![1u8; 10], vec![7; 20], vec![1; GRANULE - 30], vec![2; 2 * GRANULE]].concat();
    assert_eq!(file.read_at(0, 3 * GRANULE).await.unwrap(), own);
    assert_eq!(file.counts().reads_kept, 2, "of the third page, too, all was fetched");
}

#[tokio::test]
async fn what_lies_between_gaps_in_what_was_written_is_fetched_with_them() {
    let stored = Arc::new(AtomicU8::new(1));
    let file = opened(&stored).await;
    assert_eq!(file.read_at(GRANULE as u64, 1).await.unwrap()[..], [1]);
    stored.store(2, Relaxed);
    // The gaps begin and end within the granules beside the one that is kept.
    file.write_at(0, &[7; 100]).await.unwrap();
    file.write_at(2 * GRANULE as u64 + 100, &[7; GRANULE - 100]).await.unwrap();
    let expected = [vec![7u8; 100], vec![2; 2 * GRANULE], vec![7; GRANULE - 100]].concat();
    assert_eq!(file.read_at(0, 3 * GRANULE).await.unwrap(), expected);
    stored.store(3, Relaxed);
    assert_eq!(file.read_at(0, 3 * GRANULE).await.unwrap(), expected, "it is kept in place of what was");
}
