//! Drives the core that gives reserved space back ([`Reserve`]; PLR §4.2.2, Algorithm 1) for the parity chunks of one device.
//!
//! At each period's end the device says what its logs took since the last one and what they hold; what the core then asks for
//! is done one after the other, by the hosts of the chunks. A chunk whose reserve became smaller is served on as after a restart
//! of its node: its data nodes connect again, and learn how much of them may be uncommitted from then on. Without a reserve parity
//! is overwritten in place. What no host can serve any more, as chunks of its segment were moved alone, needs no host for it.
//!
//! Logs count what they took since the device was opened. What was seen of that, and how much of the period is over, is therefore looked
//! at and stored some times in each period and at its end ([`kept`]), and taken up after a restart: a period is so much time that the node
//! runs. What was logged after the last time before a restart is not counted, and a node that never runs for a quarter of a period gives
//! nothing back.

mod kept;

use crate::{
    NodeError,
    devices::ServedDevice,
    node::blocking,
    service::{Service, operation},
    updates::Shrunk,
};
use kept::{Kept, KeptChunk};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use steadfast_disk::{Op, OpOutput, Priority as LanePriority, device::ReserveInfo};
use steadfast_protocol::{
    Time,
    serve::{Reserve, ReserveAction, ReserveInput, ReserveOptions, ReserveUse, ReservedChunk},
};
use tokio::time::sleep;

/// Extents looked at by one operation of the lane: a fraction of a millisecond of its time.
const PAGE: usize = 1024;
/// So many times in a period what is known of reserves is stored. Picked by eye: with a period of twelve hours a node that runs for three
/// gets on, and three hours of updates are too few to be missed.
const STORES: u32 = 4;
/// But not more often than this, as each takes two flushes, beside the end of a period that is no shorter.
const STORED_FOR_MIN: Duration = Duration::from_secs(60);

/// Gives space of `device` back until the device is gone.
pub(crate) async fn run(service: &Service, device: &Arc<ServedDevice>, options: ReserveOptions) {
    let core = Reserve::new(service.now(), options).expect("options are checked before a node starts");
    if core.wake_at().is_none() {
        return;
    }
    let mut reserves = Reserves::new(core, load(device).await);
    let step = (options.period / STORES).max(STORED_FOR_MIN);
    let mut stored = service.now();
    // At once: it takes over what was stored of them, so that this is not kept twice for hours.
    let Some(infos) = list(service, device).await else { return };
    reserves.learn(service.now(), infos);
    while let Some(end) = reserves.core.wake_at() {
        let at = end.min(service.now() + step);
        sleep(at.since(service.now())).await;
        let Some(infos) = list(service, device).await else { return };
        reserves.learn(service.now(), infos);
        reserves.tell(service.now(), ReserveInput::Tick);
        reserves.work(service, device).await;
        let now = service.now();
        let has_ended = reserves.core.wake_at() != Some(end);
        if is_to_store(now.since(stored), has_ended, options.period) {
            stored = now;
            if let Err(error) = store(device, reserves.kept(now)).await {
                tracing::warn!(device = %device.id, %error, "what reserves were used is learned anew after a restart");
            }
        }
    }
}

/// Whether what is known is stored, so long after it was last. Where a period has ended it is even right after the start: after a restart
/// all logs would be merged for the same end again.
fn is_to_store(stored_for: Duration, has_ended: bool, period: Duration) -> bool {
    stored_for >= STORED_FOR_MIN || has_ended && period >= STORED_FOR_MIN
}

async fn load(device: &ServedDevice) -> Option<Kept> {
    let (dir, id) = (device.dir.clone(), device.id);
    blocking(move || kept::load(&dir, id)).await.ok().flatten()
}

async fn store(device: &ServedDevice, kept: Kept) -> Result<(), NodeError> {
    let (dir, id) = (device.dir.clone(), device.id);
    blocking(move || kept::store(&dir, id, &kept)).await?
}

/// The core, and what it was told.
struct Reserves {
    core: Reserve,
    /// As the device last described them.
    known: BTreeMap<ReservedChunk, ReserveInfo>,
    /// What was stored before the node started, until the device is first looked at.
    before: BTreeMap<ReservedChunk, KeptChunk>,
}

impl Reserves {
    fn new(core: Reserve, kept: Option<Kept>) -> Self {
        let (core, before) = match kept {
            Some(Kept { left, chunks }) => (core.resumed(left), chunks),
            None => (core, BTreeMap::new()),
        };
        Self { core, known: BTreeMap::new(), before }
    }

    /// What the next start is to know, when the device was last looked at `now`.
    fn kept(&self, now: Time) -> Kept {
        let kept = self.known.iter().filter_map(|(&chunk, info)| {
            let used = self.core.use_of(chunk)?;
            Some((chunk, KeptChunk { created: info.created, used }))
        });
        Kept { left: self.core.left(now), chunks: kept.take(kept::CHUNKS_MAX).collect() }
    }

    /// Tells the core what is there now.
    fn learn(&mut self, now: Time, infos: Vec<ReserveInfo>) {
        let there: BTreeMap<ReservedChunk, ReserveInfo> = infos.into_iter().map(|i| (name(&i), i)).collect();
        for (&chunk, before) in &std::mem::take(&mut self.known) {
            let same = |info: &&ReserveInfo| info.created == before.created;
            let logged_before = before.logged_bytes;
            match there.get(&chunk).filter(same) {
                Some(info) if info.reserve_bytes == self.core.reserved_bytes(chunk) => {
                    let logged_bytes = info.logged_bytes.saturating_sub(logged_before);
                    let held_bytes = info.held_bytes;
                    self.tell(now, ReserveInput::Seen { chunk, logged_bytes, held_bytes });
                    self.known.insert(chunk, *info);
                }
                _ => self.tell(now, ReserveInput::Deleted { chunk }),
            }
        }
        for (chunk, info) in there {
            if !self.known.contains_key(&chunk) {
                let before = self.before.remove(&chunk).filter(|kept| kept.created == info.created);
                self.tell(now, found(chunk, &info, before.map(|kept| kept.used)));
                // It was used since the device was opened, or since it was made.
                let ReserveInfo { logged_bytes, held_bytes, .. } = info;
                self.tell(now, ReserveInput::Seen { chunk, logged_bytes, held_bytes });
                self.known.insert(chunk, info);
            }
        }
        // The others are gone.
        self.before.clear();
    }

    /// Carries out what the core asks for, until it rests.
    async fn work(&mut self, service: &Service, device: &Arc<ServedDevice>) {
        while !self.core.is_resting() {
            let Some(action) = self.core.poll() else {
                // It looks at many chunks, some at a time.
                tokio::task::yield_now().await;
                continue;
            };
            let (chunk, answer) = self.carry_out(service, device, action).await;
            if self.core.handle(service.now(), answer).is_err() {
                self.tell(service.now(), ReserveInput::Failed { chunk });
            }
        }
    }

    async fn carry_out(
        &self,
        service: &Service,
        device: &Arc<ServedDevice>,
        action: ReserveAction,
    ) -> (ReservedChunk, ReserveInput) {
        match action {
            ReserveAction::Merge { chunk } => {
                let left = service.updates.merge(device.clone(), chunk.segment).await;
                let answer = match left {
                    // Reckoned by what records take at most.
                    Some(left_bytes) => {
                        let left_bytes = left_bytes.min(self.core.reserved_bytes(chunk));
                        ReserveInput::Merged { chunk, left_bytes }
                    }
                    None => ReserveInput::Failed { chunk },
                };
                (chunk, answer)
            }
            ReserveAction::Shrink { chunk, to_bytes } => {
                let from_bytes = self.known.get(&chunk).map_or(to_bytes, |info| info.reserve_bytes);
                let shrinking = service.updates.shrink_reserve(device.clone(), chunk.segment, to_bytes);
                let answer = match shrinking.await {
                    Shrunk::Done => {
                        let given_back = from_bytes.saturating_sub(to_bytes);
                        device.reserve_given_back_bytes.fetch_add(given_back, Ordering::Relaxed);
                        tracing::debug!(device = %device.id, segment = %chunk.segment, given_back, to_bytes, "a reserve shrank");
                        ReserveInput::Shrunk { chunk }
                    }
                    Shrunk::TooSmall { least_bytes } => ReserveInput::Least { chunk, least_bytes },
                    Shrunk::NotNow => ReserveInput::Failed { chunk },
                };
                (chunk, answer)
            }
        }
    }

    fn tell(&mut self, now: Time, input: ReserveInput) {
        if let Err(refused) = self.core.handle(now, input) {
            // A chunk whose sizes make no sense keeps its reserve.
            tracing::debug!(%refused, "a reserve is left as it is");
        }
    }
}

fn name(info: &ReserveInfo) -> ReservedChunk {
    ReservedChunk { segment: info.segment, index: info.index }
}

/// As it was when the device was opened, or it was made. A reserve that is no multiple of its chunk is given back whole or not at all.
fn found(chunk: ReservedChunk, info: &ReserveInfo, before: Option<ReserveUse>) -> ReserveInput {
    let ReserveInfo { chunk_bytes, reserve_bytes, held_bytes, logged_bytes, .. } = *info;
    let whole_chunks = chunk_bytes > 0 && reserve_bytes.is_multiple_of(chunk_bytes);
    let unit = if whole_chunks { chunk_bytes } else { reserve_bytes };
    ReserveInput::Found {
        chunk,
        chunk_bytes: u32::try_from(unit).unwrap_or(u32::MAX),
        reserved_bytes: reserve_bytes,
        held_bytes: held_bytes.saturating_sub(logged_bytes),
        before,
    }
}

async fn list(service: &Service, device: &ServedDevice) -> Option<Vec<ReserveInfo>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let op = Op::ListReserves { after, limit: PAGE };
        match operation(service, device, LanePriority::Background, op).await {
            Ok(OpOutput::Reserves(page)) => {
                all.extend(page.reserves);
                match page.last {
                    Some(_) => after = page.last,
                    None => return Some(all),
                }
            }
            Ok(other) => unreachable!("reserves are answered by reserves, not {other:?}"),
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use steadfast_protocol::{DeviceId, SegmentId};

    const DEVICE: DeviceId = DeviceId(7);
    const MIB: u64 = 1 << 20;
    const CHUNK: ReservedChunk = ReservedChunk { segment: SegmentId(1), index: 4 };

    /// A chunk of 4 MiB with as much beside it, as it is by default.
    fn described(created: u64, logged_bytes: u64, held_bytes: u64) -> ReserveInfo {
        let ReservedChunk { segment, index } = CHUNK;
        let (chunk_bytes, reserve_bytes) = (4 * MIB, 4 * MIB);
        ReserveInfo { segment, created, index, chunk_bytes, reserve_bytes, held_bytes, logged_bytes }
    }

    /// As a node begins, with what was stored in a directory.
    fn begun(dir: &Path) -> Reserves {
        let core = Reserve::new(Time(0), ReserveOptions::default()).unwrap();
        Reserves::new(core, kept::load(dir, DEVICE))
    }

    /// Looks at the device after so many hours, and stores what is known; what the core asks for.
    fn looked(reserves: &mut Reserves, hours: u64, info: ReserveInfo, dir: &Path) -> Option<ReserveAction> {
        let now = Time(0) + Duration::from_secs(hours * 3600);
        reserves.learn(now, vec![info]);
        reserves.tell(now, ReserveInput::Tick);
        let asked = reserves.core.poll();
        if asked.is_none() {
            kept::store(dir, DEVICE, &reserves.kept(now)).unwrap();
        }
        asked
    }

    /// Four periods of twelve hours, whether it runs all the time or for seven hours at a time.
    #[test]
    fn what_is_never_updated_is_given_back_after_two_days_however_often_the_node_restarts() {
        for hours_on in [7, 12, 1000] {
            let dir = tempfile::tempdir().unwrap();
            let (mut reserves, mut hours) = (begun(dir.path()), 0);
            let asked = (1..=100).find_map(|total| {
                if hours == hours_on {
                    (reserves, hours) = (begun(dir.path()), 0);
                }
                hours += 1;
                let asked = looked(&mut reserves, hours, described(1, 0, 0), dir.path())?;
                Some((total, asked))
            });
            let shrink = ReserveAction::Shrink { chunk: CHUNK, to_bytes: 0 };
            assert_eq!(asked, Some((48, shrink)), "{hours_on} hours at a time");
        }
    }

    #[test]
    fn what_was_logged_before_a_restart_counts_and_another_extent_begins_anew() {
        for looks_at_once in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let mut reserves = begun(dir.path());
            assert_eq!(looked(&mut reserves, 2, described(1, 2 * MIB, 0), dir.path()), None);
            assert_eq!(looked(&mut reserves, 3, described(1, 3 * MIB, MIB), dir.path()), None);
            // Its log counts from 0 again, and has what it had.
            let mut reserves = begun(dir.path());
            if looks_at_once {
                reserves.learn(Time(0), vec![described(1, 0, MIB)]);
                assert!(reserves.before.is_empty(), "the core has it");
            }
            assert_eq!(looked(&mut reserves, 5, described(1, MIB, 2 * MIB), dir.path()), None);
            let ended = looked(&mut reserves, 9, described(1, MIB, 2 * MIB), dir.path());
            assert_eq!(ended, Some(ReserveAction::Merge { chunk: CHUNK }));
            assert_eq!(reserves.core.utility(CHUNK), Some(1.0));
            // What was stored last, without and with the same extent.
            for (created, utility) in [(2, 0.7), (1, 1.0)] {
                let mut reserves = begun(dir.path());
                reserves.learn(Time(0), vec![described(created, 0, 0)]);
                reserves.tell(Time(0) + Duration::from_secs(4 * 3600), ReserveInput::Tick);
                assert_eq!((reserves.core.poll(), reserves.core.utility(CHUNK)), (None, Some(utility)));
            }
        }
    }

    /// A node may be started right before one ends.
    #[test]
    fn a_period_that_has_ended_is_stored_at_once_and_short_ones_once_in_a_while() {
        let (hours, seconds) = (Duration::from_secs(12 * 3600), Duration::from_secs(1));
        for (stored_for, has_ended, period, expected) in [
            (seconds, false, hours, false),
            (seconds, true, hours, true),
            (STORED_FOR_MIN, false, hours, true),
            (seconds, true, STORED_FOR_MIN, true),
            // The end of each would be two flushes a second.
            (seconds, true, seconds, false),
            (STORED_FOR_MIN, true, seconds, true),
        ] {
            let stored = is_to_store(stored_for, has_ended, period);
            assert_eq!(stored, expected, "{stored_for:?} {has_ended} {period:?}");
        }
    }
}
