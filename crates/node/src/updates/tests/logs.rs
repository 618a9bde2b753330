//! Streams of differences as the node of a data chunk opens them, against the host of a parity chunk.

use super::{
    super::{CROWDED_IDLE_MAX, HOSTS_MAX, IDLE_MAX, QUIET_MAX, medium, parity, rows},
    *,
};
use steadfast_net::{Event, Open, Stream};
use steadfast_protocol::{
    message::{LogEvent, LogPush, NodeEvent, NodeFault, NodePush, NodeRequest, Priority as Class},
    serve::parity_log::Refusal,
};

/// The first parity chunk, and the data chunk whose differences come.
const PARITY: u32 = SHAPE.data;
const CHUNK: u16 = 0;
/// Later than any that a host of the data chunk takes by its clock: the parity node has one begin where its log is held up.
const LATE: u64 = 1 << 63;
/// Room for one difference that is held, and more.
const ROOM: u64 = 8192;

struct Log(Stream);

impl Log {
    async fn open(life: &Life) -> Self {
        Self::open_of(life, CHUNK).await
    }

    async fn open_of(life: &Life, chunk: u16) -> Self {
        Self::open_with(life, chunk, 1 << 20).await
    }

    /// One that takes so many bytes of records.
    async fn open_with(life: &Life, chunk: u16, credit: u32) -> Self {
        let connection = life.service.updates.peers.connection(device_of(PARITY)).await.unwrap();
        let request = NodeRequest::Log { device: device_of(PARITY), segment: SEGMENT, chunk };
        let (body, priority) = (message::encode(&request), Class::Foreground);
        let open = Open { body, priority, epoch: EPOCH, deadline: None, credit };
        let mut log = Self(connection.open(open).unwrap());
        assert!(matches!(log.hear().await, LogEvent::Welcome { .. }));
        log
    }

    fn say(&self, push: LogPush, payload: Bytes) {
        self.0.send_now(message::encode(&NodePush::Log(push)), payload).unwrap();
    }

    async fn hear(&mut self) -> LogEvent {
        match self.hear_or_end().await {
            Ok(event) => event,
            Err(fault) => panic!("the stream ended: {fault}"),
        }
    }

    async fn hear_or_end(&mut self) -> Result<LogEvent, Fault> {
        loop {
            match tokio::time::timeout(Duration::from_secs(10), self.0.recv()).await {
                Ok(Some(Event::Data { body, .. })) => match message::decode(&body).unwrap() {
                    NodeEvent::Log(event) => return Ok(event),
                    other => panic!("{other:?}"),
                },
                Ok(Some(Event::Credit(_))) => {}
                Ok(Some(Event::Failed(fault))) => return Err(fault),
                other => panic!("{other:?}"),
            }
        }
    }

    fn reserve(&self, bytes: u64) {
        self.say(LogPush::Reserve { least: bytes, bytes }, Bytes::new());
    }

    fn ask(&self, session: u64) {
        self.say(LogPush::Ask { epoch: EPOCH, session }, Bytes::new());
    }

    /// Sends a version, whose bytes are all its number.
    fn difference(&self, session: u64, version: u64) {
        let bytes = vec![version as u8; PARITY_GRANULE_BYTES as usize].into();
        let record = Difference { chunk: CHUNK, version, offset: 0, sums: vec![0], bytes }.encode();
        self.say(LogPush::Difference { epoch: EPOCH, session, version, committed: 0 }, record);
    }
}

async fn life() -> Life {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    Life::begin(images, SHAPE.chunks).await
}

/// One whose parity is overwritten in place.
async fn in_place() -> Life {
    Life::begin((0..SHAPE.chunks).map(|chunk| stored(chunk, 0)).collect(), SHAPE.chunks).await
}

/// How much room for what is held the device of the parity chunk has.
async fn free(life: &Life) -> u64 {
    const OWNER: u64 = 7;
    let device = life.device(PARITY);
    let ask = |op| medium::ask(&device, (1, Priority::Normal), op);
    let reserved = ask(Op::Reserve { owner: OWNER, least: 1, bytes: u64::MAX }).await;
    ask(Op::Unreserve { owner: OWNER, bytes: u64::MAX }).await.unwrap();
    let Ok(OpOutput::Reserved { bytes }) = reserved else { panic!("{reserved:?}") };
    bytes
}

/// Waits until it has so much.
async fn until_free(life: &Life, bytes: u64) {
    let free = async {
        while free(life).await != bytes {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), free).await.expect("the room comes back");
}

#[tokio::test]
async fn a_question_of_an_earlier_life_drops_nothing_of_the_later_one() {
    let life = life().await;
    let mut log = Log::open(&life).await;
    log.ask(LATE);
    assert_eq!(log.hear().await, LogEvent::Versions { epoch: EPOCH, received: 0 });
    // Until the log has no room, since nothing is committed.
    let mut version = 0;
    loop {
        version += 1;
        assert!(version < 100, "the log takes all");
        log.difference(LATE, version);
        match tokio::time::timeout(Duration::from_millis(200), log.hear()).await {
            Ok(heard) => assert_eq!(heard, LogEvent::Acked { through: version }),
            Err(_) => break,
        }
    }
    let mut early = Log::open(&life).await;
    early.ask(LATE - 1);
    let reason = Refusal::Stale { held: EPOCH, superseded: true };
    assert_eq!(early.hear().await, LogEvent::Refused { reason });
    log.say(LogPush::Committed { epoch: EPOCH, through: version - 1 }, Bytes::new());
    assert_eq!(
        log.hear().await,
        LogEvent::Acked { through: version },
        "there is room once the others are merged"
    );
    life.end().await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_told_as_damage_and_not_as_one_that_was_merged() {
    let first = life().await;
    let mut log = Log::open(&first).await;
    log.ask(LATE);
    log.hear().await;
    for version in 1..=2 {
        log.difference(LATE, version);
        assert_eq!(log.hear().await, LogEvent::Acked { through: version });
    }
    let images = first.power_loss(|_| true);
    first.end().await;
    let contents = &images[PARITY as usize];
    let first_of_log = contents.windows(512).position(|bytes| bytes == [1; 512]).unwrap();
    // What was logged since a start is in memory; nothing was.
    let life = Life::begin(images, SHAPE.chunks).await;
    let mut log = Log::open(&life).await;
    log.ask(LATE + 1);
    assert_eq!(log.hear().await, LogEvent::Versions { epoch: EPOCH, received: 2 });
    let medium = &life.media[PARITY as usize];
    medium.write_at(first_of_log as u64, &[0; 512]).unwrap();
    log.say(LogPush::Fetch { version: 2 }, Bytes::new());
    assert_eq!(log.hear().await, LogEvent::Record { version: 2 });
    log.say(LogPush::Fetch { version: 3 }, Bytes::new());
    assert_eq!(log.hear().await, LogEvent::NotHeld { version: 3 });
    log.say(LogPush::Fetch { version: 1 }, Bytes::new());
    let ended = log.hear_or_end().await;
    assert!(matches!(ended, Err(Fault::Node(NodeFault::DamagedParity { .. }))), "{ended:?}");
    life.end().await;
}

/// Whoever decodes some bytes of a chunk that is lost asks for versions each time.
#[tokio::test]
async fn versions_cost_no_read_of_a_log_that_did_not_go_on() {
    // Of a record with one granule.
    const RECORD_BYTES: u64 = 8192;
    let life = life().await;
    let device = life.device(PARITY);
    let versions = || rows::versions(&life.service, &device, SEGMENT);
    let read_bytes = || device.lane.status().counters.bytes_read;
    let mut log = Log::open(&life).await;
    log.ask(LATE);
    log.hear().await;
    // No more of them are taken before the first is committed.
    for version in 1..=2 {
        log.difference(LATE, version);
        assert_eq!(log.hear().await, LogEvent::Acked { through: version });
        let before = read_bytes();
        for _ in 0..2 {
            assert_eq!(versions().await.unwrap().held, [(CHUNK, version)]);
            assert_eq!(read_bytes() - before, RECORD_BYTES, "the record that came is read once");
        }
    }
    // Merged they are read no more either, and the chunk holds the same.
    log.say(LogPush::Committed { epoch: EPOCH, through: 2 }, Bytes::new());
    while life.service.updates.merge(device.clone(), SEGMENT).await.expect("its log is merged") > 0 {}
    let before = read_bytes();
    assert_eq!(versions().await.unwrap().held, [(CHUNK, 2)]);
    assert_eq!(read_bytes(), before);
    life.end().await;
}

/// A chunk that is stored in the place of another of its segment has a log of its own, which begins with the same numbers.
#[tokio::test]
async fn versions_say_nothing_of_a_chunk_that_is_gone() {
    const STORED: SegmentId = SegmentId(99);
    let life = life().await;
    let device = life.device(PARITY);
    let ask = |op| medium::ask(&device, (1, Priority::Normal), op);
    for (chunk, version) in [(0, 3), (1, 1)] {
        let spec = ExtentSpec {
            segment: STORED,
            version: VERSION,
            epoch: EPOCH,
            block_bytes: SHAPE.block_bytes,
            granule: Granule::KIB_4,
            expected_blocks: 1,
            updates: Some(Updates { reserve_bytes: 32 << 10 }),
        };
        ask(Op::CreateExtent(spec)).await.unwrap();
        let bytes = vec![1; PARITY_GRANULE_BYTES as usize].into();
        let payload = Difference { chunk, version, offset: 0, sums: vec![0], bytes }.encode();
        let append = Op::LogAppend { segment: STORED, epoch: EPOCH, sequence: None, payload };
        assert_eq!(ask(append).await, Ok(OpOutput::Logged { sequence: 1 }));
        let versions = rows::versions(&life.service, &device, STORED).await.unwrap();
        assert_eq!(versions.held, [(chunk, version)]);
        ask(Op::Delete { segment: STORED, epoch: EPOCH }).await.unwrap();
    }
    life.end().await;
}

#[tokio::test]
async fn a_record_is_sent_once_whoever_asked_for_it_takes_it() {
    let life = life().await;
    let mut log = Log::open_with(&life, CHUNK, 0).await;
    log.ask(LATE);
    log.hear().await;
    log.difference(LATE, 1);
    assert_eq!(log.hear().await, LogEvent::Acked { through: 1 });
    log.say(LogPush::Fetch { version: 1 }, Bytes::new());
    // What takes no credit does not wait for it.
    log.ask(LATE);
    assert_eq!(log.hear().await, LogEvent::Versions { epoch: EPOCH, received: 1 });
    let early = tokio::time::timeout(Duration::from_millis(100), log.hear()).await;
    assert!(early.is_err(), "{early:?}");
    log.0.grant(1 << 20);
    assert_eq!(log.hear().await, LogEvent::Record { version: 1 });
    life.end().await;
}

#[tokio::test]
async fn who_asks_for_many_records_and_takes_none_is_served_no_more() {
    let life = life().await;
    let mut log = Log::open_with(&life, CHUNK, 0).await;
    for version in 1..100 {
        log.say(LogPush::Fetch { version }, Bytes::new());
    }
    let ended = log.hear_or_end().await;
    assert!(matches!(ended, Err(Fault::Protocol(_))), "{ended:?}");
    life.end().await;
}

#[tokio::test]
async fn who_asks_on_and_on_without_an_answer_is_served_no_more() {
    let life = life().await;
    let mut log = Log::open(&life).await;
    log.ask(LATE);
    log.hear().await;
    // The device stands still: what is logged is not durable, and nobody hears what is.
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let still = Box::new(move |_: Result<OpOutput, OpError>| assert!(waits.recv().is_err()));
    life.device(PARITY).lane.submit(life.service.lane_stream(), Priority::Normal, Op::Barrier, still);
    log.difference(LATE, 1);
    for _ in 0..2000 {
        log.ask(LATE);
    }
    let ended = log.hear_or_end().await;
    assert!(matches!(ended, Err(Fault::Protocol(_))), "{ended:?}");
    drop(go_on);
    life.end().await;
}

#[tokio::test]
async fn a_host_that_a_later_life_superseded_says_so() {
    let life = life().await;
    let update = Update { chunk: CHUNK.into(), offset: 0, bytes: Bytes::from_static(b"new"), version: None };
    let mut log = Log::open(&life).await;
    log.ask(LATE);
    log.hear().await;
    let said = make(&life, &update).await.unwrap_err().to_string();
    assert!(said.contains("a later start of its node"), "{said}");
    life.end().await;
}

/// A data chunk's node dies before it says what is committed, or its disk hangs and its process `stays`: updates of the others, which cannot be
/// merged before that, are answered `within` this time.
async fn updates_behind_a_change(stays: bool, within: Duration) {
    let life = life().await;
    let mut log = Log::open(&life).await;
    log.ask(LATE);
    log.hear().await;
    log.difference(LATE, 1);
    assert_eq!(log.hear().await, LogEvent::Acked { through: 1 });
    let _stays = stays.then_some(log);
    for round in 0..2 {
        let mut made = 0;
        let told = loop {
            let bytes = Bytes::from(vec![made as u8; UPDATE_BYTES_MAX as usize]);
            let update = Update { chunk: u32::from(CHUNK) + 1, offset: 0, bytes, version: None };
            let answer = tokio::time::timeout(within, make(&life, &update)).await;
            match answer.expect("the update is answered") {
                Ok(_) => made += 1,
                Err(told) => break told,
            }
            assert!(made < 100, "round {round}: the log takes all");
        };
        assert!(matches!(told, Fault::Node(NodeFault::NotInPlace { .. })), "round {round}: {told:?}");
    }
    life.end().await;
}

/// Not for as long as their clients have patience.
#[tokio::test]
async fn who_waits_behind_a_change_whose_sender_is_gone_is_told_so() {
    updates_behind_a_change(false, Duration::from_secs(5)).await;
}

#[tokio::test]
async fn who_waits_behind_a_change_whose_sender_stands_still_is_told_so() {
    updates_behind_a_change(true, Duration::from_secs(30)).await;
}

#[tokio::test]
async fn room_of_who_sends_what_is_no_difference_comes_back() {
    let life = in_place().await;
    let all = free(&life).await;
    let mut log = Log::open(&life).await;
    log.ask(LATE);
    assert_eq!(log.hear().await, LogEvent::Versions { epoch: EPOCH, received: 0 });
    log.reserve(ROOM);
    assert_eq!(log.hear().await, LogEvent::Reserved { bytes: ROOM });
    assert_eq!(free(&life).await, all - ROOM);
    let difference = LogPush::Difference { epoch: EPOCH, session: LATE, version: 1, committed: 0 };
    log.say(difference, Bytes::from_static(&[0; 64]));
    let ended = log.hear_or_end().await;
    assert!(matches!(ended, Err(Fault::Protocol(_))), "{ended:?}");
    until_free(&life, all).await;
    life.end().await;
}

/// Room that is given back while the device is still to say whether it keeps that stays: its sender is about to hear that it has it.
#[tokio::test]
async fn no_more_room_is_given_back_than_was_granted() {
    let life = in_place().await;
    let all = free(&life).await;
    let mut log = Log::open(&life).await;
    let (stands, standing) = tokio::sync::oneshot::channel();
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let still = Box::new(move |_: Result<OpOutput, OpError>| {
        stands.send(()).unwrap();
        assert!(waits.recv().is_err());
    });
    life.device(PARITY).lane.submit(life.service.lane_stream(), Priority::Normal, Op::Barrier, still);
    standing.await.unwrap();
    log.reserve(ROOM);
    log.say(LogPush::GiveBack { bytes: u64::MAX }, Bytes::new());
    // No update needs so much, which nobody asks the device for: both others were heard by then.
    log.reserve(u64::MAX);
    assert_eq!(log.hear().await, LogEvent::Reserved { bytes: 0 });
    drop(go_on);
    assert_eq!(log.hear().await, LogEvent::Reserved { bytes: ROOM });
    assert_eq!(free(&life).await, all - ROOM);
    log.say(LogPush::GiveBack { bytes: u64::MAX }, Bytes::new());
    until_free(&life, all).await;
    life.end().await;
}

/// What a crash left held of one data chunk keeps the others from room: its node is asked to level, and then there is some.
#[tokio::test]
async fn who_is_refused_room_for_what_a_crash_left_has_that_levelled() {
    let mut images: Vec<_> = (0..SHAPE.chunks).map(|chunk| stored(chunk, 0)).collect();
    let changed = |image: &mut Vec<u8>, change: &dyn Fn(&mut Device)| {
        let medium = Arc::new(CrashMedium::from_image(std::mem::take(image)));
        let mut device = Device::open(medium.clone(), None).unwrap();
        change(&mut device);
        device.flush().unwrap();
        drop(device);
        *image = medium.image();
    };
    // The other parity chunk had not heard of it.
    let new = [1; PARITY_GRANULE_BYTES as usize];
    changed(&mut images[usize::from(CHUNK)], &|device| {
        assert_eq!(device.stage(SEGMENT, EPOCH, 0, &new).unwrap().version, 1);
    });
    let of = ParityOf::new(SHAPE.data as u16, SHAPE.parity() as u16, 0, SHAPE.chunk_bytes()).unwrap();
    let bytes = Bytes::from_static(&[1; PARITY_GRANULE_BYTES as usize]);
    let difference = Difference { chunk: CHUNK, version: 1, offset: 0, sums: vec![0], bytes };
    let product = of.product(&difference).unwrap();
    changed(&mut images[PARITY as usize], &|device| {
        device.overwrite(SEGMENT, EPOCH, 0, &product, (CHUNK, 1)).unwrap();
    });
    let life = Life::begin(images, SHAPE.chunks).await;
    let mut log = Log::open_of(&life, CHUNK + 1).await;
    log.reserve(ROOM);
    assert_eq!(log.hear().await, LogEvent::Reserved { bytes: 0 });
    let granted = async {
        loop {
            log.reserve(ROOM);
            match log.hear().await {
                LogEvent::Reserved { bytes: 0 } => tokio::time::sleep(Duration::from_millis(20)).await,
                LogEvent::Reserved { bytes } => return bytes,
                other => panic!("{other:?}"),
            }
        }
    };
    let granted = tokio::time::timeout(Duration::from_secs(10), granted).await;
    assert_eq!(granted.expect("nobody levels it"), ROOM);
    life.end().await;
}

/// What lies in a log since before a restart is committed, as its data chunk's node says once it is asked; what nobody can say so of nobody
/// waits for long, as thousands may come after it.
#[tokio::test]
async fn who_wants_a_log_merged_waits_for_who_knows_what_is_committed_and_for_nobody_else() {
    let first = life().await;
    let update = Update { chunk: CHUNK.into(), offset: 0, bytes: Bytes::from_static(b"new"), version: None };
    make(&first, &update).await.unwrap();
    let images = first.power_loss(|_| true);
    first.end().await;
    let life = Life::begin(images, SHAPE.chunks).await;
    let merge = || life.service.updates.merge(life.device(PARITY), SEGMENT);
    assert_eq!(merge().await, Some(0));
    // Of a life that the data chunk's node cannot have.
    let mut log = Log::open(&life).await;
    log.ask(LATE);
    log.hear().await;
    log.difference(LATE, 2);
    assert_eq!(log.hear().await, LogEvent::Acked { through: 2 });
    drop(log);
    let merged = tokio::time::timeout(QUIET_MAX / 2, merge()).await;
    assert_eq!(merged.expect("nobody says that it is committed"), None);
    life.end().await;
}

#[tokio::test]
async fn a_host_that_is_asked_to_merge_stays_where_there_are_many() {
    let life = life().await;
    let hosts = &life.service.updates.parity;
    let mut log = Log::open(&life).await;
    log.ask(LATE);
    log.hear().await;
    // It is not committed: there is nothing to merge yet.
    log.difference(LATE, 1);
    assert_eq!(log.hear().await, LogEvent::Acked { through: 1 });
    let (left_bytes, mut merged) = tokio::sync::oneshot::channel();
    let merge = parity::Event::Merge { left_bytes };
    hosts.tell(device_of(PARITY), SEGMENT, merge, |_, _| panic!("it is there")).unwrap();
    drop(log);
    let mut others = Vec::new();
    for segment in (100..).take(HOSTS_MAX / 4).map(SegmentId) {
        let closed = parity::Event::Closed { stream: 0 };
        hosts.tell(device_of(PARITY), segment, closed, |events, _| others.push(events)).unwrap();
    }
    let is_there = || hosts.lock().contains_key(&(device_of(PARITY), SEGMENT));
    tokio::time::sleep(3 * CROWDED_IDLE_MAX).await;
    assert!(is_there(), "somebody waits for it");
    assert!(merged.try_recv().is_err(), "nothing was merged");
    drop(merged);
    let left = tokio::time::timeout(IDLE_MAX / 2, async {
        while is_there() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(left.await.is_ok(), "nobody waits for it any more");
    drop(others);
    life.end().await;
}
