//! Single merges, against a device of a parity chunk and its lane.

use super::super::{Chunk, Merges, medium, merge::Merge};
use super::*;
use std::{
    pin::{Pin, pin},
    sync::mpsc as answers,
    task::{Context, Poll, Waker},
};
use steadfast_disk::{Op, OpOutput, Priority, device::Apply};
use steadfast_protocol::message::NodeFault;
use tokio::sync::watch;

const GRANULE: u64 = PARITY_GRANULE_BYTES as u64;
/// The first parity chunk.
const PARITY: u32 = SHAPE.data;
const STREAM: u64 = 5;

/// What is wrong with a granule.
#[derive(Clone, Copy)]
enum Wrong {
    Damaged,
    Unreadable,
}

/// A chunk on a device whose lane waits while `power` is taken, and one granule of it that is wrong.
fn chunk(power: &Arc<RwLock<()>>, wrong: Option<(u64, Wrong)>) -> Arc<Chunk> {
    let memory = Arc::new(CrashMedium::from_image(stored(PARITY, RESERVE_BYTES)));
    let unreadable = Arc::default();
    let medium = Slow {
        memory: memory.clone(),
        power: power.clone(),
        flush_takes: Duration::ZERO,
        unreadable: Arc::clone(&unreadable),
    };
    let device = Device::open(Arc::new(medium), Some(CLUSTER)).unwrap();
    if let Some((granule, wrong)) = wrong {
        let at = device.locate_chunk(SEGMENT, granule * GRANULE).unwrap();
        match wrong {
            Wrong::Damaged => memory.write_at(at, &[1; GRANULE as usize]).unwrap(),
            Wrong::Unreadable => *unreadable.lock().unwrap() = at..at + GRANULE,
        }
    }
    let lane = Lane::spawn(device, LaneConfig::default()).unwrap();
    let device = ServedDevice::new(device_of(PARITY), PathBuf::new(), lane, None, AdmissionPolicy::default());
    let holders = (0..SHAPE.chunks).map(device_of).collect();
    let (device, number) = (Arc::new(device), PARITY);
    let (segment, version, epoch, shape) = (SEGMENT, VERSION, EPOCH, SHAPE);
    Arc::new(Chunk { device, segment, version, epoch, shape, number, holders })
}

fn of() -> Arc<ParityOf> {
    let (data, parity) = (SHAPE.data as u16, SHAPE.parity() as u16);
    Arc::new(ParityOf::new(data, parity, 0, SHAPE.chunk_bytes()).unwrap())
}

fn merge_of(chunk: &Arc<Chunk>) -> (Merge, watch::Sender<Haste>) {
    let (haste, told) = watch::channel(Haste::None);
    (Merge::new(chunk.clone(), of(), STREAM, told), haste)
}

async fn ask(chunk: &Chunk, op: Op) -> OpOutput {
    medium::ask(&chunk.device, (1, Priority::Normal), op).await.unwrap()
}

/// Logs changes of granules 0 and 2 of the first data chunk, and merges them; the merge's outcome, and both rows as they are to be.
async fn merge_two_rows(chunk: &Arc<Chunk>) -> (Result<(), Fault>, Vec<(u64, Vec<u8>)>) {
    let mut rows = Vec::new();
    for (version, offset) in [(1, 0), (2, 2 * GRANULE)] {
        let bytes = Bytes::from(vec![version as u8; GRANULE as usize]);
        let difference = Difference { chunk: 0, version, offset, sums: vec![0], bytes };
        rows.push((offset, of().product(&difference).unwrap()));
        let payload = difference.encode();
        ask(chunk, Op::LogAppend { segment: SEGMENT, epoch: EPOCH, sequence: None, payload }).await;
    }
    let (merge, _haste) = merge_of(chunk);
    (merge.make(&[1, 2], vec![(0, 2)], 3).await, rows)
}

#[tokio::test]
async fn damage_between_the_rows_of_a_merge_does_not_keep_it() {
    for wrong in [Wrong::Damaged, Wrong::Unreadable] {
        let chunk = chunk(&Arc::default(), Some((1, wrong)));
        let (made, rows) = merge_two_rows(&chunk).await;
        made.unwrap();
        for (offset, row) in rows {
            let read = Op::ReadChunk { segment: SEGMENT, offset, len: GRANULE as u32 };
            let OpOutput::Chunk { data, state, .. } = ask(&chunk, read).await else { panic!() };
            assert_eq!((&data[..], state.merged, state.logged), (&row[..], vec![(0, 2)], false));
        }
    }
}

#[tokio::test]
async fn a_merge_into_a_damaged_row_changes_nothing() {
    for wrong in [Wrong::Damaged, Wrong::Unreadable] {
        let chunk = chunk(&Arc::default(), Some((2, wrong)));
        let (made, _) = merge_two_rows(&chunk).await;
        // No other merge changes that: whoever stores the segment anew does.
        assert!(matches!(made, Err(Fault::Node(NodeFault::DamagedParity { .. }))), "{made:?}");
        let OpOutput::Updates(info) = ask(&chunk, Op::DescribeUpdates { segment: SEGMENT }).await else {
            panic!()
        };
        assert_eq!((info.merged, info.log.len()), (vec![], 2));
    }
}

#[tokio::test]
async fn an_epoch_that_is_raised_while_a_merge_is_made_does_not_end_it() {
    let chunk = chunk(&Arc::default(), None);
    ask(&chunk, Op::Fence { segment: SEGMENT, epoch: Epoch(EPOCH.0 + 4) }).await;
    let (mut merge, _haste) = merge_of(&chunk);
    let apply = Apply { merged: vec![(0, 1)], ..Apply::default() };
    merge.put(EPOCH, apply).await.unwrap();
    let OpOutput::Updates(info) = ask(&chunk, Op::DescribeUpdates { segment: SEGMENT }).await else {
        panic!()
    };
    assert_eq!((info.merged, info.epoch), (vec![(0, 1)], Epoch(EPOCH.0 + 4)));
}

/// What a future comes to without waiting.
fn now<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn one_merge_that_somebody_waits_for_goes_before_all_others() {
    let power = Arc::default();
    let chunk = chunk(&power, None);
    let lane = &chunk.device.lane;
    let (say, said) = answers::channel();
    let submit = |op| {
        let say = say.clone();
        lane.submit(1, Priority::Normal, op, Box::new(move |answer| say.send(answer).unwrap()));
    };
    let (mut merge, haste) = merge_of(&chunk);
    let (_second_haste, told) = watch::channel(Haste::Now);
    let mut second = Merge::new(chunk.clone(), of(), STREAM + 1, told);
    let [raised, again] = [1, 2].map(|more| Epoch(EPOCH.0 + more));
    let mut merged = pin!(merge.ask(Op::Fence { segment: SEGMENT, epoch: raised }));
    let mut merged_again = pin!(second.ask(Op::Fence { segment: SEGMENT, epoch: again }));
    {
        let _off = power.write().unwrap();
        submit(Op::ReadChunk { segment: SEGMENT, offset: 0, len: 1 });
        // Far longer than anything takes that needs no medium.
        while lane.status().in_flight_age.is_none_or(|age| age < Duration::from_millis(50)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let queued = lane.status().queued;
        assert!(now(merged.as_mut()).is_pending());
        assert_eq!(lane.status().queued, queued + 1);
        submit(Op::DescribeUpdates { segment: SEGMENT });
        for more in [Haste::Soon, Haste::Now] {
            haste.send(more).unwrap();
            assert!(now(merged.as_mut()).is_pending());
            assert_eq!(lane.status().queued, queued + 2, "once");
        }
        // None of these has begun; another merge waits for its turn like anybody else.
        assert!(now(merged_again.as_mut()).is_pending());
    }
    merged.await.unwrap();
    merged_again.await.unwrap();
    let Ok(OpOutput::Chunk { .. }) = said.recv().unwrap() else { panic!() };
    let Ok(OpOutput::Updates(info)) = said.recv().unwrap() else { panic!() };
    assert_eq!(info.epoch, raised, "between the one merge and the other");
}

#[tokio::test]
async fn an_urgent_merge_waits_for_no_quiet_one() {
    let permits = Merges::default();
    let (_never, mut quiet) = watch::channel(Haste::None);
    let (tell, mut other) = watch::channel(Haste::None);
    let first = permits.take(&mut quiet).await;
    {
        let mut second = pin!(permits.take(&mut other));
        assert!(now(second.as_mut()).is_pending(), "one quiet merge at a time");
        tell.send(Haste::Soon).unwrap();
        assert!(now(second.as_mut()).is_ready());
    }
    tell.send(Haste::None).unwrap();
    let mut third = pin!(permits.take(&mut other));
    assert!(now(third.as_mut()).is_pending());
    drop(first);
    assert!(now(third.as_mut()).is_ready());
}
