//! What comes of negotiations in which devices answer late, or not at all.

use super::*;
use crate::reserve::{
    Kept,
    tests::{client, device_of, serving},
};
use std::{
    cell::Cell,
    sync::{Arc, Mutex},
};
use steadfast_net::Stream;
use steadfast_protocol::{
    ReservationId,
    message::{self, Access, Fault, NodeAnswer, NodeRequest, RefusalReason},
    plan::{Quality, candidates},
};
use tokio::sync::mpsc;

type Rates = Vec<(DeviceId, u64)>;

const NONE: PlanError = PlanError::TooFew { wish: "devices", wanted: 1, available: 0 };

fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

/// An access of a client of this server, with a wish for this latency.
fn access(address: &str, latency_ms: u64, round_trip_ms: u64) -> (Client, Arc<Reserved>, Wish) {
    let client = client(address, Vec::new());
    let quality = Quality { latency: Some(ms(latency_ms)), ..Quality::default() };
    let reserved = Reserved::new(&client, Access::Write, quality, 1);
    (client, reserved, Wish { quality, round_trip: ms(round_trip_ms) })
}

fn grant(stream: &Stream) {
    // Nobody may wait for it any more.
    let _ = stream.end(message::encode(&NodeAnswer::Reserved { lease_ms: 2000 }));
}

/// Where a server listens that grants all, each after so long.
async fn granting(after: Duration) -> String {
    serving(move |_, stream| {
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            grant(&stream);
        });
    })
    .await
}

fn refused(candidates: &[Candidate], chunk: u32) -> bool {
    candidates.iter().any(|candidate| candidate.device == device_of(chunk) && candidate.refused)
}

/// Has this device be silent for an earlier part of the access.
fn silence(reserved: &Reserved, chunk: u32) {
    let (now, none) = (reserved.now(), Duration::ZERO);
    reserved.answers().ask(now, [device_of(chunk)], none, none);
    reserved.answers().give_up(now);
}

fn unwrap(done: Result<(Rates, Refusals), Denied>) -> (Rates, Refusals) {
    done.map_err(PutError::from).unwrap()
}

#[tokio::test]
async fn answers_that_are_a_little_late_are_made_good_for_and_count_as_lost() {
    let address = granting(ms(60)).await;
    let (client, reserved, wish) = access(&address, 4000, 1);
    client.pool.connection(&address).await.unwrap();
    let plans = Cell::new(0);
    let plan = |_: &[Candidate], _: &Wish| -> Result<Rates, PlanError> {
        plans.set(plans.get() + 1);
        Ok(vec![(device_of(0), 5)])
    };
    unwrap(client.negotiate(&reserved, &wish, candidates, plan, Clone::clone).await);
    assert_eq!(plans.get(), 1, "planned in vain");
    let (_, spent) = reserved.answers().left(&wish, Duration::ZERO);
    assert!(spent >= ms(50), "{spent:?}");
}

/// Later than is made good for, and not so late that they count as silent.
#[tokio::test]
async fn what_all_have_kept_too_late_is_planned_anew_as_often_as_there_are_rounds() {
    let address = granting(ms(160)).await;
    let (client, reserved, wish) = access(&address, 1000, 40);
    client.pool.connection(&address).await.unwrap();
    let plans = Cell::new(0);
    let plan = |_: &[Candidate], _: &Wish| -> Result<Rates, PlanError> {
        plans.set(plans.get() + 1);
        Ok(vec![(device_of(0), plans.get())])
    };
    let (planned, refusals) =
        unwrap(client.negotiate(&reserved, &wish, candidates, plan, Clone::clone).await);
    assert_eq!((planned, plans.get()), (vec![(device_of(0), 3)], ROUNDS as u64));
    assert!(refusals.is_empty());
    let kept = reserved.held().get(&device_of(0)).map(|kept| kept.bytes_per_s);
    assert_eq!(kept, Some(3));
}

#[tokio::test]
async fn what_all_have_kept_is_given_up_for_lost_time_and_for_nothing_else() {
    let address = granting(ms(160)).await;
    for for_time in [false, true] {
        let (client, reserved, wish) = access(&address, 1000, 40);
        client.pool.connection(&address).await.unwrap();
        let plans = Cell::new(0);
        let plan = |_: &[Candidate], left: &Wish| -> Result<Rates, PlanError> {
            plans.set(plans.get() + 1);
            let fails = if for_time { left.quality.latency < Some(ms(900)) } else { plans.get() > 1 };
            if fails { Err(NONE) } else { Ok(vec![(device_of(0), 5)]) }
        };
        match client.negotiate(&reserved, &wish, candidates, plan, Clone::clone).await {
            Ok((planned, _)) => {
                assert!(!for_time, "what is left is too little");
                assert_eq!(planned, [(device_of(0), 5)]);
                assert!(reserved.held().contains_key(&device_of(0)));
            }
            Err(Denied::Busy(busy)) => {
                assert!(for_time, "{busy}");
                assert_eq!((busy.refused, busy.cause), (0, Some(Box::new(NONE))));
                assert!(reserved.held().is_empty());
            }
            Err(Denied::Plan(error)) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_wish_that_is_not_met_for_lost_time_alone_may_be_tried_again() {
    let plan = |candidates: &[Candidate], left: &Wish| -> Result<Rates, PlanError> {
        let fails = left.quality.latency < Some(ms(900)) || refused(candidates, 0);
        if fails { Err(NONE) } else { Ok(Vec::new()) }
    };
    for silent in [false, true] {
        // Nobody is asked.
        let (client, reserved, wish) = access("127.0.0.1:1", 1000, 1);
        reserved.answers().lose(ms(200));
        if silent {
            silence(&reserved, 0);
        }
        match client.negotiate(&reserved, &wish, candidates, plan, Clone::clone).await {
            Err(Denied::Busy(busy)) => {
                let told = if silent {
                    "1 device did not keep the bandwidth (not ready); try again in "
                } else {
                    "devices answered too late; try again in 1000 ms. By now: wanted 1 device, "
                };
                assert!(busy.to_string().starts_with(told), "{busy}");
                assert_eq!(busy.refused, usize::from(silent));
            }
            Err(Denied::Plan(error)) => panic!("{error}"),
            Ok(_) => panic!("there is too little time"),
        }
        // No time would be enough.
        let plan = |_: &[Candidate], _: &Wish| -> Result<Rates, PlanError> { Err(NONE) };
        let planned = client.negotiate(&reserved, &wish, candidates, plan, Clone::clone).await;
        assert!(matches!(planned, Err(Denied::Plan(error)) if error == NONE));
    }
}

#[tokio::test]
async fn one_that_was_silent_in_an_earlier_part_is_asked_where_it_is_needed() {
    let address = granting(Duration::ZERO).await;
    let (client, reserved, wish) = access(&address, 1000, 1);
    client.pool.connection(&address).await.unwrap();
    silence(&reserved, 0);
    let plan = |candidates: &[Candidate], _: &Wish| -> Result<Rates, PlanError> {
        if refused(candidates, 0) { Err(NONE) } else { Ok(vec![(device_of(0), 5)]) }
    };
    let (planned, refusals) =
        unwrap(client.negotiate(&reserved, &wish, candidates, plan, Clone::clone).await);
    assert_eq!((planned, refusals), (vec![(device_of(0), 5)], Refusals::new()));
    assert!(reserved.held().contains_key(&device_of(0)));
}

/// A device that keeps something is asked for more and is silent until another is asked.
#[tokio::test]
async fn what_was_kept_before_is_not_given_back_while_an_answer_about_more_may_come() {
    for others_refuse in [true, false] {
        let (heard, mut released) = mpsc::unbounded_channel();
        let waiting: Mutex<Vec<Stream>> = Mutex::default();
        let address = serving(move |request, stream| match request {
            NodeRequest::Reserve(wish) if wish.device == device_of(0) => waiting.lock().unwrap().push(stream),
            NodeRequest::Reserve(_) if others_refuse => {
                stream.fail(&Fault::Refused { reason: RefusalReason::Reserved, retry_after_ms: 70 });
                waiting.lock().unwrap().drain(..).for_each(|stream| grant(&stream));
            }
            NodeRequest::Reserve(_) => grant(&stream),
            NodeRequest::Release { reservation, .. } => {
                // Nobody counts them any more.
                let _ = heard.send(reservation);
                let _ = stream.end(message::encode(&NodeAnswer::Done));
            }
            other => panic!("{other:?}"),
        })
        .await;
        let (client, reserved, wish) = access(&address, 640, 1);
        client.pool.connection(&address).await.unwrap();
        let before = Kept { id: ReservationId(1), address, bytes_per_s: 5 };
        reserved.held().insert(device_of(0), before.clone());
        let plan = |candidates: &[Candidate], _: &Wish| -> Result<Rates, PlanError> {
            let willing = [0, 1].into_iter().find(|&chunk| !refused(candidates, chunk));
            willing.map(|chunk| vec![(device_of(chunk), 10)]).ok_or(NONE)
        };
        let (planned, refusals) =
            unwrap(client.negotiate(&reserved, &wish, candidates, plan, Clone::clone).await);
        client.tidying.settled(Duration::from_secs(1)).await;
        if others_refuse {
            assert_eq!(planned, [(device_of(0), 10)]);
            assert_eq!(refusals, [(device_of(1), (RefusalReason::Reserved, ms(70)))].into());
            let kept = reserved.held().get(&device_of(0)).cloned();
            assert_eq!(kept, Some(Kept { bytes_per_s: 10, ..before }));
        } else {
            assert_eq!((planned, refusals), (vec![(device_of(1), 10)], [(device_of(0), SILENT)].into()));
            assert!(!reserved.held().contains_key(&device_of(0)));
            assert_eq!(released.try_recv(), Ok(ReservationId(1)));
        }
        assert!(released.try_recv().is_err(), "given back, or more than once");
    }
}
