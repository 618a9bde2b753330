//! The bandwidth of one device that is kept for accesses (dissertation §5.4): who may have how much, until when, and
//! when a refused client is told to come back.
//!
//! A device has one head, so what is kept of it is counted in shares of its *time*: a reservation of r bytes per
//! second takes r / (the device's measured speed for that kind of access). The more streams share a device, the less
//! it gives ("the costly disk seeking and rotation in switching between the accesses"): what n reservations may take
//! together is the measured throughput of n streams against that of one ([`super::Sharing`]), less
//! [`BEST_EFFORT_SHARE`], which is never reserved, so that accesses without a wish are not starved.
//!
//! - [`AdmissionPolicy::Capacity`]: first come, first admitted, until capacity is exhausted.
//! - [`AdmissionPolicy::Priority`]: a foreground access may take what background ones reserved, the latest first, and no
//!   more of them than it needs: those that still fit beside it and the earlier ones stay. The others go on as best effort, and learn
//!   it when they renew.
//! - [`AdmissionPolicy::Open`]: everything is granted and nothing kept.
//!
//! Invariants: with speeds that do not change, shares granted never exceed what the device gives; a reservation ends
//! with its lease, whatever became of its client; a refusal changes nothing.
//!
//! Left out: who asks. Clients are not told apart, so one may reserve a device whole, as the dissertation's clients may.

use super::AdmissionPolicy;
use crate::{
    ReservationId, Time,
    message::{Access, Fault, NodeFault, RefusalReason, ReservationCounts, Reserve},
};
use core::time::Duration;
use std::collections::BTreeMap;

/// The share of a device's time that is never reserved. Picked by eye: an access without a wish still moves at a tenth of
/// the speed, and a device that is a tenth slower than measured still keeps its promises.
pub const BEST_EFFORT_SHARE: f64 = 0.1;
/// The longest lease: what a client that died can hold back. Its successor waits no longer than a person would.
pub const LEASE_MAX: Duration = Duration::from_secs(60);
/// Reservations of one device at once; each costs memory, and a device shared by more serves none of them well.
pub const RESERVATIONS_MAX: usize = 1024;
/// The shortest lease: two round trips of 100 ms and a renewal.
const LEASE_MIN: Duration = Duration::from_millis(250);
/// When a wish beyond the device's whole speed, or for one whose speed is not known yet, may be put again.
const RETRY_SPEED: Duration = Duration::from_secs(2);
const RETRY_UNMEASURED: Duration = Duration::from_millis(200);
const RETRY_MIN: Duration = Duration::from_millis(5);

/// What a device gives, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// Reading speed in bytes per second; 0 where unknown.
    pub read_bytes_per_s: u64,
    /// Writing speed in bytes per second; 0 where unknown.
    pub write_bytes_per_s: u64,
    /// What is left of the speed when 2, 4, 8 and 16 streams share the device, in parts per million; 0 where unknown.
    pub sharing_ppm: [u32; 4],
}

/// Reservations of one device.
#[derive(Clone, Debug)]
pub struct Reservations {
    policy: AdmissionPolicy,
    held: BTreeMap<ReservationId, Held>,
    /// How often any was granted or made larger: orders them.
    grants: u64,
    /// All but what is held.
    counts: ReservationCounts,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    access: Access,
    bytes_per_s: u64,
    background: bool,
    until: Time,
    /// Counts grants: later ones are displaced first.
    number: u64,
}

/// A reservation that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// It is kept for so long, unless renewed.
    pub lease: Duration,
    /// Reservations that ended for it.
    pub displaced: Vec<ReservationId>,
}

impl Capacity {
    /// The speed for `access` in bytes per second: that of the other kind where only it is known; none where neither is.
    pub fn bytes_per_s(&self, access: Access) -> Option<u64> {
        let (own, other) = match access {
            Access::Read => (self.read_bytes_per_s, self.write_bytes_per_s),
            Access::Write => (self.write_bytes_per_s, self.read_bytes_per_s),
        };
        [own, other].into_iter().find(|&speed| speed > 0)
    }

    /// What is left of the speed when `streams` share the device: 1 for one; what was measured for as many or fewer for
    /// more, and 1 where nothing was.
    pub fn efficiency(&self, streams: usize) -> f64 {
        efficiency(&self.sharing_ppm, streams)
    }
}

/// See [`Capacity::efficiency`].
pub(crate) fn efficiency(sharing_ppm: &[u32; 4], streams: usize) -> f64 {
    let known = sharing_ppm.iter().zip([2usize, 4, 8, 16]);
    let (mut left, mut at) = (1.0, 1.0);
    for (&ppm, shared_by) in known.filter(|&(&ppm, _)| ppm > 0) {
        let (next_left, next_at) = ((f64::from(ppm) / 1e6).min(left), shared_by as f64);
        if streams <= shared_by {
            // Between two measured ones, on the line between them.
            let way = ((streams as f64 - at) / (next_at - at)).clamp(0.0, 1.0);
            return left + (next_left - left) * way;
        }
        (left, at) = (next_left, next_at);
    }
    left
}

impl Reservations {
    /// A device of which nothing is kept.
    pub fn new(policy: AdmissionPolicy) -> Self {
        Self { policy, held: BTreeMap::new(), grants: 0, counts: ReservationCounts::default() }
    }

    /// Keeps bandwidth, or renews what is kept, of a device that gives `capacity`.
    ///
    /// # Errors
    /// [`Fault::Refused`] with [`RefusalReason::Reserved`] and when enough leases end, should none be renewed; with
    /// [`RefusalReason::NoCapacity`] where the device would not give it even alone; with [`RefusalReason::Overloaded`]
    /// beyond [`RESERVATIONS_MAX`]. [`NodeFault::Invalid`] for nothing. What was kept before stays as it was.
    pub fn reserve(&mut self, now: Time, wish: &Reserve, capacity: &Capacity) -> Result<Granted, Fault> {
        self.expire(now);
        let renews = self.held.contains_key(&wish.reservation);
        let outcome = self.decide(now, wish, capacity);
        match &outcome {
            Ok(granted) => {
                self.counts.granted += u64::from(!renews);
                self.counts.displaced += granted.displaced.len() as u64;
            }
            Err(_) => self.counts.refused += 1,
        }
        outcome
    }

    fn decide(&mut self, now: Time, wish: &Reserve, capacity: &Capacity) -> Result<Granted, Fault> {
        if wish.bytes_per_s == 0 {
            return Err(Fault::Node(NodeFault::Invalid("a reservation of 0 bytes per second".to_owned())));
        }
        let lease = Duration::from_millis(wish.lease_ms.into()).clamp(LEASE_MIN, LEASE_MAX);
        if self.policy == AdmissionPolicy::Open {
            return Ok(Granted { lease, displaced: Vec::new() });
        }
        if self.held.len() >= RESERVATIONS_MAX && !self.held.contains_key(&wish.reservation) {
            return Err(refused(RefusalReason::Overloaded, self.first_end(now)));
        }
        if let Some(held) = self.held.get_mut(&wish.reservation)
            && held.access == wish.access
            && held.bytes_per_s >= wish.bytes_per_s
            && held.background == wish.background
        {
            // A promise is not taken back because the device was measured anew.
            (held.bytes_per_s, held.until) = (wish.bytes_per_s, now + lease);
            return Ok(Granted { lease, displaced: Vec::new() });
        }
        let mut after = self.held.clone();
        let number = after.remove(&wish.reservation).map_or(self.grants, |held| held.number);
        let Reserve { access, bytes_per_s, background, .. } = *wish;
        let new = Held { access, bytes_per_s, background, until: now + lease, number };
        let mut taken = Vec::new();
        while !fits(&after, &new, capacity) {
            let weakest =
                after.iter().filter(|(_, held)| held.background).max_by_key(|(_, held)| held.number);
            match weakest.map(|(&id, &held)| (id, held)) {
                Some((id, held)) if self.policy == AdmissionPolicy::Priority && !background => {
                    after.remove(&id);
                    taken.push((id, held));
                }
                _ => return Err(self.refusal(now, wish.reservation, &new, capacity)),
            }
        }
        after.insert(wish.reservation, new);
        // The latest may have been too little, and what an earlier one had is room for it again.
        for &(id, held) in taken.iter().rev() {
            if fits(&after, &held, capacity) {
                after.insert(id, held);
            }
        }
        let displaced = taken.into_iter().map(|(id, _)| id).filter(|id| !after.contains_key(id)).collect();
        self.grants += 1;
        self.held = after;
        Ok(Granted { lease, displaced })
    }

    /// Gives a reservation back.
    pub fn release(&mut self, reservation: ReservationId) {
        self.counts.given_back += u64::from(self.held.remove(&reservation).is_some());
    }

    /// Ends every reservation whose lease has ended.
    pub fn expire(&mut self, now: Time) {
        let before = self.held.len();
        self.held.retain(|_, held| held.until > now);
        self.counts.expired += (before - self.held.len()) as u64;
    }

    /// What became of all wishes so far.
    pub fn counts(&self) -> ReservationCounts {
        ReservationCounts { held: self.held.len() as u64, ..self.counts }
    }

    /// When the first lease ends.
    pub fn wake_at(&self) -> Option<Time> {
        self.held.values().map(|held| held.until).min()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The share of the device's time kept for a reservation; none once it has ended. One of a device whose speed is not
    /// known has the whole but for the rest that is never reserved.
    pub fn share(&self, reservation: ReservationId, capacity: &Capacity) -> Option<f64> {
        self.held.get(&reservation).map(|held| share(held, capacity).unwrap_or(1.0 - BEST_EFFORT_SHARE))
    }

    /// The share of the device's time that nobody reserved: at least [`BEST_EFFORT_SHARE`].
    pub fn share_left(&self, capacity: &Capacity) -> f64 {
        let kept: f64 = self.held.values().filter_map(|held| share(held, capacity)).sum();
        (1.0 - kept).max(BEST_EFFORT_SHARE)
    }

    /// Bytes per second kept for one kind of access.
    pub fn reserved_bytes_per_s(&self, access: Access) -> u64 {
        let kept = self.held.values().filter(|held| held.access == access);
        kept.fold(0, |sum, held| sum.saturating_add(held.bytes_per_s))
    }

    fn refusal(&self, now: Time, own: ReservationId, new: &Held, capacity: &Capacity) -> Fault {
        let mut left = self.held.clone();
        left.remove(&own);
        if !fits(&BTreeMap::new(), new, capacity) {
            return refused(RefusalReason::NoCapacity, RETRY_SPEED);
        }
        if share(new, capacity).is_none() {
            return refused(RefusalReason::Reserved, RETRY_UNMEASURED);
        }
        if self.policy == AdmissionPolicy::Priority && !new.background {
            // Those are in nobody's way.
            left.retain(|_, held| !held.background);
        }
        let mut ends: Vec<(Time, ReservationId)> = left.iter().map(|(&id, held)| (held.until, id)).collect();
        ends.sort_unstable();
        for (until, id) in ends {
            left.remove(&id);
            if fits(&left, new, capacity) {
                return refused(RefusalReason::Reserved, until.since(now));
            }
        }
        unreachable!("it fits alone, and nobody is left")
    }

    fn first_end(&self, now: Time) -> Duration {
        self.wake_at().map_or(RETRY_SPEED, |until| until.since(now))
    }
}

/// The share of the device's time that a reservation takes; none where the speed is not known.
fn share(held: &Held, capacity: &Capacity) -> Option<f64> {
    capacity.bytes_per_s(held.access).map(|speed| held.bytes_per_s as f64 / speed as f64)
}

/// Whether the device can keep `new` beside the others. One whose speed is not known takes one at a time, which measures
/// it.
fn fits(others: &BTreeMap<ReservationId, Held>, new: &Held, capacity: &Capacity) -> bool {
    let Some(own) = share(new, capacity) else { return others.is_empty() };
    let kept: f64 = others.values().filter_map(|held| share(held, capacity)).sum();
    kept + own <= capacity.efficiency(others.len() + 1) - BEST_EFFORT_SHARE + 1e-9
}

fn refused(reason: RefusalReason, retry_after: Duration) -> Fault {
    let millis = retry_after.clamp(RETRY_MIN, LEASE_MAX).as_nanos().div_ceil(1_000_000);
    Fault::Refused { reason, retry_after_ms: u32::try_from(millis).expect("clamped to a minute") }
}
