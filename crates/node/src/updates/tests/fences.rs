//! Epochs that a device refuses: under what it has flushed.

use super::*;
use steadfast_net::{CallError, Open};
use steadfast_protocol::message::{NodeAnswer, NodeFault, NodeRequest, Priority as Class};

const CHUNK: u32 = 0;

/// What the node of a chunk's device says to a fence.
async fn fence(life: &Life, epoch: Epoch) -> Result<NodeAnswer, Fault> {
    let connection = life.service.updates.peers.connection(device_of(CHUNK)).await.unwrap();
    let request = NodeRequest::Fence { device: device_of(CHUNK), segment: SEGMENT };
    let (body, deadline) = (message::encode(&request), Some(Duration::from_secs(60)));
    let open = Open { body, priority: Class::Foreground, epoch, deadline, credit: 0 };
    match connection.call(open).await {
        Ok((answer, _)) => Ok(message::decode(&answer).expect("a node's answer")),
        Err(CallError::Fault(fault)) => Err(fault),
        Err(other) => panic!("{other}"),
    }
}

/// Whoever is told of a later epoch takes the older one for ended, also where power is lost then.
#[tokio::test]
async fn a_later_epoch_is_told_once_it_is_durable() {
    let images = (0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect();
    let life = Arc::new(Life::begin(images, SHAPE.chunks).await);
    let device = life.device(CHUNK);
    let lane = &device.lane;
    // What is submitted now is served together.
    let (stand, stands) = std::sync::mpsc::channel();
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let standing = Box::new(move |_: Result<OpOutput, OpError>| {
        stand.send(()).unwrap();
        assert!(waits.recv().is_err());
    });
    lane.submit(life.service.lane_stream(), Priority::Normal, Op::Barrier, standing);
    tokio::task::spawn_blocking(move || stands.recv().unwrap()).await.unwrap();
    let (earlier, later) = (Epoch(EPOCH.0 + 4), Epoch(EPOCH.0 + 5));
    let (say, mut fenced) = tokio::sync::oneshot::channel();
    let op = Op::Fence { segment: SEGMENT, epoch: later };
    let reply = Box::new(move |answer| say.send(answer).unwrap());
    lane.submit(life.service.lane_stream(), Priority::Normal, op, reply);
    let telling = {
        let life = life.clone();
        tokio::spawn(async move { fence(&life, earlier).await })
    };
    let both = async {
        while lane.status().queued < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), both).await.expect("both wait for the device");
    // And nothing is flushed before this ends.
    let (let_go, hold) = std::sync::mpsc::channel::<()>();
    let (held, holds) = std::sync::mpsc::channel();
    let power = life.power.clone();
    let off = std::thread::spawn(move || {
        let _off = power.write().unwrap();
        held.send(()).unwrap();
        assert!(hold.recv().is_err());
    });
    tokio::task::spawn_blocking(move || holds.recv().unwrap()).await.unwrap();
    drop(go_on);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!telling.is_finished(), "it may be lost yet: {:?}", telling.await);
    assert!(fenced.try_recv().is_err());
    drop(let_go);
    let told = tokio::time::timeout(Duration::from_secs(60), telling).await.expect("it is told").unwrap();
    let stale = NodeFault::StaleEpoch { given: earlier.0, current: later.0 };
    assert_eq!(told, Err(Fault::Node(stale)));
    assert_eq!(fenced.await.unwrap(), Ok(OpOutput::Fenced));
    off.join().unwrap();
    Arc::into_inner(life).expect("all were told").end().await;
}
