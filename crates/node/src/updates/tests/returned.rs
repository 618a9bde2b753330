//! A device that comes back with old data, whose checksums are as right as ever.

use super::*;
use bytes::BytesMut;
use steadfast_disk::ExtentInfo;
use steadfast_net::{CallError, Open};
use steadfast_protocol::{
    IndexRanges, Time,
    message::{
        ChunkVersions, NodeAnswer, NodeFault, NodeRequest, Priority as Class, ReadPiece, ReadRows, RowsAt,
        Want,
    },
    serve::parity_log::{BeforeRead, Levels},
};

/// The data chunk whose device comes back.
const CHUNK: u32 = 0;
const GRANULE: usize = PARITY_GRANULE_BYTES as usize;

/// Makes its first granule all of this value.
async fn change(life: &Life, value: u8) -> u64 {
    let bytes = Bytes::from(vec![value; GRANULE]);
    make(life, &Update { chunk: CHUNK, offset: 0, bytes, version: None }).await.unwrap()
}

/// Merges all logs.
async fn merge(life: &Life) {
    for parity in SHAPE.data..SHAPE.chunks {
        let merge = || life.service.updates.merge(life.device(parity), SEGMENT);
        while merge().await.expect("its log is merged") > 0 {}
    }
}

/// Two changes were answered, and the device has the first alone: parity has both in its log, or merged.
async fn come_back(merged: bool) -> Life {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Life::begin(images, SHAPE.chunks).await;
    assert_eq!(change(&life, 1).await, 1);
    let mut before = life.power_loss(|_| true);
    assert_eq!(change(&life, 2).await, 2);
    if merged {
        merge(&life).await;
    }
    let mut images = life.power_loss(|_| true);
    life.end().await;
    images[CHUNK as usize] = before.swap_remove(CHUNK as usize);
    Life::begin(images, SHAPE.chunks).await
}

/// Three changes were answered, and the device of the first parity chunk has merged the first alone: the other one has all of them, the last
/// two in its log, or merged as well. The data chunk's node keeps no more than the last.
async fn parity_comes_back(merged: bool) -> Life {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Life::begin(images, SHAPE.chunks).await;
    assert_eq!(change(&life, 1).await, 1);
    merge(&life).await;
    let mut before = life.power_loss(|_| true);
    for value in 2..=3 {
        assert_eq!(change(&life, value).await, u64::from(value));
    }
    if merged {
        merge(&life).await;
    }
    let mut images = life.power_loss(|_| true);
    life.end().await;
    images[SHAPE.data as usize] = before.swap_remove(SHAPE.data as usize);
    Life::begin(images, SHAPE.chunks).await
}

fn rows(at: RowsAt) -> NodeRequest {
    let (device, length) = (device_of(CHUNK), PARITY_GRANULE_BYTES);
    NodeRequest::ReadRows(ReadRows { device, segment: SEGMENT, offset: 0, length, at })
}

/// Of the first parity chunk, at these versions of the data chunks.
fn rows_at(device: DeviceId, versions: [u64; 2]) -> NodeRequest {
    let versions = (0..).zip(versions).collect();
    let (data, parity) = (SHAPE.data as u16, SHAPE.parity() as u16);
    let at = RowsAt::Parity { data, parity, number: 0, versions };
    NodeRequest::ReadRows(ReadRows { device, segment: SEGMENT, offset: 0, length: PARITY_GRANULE_BYTES, at })
}

/// What a get asks for.
fn block() -> NodeRequest {
    block_of(CHUNK)
}

fn block_of(chunk: u32) -> NodeRequest {
    let first = SHAPE.blocks_of(chunk).start;
    let want = Want::Blocks(IndexRanges::from(first..first + 1));
    let pieces = vec![ReadPiece { segment: SEGMENT, version: VERSION, want }];
    NodeRequest::Read { device: device_of(chunk), pieces }
}

/// The value of the first granule, which its bytes all have.
async fn asked(life: &Life, request: &NodeRequest) -> Result<u8, Fault> {
    asked_under(life, EPOCH, request).await
}

async fn asked_for(life: &Life, epoch: Epoch, request: &NodeRequest) -> Result<NodeAnswer, Fault> {
    let (answer, _) = answered(life, epoch, request).await?;
    Ok(message::decode(&answer).expect("a node's answer"))
}

async fn asked_under(life: &Life, epoch: Epoch, request: &NodeRequest) -> Result<u8, Fault> {
    let (_, bytes) = answered(life, epoch, request).await?;
    let granule = &bytes[..GRANULE];
    assert!(granule.iter().all(|byte| *byte == granule[0]), "it is torn");
    Ok(granule[0])
}

/// An answer, and the payload before it.
async fn answered(life: &Life, epoch: Epoch, request: &NodeRequest) -> Result<(Vec<u8>, BytesMut), Fault> {
    let connection = life.service.updates.peers.connection(device_of(CHUNK)).await.unwrap();
    let (body, priority, deadline) =
        (message::encode(request), Class::Foreground, Some(Duration::from_secs(10)));
    match connection.call(Open { body, priority, epoch, deadline, credit: 1 << 20 }).await {
        Ok(answered) => Ok(answered),
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

/// Where its data chunk is lost or late it would stand in for that.
#[tokio::test]
async fn parity_that_comes_back_with_old_data_is_not_read_as_the_newest() {
    let life = parity_comes_back(true).await;
    let [returned, other] = [SHAPE.data, SHAPE.data + 1].map(block_of);
    for _ in 0..2 {
        let told = asked(&life, &returned).await;
        assert!(told.as_ref().is_err_and(lacks_changes), "{told:?}");
    }
    let told = asked(&life, &other).await;
    assert!(told.is_ok(), "{told:?}");
    // Who has ended its changes knows that, and decides; others know no more by it.
    let device = life.device(SHAPE.data);
    let lane = (life.service.lane_stream(), Priority::Normal);
    let fence = Op::Fence { segment: SEGMENT, epoch: Epoch(EPOCH.0 + 1) };
    crate::updates::medium::ask(&device, lane, fence).await.unwrap();
    let told = asked(&life, &returned).await;
    assert!(told.as_ref().is_err_and(lacks_changes), "{told:?}");
    let told = asked_under(&life, Epoch(0), &returned).await;
    assert!(told.is_ok(), "{told:?}");
    life.end().await;
}

/// When it is to stand in for a chunk that stands still it would be too late to ask.
#[tokio::test]
async fn parity_that_changes_come_to_is_asked_about_before_anybody_reads_it() {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Life::begin(images, SHAPE.chunks).await;
    assert_eq!(change(&life, 1).await, 1);
    let device = life.device(SHAPE.data);
    let known = async {
        // Far later only what is known for good counts.
        let later = Time(0) + Duration::from_secs(86_400);
        while device.returned.levels().before_read(later, SEGMENT) != BeforeRead::Serve {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), known).await.expect("others are asked about it");
    life.end().await;
}

/// The other one of its kind stands still.
#[tokio::test]
async fn parity_that_lacks_what_a_data_chunk_counts_is_not_read_as_the_newest() {
    let life = parity_comes_back(true).await;
    let standing = stand_still(&life, SHAPE.data + 1..SHAPE.chunks);
    let told = asked(&life, &block_of(SHAPE.data)).await;
    assert!(told.as_ref().is_err_and(lacks_changes), "{told:?}");
    drop(standing);
    life.end().await;
}

/// At the versions that it names itself they would pass for the newest of a chunk that is late.
#[tokio::test]
async fn rows_of_parity_that_comes_back_with_old_data_are_for_who_knows_that_or_has_nothing_else() {
    let life = parity_comes_back(true).await;
    let device = life.device(SHAPE.data);
    let rows = rows_at(device.id, [1, 0]);
    let told = asked(&life, &rows).await;
    assert!(told.as_ref().is_err_and(lacks_changes), "{told:?}");
    let lane = (life.service.lane_stream(), Priority::Normal);
    let fence = Op::Fence { segment: SEGMENT, epoch: Epoch(EPOCH.0 + 1) };
    crate::updates::medium::ask(&device, lane, fence).await.unwrap();
    let told = asked(&life, &rows).await;
    assert!(told.as_ref().is_err_and(lacks_changes), "{told:?}");
    let told = asked_under(&life, Epoch(0), &rows).await;
    assert!(told.is_ok(), "{told:?}");
    life.end().await;
}

/// An image from before the first change shows none, and lacks it all the same.
#[tokio::test]
async fn rows_of_parity_from_before_the_first_change_stand_in_for_none() {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Life::begin(images, SHAPE.chunks).await;
    let mut before = life.power_loss(|_| true);
    for value in 1..=3 {
        assert_eq!(change(&life, value).await, u64::from(value));
    }
    merge(&life).await;
    let mut images = life.power_loss(|_| true);
    life.end().await;
    images[SHAPE.data as usize] = before.swap_remove(SHAPE.data as usize);
    // The data chunk's node keeps no more than the last.
    let life = Life::begin(images, SHAPE.chunks).await;
    let device = device_of(SHAPE.data);
    for request in [rows_at(device, [0, 0]), NodeRequest::ChunkVersions { device, segment: SEGMENT }] {
        let told = asked_for(&life, EPOCH, &request).await;
        assert!(told.as_ref().is_err_and(lacks_changes), "{request:?}: {told:?}");
        assert!(asked_for(&life, Epoch(0), &request).await.is_ok(), "{request:?}");
    }
    life.end().await;
}

/// What it held before it was brought forward would be asked of it once it may be read.
#[tokio::test]
async fn parity_that_is_brought_forward_says_only_then_what_it_holds() {
    let life = parity_comes_back(false).await;
    let request = NodeRequest::ChunkVersions { device: device_of(SHAPE.data), segment: SEGMENT };
    let told = async {
        loop {
            match asked_for(&life, EPOCH, &request).await {
                Ok(NodeAnswer::ChunkVersions(versions)) => return versions.held,
                // It may take longer than who asks waits.
                told => assert!(told.as_ref().is_err_and(lacks_changes), "{told:?}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let held = tokio::time::timeout(Duration::from_secs(10), told).await.expect("somebody brings it forward");
    assert_eq!(held, [(CHUNK as u16, 3)]);
    life.end().await;
}

#[tokio::test]
async fn parity_that_comes_back_with_old_data_is_brought_forward_where_somebody_keeps_what_it_lacks() {
    let life = parity_comes_back(false).await;
    let returned = block_of(SHAPE.data);
    let brought = async {
        while let Err(fault) = asked(&life, &returned).await {
            // It may take longer than a read waits.
            assert!(lacks_changes(&fault), "{fault}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), brought).await.expect("somebody brings it forward");
    let device = life.device(SHAPE.data);
    let versions = crate::updates::rows::versions(&life.service, &device, SEGMENT).await.unwrap();
    assert_eq!(versions.held, [(CHUNK as u16, 3)]);
    life.end().await;
}

/// Nobody says that it was brought forward, and the device of the data chunk does not.
#[tokio::test]
async fn parity_that_lacks_changes_is_refused_once_it_had_a_while_for_them() {
    let life = parity_comes_back(false).await;
    let standing = stand_still(&life, CHUNK..CHUNK + 1);
    let begun = std::time::Instant::now();
    let told = asked(&life, &block_of(SHAPE.data)).await;
    let took = begun.elapsed();
    assert!(told.as_ref().is_err_and(lacks_changes), "{told:?}");
    // It has half of the time of whoever reads.
    assert!(took < Levels::PATIENCE * 9 / 10, "{took:?}");
    drop(standing);
    life.end().await;
}

/// The address of a server that serves none of the devices.
async fn former_server() -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap().to_string();
    let greeting = hello(Role::Node(NODE), Some(CLUSTER));
    tokio::spawn(server.serve(greeting, Options::default(), |connected| async move {
        let mut incoming = connected.incoming;
        while let Some((_, stream)) = incoming.next().await {
            stream.fail(&Fault::Node(NodeFault::UnknownDevice(device_of(SHAPE.data))));
        }
    }));
    address
}

#[tokio::test]
async fn parity_that_was_moved_is_asked_where_it_is() {
    let life = come_back(true).await;
    let address = former_server().await;
    for parity in SHAPE.data..SHAPE.chunks {
        life.service.updates.peers.is_served_at(device_of(parity), address.clone());
    }
    let device = life.device(CHUNK);
    let lane = (life.service.lane_stream(), Priority::Normal);
    let described = crate::updates::medium::ask(&device, lane, Op::Describe { segment: SEGMENT }).await;
    let Ok(OpOutput::Described(Some(extent))) = described else { panic!("it is there: {described:?}") };
    let read = crate::updates::returned::before_read(&life.service, &device, &extent).await;
    assert!(read.as_ref().is_err_and(lacks_changes), "{read:?}");
    life.end().await;
}

/// The address of a server that has no room for the first question about each device, and would like to be asked again long after a read has
/// patience; of the data chunk, it says then, two changes are known.
async fn crowded_server() -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap().to_string();
    let greeting = hello(Role::Node(NODE), Some(CLUSTER));
    let refused: Arc<Mutex<Vec<DeviceId>>> = Arc::default();
    tokio::spawn(server.serve(greeting, Options::default(), move |connected| {
        let refused = refused.clone();
        async move {
            let mut incoming = connected.incoming;
            while let Some((opened, stream)) = incoming.next().await {
                let NodeRequest::ChunkVersions { device, .. } = message::decode(&opened.body).unwrap() else {
                    stream.fail(&Fault::Node(NodeFault::UnknownDevice(device_of(SHAPE.data))));
                    continue;
                };
                let is_first = !refused.lock().unwrap().contains(&device);
                if is_first {
                    refused.lock().unwrap().push(device);
                    let reason = RefusalReason::Overloaded;
                    stream.fail(&Fault::Refused { reason, retry_after_ms: 60_000 });
                } else {
                    let versions = ChunkVersions { version: 0, held: vec![(CHUNK as u16, 2)] };
                    stream.end(message::encode(&NodeAnswer::ChunkVersions(versions))).unwrap();
                }
            }
        }
    }));
    address
}

/// Whoever reads would have what is there else, and nobody else would be asked the next time.
#[tokio::test]
async fn parity_that_has_no_room_for_a_question_is_asked_again_in_time() {
    let life = come_back(true).await;
    let address = crowded_server().await;
    for parity in SHAPE.data..SHAPE.chunks {
        life.service.updates.peers.is_served_at(device_of(parity), address.clone());
    }
    // Without a question that would look where they are.
    let device = life.device(CHUNK);
    let lane = (life.service.lane_stream(), Priority::Normal);
    let described = crate::updates::medium::ask(&device, lane, Op::Describe { segment: SEGMENT }).await;
    let Ok(OpOutput::Described(Some(extent))) = described else { panic!("it is there: {described:?}") };
    let read = crate::updates::returned::before_read(&life.service, &device, &extent).await;
    assert!(read.as_ref().is_err_and(lacks_changes), "{read:?}");
    life.end().await;
}

/// The devices of these chunks stand still until what this returns is dropped.
fn stand_still(life: &Life, chunks: Range<u32>) -> Vec<std::sync::mpsc::Sender<()>> {
    let mut standing = Vec::new();
    for chunk in chunks {
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let still = Box::new(move |_: Result<OpOutput, OpError>| assert!(waits.recv().is_err()));
        let lane = &life.device(chunk).lane;
        lane.submit(life.service.lane_stream(), Priority::Normal, Op::Barrier, still);
        standing.push(go_on);
    }
    standing
}

/// Whoever reads a chunk while its parity answers nothing waits a bounded time.
#[tokio::test]
async fn a_chunk_is_read_where_its_parity_says_nothing() {
    let life = come_back(false).await;
    let standing = stand_still(&life, SHAPE.data..SHAPE.chunks);
    let read = tokio::time::timeout(Duration::from_secs(5), asked(&life, &rows(RowsAt::Newest))).await;
    assert_eq!(read.expect("it is read in time"), Ok(1), "nobody knows better");
    drop(standing);
    life.end().await;
}

/// An answer that comes when nobody waits for it any more counts for who reads next.
#[tokio::test]
async fn what_parity_says_late_is_heard() {
    let life = come_back(false).await;
    let standing = stand_still(&life, SHAPE.data..SHAPE.chunks);
    assert_eq!(asked(&life, &rows(RowsAt::Newest)).await, Ok(1), "nobody knows better yet");
    drop(standing);
    let heard = async {
        loop {
            match asked(&life, &rows(RowsAt::Newest)).await {
                Ok(1) => tokio::time::sleep(Duration::from_millis(10)).await,
                now => return now,
            }
        }
    };
    // Less than from one question to the next.
    let now = tokio::time::timeout(Duration::from_secs(3), heard).await.expect("it is heard");
    assert!(now == Ok(2) || now.as_ref().is_err_and(lacks_changes), "{now:?}");
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
    let standing = stand_still(&life, SHAPE.data..SHAPE.chunks);
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

/// Nor does one of them that stands still keep others, of which the rest answers, from being asked about.
#[tokio::test]
async fn many_chunks_are_read_where_one_of_their_parity_says_nothing() {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Life::begin(images, SHAPE.chunks).await;
    let device = life.device(CHUNK);
    let lane = (life.service.lane_stream(), Priority::Normal);
    let described = crate::updates::medium::ask(&device, lane, Op::Describe { segment: SEGMENT }).await;
    let Ok(OpOutput::Described(Some(known))) = described else { panic!("it is there: {described:?}") };
    let standing = stand_still(&life, SHAPE.chunks - 1..SHAPE.chunks);
    let reads = async {
        for segment in (100..400).map(SegmentId) {
            let extent = ExtentInfo { segment, changes: 1, ..known.clone() };
            crate::updates::returned::before_read(&life.service, &device, &extent).await.unwrap();
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(5), reads).await;
    assert!(read.is_ok(), "a few of them have all turns for a second");
    drop(standing);
    life.end().await;
}

/// What is durable waits for no flush, and a device that takes none any more tells it; what is not durable nobody is told.
#[tokio::test]
async fn a_device_that_only_reads_tells_rows_and_versions_that_are_durable() {
    for staged in [false, true] {
        let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
        let life = Life::begin(images, SHAPE.chunks).await;
        let device = life.device(CHUNK);
        let lane = (life.service.lane_stream(), Priority::Normal);
        let ask = |op| crate::updates::medium::ask(&device, lane, op);
        life.media[CHUNK as usize].fail_flushes(true);
        if staged {
            let new = Bytes::from(vec![1; GRANULE]);
            let stage = Op::Stage { segment: SEGMENT, epoch: EPOCH, offset: 0, new, spend: None };
            ask(stage).await.unwrap();
        }
        let failed = ask(Op::Fence { segment: SegmentId(99), epoch: EPOCH }).await;
        assert!(failed.is_err(), "{failed:?}");
        let read = asked(&life, &rows(RowsAt::Newest)).await;
        let versions = crate::updates::rows::versions(&life.service, &device, SEGMENT).await;
        match staged {
            false => assert_eq!((read, versions.map(|versions| versions.version)), (Ok(0), Ok(0))),
            true => assert!(read.is_err() && versions.is_err(), "{read:?}, {versions:?}"),
        }
        life.end().await;
    }
}
