//! Segments that an amendment stores whole, as a put does: by the client, or by a node to which it hands them over.

use super::Amendment;
use crate::{amend::AmendError, feed::no_code};
use std::{collections::BTreeSet, sync::Arc};
use steadfast_protocol::{
    DeviceId, SegmentId,
    durability::Rule,
    layout::{CodeKind, Geometry, SegmentLayout},
    plan::{Dealt, Plan, Scheme, SegmentPlan, Wanted, Wish, dialled},
    policy::Policy,
    write::{
        Given, WriteSpec,
        ingest::{Offloaded, Setback},
    },
};
use steadfast_transfer::{Maker, Originals};

impl Amendment<'_> {
    /// Stores a segment anew, as a put does, in place of `layout`, which begins at byte `offset` of the object; on none of
    /// the devices `leaving`.
    pub(in crate::amend) async fn store_anew(
        &self,
        layout: &SegmentLayout,
        offset: u64,
        originals: Arc<Originals>,
        wish: &Wish,
        leaving: &BTreeSet<DeviceId>,
    ) -> Result<SegmentLayout, AmendError> {
        let geometry = Geometry {
            block_bytes: layout.block_bytes,
            originals: layout.code.originals,
            granule_bytes: layout.granule_bytes,
        };
        let scheme = match layout.code.kind {
            CodeKind::Replicated if layout.code.originals == 1 => Scheme::Replicated,
            CodeKind::Replicated => Scheme::Striped,
            CodeKind::ReedSolomon { .. } => Scheme::Parity,
            _ => Scheme::Rateless,
        };
        let segment = SegmentPlan { offset, length: layout.length, geometry, code: layout.code.kind, scheme };
        self.store(Some(layout), &segment, originals, wish, leaving).await
    }

    /// Stores a segment as planned, in place of one where there is one; on none of the devices `leaving`.
    pub(in crate::amend) async fn store(
        &self,
        replaced: Option<&SegmentLayout>,
        segment: &SegmentPlan,
        originals: Arc<Originals>,
        wish: &Wish,
        leaving: &BTreeSet<DeviceId>,
    ) -> Result<SegmentLayout, AmendError> {
        let (mut failed, mut tried, none) = (None, BTreeSet::new(), Dealt::default());
        let policy = self.begun.policy;
        let stored = loop {
            let name = self.name().await?;
            let wanted = Wanted {
                policy,
                length: segment.length,
                bandwidth_bytes_per_s: self.client.options.bandwidth_bytes_per_s,
                seed: self.client.seed ^ name.0 ^ self.begun.version.0,
            };
            let without = leaving.union(&tried).copied().collect();
            let planned = self.client.plan_write(&self.reserved, &wanted, wish, &without, &none);
            let plan = match planned.await {
                // What failed says more than that there is no way around it.
                Err(error) => return Err(failed.unwrap_or(error.into())),
                Ok(plan) => plan,
            };
            let error = match self.store_by(replaced, segment, &originals, name, (plan, wish)).await {
                Err(AmendError::Write(error)) => error,
                done => break done?,
            };
            if !self.client.may_go_without((&policy, wish), &error, &mut tried).await {
                return Err(error.into());
            }
            tracing::debug!(segment = %name, %error, "stored anew without the devices that failed");
            failed = Some(error.into());
        };
        if let Some(layout) = replaced {
            self.dropped(layout);
        }
        Ok(stored)
    }

    /// Stores a segment under a name on the devices that were planned for it.
    async fn store_by(
        &self,
        replaced: Option<&SegmentLayout>,
        segment: &SegmentPlan,
        originals: &Arc<Originals>,
        name: SegmentId,
        (plan, wish): (Plan, &Wish),
    ) -> Result<SegmentLayout, AmendError> {
        let segment = segment.under(&plan.policy);
        let SegmentPlan { length, geometry, scheme, .. } = segment;
        let seed = self.client.seed ^ name.0;
        let mut rule = Rule::of(&plan.policy);
        if let (Scheme::Rateless, Some(layout)) = (scheme, replaced) {
            rule.redundancy = self.wish.quality.redundancy.unwrap_or(0.0).max(dialled(layout));
        }
        let (spec, code) = segment.code(seed, rule.redundancy).map_err(|error| no_code(&segment, &error))?;
        let (devices, spares) = plan.targets();
        let write = WriteSpec {
            scheme,
            code: code.clone(),
            block_bytes: geometry.block_bytes,
            rule,
            domains: plan.domains,
            devices,
            spares,
            patience: self.client.options.patience,
            seed,
            given: Given::default(),
            fewer: plan.fewer(self.client.options.patience, wish),
        };
        let (version, originals) = (self.begun.version, Arc::clone(originals));
        let maker = Maker::new((name, version), geometry, &code, spec, originals, rule.redundancy, 0);
        let mut maker = Arc::new(maker);
        let holders = match self.hand_over(&maker, length, &plan.policy, &write).await {
            Some(Ok(offloaded)) => offloaded.holders,
            by_client => {
                if let Some(Err(setback)) = by_client {
                    tracing::debug!(segment = %name, why = setback.why, "stored by the client, not by a primary");
                    // What the primary may still do is done under the old name.
                    maker = Arc::new(maker.renamed(self.name().await?));
                }
                let done = self.run_writer(write, Arc::clone(&maker), plan.policy).await?;
                self.wrote(done.pushed_blocks, geometry.block_bytes);
                done.holders
            }
        };
        let segment = maker.segment;
        Ok(SegmentLayout {
            segment,
            version,
            epoch: self.begun.epoch,
            length,
            code: spec,
            block_bytes: geometry.block_bytes,
            granule_bytes: geometry.granule_bytes,
            holders: holders.into_iter().map(|share| share.stored(segment, version)).collect(),
        })
    }

    /// Hands a segment to a node; none where there is none to ask.
    async fn hand_over(
        &self,
        maker: &Arc<Maker>,
        length: u64,
        policy: &Policy,
        write: &WriteSpec,
    ) -> Option<Result<Offloaded, Setback>> {
        if !self.client.offloads(&self.reserved) {
            return None;
        }
        let (segment, block_bytes) = (maker.segment, u64::from(maker.geometry.block_bytes));
        let touched = |devices| self.made().only_touched(segment, devices);
        let (what, priority) = ((length, policy, write), self.reserved.priority());
        let under = (self.begun.intent, self.begun.epoch, priority);
        let done = self.client.hand_over(&self.primaries, maker, what, under, touched).await?;
        let mut made = self.made();
        match &done {
            Ok(offloaded) => {
                made.used.insert(segment);
                made.sent_bytes += u64::from(maker.geometry.originals) * block_bytes;
                made.report.written_blocks += offloaded.pushed_blocks;
                made.report.written_bytes += u64::from(offloaded.pushed_blocks) * block_bytes;
            }
            Err(setback) => made.sent_bytes += u64::from(setback.pushed_blocks) * block_bytes,
        }
        Some(done)
    }
}
