//! A small cluster in one server, as tests of several rooms take it; and what becomes of wishes there.

use super::{asking::Asking, *};
use crate::{PutError, metadata::Metadata};
use steadfast_net::{Opened, Server, Stream};
use steadfast_protocol::{
    NodeId, SegmentId, Version,
    layout::{CodeSpec, Holder, PARITY_GRANULE_BYTES, ParityGeometry},
    message::{
        DeviceHealth, DeviceReport, Hello, NodeActivity, NodeAnswer, NodeRecord, NodeState, Registry, Role,
        Standing, VERSION,
    },
    read::Caution,
};
use tokio::sync::mpsc;

const SHAPE: ParityGeometry = ParityGeometry { chunks: 4, data: 2, blocks: 4, block_bytes: 16 << 10 };
/// What each device gives.
const READ_BYTES_PER_S: u64 = 1_000_000;

pub(crate) fn device_of(chunk: u32) -> DeviceId {
    DeviceId(10 + u128::from(chunk))
}

/// A segment of chunks, each on a device of its own.
pub(crate) fn layout() -> SegmentLayout {
    let (segment, version) = (SegmentId(7), Version(1));
    let holder = |chunk| Holder::whole(device_of(chunk), segment, version, SHAPE.blocks_of(chunk).into());
    SegmentLayout {
        segment,
        version,
        epoch: Epoch(1),
        length: SHAPE.capacity_bytes(),
        code: CodeSpec { kind: SHAPE.code(), originals: SHAPE.originals(), seed: 0 },
        block_bytes: SHAPE.block_bytes,
        granule_bytes: PARITY_GRANULE_BYTES,
        holders: (0..SHAPE.chunks).map(holder).collect(),
    }
}

/// An object of such a segment.
pub(crate) fn found() -> ObjectStat {
    let layout = layout();
    ObjectStat { segments: vec![layout.clone()], ..crate::amend::found(&[layout.length]) }
}

/// A client that knows one server, which has the devices of [`layout`]. Nobody asks its metadata server anything.
pub(crate) fn client(address: &str, standings: Vec<Standing>) -> Client {
    let report = |chunk| DeviceReport {
        device: device_of(chunk),
        health: DeviceHealth::Ok,
        capacity_bytes: 1 << 30,
        free_bytes: 1 << 30,
        read_bytes_per_s: READ_BYTES_PER_S,
        write_bytes_per_s: READ_BYTES_PER_S,
        queue_length: 0,
        extents: 1,
        fragments: 0,
        corrupt_blocks: 0,
        medium_read_bytes: 0,
        medium_written_bytes: 0,
        overruns_ppm: 0,
        activity: Default::default(),
        reserved_read_bytes_per_s: 0,
        reserved_write_bytes_per_s: 0,
        sharing_ppm: [0; 4],
    };
    let record = NodeRecord {
        node: NodeId(1),
        cluster: None,
        address: address.to_owned(),
        site: String::new(),
        devices: (0..SHAPE.chunks).map(|chunk| (device_of(chunk), 1 << 30)).collect(),
    };
    let devices = (0..SHAPE.chunks).map(report).collect();
    let activity = NodeActivity::default();
    let nodes = vec![NodeState { record, alive: true, silent_ms: Some(0), devices, activity }];
    let hello = Hello { version: VERSION, features: 0, role: Role::Client, cluster: None };
    let pool = Pool::new(hello, steadfast_net::Options::default());
    let (memory, tidying, hedge, unserved) = Default::default();
    Client {
        metadata: Metadata::new("127.0.0.1:1", pool.clone(), 1, Duration::from_secs(10)),
        pool,
        options: crate::Options::default(),
        seed: 1,
        memory,
        tidying,
        registry: Mutex::new(Registry { nodes, standings, ..Registry::default() }),
        hedge,
        caution: Mutex::new(Caution::new(1, RequestRule::default())),
        lessons: tokio::sync::Notify::new(),
        unserved,
        started: std::time::Instant::now(),
    }
}

/// Where a server listens that does this with each request.
pub(crate) async fn serving(answer: impl Fn(NodeRequest, Stream) + Send + Sync + 'static) -> String {
    serving_opened(move |request, _, stream| answer(request, stream)).await
}

/// The same with what each request came with.
pub(crate) async fn serving_opened(
    answer: impl Fn(NodeRequest, Opened, Stream) + Send + Sync + 'static,
) -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap().to_string();
    let hello = Hello { version: VERSION, features: 0, role: Role::Node(NodeId(1)), cluster: None };
    let answer = Arc::new(answer);
    tokio::spawn(server.serve(hello, steadfast_net::Options::default(), move |connected| {
        let (answer, mut incoming) = (Arc::clone(&answer), connected.incoming);
        async move {
            while let Some((opened, stream)) = incoming.next().await {
                answer(message::decode(&opened.body).unwrap(), opened, stream);
            }
        }
    }));
    address
}

#[tokio::test]
async fn one_that_is_silent_does_not_hold_up_the_renewals_of_others_until_their_leases_end() {
    let (heard, mut renewals) = mpsc::unbounded_channel();
    let well = serving(move |_, stream| {
        // Nobody counts them any more.
        let _ = heard.send(Instant::now());
        let _ = stream.end(message::encode(&NodeAnswer::Reserved { lease_ms: 2000 }));
    })
    .await;
    let unanswered = Mutex::new(Vec::new());
    let silent = serving(move |_, stream| unanswered.lock().unwrap().push(stream)).await;
    let client = client(&well, Vec::new());
    for address in [&well, &silent] {
        client.pool.connection(address).await.unwrap();
    }
    let quality = Quality { latency: Some(Duration::from_millis(10)), ..Quality::default() };
    let reserved = Reserved::new(&client, Access::Read, quality, 1);
    assert!(reserved.lease < RENEWALS * Answers::WITHIN, "{:?}", reserved.lease);
    for (number, address) in (1..).zip([well, silent]) {
        let kept = Kept { id: ReservationId(number), address, bytes_per_s: 1 };
        reserved.held().insert(DeviceId(number), kept);
    }
    // It stands still but while nothing is to be done.
    tokio::time::pause();
    let in_time = async {
        let mut before = renewals.recv().await.unwrap();
        // One may be long on its way through the kernel.
        for _ in 0..20 {
            let renewal = renewals.recv().await.unwrap();
            if renewal - before < reserved.lease {
                return true;
            }
            before = renewal;
        }
        false
    };
    tokio::select! {
        never = reserved.renewing() => match never {},
        in_time = in_time => assert!(in_time, "its lease ends each time"),
    }
}

/// Heartbeats come while it goes on: what they say of its devices is what it does there.
#[tokio::test]
async fn a_later_part_is_not_refused_for_what_the_earlier_ones_do() {
    let client = client("127.0.0.1:1", Vec::new());
    for report in &mut client.registry.lock().unwrap().nodes[0].devices {
        (report.queue_length, report.reserved_write_bytes_per_s) = (4, READ_BYTES_PER_S);
    }
    // 3 MiB with the redundancy: 0.92 s of four quiet devices that are slow, 1.44 s behind such queues.
    let length = 2 << 20;
    let quality = Quality { latency: Some(Duration::from_millis(2200)), ..Quality::default() };
    let wish = Wish { quality, round_trip: Duration::from_millis(1) }.part(length, 2 * length);
    let policy = "rateless:tolerate=0".parse().unwrap();
    let wanted = Wanted { policy, length, bandwidth_bytes_per_s: None, seed: 1 };
    let (leaving, dealt) = (BTreeSet::new(), Dealt::default());
    let reserved = Reserved::new(&client, Access::Write, quality, 2 * length);
    let planned = client.plan_write(&reserved, &wanted, &wish, &leaving, &dealt).await;
    assert!(matches!(planned, Err(Denied::Plan(PlanError::Latency { .. }))), "others are there");
    for chunk in 0..SHAPE.chunks {
        let (id, address) = (ReservationId(chunk.into()), "127.0.0.1:1".to_owned());
        let kept = Kept { id, address, bytes_per_s: READ_BYTES_PER_S };
        reserved.held().insert(device_of(chunk), kept);
    }
    let planned = client.plan_write(&reserved, &wanted, &wish, &leaving, &dealt).await;
    assert_eq!(planned.map_err(PutError::from).unwrap().devices.len(), 4);
}

/// What drains serves what it holds until that has left.
#[tokio::test]
async fn a_read_with_a_wish_counts_on_devices_that_drain() {
    let standings = vec![Standing { device: device_of(1), arrivals: 0 }];
    let client = client("127.0.0.1:1", standings);
    let bandwidth_bytes_per_s = Some(100 * READ_BYTES_PER_S);
    let quality = Quality { bandwidth_bytes_per_s, ..Quality::default() };
    let wish = Wish { quality, round_trip: Duration::from_millis(1) };
    let found = found();
    let planned = client.plan_read(&found, 0..found.object.size, &wish).await;
    // More than they have: what they could give is said, and none of them is asked.
    match planned.map(|_| ()) {
        Err(GetError::Plan(PlanError::Bandwidth { devices, .. })) => assert_eq!(devices, SHAPE.chunks),
        other => panic!("{other:?}"),
    }
}

/// A server of which the device that is first asked to keep something says nothing; which devices are asked.
async fn partly_silent() -> (String, mpsc::UnboundedReceiver<DeviceId>) {
    let (heard, asked) = mpsc::unbounded_channel();
    let silent = Mutex::new((None, Vec::new()));
    let address = serving(move |request, stream| {
        let NodeRequest::Reserve(wish) = request else {
            let _ = stream.end(message::encode(&NodeAnswer::Done));
            return;
        };
        // Nobody counts them any more.
        let _ = heard.send(wish.device);
        let mut silent = silent.lock().unwrap();
        let (mute, unanswered) = &mut *silent;
        if *mute.get_or_insert(wish.device) == wish.device {
            unanswered.push(stream);
        } else {
            let _ = stream.end(message::encode(&NodeAnswer::Reserved { lease_ms: 2000 }));
        }
    })
    .await;
    (address, asked)
}

#[tokio::test]
async fn one_that_is_silent_costs_little_and_what_it_costs_is_not_promised_again() {
    let (address, mut asked) = partly_silent().await;
    let client = client(&address, Vec::new());
    client.pool.connection(&address).await.unwrap();
    // 3 MiB with the redundancy: 3.9 s of one device when it is slow, 1.9 s of two.
    let (length, latency) = (2 << 20, Duration::from_secs(4));
    let quality = Quality { latency: Some(latency), ..Quality::default() };
    let wish = Wish { quality, round_trip: Duration::from_millis(1) };
    let policy = "rateless:tolerate=0".parse().unwrap();
    let wanted = Wanted { policy, length, bandwidth_bytes_per_s: None, seed: 1 };
    let (leaving, dealt) = (BTreeSet::new(), Dealt::default());
    let reserved = Reserved::new(&client, Access::Write, quality, length);
    let begun = Instant::now();
    let mut mute = None;
    // Of what is left one device has too little, also for what follows; a sixteenth of the time is waited for once.
    for _ in 0..2 {
        let planned = client.plan_write(&reserved, &wanted, &wish, &leaving, &dealt).await;
        let devices = planned.map_err(PutError::from).unwrap().devices;
        let mute = *mute.get_or_insert_with(|| asked.try_recv().unwrap());
        assert_eq!(devices.len(), 2);
        assert!(devices.iter().all(|planned| planned.device != mute));
        while let Ok(device) = asked.try_recv() {
            assert_ne!(device, mute, "asked again");
        }
    }
    assert!(begun.elapsed() < Answers::WITHIN, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn where_the_others_do_not_suffice_one_is_waited_for_as_long_as_there_is_time() {
    let (address, _asked) = partly_silent().await;
    let client = client(&address, Vec::new());
    client.pool.connection(&address).await.unwrap();
    // 0.92 s of four devices when they are slow, 1.24 s of three.
    let (length, latency) = (2 << 20, Duration::from_millis(950));
    let quality = Quality { latency: Some(latency), ..Quality::default() };
    let wish = Wish { quality, round_trip: Duration::from_millis(1) };
    let policy = "rateless:tolerate=0".parse().unwrap();
    let wanted = Wanted { policy, length, bandwidth_bytes_per_s: None, seed: 1 };
    let reserved = Reserved::new(&client, Access::Write, quality, length);
    let begun = Instant::now();
    let planned = client.plan_write(&reserved, &wanted, &wish, &BTreeSet::new(), &Dealt::default()).await;
    let waited = begun.elapsed();
    assert!(latency / 2 <= waited && waited < Answers::WITHIN, "{waited:?}");
    match planned.map_err(PutError::from).unwrap_err() {
        PutError::Busy(Busy { cause: Some(cause), refused: 1, .. }) => match *cause {
            // With what the waiting took.
            PlanError::Latency { wanted, expected, .. } => {
                assert!(wanted == latency && expected.late > latency, "{expected:?}");
            }
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_answer_that_comes_late_counts_and_what_never_came_is_given_back() {
    let (heard, mut told) = mpsc::unbounded_channel();
    let address = serving(move |request, stream| {
        let _ = heard.send(request);
        let _ = stream.end(message::encode(&NodeAnswer::Done));
    })
    .await;
    let client = client(&address, Vec::new());
    let quality = Quality { latency: Some(Duration::from_secs(60)), ..Quality::default() };
    let reserved = Reserved::new(&client, Access::Write, quality, 1);
    let [late, silent] = [0, 1].map(device_of);
    let kept = |number| Kept { id: ReservationId(number), address: address.clone(), bytes_per_s: 1 };
    let mut asking = Asking::new(&reserved);
    asking.open.extend([(late, kept(1)), (silent, kept(2))]);
    reserved.answers().ask(reserved.now(), [late, silent], Duration::ZERO, Duration::ZERO);
    reserved.answers().give_up(reserved.now());
    let mut refusals = reserved.silent();
    assert_eq!(refusals.keys().copied().collect::<Vec<_>>(), [late, silent]);
    // What it was asked for before it was asked for something else is no answer.
    for kept in [kept(7), kept(1)] {
        asking.tasks.spawn(async move { (late, kept, Some(Ok(()))) });
    }
    assert!(asking.late(&mut refusals).await);
    assert!(!asking.late(&mut refusals).await, "there is no other");
    assert_eq!(reserved.held().get(&late), Some(&kept(1)));
    assert_eq!(refusals.into_keys().collect::<Vec<_>>(), [silent]);
    assert_eq!(reserved.silent().into_keys().collect::<Vec<_>>(), [silent]);
    drop(asking);
    match told.recv().await.unwrap() {
        NodeRequest::Release { device, reservation } => {
            assert_eq!((device, reservation), (silent, ReservationId(2)));
        }
        other => panic!("{other:?}"),
    }
}

/// While others are asked.
#[tokio::test]
async fn one_that_was_passed_over_and_answers_all_the_same_is_planned_with_again() {
    let unanswered = Mutex::new(Vec::new());
    let address = serving(move |_, stream| unanswered.lock().unwrap().push(stream)).await;
    let client = client(&address, Vec::new());
    client.pool.connection(&address).await.unwrap();
    let quality = Quality { latency: Some(Duration::from_millis(320)), ..Quality::default() };
    let reserved = Reserved::new(&client, Access::Write, quality, 1);
    let [willing, unwilling, silent] = [0, 1, 2].map(device_of);
    let kept = |number| Kept { id: ReservationId(number), address: address.clone(), bytes_per_s: 5 };
    let refusal = (RefusalReason::Reserved, Duration::from_millis(70));
    let mut asking = Asking::new(&reserved);
    let mut refusals = Refusals::new();
    for (number, device, answer) in [(1, willing, Ok(())), (2, unwilling, Err(refusal))] {
        refusals.insert(device, SILENT);
        asking.open.insert(device, kept(number));
        let kept = kept(number);
        asking.tasks.spawn(async move { (device, kept, Some(answer)) });
    }
    let waits = (Duration::from_millis(1), Duration::ZERO);
    assert!(!asking.keep(&client, &[(silent, 5)].into(), waits, &mut refusals).await);
    assert_eq!(refusals, [(unwilling, refusal), (silent, SILENT)].into());
    // What it keeps is there for the next plan, without another question.
    assert_eq!(reserved.held().clone(), [(willing, kept(1))].into());
    assert!(asking.keep(&client, &[(willing, 5)].into(), waits, &mut refusals).await);
    assert!(asking.waits_for(silent) && !asking.waits_for(willing));
}
