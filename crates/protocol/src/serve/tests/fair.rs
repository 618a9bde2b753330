use super::super::*;
use super::rng;
use crate::ReservationId;
use rand_core::Rng;
use std::collections::{BTreeMap, BTreeSet};

const SLICE: u64 = 256 << 10;
const A: Flow = Flow::Reserved(ReservationId(1));
const B: Flow = Flow::Reserved(ReservationId(2));

#[test]
fn flows_that_want_more_than_there_is_get_their_shares() {
    // The device takes 10 ms for each request, one at a time; all three always have four requests waiting.
    let weights = [(A, 0.5), (B, 0.3), (Flow::BestEffort, 0.2)];
    let mut fair = Fair::default();
    let mut owner = BTreeMap::new();
    let mut served: BTreeMap<Flow, u32> = BTreeMap::new();
    let mut request = 0;
    let mut ask = |fair: &mut Fair, owner: &mut BTreeMap<u64, Flow>, flow: Flow| {
        let weight = weights.iter().find(|(of, _)| *of == flow).unwrap().1;
        fair.submit(flow, weight, request, SLICE, 0.01);
        owner.insert(request, flow);
        request += 1;
    };
    for (flow, _) in weights {
        (0..4).for_each(|_| ask(&mut fair, &mut owner, flow));
    }
    for _ in 0..1000 {
        let next = fair.next(SLICE).unwrap();
        assert_eq!(fair.next(SLICE), None, "the depth is one request");
        let flow = owner[&next];
        *served.entry(flow).or_default() += 1;
        fair.finished(SLICE);
        ask(&mut fair, &mut owner, flow);
    }
    for (flow, weight) in weights {
        let share = f64::from(served[&flow]) / 1000.0;
        assert!((share - weight).abs() < 0.01, "{flow:?}: {share} of {weight}");
    }
}

#[test]
fn what_a_flow_does_not_use_goes_to_the_others_and_is_not_saved_up() {
    let mut fair = Fair::default();
    for request in 0..100 {
        fair.submit(Flow::BestEffort, 0.1, request, SLICE, 0.01);
    }
    // Nobody else asks: best effort has the whole device.
    for request in 0..50 {
        assert_eq!(fair.next(SLICE), Some(request));
        fair.finished(SLICE);
    }
    // The reservation begins: it is served next, and nine of ten from then on, but not for what it missed.
    for request in 1000..1100 {
        fair.submit(A, 0.9, request, SLICE, 0.01);
    }
    let order: Vec<u64> = (0..50)
        .map(|_| {
            let next = fair.next(SLICE).unwrap();
            fair.finished(SLICE);
            next
        })
        .collect();
    let reserved = order.iter().filter(|&&request| request >= 1000).count();
    assert!((43..=47).contains(&reserved), "{order:?}");
    assert!(order[..2].contains(&1000), "{order:?}");
}

#[test]
fn withdrawn_requests_are_gone_and_bytes_are_counted() {
    let mut fair = Fair::default();
    fair.passed(100);
    for request in 0..4 {
        fair.submit(A, 0.5, request, 10, 0.001);
    }
    assert_eq!((fair.waiting_bytes(), fair.next(100)), (40, None));
    fair.withdraw(|request| request % 2 == 0);
    assert_eq!(fair.waiting_bytes(), 20);
    fair.finished(100);
    assert_eq!((fair.next(100), fair.next(100), fair.next(100)), (Some(1), Some(3), None));
    assert!(fair.is_empty());
    fair.finished(20);
    assert_eq!(fair.next(0), None);
}

/// Adaptive readers ask several devices for more than they need, and take back what they did not; some of it is at the device by then.
#[test]
fn what_is_taken_back_costs_nothing() {
    for at_device in [false, true] {
        let (mut fair, mut charges) = (Fair::default(), Vec::new());
        let ask = |fair: &mut Fair, charges: &mut Vec<Charge>, flow: Flow| {
            charges.push(fair.submit(flow, 0.5, charges.len() as u64, SLICE, 0.01));
            charges.len() as u64 - 1
        };
        let (mut of_a, mut unwanted): (BTreeSet<u64>, BTreeSet<u64>) = Default::default();
        let mut served = [0, 0];
        for _ in 0..8 {
            ask(&mut fair, &mut charges, B);
        }
        for _ in 0..1000 {
            let asked = [(); 3].map(|()| ask(&mut fair, &mut charges, A));
            of_a.extend(asked);
            unwanted.extend(&asked[1..]);
            if !at_device {
                fair.withdraw(|request| unwanted.contains(&request));
            }
            for _ in 0..2 {
                let next = loop {
                    let next = fair.next(SLICE).unwrap();
                    fair.finished(SLICE);
                    if !unwanted.contains(&next) {
                        break next;
                    }
                    fair.refund(charges[next as usize]);
                };
                let is_b = !of_a.contains(&next);
                served[usize::from(is_b)] += 1;
                if is_b {
                    ask(&mut fair, &mut charges, B);
                }
            }
        }
        assert!((990..=1000).contains(&served[0]), "{served:?}, at the device: {at_device}");
    }
}

/// Requests of any sizes and times: each flow's come in order, none is lost, and the depth holds.
#[test]
fn any_schedule_loses_nothing() {
    for case in 0..100 {
        let mut random = rng(case);
        let mut draw = |n: u64| random.next_u64() % n;
        let flows = [A, B, Flow::BestEffort, Flow::Background];
        let (mut fair, mut bytes_of) = (Fair::default(), BTreeMap::new());
        let (mut waiting, mut at_device): (BTreeMap<Flow, Vec<u64>>, Vec<u64>) = Default::default();
        for request in 0..300 {
            let flow = flows[draw(4) as usize];
            let bytes = 1 + draw(1000);
            fair.submit(flow, 0.05 + draw(90) as f64 / 100.0, request, bytes, bytes as f64 / 1000.0);
            bytes_of.insert(request, bytes);
            waiting.entry(flow).or_default().push(request);
            let depth = 1 + draw(4000);
            while draw(3) > 0
                && let Some(next) = fair.next(depth)
            {
                let before: u64 = at_device.iter().map(|request| bytes_of[request]).sum();
                assert!(before < depth);
                at_device.push(next);
                let line = waiting.values_mut().find(|line| line.first() == Some(&next));
                line.expect("the first of its flow").remove(0);
            }
            if draw(2) == 0 && !at_device.is_empty() {
                let back = at_device.remove(0);
                fair.finished(bytes_of[&back]);
            }
        }
        while let Some(next) = fair.next(u64::MAX) {
            let line = waiting.values_mut().find(|line| line.first() == Some(&next));
            line.expect("the first of its flow").remove(0);
        }
        assert!(fair.is_empty() && waiting.values().all(Vec::is_empty));
    }
}

/// What a flow was charged before it rested put its later requests off by nothing.
#[test]
fn a_charge_from_before_a_rest_is_not_given_back() {
    let mut orders = Vec::new();
    for refunded in [false, true] {
        let mut fair = Fair::default();
        let charge = fair.submit(A, 1.0, 0, SLICE, 0.01);
        assert_eq!(fair.next(u64::MAX), Some(0));
        // Others go on meanwhile.
        (100..110).for_each(|request| {
            fair.submit(B, 1.0, request, SLICE, 0.01);
        });
        (0..6).for_each(|_| assert!(fair.next(u64::MAX).is_some()));
        (1..4).for_each(|request| {
            fair.submit(A, 1.0, request, SLICE, 0.01);
        });
        if refunded {
            fair.refund(charge);
        }
        orders.push(std::iter::from_fn(|| fair.next(u64::MAX)).collect::<Vec<_>>());
    }
    assert_eq!(orders[0], orders[1]);
}
