//! How hosts end, and whom they name.

use super::{
    super::{
        HOSTS_MAX, Hosts, Updates,
        data::Event,
        host::{Host, Lane, Running},
        medium,
    },
    Life, RESERVE_BYTES, SEGMENT, SHAPE, Update, device_of, make, stored,
};
use crate::devices::ServedDevice;
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use steadfast_disk::{Op, OpError, OpOutput, Priority, SegmentId};
use steadfast_protocol::message::Fault;
use tokio::sync::mpsc;

/// Breaks an invariant once it serves.
struct Breaking;

impl Host for Breaking {
    type Event = Event;
    type Asked = ();

    const ENDS: &'static str = "a test is over";

    fn hosts(updates: &Updates) -> &Hosts<Event> {
        &updates.data
    }

    async fn begin(
        _: &Arc<Updates>,
        _: Arc<ServedDevice>,
        _: SegmentId,
        _: mpsc::UnboundedSender<Event>,
        _: Lane<Self>,
    ) -> Result<Self, Fault> {
        Ok(Self)
    }

    fn answered(&mut self, (): (), _: Result<OpOutput, OpError>) {}

    fn carry_out(&mut self, _: &Arc<Updates>) {}

    fn is_over(&self) -> bool {
        false
    }

    async fn serve(running: &Running<Self>, _: &mut mpsc::UnboundedReceiver<Event>) -> Option<Fault> {
        running.with(|_| panic!("an invariant is broken"))
    }

    async fn end(self, _: &Fault, _: &mut mpsc::UnboundedReceiver<Event>) {}

    fn turn_away(_: Event, _: &Fault) {}
}

async fn life() -> Life {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    Life::begin(images, SHAPE.chunks).await
}

fn update() -> Update {
    Update { chunk: 0, offset: 0, bytes: Bytes::from_static(b"new"), version: None }
}

#[tokio::test]
async fn a_host_that_breaks_an_invariant_leaves_its_place() {
    let life = life().await;
    let updates = &life.service.updates;
    let host = updates.tell::<Breaking>(life.device(0), SEGMENT, Event::Begin).unwrap();
    host.closed().await;
    assert!(!updates.data.lock().contains_key(&(device_of(0), SEGMENT)));
    assert_eq!(make(&life, &update()).await.unwrap(), 1, "the next one serves");
    life.end().await;
}

#[tokio::test]
async fn a_data_chunk_whose_own_device_has_no_room_says_so() {
    let life = life().await;
    let lane = (life.service.lane_stream(), Priority::Normal);
    let all = Op::Reserve { owner: 7, least: 1, bytes: u64::MAX };
    let reserved = medium::ask(&life.device(0), lane, all).await;
    assert!(matches!(reserved, Ok(OpOutput::Reserved { bytes: 1.. })), "{reserved:?}");
    let said = make(&life, &update()).await.unwrap_err().to_string();
    assert!(said.contains("its device has no room"), "{said}");
    life.end().await;
}

/// Its device, or one with parity, stands still: what it keeps open would have others wait for it.
#[tokio::test]
async fn a_host_that_cannot_level_leaves_however_often_it_is_asked_to() {
    let life = life().await;
    let updates = &life.service.updates;
    make(&life, &update()).await.unwrap();
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let still = Box::new(move |_: Result<OpOutput, OpError>| assert!(waits.recv().is_err()));
    life.device(SHAPE.data).lane.submit(life.service.lane_stream(), Priority::Normal, Op::Barrier, still);
    // Whoever asked gives up.
    let made = tokio::time::timeout(Duration::from_millis(200), make(&life, &update())).await;
    assert!(made.is_err(), "{made:?}");
    // There are many, so that it need not be as long.
    let mut others = Vec::new();
    for segment in (100..).take(HOSTS_MAX / 4).map(SegmentId) {
        updates.data.tell(device_of(0), segment, Event::Begin, |events, _| others.push(events)).unwrap();
    }
    let is_there = || updates.data.lock().contains_key(&(device_of(0), SEGMENT));
    assert!(is_there());
    let left = async {
        while is_there() {
            updates.begin(life.device(0), SEGMENT);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), left).await.expect("it leaves");
    drop((others, go_on));
    life.end().await;
}
