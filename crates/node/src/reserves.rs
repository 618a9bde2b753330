//! Drives the core that gives reserved space back ([`Reserve`]; PLR §4.2.2, Algorithm 1) for the parity chunks of one device.
//!
//! At each period's end the device says what its logs took since the last one and what they hold; what the core then asks for
//! is done one after the other, by the hosts of the chunks. A chunk whose reserve became smaller is served on as after a restart
//! of its node: its data nodes connect again, and learn how much of them may be uncommitted from then on. Without a reserve parity
//! is overwritten in place. What no host can serve any more, as chunks of its segment were moved alone, needs no host for it.

use crate::{
    devices::ServedDevice,
    service::{Service, operation},
    updates::Shrunk,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};
use steadfast_disk::{Op, OpOutput, Priority as LanePriority, device::ReserveInfo};
use steadfast_protocol::serve::{Reserve, ReserveAction, ReserveInput, ReserveOptions, ReservedChunk};
use tokio::time::sleep;

/// Extents looked at by one operation of the lane: a fraction of a millisecond of its time.
const PAGE: usize = 1024;

/// Gives space of `device` back until the device is gone.
pub(crate) async fn run(service: &Service, device: &Arc<ServedDevice>, options: ReserveOptions) {
    let core = Reserve::new(service.now(), options).expect("options are checked before a node starts");
    let mut reserves = Reserves { core, known: BTreeMap::new() };
    while let Some(at) = reserves.core.wake_at() {
        sleep(at.since(service.now())).await;
        let Some(infos) = list(service, device).await else { return };
        reserves.learn(service, infos);
        reserves.tell(service, ReserveInput::Tick);
        reserves.work(service, device).await;
    }
}

/// The core, and what it was told.
struct Reserves {
    core: Reserve,
    /// As the device last described them.
    known: BTreeMap<ReservedChunk, ReserveInfo>,
}

impl Reserves {
    /// Tells the core what is there now.
    fn learn(&mut self, service: &Service, infos: Vec<ReserveInfo>) {
        let now: BTreeMap<ReservedChunk, ReserveInfo> = infos.into_iter().map(|i| (name(&i), i)).collect();
        for (&chunk, before) in &std::mem::take(&mut self.known) {
            let same = |info: &&ReserveInfo| info.created == before.created;
            let logged_before = before.logged_bytes;
            match now.get(&chunk).filter(same) {
                Some(info) if info.reserve_bytes == self.core.reserved_bytes(chunk) => {
                    let logged_bytes = info.logged_bytes.saturating_sub(logged_before);
                    let held_bytes = info.held_bytes;
                    self.tell(service, ReserveInput::Seen { chunk, logged_bytes, held_bytes });
                    self.known.insert(chunk, *info);
                }
                _ => self.tell(service, ReserveInput::Deleted { chunk }),
            }
        }
        for (chunk, info) in now {
            if !self.known.contains_key(&chunk) {
                self.tell(service, found(chunk, &info));
                // It was used since the device was opened, or since it was made.
                let ReserveInfo { logged_bytes, held_bytes, .. } = info;
                let logged_bytes = logged_bytes.saturating_sub(held_bytes);
                self.tell(service, ReserveInput::Seen { chunk, logged_bytes, held_bytes });
                self.known.insert(chunk, info);
            }
        }
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
                self.tell(service, ReserveInput::Failed { chunk });
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

    fn tell(&mut self, service: &Service, input: ReserveInput) {
        if let Err(refused) = self.core.handle(service.now(), input) {
            // A chunk whose sizes make no sense keeps its reserve.
            tracing::debug!(%refused, "a reserve is left as it is");
        }
    }
}

fn name(info: &ReserveInfo) -> ReservedChunk {
    ReservedChunk { segment: info.segment, index: info.index }
}

/// A reserve that is no multiple of its chunk is given back whole or not at all.
fn found(chunk: ReservedChunk, info: &ReserveInfo) -> ReserveInput {
    let ReserveInfo { chunk_bytes, reserve_bytes, held_bytes, .. } = *info;
    let whole_chunks = chunk_bytes > 0 && reserve_bytes.is_multiple_of(chunk_bytes);
    let unit = if whole_chunks { chunk_bytes } else { reserve_bytes };
    ReserveInput::Found {
        chunk,
        chunk_bytes: u32::try_from(unit).unwrap_or(u32::MAX),
        reserved_bytes: reserve_bytes,
        held_bytes,
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
