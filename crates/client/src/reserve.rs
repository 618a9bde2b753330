//! Bandwidth kept for one access (dissertation §4.3, §5.4, App. B): asked of all planned devices at once, planned anew on
//! others where some refuse, renewed while the access lives, given back at its end.
//!
//! Only an access with a wish for bandwidth or latency comes through here; any other costs no round trip more.

use crate::{AmendError, Client, GetError, ObjectStat, PutError, get::reads, tidy::Tidying};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use steadfast_net::{CallError, Open, Pool};
use steadfast_protocol::{
    DeviceId, Epoch, IndexRanges, ReservationId,
    layout::SegmentLayout,
    message::{self, Access, Fault, NodeAnswer, NodeRequest, Priority, RefusalReason, Registry, Reserve},
    plan::{self, Candidate, Dealt, Part, Plan, PlanError, Quality, Wanted, Wish},
    policy::Policy,
    read::RequestRule,
    serve::parity_log::VersionsByChunk,
    words::counted,
};
use steadfast_transfer::Route;
use tokio::task::{JoinHandle, JoinSet};

/// How often an access plans anew: each round passes over those that refused before.
const ROUNDS: usize = 3;
/// How often it begins from the start, where others look for the same devices at the same time, before it is told to wait.
const ATTEMPTS: u32 = 4;
/// Bounds on the pauses in between: a round trip is what others need to take what was given back, a tenth of a second what
/// a person does not notice.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long a device may take to answer before it counts as one that refused. Reserving is no work for a disk.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How often a lease is renewed before it would end.
const RENEWALS: u32 = 3;
/// When devices that did not answer may be asked again.
const RETRY_SILENT: Duration = Duration::from_secs(1);

/// The bandwidth that was wished for could not be had now: devices refused, and no others have it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{} did not keep the bandwidth ({reason}); try again in {} ms{}", counted(refused, "device"), retry_after.as_millis(),
    cause.as_ref().map_or_else(String::new, |cause| format!(". Without them: {cause}"))
)]
pub struct Busy {
    /// Devices that refused.
    pub refused: usize,
    /// Why the one that can be asked again first did.
    pub reason: RefusalReason,
    /// When it makes sense to ask again, at the earliest.
    pub retry_after: Duration,
    /// Why the others do not suffice; absent where too many rounds were lost against others who look for room.
    pub cause: Option<Box<PlanError>>,
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
}

#[derive(Clone, Debug)]
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

type Refusals = BTreeMap<DeviceId, (RefusalReason, Duration)>;

impl Reserved {
    /// Nothing yet, for an access of `length` bytes.
    pub(crate) fn new(client: &Client, access: Access, quality: Quality, length: u64) -> Arc<Self> {
        // Of its own, also where two clients are given one seed.
        let random = Mutex::new(Pcg64Mcg::seed_from_u64(crate::fresh_seed()));
        let (pool, tidying) = (client.pool.clone(), Arc::clone(&client.tidying));
        let lease = quality.lease(length);
        Arc::new(Self { pool, tidying, random, access, quality, lease, held: Mutex::default() })
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

    /// Has exactly these devices keep so much, all asked at once; who did not.
    async fn keep(&self, client: &Client, wanted: &[(DeviceId, u64)]) -> Refusals {
        let planned: BTreeMap<DeviceId, u64> = wanted.iter().copied().filter(|&(_, rate)| rate > 0).collect();
        let mut asking = JoinSet::new();
        let mut refusals = Refusals::new();
        for (&device, &bytes_per_s) in &planned {
            let kept = self.held().get(&device).cloned();
            if kept.as_ref().is_some_and(|kept| kept.bytes_per_s >= bytes_per_s) {
                continue;
            }
            let id = kept.map_or_else(|| self.name(), |kept| kept.id);
            let Some(address) = client.address_of(device) else {
                refusals.insert(device, (RefusalReason::NotReady, RETRY_SILENT));
                continue;
            };
            let kept = Kept { id, address, bytes_per_s };
            let (pool, wish) = (self.pool.clone(), self.wish(device, &kept));
            asking.spawn(async move {
                let answer = ask(&pool, &kept.address, wish, ANSWERS_WITHIN).await;
                (device, kept, answer)
            });
        }
        while let Some(asked) = asking.join_next().await {
            let (device, kept, answer) = asked.expect("asking does not panic");
            match answer {
                Ok(()) => drop(self.held().insert(device, kept)),
                Err(refusal) => drop(refusals.insert(device, refusal)),
            }
        }
        let unplanned: Vec<DeviceId> =
            self.held().keys().copied().filter(|device| !planned.contains_key(device)).collect();
        self.release(&unplanned);
        refusals
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
            let within = ANSWERS_WITHIN.min(self.lease / RENEWALS);
            let mut asking = JoinSet::new();
            for (device, kept) in kept {
                let (pool, wish) = (self.pool.clone(), self.wish(device, &kept));
                asking.spawn(async move { (device, ask(&pool, &kept.address, wish, within).await) });
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

    /// The same, unless no runtime is left to say so: then the leases end.
    fn give_back_if_running(&self) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.give_back();
        }
    }

    fn release(&self, devices: &[DeviceId]) {
        let mut held = self.held();
        let kept = devices.iter().filter_map(|device| Some((*device, held.remove(device)?)));
        let told = kept.map(|(device, kept)| {
            (kept.address, NodeRequest::Release { device, reservation: kept.id }, Epoch(0))
        });
        self.tidying.tell(&self.pool, told.collect());
    }
}

impl Drop for Reserved {
    /// An access that is given up half-way gives back too.
    fn drop(&mut self) {
        self.give_back_if_running();
    }
}

async fn ask(
    pool: &Pool,
    address: &str,
    wish: Reserve,
    within: Duration,
) -> Result<(), (RefusalReason, Duration)> {
    let asking = async {
        let Ok(connection) = pool.connection(address).await else { return None };
        let body = message::encode(&NodeRequest::Reserve(wish));
        let open = Open { body, priority: Priority::Control, deadline: Some(within), ..Open::default() };
        match connection.call(open).await {
            Ok((body, _)) => {
                matches!(message::decode(&body), Ok(NodeAnswer::Reserved { .. })).then_some(Ok(()))
            }
            Err(CallError::Fault(Fault::Refused { reason, retry_after_ms })) => {
                Some(Err((reason, Duration::from_millis(retry_after_ms.into()))))
            }
            Err(_) => None,
        }
    };
    let answer = tokio::time::timeout(within, asking).await.ok().flatten();
    answer.unwrap_or(Err((RefusalReason::NotReady, RETRY_SILENT)))
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
        let without = |candidates: &[Candidate], out: &BTreeSet<DeviceId>| {
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
        let plan = |candidates: &[Candidate]| match without(candidates, &left_out) {
            Err(_) if !left_out.is_empty() => without(candidates, &BTreeSet::new()),
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
        let plan = |candidates: &[Candidate]| plan::revise(parts, candidates, length, wish);
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
        let plan = |candidates: &[Candidate]| {
            let parts = reads.iter().map(|(layout, singly)| (*layout, singly.as_ref()));
            plan::fetch(&plan::held(parts, candidates), candidates, length, wish)
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

    /// Plans with the devices that are asked for and has them keep what the plan says, anew without those that refuse; the plan, and who
    /// refused.
    async fn negotiate<T>(
        &self,
        reserved: &Reserved,
        wish: &Wish,
        among: fn(&Registry) -> Vec<Candidate>,
        plan: impl Fn(&[Candidate]) -> Result<T, PlanError>,
        rates: impl Fn(&T) -> Vec<(DeviceId, u64)>,
    ) -> Result<(T, Refusals), Denied> {
        let mut attempt = 0;
        loop {
            let mut refusals = Refusals::new();
            let mut cause = None;
            for _ in 0..ROUNDS {
                let planned = match self.planned(reserved, among, &refusals, &plan) {
                    Ok(planned) => planned,
                    Err(error) if refusals.is_empty() => return Err(Denied::Plan(error)),
                    Err(error) => {
                        cause = Some(error);
                        break;
                    }
                };
                let refused = reserved.keep(self, &rates(&planned)).await;
                if refused.is_empty() {
                    return Ok((planned, refusals));
                }
                refusals.extend(refused);
            }
            // Two accesses that each got a part of what both need would both be told to wait: each gives back and comes
            // again after a while of its own.
            let some = reserved.give_back();
            attempt += 1;
            if attempt == ATTEMPTS || !some {
                return Err(Denied::Busy(busy(&refusals, cause)));
            }
            tokio::time::sleep(reserved.pause(wish.round_trip, attempt)).await;
        }
    }

    /// Plans with the devices as last heard of, but for what they do for this access: a later part of it would be refused for the
    /// earlier ones. Those that refused can promise nothing. What others had reserved at the last heartbeat may have been given back
    /// since: where only that stands against it, the nodes are asked.
    fn planned<T>(
        &self,
        reserved: &Reserved,
        among: fn(&Registry) -> Vec<Candidate>,
        refusals: &Refusals,
        plan: impl Fn(&[Candidate]) -> Result<T, PlanError>,
    ) -> Result<T, PlanError> {
        let registry = self.registry.lock().expect("never poisoned: no panic while held").clone();
        let mut candidates = among(&registry);
        for candidate in &mut candidates {
            candidate.refused = refusals.contains_key(&candidate.device);
            reserved.without_own(candidate);
        }
        let planned = plan(&candidates);
        if !planned.as_ref().is_err_and(PlanError::is_reserved_by_others) {
            return planned;
        }
        for candidate in &mut candidates {
            (candidate.reserved_read_bytes_per_s, candidate.reserved_write_bytes_per_s) = (0, 0);
        }
        plan(&candidates)
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

/// What the caller is told when nobody else has what some refused.
fn busy(refusals: &Refusals, cause: Option<PlanError>) -> Busy {
    let first = refusals.values().min_by_key(|(_, retry_after)| *retry_after);
    let &(reason, retry_after) = first.expect("a negotiation comes to nothing by refusals");
    Busy { refused: refusals.len(), reason, retry_after, cause: cause.map(Box::new) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use steadfast_net::{Opened, Server, Stream};
    use steadfast_protocol::{
        NodeId, SegmentId, Version,
        layout::{CodeSpec, Holder, PARITY_GRANULE_BYTES, ParityGeometry},
        message::{
            DeviceHealth, DeviceReport, Hello, NodeActivity, NodeRecord, NodeState, Role, Standing, VERSION,
        },
        read::Caution,
    };
    use tokio::{sync::mpsc, time::Instant};

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
        assert!(reserved.lease < RENEWALS * ANSWERS_WITHIN, "{:?}", reserved.lease);
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
}
