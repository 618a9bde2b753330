//! A device that comes back with old data, whose checksums are as right as ever.

use super::*;
use steadfast_disk::ExtentInfo;
use steadfast_net::{CallError, Open};
use steadfast_protocol::{
    IndexRanges,
    message::{NodeFault, NodeRequest, Priority as Class, ReadPiece, ReadRows, RowsAt, Want},
};

/// The data chunk whose device comes back.
const CHUNK: u32 = 0;
const GRANULE: usize = PARITY_GRANULE_BYTES as usize;

/// Makes its first granule all of this value.
async fn change(life: &Life, value: u8) -> u64 {
    let bytes = Bytes::from(vec![value; GRANULE]);
    make(life, &Update { chunk: CHUNK, offset: 0, bytes, version: None }).await.unwrap()
}

/// Two changes were answered, and the device has the first alone: parity has both in its log, or merged.
async fn come_back(merged: bool) -> Life {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Life::begin(images, SHAPE.chunks).await;
    assert_eq!(change(&life, 1).await, 1);
    let mut before = life.power_loss(|_| true);
    assert_eq!(change(&life, 2).await, 2);
    for parity in SHAPE.data..SHAPE.chunks {
        let merge = || life.service.updates.merge(life.device(parity), SEGMENT);
        while merged && merge().await.expect("its log is merged") > 0 {}
    }
    let mut images = life.power_loss(|_| true);
    life.end().await;
    images[CHUNK as usize] = before.swap_remove(CHUNK as usize);
    Life::begin(images, SHAPE.chunks).await
}

fn rows(at: RowsAt) -> NodeRequest {
    let (device, length) = (device_of(CHUNK), PARITY_GRANULE_BYTES);
    NodeRequest::ReadRows(ReadRows { device, segment: SEGMENT, offset: 0, length, at })
}

/// What a get asks for.
fn block() -> NodeRequest {
    let want = Want::Blocks(IndexRanges::from(0..1));
    let pieces = vec![ReadPiece { segment: SEGMENT, version: VERSION, want }];
    NodeRequest::Read { device: device_of(CHUNK), pieces }
}

/// The value of the first granule, which its bytes all have.
async fn asked(life: &Life, request: &NodeRequest) -> Result<u8, Fault> {
    let connection = life.service.updates.peers.connection(device_of(CHUNK)).await.unwrap();
    let (body, priority, deadline) =
        (message::encode(request), Class::Foreground, Some(Duration::from_secs(10)));
    match connection.call(Open { body, priority, epoch: EPOCH, deadline, credit: 1 << 20 }).await {
        Ok((_, bytes)) => {
            let granule = &bytes[..GRANULE];
            assert!(granule.iter().all(|byte| *byte == granule[0]), "it is torn");
            Ok(granule[0])
        }
        Err(CallError::Fault(fault)) => Err(fault),
        Err(other) => panic!("{other}"),
    }
}

fn lacks_changes(fault: &Fault) -> bool {
    matches!(fault, Fault::Node(NodeFault::LacksChanges { segment: SEGMENT, .. }))
}

#[tokio::test]
async fn a_chunk_that_comes_back_with_old_data_is_brought_forward_before_it_is_read() {
    for request in [rows(RowsAt::Newest), block()] {
        let life = come_back(false).await;
        let brought = async {
            loop {
                match asked(&life, &request).await {
                    Ok(value) => return value,
                    // It may take longer than a read waits.
                    Err(fault) => assert!(lacks_changes(&fault), "{fault}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let value = tokio::time::timeout(Duration::from_secs(10), brought).await;
        assert_eq!(value.expect("somebody brings it forward"), 2, "{request:?}");
        assert_eq!(change(&life, 3).await, 3);
        assert_eq!(asked(&life, &request).await, Ok(3));
        life.end().await;
    }
}

#[tokio::test]
async fn a_chunk_whose_changes_nobody_keeps_is_not_read_as_the_newest() {
    let life = come_back(true).await;
    for request in [rows(RowsAt::Newest), block(), rows(RowsAt::Newest)] {
        let told = asked(&life, &request).await;
        assert!(told.as_ref().is_err_and(lacks_changes), "{request:?}: {told:?}");
    }
    // Where nobody makes up for it, that is what there is.
    assert_eq!(asked(&life, &rows(RowsAt::Data(1))).await, Ok(1));
    life.end().await;
}

/// The devices of all parity chunks stand still until what this returns is dropped.
fn stand_still(life: &Life) -> Vec<std::sync::mpsc::Sender<()>> {
    let mut standing = Vec::new();
    for parity in SHAPE.data..SHAPE.chunks {
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let still = Box::new(move |_: Result<OpOutput, OpError>| assert!(waits.recv().is_err()));
        let lane = &life.device(parity).lane;
        lane.submit(life.service.lane_stream(), Priority::Normal, Op::Barrier, still);
        standing.push(go_on);
    }
    standing
}

/// Whoever reads a chunk while its parity answers nothing waits a bounded time.
#[tokio::test]
async fn a_chunk_is_read_where_its_parity_says_nothing() {
    let life = come_back(false).await;
    let standing = stand_still(&life);
    let read = tokio::time::timeout(Duration::from_secs(5), asked(&life, &rows(RowsAt::Newest))).await;
    assert_eq!(read.expect("it is read in time"), Ok(1), "nobody knows better");
    drop(standing);
    life.end().await;
}

/// It is waited for with the first of them, not with each.
#[tokio::test]
async fn many_chunks_are_read_where_their_parity_says_nothing() {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Life::begin(images, SHAPE.chunks).await;
    let device = life.device(CHUNK);
    let lane = (life.service.lane_stream(), Priority::Normal);
    let described = crate::updates::medium::ask(&device, lane, Op::Describe { segment: SEGMENT }).await;
    let Ok(OpOutput::Described(Some(known))) = described else { panic!("it is there: {described:?}") };
    let standing = stand_still(&life);
    let reads = async {
        for segment in (100..200).map(SegmentId) {
            let extent = ExtentInfo { segment, changes: 1, ..known.clone() };
            crate::updates::returned::before_read(&life.service, &device, &extent).await.unwrap();
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(4), reads).await;
    assert!(read.is_ok(), "each of them waits anew");
    drop(standing);
    life.end().await;
}
