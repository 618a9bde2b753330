//! Bandwidth kept for one access (dissertation §4.3, §5.4, App. B): asked of all planned devices at once, planned anew on
//! others where some refuse, renewed while the access lives, given back at its end.
//!
//! Only an access with a wish for bandwidth or latency comes through here; any other costs no round trip more.

mod asking;
mod negotiate;

use crate::{
    Client, GetError, ObjectStat,
    get::reads,
    tidy::{Tidying, Told},
};
use asking::{Refusals, SILENT, ask};
use negotiate::Denied;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use steadfast_net::Pool;
use steadfast_protocol::{
    DeviceId, Epoch, IndexRanges, ReservationId, Time,
    layout::SegmentLayout,
    message::{self, Access, NodeRequest, Priority, RefusalReason, Reserve},
    plan::{self, Answers, Candidate, Dealt, Part, Plan, PlanError, Quality, Wanted, Wish},
    policy::Policy,
    read::RequestRule,
    serve::parity_log::VersionsByChunk,
    words::counted,
};
use steadfast_transfer::Route;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::Instant,
};

/// Bounds on the pauses in between: a round trip is what others need to take what was given back, a tenth of a second what
/// a person does not notice.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often a lease is renewed before it would end.
const RENEWALS: u32 = 3;

/// The bandwidth that was wished for could not be had now, or not in time: devices refused or were silent, and no others have it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{}; try again in {} ms{}", said(*refused, *reason), retry_after.as_millis(),
    cause.as_ref().map_or_else(String::new, |cause| {
        format!(". {}: {cause}", if *refused > 0 { "Without them" } else { "By now" })
    })
)]
pub struct Busy {
    /// Devices that refused; none where others took too long to answer.
    pub refused: usize,
    /// Why the one that can be asked again first did.
    pub reason: RefusalReason,
    /// When it makes sense to ask again, at the earliest.
    pub retry_after: Duration,
    /// Why the others do not suffice; absent where too many rounds were lost against others who look for room.
    pub cause: Option<Box<PlanError>>,
}

fn said(refused: usize, reason: RefusalReason) -> String {
    match refused {
        0 => "devices answered too late".to_owned(),
        _ => format!("{} did not keep the bandwidth ({reason})", counted(refused, "device")),
    }
}

/// How a write reaches devices: by the registry last seen, under what it has reserved.
pub(crate) struct Reserving<'a> {
    pub(crate) client: &'a Client,
    pub(crate) reserved: &'a Reserved,
}

impl Route for Reserving<'_> {
    fn address(&self, device: DeviceId) -> Option<String> {
        self.client.address_of(device)
    }

    fn request(&self, device: DeviceId, request: NodeRequest) -> NodeRequest {
        self.reserved.under(device, request)
    }

    fn priority(&self) -> Priority {
        self.reserved.priority()
    }
}

/// What one access has reserved; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    pool: Pool,
    tidying: Arc<Tidying>,
    random: Mutex<Pcg64Mcg>,
    access: Access,
    quality: Quality,
    lease: Duration,
    held: Mutex<BTreeMap<DeviceId, Kept>>,
    answers: Mutex<Answers>,
    /// The origin of its time.
    begun: Instant,
}

#[derive(Clone, Debug, PartialEq)]
struct Kept {
    /// Never used again once given back: a late release must not end another.
    id: ReservationId,
    address: String,
    bytes_per_s: u64,
}

/// How a read goes about, as planned.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) rule: RequestRule,
    /// Holders that refused: asked last.
    pub(crate) refused: BTreeSet<DeviceId>,
    /// Holders of what must not be read.
    pub(crate) excluded: BTreeSet<DeviceId>,
    /// Whether chunks that lack changes are read as they are where the others do not make up for it.
    pub(crate) as_it_is: bool,
    /// Whether changes in place were ended for it: what each chunk lacks is known then, and nodes are not to refuse what lacks some.
    pub(crate) ended: bool,
    /// Changes of data chunks that parity is to have at least where it stands in for them.
    pub(crate) least: VersionsByChunk,
    pub(crate) reserved: Arc<Reserved>,
}

/// How an object is read for as long as it is open: what is kept for that is renewed, and given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Lasting {
    pub(crate) reading: Arc<Reading>,
    renewing: Option<JoinHandle<Infallible>>,
}

impl Lasting {
    pub(crate) fn new(reading: Reading) -> Self {
        let reserved = Arc::clone(&reading.reserved);
        let renews = reserved.wants_pace();
        let renewing = renews.then(|| tokio::spawn(async move { reserved.renewing().await }));
        Self { reading: Arc::new(reading), renewing }
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        if let Some(renewing) = &self.renewing {
            renewing.abort();
        }
        // What is still being read holds it a moment longer.
        self.reading.reserved.give_back_if_running();
    }
}

impl Reserved {
    /// Nothing yet, for an access of `length` bytes.
    pub(crate) fn new(client: &Client, access: Access, quality: Quality, length: u64) -> Arc<Self> {
        // Of its own, also where two clients are given one seed.
        let random = Mutex::new(Pcg64Mcg::seed_from_u64(crate::fresh_seed()));
        let (pool, tidying) = (client.pool.clone(), Arc::clone(&client.tidying));
        let (lease, held) = (quality.lease(length), Mutex::default());
        let round_trip = pool.way(client.metadata.address()).unwrap_or_default();
        let (answers, begun) = (Mutex::new(Answers::new(&quality, length, round_trip)), Instant::now());
        Arc::new(Self { pool, tidying, random, access, quality, lease, held, answers, begun })
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time(0) + self.begun.elapsed()
    }

    fn at(&self, time: Time) -> Instant {
        self.begun + time.since(Time(0))
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<DeviceId, Kept>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The class of the access's streams.
    pub(crate) fn priority(&self) -> Priority {
        self.quality.priority()
    }

    /// Whether bandwidth is kept for it, which only streams can use.
    pub(crate) fn wants_pace(&self) -> bool {
        self.quality.wants_pace()
    }

    /// The request under the device's reservation, if it has one.
    pub(crate) fn under(&self, device: DeviceId, request: NodeRequest) -> NodeRequest {
        match self.held().get(&device) {
            Some(kept) => {
                NodeRequest::UnderReservation { reservation: kept.id, request: message::encode(&request) }
            }
            None => request,
        }
    }

    /// Devices that were silent a moment ago.
    fn silent(&self) -> Refusals {
        let silent = self.answers().silent(self.now());
        silent.into_iter().map(|(device, retry)| (device, (RefusalReason::NotReady, retry))).collect()
    }

    /// The candidate as others use it: what waits at a device that keeps something for this access is counted as its own, and what it
    /// keeps is no other's.
    fn without_own(&self, candidate: &mut Candidate) {
        let kept = self.held().get(&candidate.device).map(|kept| kept.bytes_per_s);
        let Some(bytes_per_s) = kept else { return };
        let reserved = match self.access {
            Access::Read => &mut candidate.reserved_read_bytes_per_s,
            Access::Write => &mut candidate.reserved_write_bytes_per_s,
        };
        *reserved = reserved.saturating_sub(bytes_per_s);
        candidate.queue_length = 0;
    }

    fn name(&self) -> ReservationId {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        ReservationId(u128::from(random.next_u64()) << 64 | u128::from(random.next_u64()))
    }

    /// How long to keep away from devices that others look for too: up to twice as long each time.
    fn pause(&self, round_trip: Duration, attempt: u32) -> Duration {
        let most = (round_trip.max(PAUSE_MIN) * 2u32.pow(attempt)).min(PAUSE_MAX);
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        most.mul_f64((random.next_u64() >> 11) as f64 / (1u64 << 53) as f64)
    }

    fn wish(&self, device: DeviceId, kept: &Kept) -> Reserve {
        Reserve {
            device,
            reservation: kept.id,
            access: self.access,
            bytes_per_s: kept.bytes_per_s,
            lease_ms: u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX),
            background: self.quality.background,
        }
    }

    /// Renews what is kept, for as long as it is polled. What a node no longer keeps (it started anew, or somebody of a
    /// higher class came) is best effort from then on. One that is silent does not hold up the others' renewals until their leases end.
    pub(crate) async fn renewing(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.lease / RENEWALS).await;
            let kept = self.held().clone();
            let within = Answers::WITHIN.min(self.lease / RENEWALS);
            let mut asking = JoinSet::new();
            for (device, kept) in kept {
                let (pool, wish) = (self.pool.clone(), self.wish(device, &kept));
                asking.spawn(async move {
                    (device, ask(&pool, &kept.address, wish, within).await.unwrap_or(Err(SILENT)))
                });
            }
            while let Some(Ok((device, answer))) = asking.join_next().await {
                if let Err((reason, _)) = answer {
                    tracing::debug!(%device, %reason, "a reservation was not renewed");
                }
            }
        }
    }

    /// Gives all back, behind the answer; whether there was any.
    pub(crate) fn give_back(&self) -> bool {
        let all: Vec<DeviceId> = self.held().keys().copied().collect();
        self.release(&all);
        !all.is_empty()
    }

    /// Gives back what is kept on others than these, behind the answer.
    fn give_back_but(&self, used: &BTreeMap<DeviceId, u64>) {
        let unused: Vec<DeviceId> =
            self.held().keys().copied().filter(|device| !used.contains_key(device)).collect();
        self.release(&unused);
    }

    /// Gives all back, unless no runtime is left to say so: then the leases end.
    fn give_back_if_running(&self) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.give_back();
        }
    }

    fn release(&self, devices: &[DeviceId]) {
        let mut held = self.held();
        let kept = devices.iter().filter_map(|device| Some((*device, held.remove(device)?)));
        self.tidying.tell(&self.pool, kept.map(|(device, kept)| kept.given_back(device)).collect());
    }

    /// Gives back what a device may keep under a name that is used no more, unless no runtime is left to say so.
    fn forget(&self, device: DeviceId, kept: Kept) {
        let is_used = self.held().get(&device).is_some_and(|held| held.id == kept.id);
        if !is_used && tokio::runtime::Handle::try_current().is_ok() {
            self.tidying.tell(&self.pool, vec![kept.given_back(device)]);
        }
    }
}

impl Kept {
    /// What its server is told at the end.
    fn given_back(self, device: DeviceId) -> Told {
        (self.address, NodeRequest::Release { device, reservation: self.id }, Epoch(0))
    }
}

impl Drop for Reserved {
    /// An access that is given up half-way gives back too.
    fn drop(&mut self) {
        self.give_back_if_running();
    }
}

impl Client {
    /// Chooses devices for a write, none of those that leave, and has them keep the bandwidth it wishes for.
    pub(crate) async fn plan_write(
        &self,
        reserved: &Reserved,
        wanted: &Wanted,
        wish: &Wish,
        leaving: &BTreeSet<DeviceId>,
        dealt: &Dealt,
    ) -> Result<Plan, Denied> {
        let rates = |plan: &Plan| {
            plan.devices.iter().map(|device| (device.device, device.reserve_bytes_per_s)).collect()
        };
        let chunks = matches!(wanted.policy, Policy::Parity(_));
        let left_out = if chunks { self.left_out() } else { BTreeSet::new() };
        let without = |candidates: &[Candidate], out: &BTreeSet<DeviceId>, wish: &Wish| {
            let stays = |device| !leaving.contains(device) && !out.contains(device);
            let staying = candidates.iter().filter(|candidate| stays(&candidate.device));
            let mut staying: Vec<Candidate> =
                staying.cloned().map(|candidate| dealt.given(candidate)).collect();
            if wish.quality.wants_pace() {
                // What waits where chunks of the object went a moment ago, and nothing is kept any more, is its own too.
                let written = staying.iter_mut().filter(|candidate| candidate.given > 0);
                written.for_each(|candidate| candidate.queue_length = 0);
            }
            plan::choose_for(&staying, wanted, wish)
        };
        // Who failed others a moment ago may do better now: where none can be spared, none is.
        let plan = |candidates: &[Candidate], left: &Wish| match without(candidates, &left_out, left) {
            Err(_) if !left_out.is_empty() => without(candidates, &BTreeSet::new(), left),
            planned => planned,
        };
        self.negotiate(reserved, wish, plan::candidates, plan, rates).await.map(|(plan, _)| plan)
    }

    /// Has the devices keep the bandwidth that a change of `length` bytes wishes for; those that refused, whose part
    /// others write.
    pub(crate) async fn plan_change(
        &self,
        reserved: &Reserved,
        parts: &[Part],
        length: u64,
        wish: &Wish,
    ) -> Result<BTreeSet<DeviceId>, Denied> {
        if !wish.quality.wants_pace() {
            return Ok(BTreeSet::new());
        }
        let plan = |candidates: &[Candidate], left: &Wish| plan::revise(parts, candidates, length, left);
        let (_, refusals) = self.negotiate(reserved, wish, plan::candidates, plan, Clone::clone).await?;
        Ok(refusals.into_keys().collect())
    }

    /// How a read goes about that reserves nothing.
    pub(crate) fn reading(&self, quality: Quality) -> Reading {
        let reserved = Reserved::new(self, Access::Read, quality, 0);
        let (refused, excluded, least) = Default::default();
        Reading {
            rule: self.options.request,
            refused,
            excluded,
            as_it_is: true,
            ended: false,
            least,
            reserved,
        }
    }

    /// Has the holders of an object's bytes `range` keep the bandwidth that reading them wishes for.
    pub(crate) async fn plan_read(
        &self,
        found: &ObjectStat,
        range: Range<u64>,
        wish: &Wish,
    ) -> Result<Reading, GetError> {
        if !wish.quality.wants_pace() {
            return Ok(self.reading(wish.quality));
        }
        let length = range.end - range.start;
        let reserved = Reserved::new(self, Access::Read, wish.quality, length);
        let rule = self.options.request;
        let reads: Vec<(&SegmentLayout, Option<IndexRanges>)> = reads(found, range).collect();
        let plan = |candidates: &[Candidate], left: &Wish| {
            let parts = reads.iter().map(|(layout, singly)| (*layout, singly.as_ref()));
            plan::fetch(&plan::held(parts, candidates), candidates, length, left)
        };
        match self.negotiate(&reserved, wish, plan::holders, plan, |fetch| fetch.reserve.clone()).await {
            Ok((fetch, refusals)) => {
                let rule = match fetch.rule.unwrap_or(rule) {
                    // Those that refused are asked for what the others cannot give.
                    rule if rule.is_all() && !refusals.is_empty() => RequestRule::KPlus(0),
                    rule => rule,
                };
                let (excluded, least) = Default::default();
                let refused = refusals.into_keys().collect();
                Ok(Reading { rule, refused, excluded, as_it_is: true, ended: false, least, reserved })
            }
            Err(denied) => Err(denied.into()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
