//! The request rule that a wish for a latency gives ([`crate::plan::fetch`]): where it leaves the read to the adaptive
//! rule, that is done in time, also when a device fails, early, late, or without a word.

use super::{
    super::*,
    model::{Fate, Node, Run, run},
};
use crate::{
    NodeId,
    message::DeviceHealth,
    plan::{self, Candidate, Holding, Quality, Wish},
};

const BLOCK: u32 = 64 << 10;
const K: u32 = 512;
const DEVICES: u32 = 6;
/// What a reservation promises of a device's speed; the model's devices give no more.
const PROMISED: f64 = 0.9;

fn holds(device: u32) -> IndexRanges {
    (0..K * 3 / 2).filter(|index| index % DEVICES == device).collect()
}

fn candidate(device: u32, rate: f64) -> Candidate {
    Candidate {
        device: DeviceId(device.into()),
        node: NodeId(device.into()),
        site: String::new(),
        free_bytes: 0,
        queue_length: 0,
        read_bytes_per_s: rate as u64,
        write_bytes_per_s: rate as u64,
        alive: true,
        health: DeviceHealth::Ok,
        reserved_read_bytes_per_s: 0,
        reserved_write_bytes_per_s: 0,
        sharing_ppm: [0; 4],
        refused: false,
        given: 0,
    }
}

/// The shortest latency that can be wished for without everything being asked for, by the planner's word.
fn shortest(rate: f64, round_trip: Duration) -> Duration {
    let candidates: Vec<Candidate> = (0..DEVICES).map(|device| candidate(device, rate)).collect();
    let bytes = u64::from(holds(0).count() * BLOCK);
    let holding = |candidate: &Candidate| Holding { device: candidate.device, bytes, spare_bytes: 0 };
    let holdings: Vec<Holding> = candidates.iter().map(holding).collect();
    let mut latency = Duration::from_millis(1);
    loop {
        let quality = Quality { latency: Some(latency), ..Quality::default() };
        let asked = plan::fetch(&holdings, &candidates, u64::from(K * BLOCK), &Wish { quality, round_trip });
        if asked.is_ok_and(|fetch| fetch.rule.is_none()) {
            return latency;
        }
        latency = latency.mul_f64(1.01);
        assert!(latency < Duration::from_secs(3600), "everything is always asked for");
    }
}

fn read(rate: f64, delay_ns: u64, fate: Fate) -> Run {
    let source = |device: u32| Source {
        device: DeviceId(device.into()),
        blocks: holds(device),
        read_bytes_per_s: rate as u64,
        queue_length: 0,
    };
    let plan = ReadPlan {
        sources: (0..DEVICES).map(source).collect(),
        originals: K,
        extra_blocks: 0,
        block_bytes: BLOCK,
        rule: RequestRule::ADAPTIVE,
        patience: PATIENCE,
        round_trip: Some(Duration::from_nanos(2 * delay_ns)),
        payload_bytes_max: crate::message::PAYLOAD_BYTES_MAX,
        decoding: None,
        races: true,
        waits: true,
        late: Late::default(),
    };
    let node = |device: u32| {
        let fate = if device == 1 { fate } else { Fate::Well };
        (u128::from(device), Node::new(holds(device), rate * PROMISED, delay_ns, fate))
    };
    run(&plan, Adaptive::new(Time(0), plan.clone()), (0..DEVICES).map(node).collect())
}

#[test]
fn what_is_left_to_the_adaptive_rule_is_done_in_time() {
    for (delay_ns, rate) in [(500_000, 20e6), (500_000, 500e6), (5_000_000, 100e6), (50_000_000, 20e6)] {
        let round_trip = Duration::from_nanos(2 * delay_ns);
        let latency = shortest(rate, round_trip);
        // Looking it up and reserving is over by now.
        let left = latency - 2 * round_trip;
        let share = K / DEVICES;
        for fate in [
            Fate::Well,
            Fate::Silent,
            Fate::FailsAtTheEnd,
            Fate::FailsAfter(0),
            Fate::FailsAfter(share / 2),
            Fate::FailsAfter(share - 5),
        ] {
            let run = read(rate, delay_ns, fate);
            assert!(run.outcome.is_ok());
            let took = Duration::from_nanos(run.ended_ns);
            println!("{delay_ns} ns, {rate} B/s, {fate:?}: {took:?} of {left:?}");
            assert!(took <= left, "{delay_ns} ns, {rate} B/s, {fate:?}: {took:?} of {left:?}");
            // And it costs nothing while all is well.
            let asked = run.counts.requested_blocks;
            assert!(fate != Fate::Well || asked <= K + K / 20, "{asked} blocks asked for");
        }
    }
}
