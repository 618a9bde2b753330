//! Devices that are asked to keep bandwidth, all at once, and what they answer, however late.

use super::{Kept, Reserved};
use crate::Client;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use steadfast_net::{CallError, Open, Pool};
use steadfast_protocol::{
    DeviceId,
    message::{self, Fault, NodeAnswer, NodeRequest, Priority, RefusalReason, Reserve},
    plan::Answers,
};
use tokio::{
    task::{JoinError, JoinSet},
    time::{timeout, timeout_at},
};

/// Why a device keeps nothing, and when it may be asked again.
pub(super) type Refusal = (RefusalReason, Duration);

pub(super) type Refusals = BTreeMap<DeviceId, Refusal>;

/// Nobody knows what a silent one would have said.
pub(super) const SILENT: Refusal = (RefusalReason::NotReady, Answers::RETRY);

/// Devices that are asked in one attempt; dropped, those that have not answered and may keep something all the same are told not to.
/// Nothing is given back before: what is kept then would be taken for kept when a late answer to the same request comes.
pub(super) struct Asking<'a> {
    reserved: &'a Reserved,
    pub(super) tasks: JoinSet<Answered>,
    /// What those were asked for last that have not answered.
    pub(super) open: BTreeMap<DeviceId, Kept>,
    /// All that were asked for something.
    asked: BTreeSet<DeviceId>,
}

/// What a device was asked to keep, and what it said; none where it was silent.
pub(super) type Answered = (DeviceId, Kept, Option<Result<(), Refusal>>);

impl<'a> Asking<'a> {
    pub(super) fn new(reserved: &'a Reserved) -> Self {
        let (tasks, open, asked) = Default::default();
        Self { reserved, tasks, open, asked }
    }

    fn ask(&mut self, device: DeviceId, kept: Kept) {
        let (pool, wish) = (self.reserved.pool.clone(), self.reserved.wish(device, &kept));
        if let Some(before) = self.open.insert(device, kept.clone()) {
            self.reserved.forget(device, before);
        }
        self.tasks.spawn(async move {
            let answer = ask(&pool, &kept.address, wish, Answers::WITHIN).await;
            (device, kept, answer)
        });
    }

    /// Asks these devices to keep so much each, all at once, as far as they do not yet, for a part of the access that was planned so long
    /// ago; whether all of them do then. Who says no, or nothing, is among the `refusals`, and who agrees is not: also one that was
    /// passed over before and answers now.
    pub(super) async fn keep(
        &mut self,
        client: &Client,
        planned: &BTreeMap<DeviceId, u64>,
        (round_trip, since): (Duration, Duration),
        refusals: &mut Refusals,
    ) -> bool {
        let reserved = self.reserved;
        let (mut awaited, mut farthest) = (BTreeSet::new(), round_trip);
        for (&device, &bytes_per_s) in planned {
            let held = reserved.held().get(&device).cloned();
            if held.as_ref().is_some_and(|kept| kept.bytes_per_s >= bytes_per_s) {
                continue;
            }
            self.asked.insert(device);
            let Some(address) = client.address_of(device) else {
                refusals.insert(device, SILENT);
                continue;
            };
            farthest = farthest.max(reserved.pool.way(&address).unwrap_or_default());
            let id = held.map_or_else(|| reserved.name(), |kept| kept.id);
            self.ask(device, Kept { id, address, bytes_per_s });
            awaited.insert(device);
        }
        reserved.answers().ask(reserved.now(), awaited, farthest, since);
        loop {
            let until = reserved.answers().wait_until();
            let Some(until) = until.map(|until| reserved.at(until)) else { break };
            let Ok(Some(answered)) = timeout_at(until, self.tasks.join_next()).await else { break };
            self.answered(answered, refusals);
        }
        let silent = reserved.answers().give_up(reserved.now());
        refusals.extend(silent.into_iter().map(|device| (device, SILENT)));
        let held = reserved.held();
        planned.iter().all(|(device, rate)| held.get(device).is_some_and(|kept| kept.bytes_per_s >= *rate))
    }

    /// One has answered; whether it was for what it is asked for now. One that was silent to the end may keep something.
    fn answered(&mut self, answered: Result<Answered, JoinError>, refusals: &mut Refusals) -> bool {
        let (device, kept, answer) = answered.expect("asking does not panic");
        let Some(answer) = answer else { return false };
        if self.open.get(&device) != Some(&kept) {
            return false;
        }
        self.open.remove(&device);
        self.reserved.answers().answered(self.reserved.now(), device);
        match answer {
            Ok(()) => {
                refusals.remove(&device);
                let before = self.reserved.held().insert(device, kept);
                if let Some(before) = before {
                    self.reserved.forget(device, before);
                }
            }
            Err(refusal) => {
                refusals.insert(device, refusal);
            }
        }
        true
    }

    /// Waits for the next answer of those that were given up; whether one came while there was time for it.
    pub(super) async fn late(&mut self, refusals: &mut Refusals) -> bool {
        let until = self.reserved.at(self.reserved.answers().at_most());
        while let Ok(Some(answered)) = timeout_at(until, self.tasks.join_next()).await {
            if self.answered(answered, refusals) {
                return true;
            }
        }
        false
    }

    /// Leaves those among the `refusals` alone that were asked; whether there were others, which were silent before this attempt.
    pub(super) fn only_asked(&self, refusals: &mut Refusals) -> bool {
        let before = refusals.len();
        refusals.retain(|device, _| self.asked.contains(device));
        refusals.len() < before
    }

    /// Whether it was asked for something and has not answered.
    pub(super) fn waits_for(&self, device: DeviceId) -> bool {
        self.open.contains_key(&device)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        for (device, kept) in std::mem::take(&mut self.open) {
            self.reserved.forget(device, kept);
        }
    }
}

/// Asks a device to keep bandwidth; none where its server is silent. One that is out of reach, as is known at once, refuses.
pub(super) async fn ask(
    pool: &Pool,
    address: &str,
    wish: Reserve,
    within: Duration,
) -> Option<Result<(), Refusal>> {
    let asking = async {
        let Ok(connection) = pool.connection(address).await else { return Some(Err(SILENT)) };
        let body = message::encode(&NodeRequest::Reserve(wish));
        let open = Open { body, priority: Priority::Control, deadline: Some(within), ..Open::default() };
        match connection.call(open).await {
            Ok((body, _)) if matches!(message::decode(&body), Ok(NodeAnswer::Reserved { .. })) => {
                Some(Ok(()))
            }
            Err(CallError::Fault(Fault::Refused { reason, retry_after_ms })) => {
                Some(Err((reason, Duration::from_millis(retry_after_ms.into()))))
            }
            Err(CallError::TimedOut) => None,
            Ok(_) | Err(_) => Some(Err(SILENT)),
        }
    };
    timeout(within, asking).await.ok().flatten()
}
