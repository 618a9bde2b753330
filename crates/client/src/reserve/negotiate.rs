//! How an access comes to the bandwidth it wishes for (dissertation §4.3, §5.4): devices are planned and asked, and others planned where
//! some refuse, for what is left of the wish by then.

use super::{
    Busy, Reserved,
    asking::{Asking, Refusals, SILENT},
};
use crate::{AmendError, Client, GetError, PutError};
use std::{collections::BTreeMap, time::Duration};
use steadfast_protocol::{
    DeviceId, Time,
    message::Registry,
    plan::{Candidate, PlanError, Wish},
};

/// How often an access plans anew: each round passes over those that refused before.
const ROUNDS: usize = 3;
/// How often it begins from the start, where others look for the same devices at the same time, before it is told to wait.
const ATTEMPTS: u32 = 4;

impl Client {
    /// Plans with the devices that are asked for and has them keep what the plan says, anew without those that refuse, for what is left
    /// of the wish by then; the plan, and who refused.
    pub(super) async fn negotiate<T>(
        &self,
        reserved: &Reserved,
        wish: &Wish,
        among: fn(&Registry) -> Vec<Candidate>,
        plan: impl Fn(&[Candidate], &Wish) -> Result<T, PlanError>,
        rates: impl Fn(&T) -> Vec<(DeviceId, u64)>,
    ) -> Result<(T, Refusals), Denied> {
        let (refusals, last) = Default::default();
        let begun = reserved.now();
        Negotiation { client: self, reserved, wish, among, plan, rates, begun, refusals, last }.run().await
    }
}

struct Negotiation<'a, P, R> {
    client: &'a Client,
    reserved: &'a Reserved,
    wish: &'a Wish,
    among: fn(&Registry) -> Vec<Candidate>,
    plan: P,
    rates: R,
    begun: Time,
    /// Who is planned without, ...
    refusals: Refusals,
    /// ... and who was last when there was anybody: what the caller is told where it is only the time by now that is too short.
    last: Refusals,
}

impl<T, P, R> Negotiation<'_, P, R>
where
    P: Fn(&[Candidate], &Wish) -> Result<T, PlanError>,
    R: Fn(&T) -> Vec<(DeviceId, u64)>,
{
    /// Attempts, until one succeeds, or another has no better chance.
    async fn run(mut self) -> Result<(T, Refusals), Denied> {
        let reserved = self.reserved;
        let mut attempts = 0;
        loop {
            let mut asking = Asking::new(reserved);
            let planned = self.attempt(&mut asking).await;
            // Nobody else takes what a silent one has.
            let refused = self.refusals.keys().any(|&device| !asking.waits_for(device));
            drop(asking);
            let denied = match planned {
                Ok(planned) => {
                    let rates = self.rates_of(&planned);
                    reserved.give_back_but(&rates);
                    self.refusals.retain(|device, _| !rates.contains_key(device));
                    // The plan counts a round trip for it.
                    reserved.answers().lose(self.since().saturating_sub(self.wish.round_trip));
                    return Ok((planned, self.refusals));
                }
                Err(denied) => denied,
            };
            // Two accesses that each got a part of what both need would both be told to wait: each gives back and comes
            // again after a while of its own.
            let some = reserved.give_back();
            attempts += 1;
            if attempts == ATTEMPTS || !some || !refused {
                return Err(denied);
            }
            tokio::time::sleep(reserved.pause(self.wish.round_trip, attempts)).await;
        }
    }

    /// Plans and asks, until all that are planned keep their part. It ends: of its turns so many are rounds, one is for all that were
    /// silent before, who have been asked after that, and each other one is for an answer to what was asked in a round.
    async fn attempt(&mut self, asking: &mut Asking<'_>) -> Result<T, Denied> {
        let reserved = self.reserved;
        self.refusals = reserved.silent();
        let (mut kept, mut rounds) = (None, 0);
        loop {
            if !self.refusals.is_empty() {
                self.last.clone_from(&self.refusals);
            }
            if rounds == ROUNDS {
                return kept.ok_or_else(|| Denied::Busy(busy(&self.last, None)));
            }
            let since = self.since();
            let (left, spent) = reserved.answers().left(self.wish, since);
            let planned = match self.planned(&left) {
                Ok(planned) => planned,
                // One that was silent before, or has only not answered yet, is better than none.
                Err(error) => {
                    if asking.only_asked(&mut self.refusals) || asking.late(&mut self.refusals).await {
                        continue;
                    }
                    return self.in_vain(error, spent, kept);
                }
            };
            rounds += 1;
            let (asked, rates) = (reserved.now(), self.rates_of(&planned));
            let waits = (self.wish.round_trip, since);
            if !asking.keep(self.client, &rates, waits, &mut self.refusals).await {
                continue;
            }
            let late = reserved.now().since(asked).saturating_sub(self.wish.round_trip);
            if reserved.answers().makes_good(late) {
                return Ok(planned);
            }
            // It is to be done in what is left. Nothing is given back meanwhile: where no plan for that comes of it, this one holds.
            kept = Some(planned);
        }
    }

    /// What comes of an attempt, in which a plan may be `kept` by all of its devices, where there is none for what is left of the wish.
    fn in_vain(&self, error: PlanError, spent: Duration, kept: Option<T>) -> Result<T, Denied> {
        let cause = error.clone().after(spent, self.wish);
        // Had no time been lost.
        let in_time = if spent.is_zero() { Err(error) } else { self.planned(self.wish) };
        match (in_time, kept) {
            // It is not for the time: devices have changed, or were asked for more than they have.
            (Err(_), Some(kept)) => Ok(kept),
            (Err(error), None) if self.refusals.is_empty() => Err(Denied::Plan(error)),
            _ => Err(Denied::Busy(busy(&self.last, Some(cause)))),
        }
    }

    /// Plans with the devices as last heard of, but for what they do for this access: a later part of it would be refused for the
    /// earlier ones. Those that refused can promise nothing. What others had reserved at the last heartbeat may have been given back
    /// since: where only that stands against it, the nodes are asked.
    fn planned(&self, wish: &Wish) -> Result<T, PlanError> {
        let registry = self.client.registry.lock().expect("never poisoned: no panic while held").clone();
        let mut candidates = (self.among)(&registry);
        for candidate in &mut candidates {
            candidate.refused = self.refusals.contains_key(&candidate.device);
            self.reserved.without_own(candidate);
        }
        let planned = (self.plan)(&candidates, wish);
        if !planned.as_ref().is_err_and(PlanError::is_reserved_by_others) {
            return planned;
        }
        for candidate in &mut candidates {
            (candidate.reserved_read_bytes_per_s, candidate.reserved_write_bytes_per_s) = (0, 0);
        }
        (self.plan)(&candidates, wish)
    }

    /// What each device is to keep, of those that are to keep something.
    fn rates_of(&self, planned: &T) -> BTreeMap<DeviceId, u64> {
        (self.rates)(planned).into_iter().filter(|&(_, rate)| rate > 0).collect()
    }

    fn since(&self) -> Duration {
        self.reserved.now().since(self.begun)
    }
}

/// Why a negotiation came to nothing.
pub(crate) enum Denied {
    Plan(PlanError),
    Busy(Busy),
}

impl Denied {
    /// As [`PlanError::of_whole`].
    pub(crate) fn of_whole(self, of: (u64, u64), wish: &Wish) -> Self {
        match self {
            Denied::Plan(error) => Denied::Plan(error.of_whole(of, wish)),
            Denied::Busy(busy) => {
                let cause = busy.cause.map(|cause| Box::new(cause.of_whole(of, wish)));
                Denied::Busy(Busy { cause, ..busy })
            }
        }
    }
}

impl From<Denied> for PutError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Plan(error) => error.into(),
            Denied::Busy(busy) => PutError::Busy(busy),
        }
    }
}

impl From<Denied> for GetError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Plan(error) => error.into(),
            Denied::Busy(busy) => GetError::Busy(busy),
        }
    }
}

impl From<Denied> for AmendError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Plan(error) => error.into(),
            Denied::Busy(busy) => AmendError::Busy(busy),
        }
    }
}

/// What the caller is told when nobody else has what some refused; or what answers that took too long leave no time for.
fn busy(refusals: &Refusals, cause: Option<PlanError>) -> Busy {
    let first = refusals.values().min_by_key(|(_, retry_after)| *retry_after);
    let (reason, retry_after) = first.copied().unwrap_or(SILENT);
    Busy { refused: refusals.len(), reason, retry_after, cause: cause.map(Box::new) }
}

#[cfg(test)]
mod tests;
