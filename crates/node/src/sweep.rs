//! Drives the sweep of one device at background priority.

use crate::{
    devices::ServedDevice,
    membership::Meta,
    service::{Service, indices, operation},
};
use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed, time::Duration};
use steadfast_disk::{ExtentInfo, Op, OpOutput, Priority as LanePriority};
use steadfast_protocol::{
    SegmentId, Time,
    message::{MetaAnswer, Query},
    serve::{ExtentFacts, Sweep, SweepAction, SweepInput, SweepOptions},
};
use tokio::time::sleep;

/// Extents listed by one operation of the lane: a fraction of a millisecond of its time.
const PAGE: usize = 1024;

/// Sweeps `device` for ever.
pub(crate) async fn run(service: &Service, device: &ServedDevice, meta: &Meta, options: SweepOptions) {
    let mut sweep = Sweep::new(service.now(), options);
    let mut ages = Ages::default();
    loop {
        while let Some(action) = sweep.poll() {
            let input = carry_out(service, device, meta, &mut ages, action).await;
            sweep.handle(service.now(), input);
        }
        let totals = sweep.totals();
        tracing::trace!(device = %device.id, ?totals, "sweep ends");
        if device.blocks_lost.swap(totals.blocks_lost, Relaxed) < totals.blocks_lost {
            let (device, blocks) = (device.id, totals.blocks_lost);
            tracing::error!(%device, blocks, "blocks are lost: objects list them here, and the device lacks them");
        }
        let wake = sweep.wake_at().expect("a sweep without an action rests");
        sleep(wake.since(service.now())).await;
        sweep.handle(service.now(), SweepInput::Tick);
    }
}

async fn carry_out(
    service: &Service,
    device: &ServedDevice,
    meta: &Meta,
    ages: &mut Ages,
    action: SweepAction,
) -> SweepInput {
    let change = |op| operation(service, device, LanePriority::Background, op);
    match action {
        SweepAction::List => {
            let listed = list(service, device).await;
            SweepInput::Extents(listed.map(|extents| ages.facts(service.now(), extents)))
        }
        SweepAction::Ask { segments } => {
            let asked = meta.query(Query::SegmentStates { segments, device: device.id }).await;
            match asked {
                Some(MetaAnswer::SegmentStates(states)) => SweepInput::States(Some(states)),
                _ => SweepInput::States(None),
            }
        }
        SweepAction::Seal { segment, keep, epoch } => {
            tracing::debug!(device = %device.id, %segment, %keep, "sweep seals");
            let keep = keep.ranges().to_vec();
            SweepInput::Carried { well: change(Op::Seal { segment, epoch, keep }).await.is_ok() }
        }
        SweepAction::Delete { segment, epoch } => {
            tracing::debug!(device = %device.id, %segment, "sweep frees");
            SweepInput::Carried { well: change(Op::Delete { segment, epoch }).await.is_ok() }
        }
    }
}

async fn list(service: &Service, device: &ServedDevice) -> Option<Vec<ExtentInfo>> {
    let mut all: Vec<ExtentInfo> = Vec::new();
    loop {
        let after = all.last().map(|extent| extent.segment);
        match operation(service, device, LanePriority::Background, Op::List { after, limit: PAGE }).await {
            Ok(OpOutput::List(page)) if page.is_empty() => return Some(all),
            Ok(OpOutput::List(page)) => all.extend(page),
            Ok(other) => unreachable!("a listing answers a listing, not {other:?}"),
            Err(_) => return None,
        }
    }
}

/// Since when growing extents have not changed, as far as this process has seen: a device keeps no times. A sealed
/// extent is of any age: only its layout's end makes it garbage.
#[derive(Default)]
struct Ages(BTreeMap<SegmentId, (u64, u64, Time)>);

impl Ages {
    fn facts(&mut self, now: Time, extents: Vec<ExtentInfo>) -> Vec<ExtentFacts> {
        let mut growing = BTreeMap::new();
        let mut facts = Vec::with_capacity(extents.len());
        for extent in extents {
            let age = if extent.sealed {
                Duration::MAX
            } else {
                let (created, count) = (extent.created, extent.block_count());
                let since = match self.0.get(&extent.segment) {
                    Some(&(seen, blocks, since)) if (seen, blocks) == (created, count) => since,
                    _ => now,
                };
                growing.insert(extent.segment, (created, count, since));
                now.since(since)
            };
            facts.push(ExtentFacts {
                segment: extent.segment,
                sealed: extent.sealed,
                blocks: indices(&extent.blocks),
                epoch: extent.epoch,
                age,
            });
        }
        self.0 = growing;
        facts
    }
}
