//! One merge of a parity chunk's log: reads the records, folds them, reads the rows that they change, and writes those. What lies
//! between them was read with them, and a disk that positions writes it with them.
//!
//! A merge that nobody waits for lets everybody else go first, one that updates soon wait for takes its turn, and one that they do wait
//! for goes first itself, one operation at a time. That may change while it is under way, so each operation asks anew how much haste
//! there is, and one that waits in the lane's queue is taken out and put in again before others.

use super::{
    Chunk, damaged_parity,
    medium::{self, READ_BYTES},
    merges::hurried,
    not_in_place,
};
use bytes::Bytes;
use std::{ops::Range, sync::Arc};
use steadfast_disk::{
    Op, OpError, OpOutput, Priority as LanePriority,
    device::{Apply, ChunkState, ReadError, UpdateError},
};
use steadfast_protocol::{
    Epoch,
    message::Fault,
    serve::parity_log::{ChunkNumber, Difference, Fold, Haste, ParityOf},
};
use tokio::sync::watch;

/// What is not changed between two rows is read with them up to so many bytes: a disk passes over them in half the time that it
/// takes to position.
const GAP_BYTES: u64 = 128 << 10;

/// A merge; see the module's doc.
pub(super) struct Merge {
    chunk: Arc<Chunk>,
    of: Arc<ParityOf>,
    /// The lane's stream of its operations, one at a time.
    stream: u64,
    /// Whether somebody waits for it, or soon will.
    haste: watch::Receiver<Haste>,
}

impl Merge {
    pub(super) fn new(
        chunk: Arc<Chunk>,
        of: Arc<ParityOf>,
        stream: u64,
        haste: watch::Receiver<Haste>,
    ) -> Self {
        Self { chunk, of, stream, haste }
    }

    /// Folds records into the chunk, durably.
    pub(super) async fn make(
        mut self,
        sequences: &[u64],
        merged: Vec<(ChunkNumber, u64)>,
        log_start: u64,
    ) -> Result<(), Fault> {
        let chunk = self.chunk.clone();
        let (device, segment) = (&*chunk.device, chunk.segment);
        let _permit = device.merges.take(&mut self.haste).await;
        let failed = |error| medium::not_changed(device.id, segment, error);
        let before = match self.ask(Op::DescribeUpdates { segment }).await.map_err(failed)? {
            OpOutput::Updates(info) => info,
            other => unreachable!("a description answers a description, not {other:?}"),
        };
        let interfered = || not_in_place(segment, "somebody else merges its log");
        if before.log.first().map(|entry| entry.sequence) != sequences.first().copied() {
            return Err(interfered());
        }
        let mut fold = Fold::default();
        let mut next = sequences.first().copied().unwrap_or(log_start);
        while next < log_start {
            let op = Op::LogReadRun { segment, sequences: next..log_start, bytes_max: READ_BYTES };
            match self.ask(op).await.map_err(failed)? {
                OpOutput::LogRecords(records) => {
                    for record in &records {
                        let record = Difference::decode(record);
                        fold.add(&record.map_err(|malformed| damaged_parity(device.id, segment, malformed))?);
                    }
                    next += records.len() as u64;
                }
                other => unreachable!("records are answered by records, not {other:?}"),
            }
        }
        let (mut patches, mut between) = (Vec::new(), Vec::new());
        for span in fold.spans(GAP_BYTES, READ_BYTES) {
            let mut read = vec![(span.range.clone(), self.read(&span.range).await)];
            if matches!(&read[..], [(_, Err(error))] if is_damaged(error)) && span.rows.len() > 1 {
                // What lies between its rows is nothing to it.
                read.clear();
                for row in &span.rows {
                    read.push((row.clone(), self.read(row).await));
                }
            }
            for (range, answer) in read {
                let (there, state) = answer.map_err(failed)?;
                if state.merged != before.merged {
                    // Of rows that have the fold already it would be taken out again.
                    return Err(interfered());
                }
                let rows: Vec<Range<u64>> =
                    span.rows.iter().filter(|row| range.contains(&row.start)).cloned().collect();
                let within =
                    |of: &Range<u64>| (of.start - range.start) as usize..(of.end - range.start) as usize;
                for row in &rows {
                    // Not a part of what was read: that goes as soon as nobody wants what lies between.
                    let mut bytes = there[within(row)].to_vec();
                    let added = self.of.add(&fold, row.start, &mut bytes);
                    added.map_err(|error| not_in_place(segment, error))?;
                    patches.push((row.start, Bytes::from(bytes)));
                }
                let gaps = rows.windows(2).map(|pair| pair[0].end..pair[1].start);
                between.extend(gaps.map(|gap| (gap.start, there.slice(within(&gap)))));
            }
        }
        let apply = Apply { patches, merged, log_start: Some(log_start), between };
        self.put(before.epoch, apply).await.map_err(failed)
    }

    /// Rows of the chunk as they are. Says so where they are damaged: readers of the data may never see them.
    async fn read(&mut self, range: &Range<u64>) -> Result<(Bytes, ChunkState), OpError> {
        let len = u32::try_from(range.end - range.start).expect("a merge is bounded");
        let op = Op::ReadChunk { segment: self.chunk.segment, offset: range.start, len };
        match self.ask(op).await {
            Ok(OpOutput::Chunk { data, state, .. }) => Ok((data, state)),
            Ok(other) => unreachable!("rows are answered by rows, not {other:?}"),
            Err(error) => {
                if is_damaged(&error) {
                    let within = (range.start / u64::from(self.chunk.shape.block_bytes)) as u32;
                    let first = self.chunk.shape.blocks_of(self.chunk.number).start + within;
                    let index = match &error {
                        OpError::Update(UpdateError::Read(ReadError::Corrupt { index, .. })) => *index,
                        _ => first,
                    };
                    self.chunk.device.tell_corrupt(self.chunk.segment, index);
                }
                Err(error)
            }
        }
    }

    /// Writes what was folded. A merge is of what was committed, under whichever epoch: also where a later one came into force
    /// since it began.
    pub(super) async fn put(&mut self, epoch: Epoch, apply: Apply) -> Result<(), OpError> {
        let segment = self.chunk.segment;
        let made = self.ask(Op::Apply { segment, epoch, apply: apply.clone() }).await;
        let made = match made {
            Err(OpError::Update(UpdateError::StaleEpoch { held, .. })) if held > epoch => {
                self.ask(Op::Apply { segment, epoch: held, apply }).await
            }
            made => made,
        };
        made.map(drop)
    }

    /// One operation of the lane, before others as soon as somebody waits for the merge.
    pub(super) async fn ask(&mut self, op: Op) -> Result<OpOutput, OpError> {
        let device = &*self.chunk.device;
        loop {
            let haste = *self.haste.borrow();
            let (class, more) = match haste {
                Haste::None => (LanePriority::Background, Haste::Soon),
                Haste::Soon => (LanePriority::Normal, Haste::Now),
                Haste::Now => {
                    let foremost = device.merges.foremost();
                    let class =
                        if foremost.is_some() { LanePriority::Interactive } else { LanePriority::Normal };
                    return medium::ask(device, (self.stream, class), op).await;
                }
            };
            let mut asked = Box::pin(medium::ask(device, (self.stream, class), op.clone()));
            tokio::select! {
                // It is in the queue before anybody is in more of a hurry.
                biased;
                answer = &mut asked => return answer,
                () = hurried(&mut self.haste, more) => {}
            }
            device.lane.cancel(self.stream);
            match asked.await {
                // It had not begun.
                Err(OpError::Cancelled) => {}
                answer => return answer,
            }
        }
    }
}

fn is_damaged(error: &OpError) -> bool {
    matches!(error, OpError::Update(UpdateError::Read(error)) if medium::is_damage(error))
}
