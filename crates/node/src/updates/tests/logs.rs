//! Streams of differences as the node of a data chunk opens them, against the host of a parity chunk.

use super::*;
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

struct Log(Stream);

impl Log {
    async fn open(life: &Life) -> Self {
        let connection = life.service.updates.peers.connection(device_of(PARITY)).await.unwrap();
        let request = NodeRequest::Log { device: device_of(PARITY), segment: SEGMENT, chunk: CHUNK };
        let (body, priority) = (message::encode(&request), Class::Foreground);
        let open = Open { body, priority, epoch: EPOCH, deadline: None, credit: 1 << 20 };
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
