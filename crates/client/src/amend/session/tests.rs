//! What an amendment is made of, by servers that lack some of it.

use super::*;
use crate::{
    Ingest,
    amend::{
        faked::{self, Heard},
        parts::{self, Ranges, tests::found},
    },
    chunks::zeros,
    reserve::tests::{client, device_of, layout, serving, serving_opened},
};
use steadfast_protocol::{
    Epoch, IntentId,
    message::{
        self, ChunkVersions, DrainProgress, DrainState, Fault, IngestOpen, NodeAnswer, NodeFault, ReadRows,
        ReadState, RefusalReason, RowsAt, Standing, WriteOpen,
    },
};
use tokio::sync::mpsc;

/// One that has begun, of an object of one segment of chunks.
fn amendment<'a>(client: &'a Client, left: &'a Left<'a>) -> Amendment<'a> {
    let begun = PutBegun {
        intent: IntentId(1),
        version: Version(2),
        epoch: Epoch(2),
        segments: Vec::new(),
        policy: "parity".parse().unwrap(),
        lease_ms: 30_000,
    };
    let quality = Quality::default();
    Amendment {
        client,
        begun,
        made: Mutex::default(),
        primaries: Mutex::default(),
        object: ("data".to_owned(), "object".to_owned()),
        pledge: Pledge::default(),
        base: Version(1),
        size: layout().length,
        layouts: vec![layout()],
        wish: Wish::default(),
        asked: quality,
        reserved: Reserved::new(client, Access::Write, quality, 0),
        found: vec![layout()],
        left,
        gone: BTreeSet::new(),
        committing: Committing::default(),
        is_over: false,
    }
}

/// Where a server listens whose data chunks are at version 3, of the first of which parity has 5, and which brings that one forward where
/// it is told to. It is `asked` for rows in vain.
async fn outdated(asked: &Arc<Mutex<Vec<NodeRequest>>>) -> String {
    let asked = Arc::clone(asked);
    serving(move |request, stream| {
        let answer = match &request {
            NodeRequest::Fence { .. } => NodeAnswer::Done,
            NodeRequest::ChunkVersions { device, .. } => {
                let levels = |request: &NodeRequest| {
                    matches!(request, NodeRequest::Level { device: level, .. } if level == device)
                };
                let there = if asked.lock().unwrap().iter().any(levels) { 5 } else { 3 };
                let is_data = *device < device_of(2);
                let (version, held) = if is_data { (there, vec![]) } else { (0, vec![(0, 5), (1, 3)]) };
                NodeAnswer::ChunkVersions(ChunkVersions { version, held })
            }
            NodeRequest::Level { .. } => {
                asked.lock().unwrap().push(request.clone());
                NodeAnswer::Done
            }
            _ => {
                asked.lock().unwrap().push(request.clone());
                let (device, segment) = (device_of(0), layout().segment);
                return stream.fail(&Fault::Node(NodeFault::LacksChanges { device, segment }));
            }
        };
        // The client may be gone.
        let _ = stream.end(message::encode(&answer));
    })
    .await
}

/// Of two data and two parity chunks these say nothing: what is left is not enough to do without the one that lacks changes, or
/// nobody but its own node knows that it does.
#[tokio::test]
async fn what_a_chunk_lacks_is_given_up_only_when_nobody_may_have_it() {
    for silent in [[1, 3], [2, 3]] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let address = outdated(&asked).await;
        let (client, left, layout) = (client(&address, Vec::new()), Left::default(), layout());
        let silent = silent.map(device_of);
        let serves = |(device, _): &(DeviceId, u64)| !silent.contains(device);
        client.registry.lock().unwrap().nodes[0].record.devices.retain(serves);
        let read_as_it_is = || {
            let is_so = |request: &NodeRequest| {
                matches!(request, NodeRequest::ReadRows(ReadRows { at: RowsAt::Data(3), .. }))
            };
            asked.lock().unwrap().iter().any(is_so)
        };
        let mut amendment = amendment(&client, &left);
        assert!(amendment.fence(&layout, &BTreeSet::new()).await.unwrap(), "it was changed");
        let read = amendment.decode(&layout).await;
        let Err(AmendError::LacksChanges { awaited, .. }) = read else { panic!("{read:?}") };
        assert_eq!(awaited, silent);
        assert!(!read_as_it_is());
        // They do not come back: what is there is all there is.
        amendment.gone = silent.into();
        amendment.fence(&layout, &BTreeSet::new()).await.unwrap();
        let read = amendment.decode(&layout).await;
        assert!(matches!(read, Err(AmendError::Read(_))), "{read:?}");
        assert!(read_as_it_is());
    }
}

/// Whom somebody has told as lost nobody waits for; one that only drains may have what others lack.
#[tokio::test]
async fn whoever_makes_it_waits_for_what_drains_and_not_for_what_is_told_as_lost() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let address = outdated(&asked).await;
    let silent = [1, 3].map(device_of);
    let standings = silent.map(|device| Standing { device, arrivals: 0 });
    let (client, left, layout) = (client(&address, standings.to_vec()), Left::default(), layout());
    let serves = |(device, _): &(DeviceId, u64)| !silent.contains(device);
    client.registry.lock().unwrap().nodes[0].record.devices.retain(serves);
    let amendment = amendment(&client, &left);
    for told in 0..=silent.len() {
        let (lost, is_awaited) = silent.split_at(told);
        let drain = |&device: &DeviceId| {
            let lost = lost.contains(&device);
            let progress = DrainProgress { devices: vec![device], lost, ..DrainProgress::default() };
            DrainState { progress, silent_ms: 0 }
        };
        client.registry.lock().unwrap().drains = silent.iter().map(drain).collect();
        amendment.fence(&layout, &BTreeSet::new()).await.unwrap();
        match amendment.decode(&layout).await {
            Err(AmendError::LacksChanges { awaited, .. }) => assert_eq!(awaited, is_awaited),
            read => assert!(is_awaited.is_empty() && matches!(read, Err(AmendError::Read(_))), "{read:?}"),
        }
    }
}

#[tokio::test]
async fn what_lacks_changes_is_brought_forward_for_the_next_try() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let address = outdated(&asked).await;
    let (client, left, layout) = (client(&address, Vec::new()), Left::default(), layout());
    let silent = [1, 3].map(device_of);
    let serves = |(device, _): &(DeviceId, u64)| !silent.contains(device);
    client.registry.lock().unwrap().nodes[0].record.devices.retain(serves);
    let amendment = amendment(&client, &left);
    amendment.fence(&layout, &BTreeSet::new()).await.unwrap();
    assert_eq!(amendment.ended(layout.segment).outdated, [device_of(0)]);
    amendment.level(layout.segment);
    client.tidying.settled(std::time::Duration::from_secs(10)).await;
    amendment.fence(&layout, &BTreeSet::new()).await.unwrap();
    let ended = amendment.ended(layout.segment);
    assert!(ended.outdated.is_empty(), "{ended:?}");
}

/// Once it does not name what parity lacks any more, what parity has is all there is.
#[tokio::test]
async fn what_parity_lacks_of_a_chunk_that_fails_is_fenced_and_read_once_more() {
    for (parity_has, fences, serves) in [(3, 2, false), (3, 2, true), (5, 1, false)] {
        let fenced = Arc::new(Mutex::new(0u32));
        let counted = Arc::clone(&fenced);
        let [first, second] = [0, 1].map(device_of);
        let segment = layout().segment;
        let failed = move |device| Fault::Node(NodeFault::UnknownSegment { device, segment });
        let address = serving(move |request, stream| {
            let mut fences = counted.lock().unwrap();
            let answer = match request {
                NodeRequest::Fence { device, .. } => {
                    *fences += u32::from(device == first);
                    NodeAnswer::Done
                }
                NodeRequest::ChunkVersions { device, .. } if device != first || *fences == 1 => {
                    let version = if device == first { 5 } else { 0 };
                    let held = if device > second { vec![(0, parity_has), (1, 0)] } else { Vec::new() };
                    NodeAnswer::ChunkVersions(ChunkVersions { version, held })
                }
                NodeRequest::Read { device, .. } | NodeRequest::ReadRows(ReadRows { device, .. })
                    if serves && device != first =>
                {
                    let merged = if device > second { vec![(0, parity_has)] } else { Vec::new() };
                    return zeros::serve(&request, ReadState { merged, ..ReadState::default() }, stream);
                }
                _ => return stream.fail(&failed(first)),
            };
            // The client may be gone.
            let _ = stream.end(message::encode(&answer));
        })
        .await;
        let (client, left, layout) = (client(&address, Vec::new()), Left::default(), layout());
        let amendment = amendment(&client, &left);
        assert!(amendment.fence(&layout, &BTreeSet::new()).await.unwrap(), "it was changed");
        assert_eq!(amendment.ended(segment).ahead.is_empty(), fences == 1);
        let read = amendment.decode(&layout).await;
        assert!(read.is_ok() == serves && !matches!(read, Err(AmendError::LacksChanges { .. })), "{read:?}");
        let ended = amendment.ended(segment);
        assert!(ended.ahead.is_empty(), "{ended:?}");
        assert_eq!(*fenced.lock().unwrap(), fences);
    }
}

/// It has acknowledged changes that parity lacks, which would stand in for it.
#[tokio::test]
async fn a_chunk_that_is_late_is_not_given_up_for_what_parity_has_of_it() {
    for hangs_later in [false, true] {
        let [late, _, parity, lost] = [0, 1, 2, 3].map(device_of);
        let (fences, unanswered) = (Mutex::new(0u32), Mutex::new(Vec::new()));
        let address = serving_opened(move |request, opened, stream| {
            let mut fences = fences.lock().unwrap();
            let answer = match &request {
                NodeRequest::Fence { device, .. } if *device != lost => {
                    *fences += u32::from(*device == late);
                    (!hangs_later || *device != late || *fences == 1).then_some(NodeAnswer::Done)
                }
                NodeRequest::ChunkVersions { device, .. } if *device != lost => {
                    let version = if *device == late { 5 } else { 0 };
                    let held = if *device == parity { vec![(0, 3), (1, 0)] } else { Vec::new() };
                    Some(NodeAnswer::ChunkVersions(ChunkVersions { version, held }))
                }
                NodeRequest::Read { device, .. } | NodeRequest::ReadRows(ReadRows { device, .. })
                    if *device != lost && *device != late =>
                {
                    assert_eq!(
                        opened.epoch,
                        Epoch(0),
                        "its node is not to refuse what is known to lack changes"
                    );
                    let merged = if *device == parity { vec![(0, 3)] } else { Vec::new() };
                    return zeros::serve(&request, ReadState { merged, ..ReadState::default() }, stream);
                }
                _ => None,
            };
            match answer {
                Some(answer) => drop(stream.end(message::encode(&answer))),
                None => unanswered.lock().unwrap().push(stream),
            }
        })
        .await;
        let (mut client, left, layout) = (client(&address, Vec::new()), Left::default(), layout());
        client.options.patience = std::time::Duration::from_millis(100);
        client.registry.lock().unwrap().nodes[0].record.devices.retain(|(device, _)| *device != lost);
        let mut amendment = amendment(&client, &left);
        amendment.fence(&layout, &BTreeSet::new()).await.unwrap();
        assert_eq!(amendment.ended(layout.segment).ahead, [(0, 5)].into());
        let read = amendment.decode(&layout).await;
        let Err(AmendError::LacksChanges { awaited, .. }) = read else {
            panic!("parity is taken for it: {read:?}")
        };
        assert_eq!(awaited, [late, lost]);
        if hangs_later {
            // It has not named them once more in the next attempt, of which it has not heard.
            amendment = self::amendment(&client, &left);
            amendment.fence(&layout, &BTreeSet::new()).await.unwrap();
            assert_eq!(amendment.ended(layout.segment).ahead, [(0, 5)].into());
            let read = amendment.decode(&layout).await;
            assert!(matches!(read, Err(AmendError::LacksChanges { .. })), "{read:?}");
            // Where it is known as lost what parity has is all there is.
            amendment.gone = [late, lost].into();
            amendment.fence(&layout, &BTreeSet::new()).await.unwrap();
            let blocks = amendment.decode(&layout).await.unwrap();
            assert!(blocks.iter().flatten().all(|byte| *byte == 0));
        }
    }
}

/// Whatever parity was read when it did.
#[tokio::test]
async fn what_a_chunk_has_named_is_asked_of_parity_in_each_later_attempt() {
    let [late, other, parity, _] = [0, 1, 2, 3].map(device_of);
    let is_later = Arc::new(Mutex::new(false));
    let now = Arc::clone(&is_later);
    let address = serving(move |request, stream| {
        let is_later = *now.lock().unwrap();
        // Parity cannot be had at first, and the data chunk later.
        let serves = |device: DeviceId| device == other || device == if is_later { parity } else { late };
        let answer = match request {
            NodeRequest::Fence { device, .. } if serves(device) => NodeAnswer::Done,
            NodeRequest::ChunkVersions { device, .. } if serves(device) => {
                let version = if device == late { 5 } else { 0 };
                let held = if device == parity { vec![(0, 3), (1, 0)] } else { Vec::new() };
                NodeAnswer::ChunkVersions(ChunkVersions { version, held })
            }
            _ => return stream.fail(&Fault::Node(NodeFault::UnknownDevice(late))),
        };
        let _ = stream.end(message::encode(&answer));
    })
    .await;
    let (client, left, layout) = (client(&address, Vec::new()), Left::default(), layout());
    let first = amendment(&client, &left);
    assert!(first.fence(&layout, &BTreeSet::new()).await.unwrap(), "it was changed");
    let ended = first.ended(layout.segment);
    assert!(ended.ahead.is_empty() && ended.without.contains(&parity), "{ended:?}");
    *is_later.lock().unwrap() = true;
    let second = amendment(&client, &left);
    second.fence(&layout, &BTreeSet::new()).await.unwrap();
    let ended = second.ended(layout.segment);
    assert_eq!((ended.ahead, ended.ahead_on), ([(0, 5)].into(), [late].into()));
    // Another change knows nothing of it.
    let left = Left::default();
    let other_change = amendment(&client, &left);
    other_change.fence(&layout, &BTreeSet::new()).await.unwrap();
    let ended = other_change.ended(layout.segment);
    assert!(ended.ahead.is_empty(), "{ended:?}");
}

/// Where a server listens that says what it is asked for and answers nothing, but that it encodes nothing where it `refuses` that.
async fn silent(refuses: bool) -> (String, mpsc::UnboundedReceiver<NodeRequest>) {
    let (say, asked) = mpsc::unbounded_channel();
    let unanswered = Mutex::new(Vec::new());
    let address = serving(move |request, stream| {
        if refuses && matches!(request, NodeRequest::Ingest(_)) {
            stream.fail(&Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 1 });
        } else {
            unanswered.lock().unwrap().push(stream);
        }
        // Nobody counts them any more.
        let _ = say.send(request);
    });
    (address.await, asked)
}

/// One of an empty file, and the parts of what is written to it: so many segments of 1 MiB.
fn growing<'a>(client: &'a Client, left: &'a Left<'a>, ranges: &Ranges) -> (Amendment<'a>, Vec<parts::Part>) {
    let mut file = found(&[]);
    file.policy = "parity:code=rs(4,2),segment=1MiB,domain=device".parse().unwrap();
    let mut amendment = amendment(client, left);
    amendment.begun.policy = file.policy;
    amendment.layouts.clear();
    amendment.made().names.extend((1..100).map(SegmentId));
    let (parts, _) = parts::parts(&file, ranges, 0).unwrap();
    (amendment, parts)
}

#[tokio::test]
async fn segments_are_stored_several_at_a_time_and_known_when_that_is_given_up() {
    let ranges = [(0, Bytes::from(vec![7; 6 << 20]))];
    for (ingest, refuses) in [(Ingest::Client, false), (Ingest::Primary, false), (Ingest::Primary, true)] {
        let (address, mut asked) = silent(refuses).await;
        let (mut client, left) = (client(&address, Vec::new()), Left::default());
        client.options.ingest = ingest;
        let (amendment, parts) = growing(&client, &left, &ranges);
        assert_eq!(parts.len(), 6);
        let wish = Wish::default();
        let storing = client.store_parts(&amendment, parts, &ranges, &wish);
        // The names that nodes are to encode segments under, and those that clients write them under.
        let (mut handed_over, mut written) = (BTreeSet::new(), BTreeSet::new());
        let nodes_encode = ingest == Ingest::Primary && !refuses;
        let under_way = async {
            while (if nodes_encode { &handed_over } else { &written }).len() < 4 {
                match asked.recv().await.unwrap() {
                    NodeRequest::Ingest(IngestOpen { segment, .. }) => handed_over.insert(segment),
                    NodeRequest::Write(WriteOpen { segment, .. }) => written.insert(segment),
                    other => panic!("{other:?}"),
                };
            }
        };
        tokio::select! {
            stored = storing => panic!("nothing was confirmed: {stored:?}"),
            () = under_way => {}
        }
        assert_eq!((handed_over.is_empty(), written.is_empty()), (ingest == Ingest::Client, nodes_encode));
        assert!(handed_over.is_disjoint(&written), "what a node may still do is done under the old name");
        let touched: BTreeSet<SegmentId> =
            amendment.made().touched.iter().map(|&(_, segment)| segment).collect();
        assert_eq!(touched, &handed_over | &written, "to be freed");
    }
}

/// An amendment of an object of three segments, of which it has fenced two and written some blocks of another; and what those are.
async fn half_way<'a>(
    client: &'a Client,
    left: &'a Left<'a>,
) -> (Amendment<'a>, BTreeSet<(DeviceId, SegmentId)>) {
    let ranges = [(0, Bytes::from(vec![7; 6 << 20]))];
    let (mut amendment, parts) = growing(client, left, &ranges);
    let found = faked::object(3).segments;
    amendment.fence(&found[0], &BTreeSet::new()).await.unwrap();
    amendment.fence(&found[2], &BTreeSet::new()).await.unwrap();
    amendment.found = found;
    let wish = Wish::default();
    let storing = client.store_parts(&amendment, parts, &ranges, &wish);
    let under_way = async {
        while amendment.made().touched.len() < 16 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        stored = storing => panic!("nothing was confirmed: {stored:?}"),
        () = under_way => {}
    }
    let touched = amendment.made().touched.clone();
    (amendment, touched)
}

#[tokio::test]
async fn one_that_is_dropped_half_way_is_given_up_and_what_it_wrote_is_deleted() {
    let (heard, mut hears) = mpsc::unbounded_channel();
    let mut client = client(&faked::node(heard.clone()).await, Vec::new());
    let store = faked::metadata(&mut client, faked::object(3), heard).await;
    let left = Left::of(&client, ("data", "object"));
    let (amendment, touched) = half_way(&client, &left).await;
    let (intent, base, epoch) = (amendment.begun.intent, amendment.base, amendment.begun.epoch);
    store.lock().unwrap().knows(intent, base, epoch);
    drop(amendment);
    let heard = faked::settled(&client, &mut hears).await;
    let told = |heard: &Heard| matches!(heard, Heard::Meta(_));
    let [Heard::Meta(Change::GiveUp { intent: ended, fenced })] =
        &heard.iter().filter(|heard| told(heard)).collect::<Vec<_>>()[..]
    else {
        panic!("{heard:?}")
    };
    assert_eq!((*ended, &fenced[..]), (intent, &[SegmentId(1), SegmentId(3)][..]));
    assert_eq!(faked::deleted(&heard), touched);
    drop(left);
    assert!(faked::settled(&client, &mut hears).await.is_empty(), "all of it is open again");
}

/// It would have begun again, and stored anew what it has fenced.
#[tokio::test]
async fn one_that_is_dropped_after_another_writer_was_first_opens_what_it_has_fenced() {
    let (heard, mut hears) = mpsc::unbounded_channel();
    let mut client = client(&faked::node(heard.clone()).await, Vec::new());
    let store = faked::metadata(&mut client, faked::object(3), heard).await;
    let left = Left::of(&client, ("data", "object"));
    // So does what an attempt before it has left.
    left.add(&[SegmentId(2)].into(), Epoch(2));
    let (amendment, touched) = half_way(&client, &left).await;
    let (intent, base, epoch) = (amendment.begun.intent, amendment.base, amendment.begun.epoch);
    store.lock().unwrap().knows(intent, base, epoch);
    store.lock().unwrap().object.object.version = Version(77);
    drop(amendment);
    let heard = faked::settled(&client, &mut hears).await;
    match heard.iter().rfind(|heard| matches!(heard, Heard::Meta(_))) {
        Some(Heard::Meta(Change::GiveUp { fenced, .. })) => assert_eq!(fenced[..], [1, 2, 3].map(SegmentId)),
        other => panic!("{other:?}"),
    }
    let deletes = heard.iter().filter(|heard| matches!(heard, Heard::Node(NodeRequest::Delete { .. })));
    assert_eq!(deletes.count(), touched.len());
}

#[tokio::test]
async fn of_one_that_may_be_there_nothing_is_deleted() {
    let (heard, mut hears) = mpsc::unbounded_channel();
    let mut client = client(&faked::node(heard.clone()).await, Vec::new());
    let store = faked::metadata(&mut client, faked::object(3), heard).await;
    // Its commit was asked for; or it is over, and nobody here knows how.
    for has_begun in [true, false] {
        let left = Left::of(&client, ("data", "object"));
        let (amendment, _) = half_way(&client, &left).await;
        let (intent, base, epoch) = (amendment.begun.intent, amendment.base, amendment.begun.epoch);
        if has_begun {
            store.lock().unwrap().knows(intent, base, epoch);
            amendment.committing.begin();
        } else {
            store.lock().unwrap().forgets(intent);
        }
        drop(amendment);
        drop(left);
        let heard = faked::settled(&client, &mut hears).await;
        let is_deleted = |heard: &Heard| matches!(heard, Heard::Node(NodeRequest::Delete { .. }));
        let is_told = |heard: &Heard| matches!(heard, Heard::Meta(Change::GiveUp { .. }));
        assert!(!heard.iter().any(is_deleted), "{heard:?}");
        assert_eq!(heard.iter().any(is_told), !has_begun);
    }
}

#[test]
fn growth_of_the_last_segment_replaces_none() {
    let before = found(&[100, 50]).segments;
    assert!(only_grown(&before, &before) && only_grown(&[], &[]));
    assert!(only_grown(&before, &found(&[100, 80]).segments));
    for now in [&[100, 40][..], &[90, 50], &[100, 50, 1], &[100], &[]] {
        assert!(!only_grown(&before, &found(now).segments), "{now:?}");
    }
    let mut raised = before.clone();
    raised[1].epoch = Epoch(9);
    assert!(!only_grown(&before, &raised));
}
