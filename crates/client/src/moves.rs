//! Drives the core that has objects moved ([`Drain`]): off devices, or to as many chunks as they are to have.

use crate::{AmendError, AmendReport, Client, ClientError, GetError, unexpected};
use std::{
    collections::BTreeSet,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::{Duration, Instant},
};
use steadfast_protocol::{
    DeviceId, SegmentId, Time,
    drain::{Action, Allotment, Drain, Input, Limits, ObjectName, Outcome, Stuck, StuckKind, Totals},
    message::{MetaAnswer, MetaFault, OBJECTS_ON_PAGE_MAX, Query},
    read::ReadError,
    words::counted,
};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Between two signs that it goes on; a person who watches sees no difference.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What is to become of objects.
pub(crate) enum Work<'a> {
    /// They have nothing on these devices.
    Leave {
        /// Which.
        devices: &'a BTreeSet<DeviceId>,
        /// Whether they are gone for good.
        lost: bool,
    },
    /// No segment of them is degraded.
    Complete {
        /// When nothing more is to be begun, if ever ([`Allotment`]).
        until: Option<Instant>,
        /// The segment after which the first look begins; the others are looked at after it.
        after: Option<SegmentId>,
    },
}

/// The memory that segments of all objects under way take together, several of one at a time. The core counts one segment of each object.
#[derive(Debug)]
pub(crate) struct Room {
    free_kib: Semaphore,
    all_kib: u32,
}

impl Room {
    /// So many bytes.
    pub(crate) fn of(bytes: u64) -> Self {
        let all_kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).max(1);
        Self { free_kib: Semaphore::new(all_kib as usize), all_kib }
    }

    /// Waits until a segment of so many bytes has room, which it keeps until this is dropped: one that is larger has all of it. Nobody waits
    /// who has some already, and so nobody for ever.
    pub(crate) async fn take(&self, bytes: u64) -> SemaphorePermit<'_> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        self.free_kib.acquire_many(kib.min(self.all_kib)).await.expect("it is never closed")
    }
}

type Step<'a> = Pin<Box<dyn Future<Output = Result<Input, ClientError>> + 'a>>;

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Objects completed, the blocks that they lacked and the bytes of those.
    pub totals: Totals,
    /// From the call to the end.
    pub latency: Duration,
}

/// Segments that are degraded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Degraded {
    /// Their number.
    pub segments: u64,
    /// Bytes of the chunks that they lack.
    pub lacking_bytes: u64,
    /// Whether there are others that were not counted.
    pub more: bool,
}

/// Why objects were not completed.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The metadata server could not be asked, or refused.
    #[error(transparent)]
    Metadata(#[from] ClientError),
    /// Objects that cannot be completed now.
    #[error("{}", stuck(.0))]
    Stuck(Totals),
}

fn stuck(totals: &Totals) -> String {
    let Some((object, Stuck { why, .. })) = totals.stuck.first_key_value() else { return String::new() };
    let mut said = format!("{object} cannot be completed now: {why}");
    if totals.stuck.len() > 1 {
        said += &format!(" (and {} more)", counted(totals.stuck.len() - 1, "object"));
    }
    if totals.objects > 0 {
        said += &format!(". Completed before: {}", counted(totals.objects, "object"));
    }
    said
}

impl Client {
    /// Stores segments anew that have fewer chunks than their buckets' codes, because too few failure domains served when they were
    /// written. Objects are read and written meanwhile. Cut short, it is to be called again; it goes on with what is left.
    ///
    /// `tell` hears what was done so far, after each object and each second.
    ///
    /// # Errors
    /// [`RepairError::Stuck`] while too few failure domains serve, or an object cannot be read or is being changed.
    pub async fn repair(
        &self,
        limits: Limits,
        tell: impl FnMut(&Totals),
    ) -> Result<RepairReport, RepairError> {
        let start = Instant::now();
        self.registry().await?;
        let work = Work::Complete { until: None, after: None };
        let totals = self.move_all(&work, limits, &Totals::default(), tell).await?;
        match totals.stuck.is_empty() {
            true => Ok(RepairReport { totals, latency: start.elapsed() }),
            false => Err(RepairError::Stuck(totals)),
        }
    }

    /// What is degraded; of very many segments only the first are counted.
    ///
    /// # Errors
    /// When the metadata server cannot be asked.
    pub async fn degraded(&self) -> Result<Degraded, ClientError> {
        match self.metadata.ask(Query::Degraded { after: None, limit: OBJECTS_ON_PAGE_MAX }).await? {
            MetaAnswer::ObjectsOn { held, next } => Ok(Degraded {
                segments: held.len() as u64,
                lacking_bytes: held.iter().map(|held| held.bytes).sum(),
                more: next.is_some(),
            }),
            other => Err(unexpected("ObjectsOn", &other)),
        }
    }

    /// Whether anything is degraded.
    pub(crate) async fn any_degraded(&self) -> Result<bool, ClientError> {
        let mut after = None;
        loop {
            match self.metadata.ask(Query::Degraded { after, limit: 1 }).await? {
                MetaAnswer::ObjectsOn { held, .. } if !held.is_empty() => return Ok(true),
                MetaAnswer::ObjectsOn { next: None, .. } => return Ok(false),
                MetaAnswer::ObjectsOn { next, .. } => after = next,
                other => return Err(unexpected("ObjectsOn", &other)),
            }
        }
    }

    /// Drives one core to its end; gives what was done `before` and by it.
    pub(crate) async fn move_all(
        &self,
        work: &Work<'_>,
        limits: Limits,
        before: &Totals,
        mut tell: impl FnMut(&Totals),
    ) -> Result<Totals, ClientError> {
        let (until, after) = match work {
            Work::Complete { until, after } => (*until, *after),
            Work::Leave { .. } => (None, None),
        };
        let start = Instant::now();
        let now = || Time(0) + start.elapsed();
        let span = until.map(|until| until.saturating_duration_since(start));
        let (mut core, mut allotment) = (Drain::after(limits, after), Allotment::new(Time(0), span));
        let room = Room::of(limits.bytes_max);
        // Those that are dropped with an error of another see to what they leave.
        let mut running: Vec<Step<'_>> = Vec::new();
        loop {
            if allotment.is_over(now()) {
                core.handle(Input::Enough);
            }
            while let Some(action) = core.poll() {
                if let Action::Move(_) = action {
                    allotment.begin(now());
                }
                let until = allotment.until().map(|until| start + until.since(Time(0)));
                match action {
                    Action::Done => return Ok(before.and(core.totals())),
                    other => running.push(Box::pin(self.carry_out(other, work, (until, &room)))),
                }
            }
            // A large object takes a while: whoever watches sees that somebody is at it.
            if let Ok(input) = tokio::time::timeout(TELL_EVERY, first(&mut running)).await {
                let input = input?;
                if let Input::Over { outcome, .. } = &input {
                    allotment.end(now(), outcome);
                }
                core.handle(input);
            }
            tell(&before.and(core.totals()));
        }
    }

    /// Of an object that is to be completed nothing more is begun after `until`; its segments take `room`.
    async fn carry_out(
        &self,
        action: Action,
        work: &Work<'_>,
        (until, room): (Option<Instant>, &Room),
    ) -> Result<Input, ClientError> {
        match action {
            Action::Count => Ok(Input::Arrivals(match work {
                Work::Leave { devices, .. } => self.arrivals(devices).await?,
                // A look begun later finds what was stored degraded since.
                Work::Complete { .. } => 0,
            })),
            Action::Look { after } => {
                let limit = OBJECTS_ON_PAGE_MAX;
                let look = match work {
                    Work::Leave { devices, .. } => {
                        Query::ObjectsOn { devices: devices.iter().copied().collect(), after, limit }
                    }
                    Work::Complete { .. } => Query::Degraded { after, limit },
                };
                match self.metadata.ask(look).await? {
                    MetaAnswer::ObjectsOn { held, next } => Ok(Input::Page { held, next }),
                    other => Err(unexpected("ObjectsOn", &other)),
                }
            }
            Action::Move(object) => {
                let ObjectName { bucket, key } = &object;
                let outcome = match work {
                    Work::Leave { devices, lost } => {
                        left(self.leave_devices((bucket, key), devices, *lost, Some(room)).await)
                    }
                    Work::Complete { .. } => {
                        completed(self.complete_until((bucket, key), until, Some(room)).await)
                    }
                };
                Ok(Input::Over { object, outcome: outcome? })
            }
            Action::Done => unreachable!("the end is not carried out"),
        }
    }
}

/// What became of an object that was to leave devices.
fn left(moved: Result<AmendReport, AmendError>) -> Result<Outcome, ClientError> {
    outcome(moved, |report| (report.left_blocks, report.left_bytes))
}

/// What became of an object that was to be completed: what it has more counts.
fn completed(moved: Result<AmendReport, AmendError>) -> Result<Outcome, ClientError> {
    outcome(moved, |report| {
        let blocks = report.stored_after.saturating_sub(report.stored_before);
        (blocks, report.written_bytes.saturating_sub(report.freed_bytes))
    })
}

fn outcome(
    moved: Result<AmendReport, AmendError>,
    done: impl Fn(&AmendReport) -> (u32, u64),
) -> Result<Outcome, ClientError> {
    match moved {
        Ok(report) if report.dropped_blocks == 0 => Ok(Outcome::Gone),
        Ok(report) => {
            let (blocks, bytes) = done(&report);
            Ok(Outcome::Moved { blocks: blocks.into(), bytes })
        }
        Err(AmendError::Metadata(ClientError::Refused(
            MetaFault::NoObject { .. } | MetaFault::NoBucket(_),
        ))) => Ok(Outcome::Gone),
        // Made or not, another look tells.
        Err(
            AmendError::Contended { .. }
            | AmendError::LeaseOver
            | AmendError::Metadata(
                ClientError::Unknown { .. } | ClientError::Refused(MetaFault::IntentOver(_)),
            ),
        ) => Ok(Outcome::Busy),
        Err(AmendError::Metadata(
            error
            @ (ClientError::Unreachable { .. } | ClientError::NotMeta { .. } | ClientError::Protocol(_)),
        )) => Err(error),
        Err(error) => Ok(Outcome::Stuck(Stuck { kind: kind_of(&error), why: error.to_string() })),
    }
}

/// What kind of reason it is that an object cannot be moved.
fn kind_of(error: &AmendError) -> StuckKind {
    match error {
        AmendError::Busy(_) | AmendError::Read(GetError::Changed { .. } | GetError::Busy(_)) => {
            StuckKind::Busy
        }
        AmendError::Plan(error) if error.is_reserved_by_others() => StuckKind::Busy,
        AmendError::Read(GetError::Read(ReadError::Unsettled { .. })) => StuckKind::Busy,
        AmendError::Read(GetError::Read(_)) | AmendError::Unfenced { .. } => StuckKind::Unreadable,
        AmendError::LacksChanges { .. } => StuckKind::Unreadable,
        AmendError::Plan(_) | AmendError::Write(_) | AmendError::Trim(_) => StuckKind::NoRoom,
        _ => StuckKind::Other,
    }
}

/// The first of these to end.
async fn first(running: &mut Vec<Step<'_>>) -> Result<Input, ClientError> {
    poll_fn(|context| {
        for position in 0..running.len() {
            if let Poll::Ready(input) = running[position].as_mut().poll(context) {
                drop(running.swap_remove(position));
                return Poll::Ready(input);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment of chunks that changes in place is stored anew whole, whichever of them leaves.
    #[test]
    fn what_lay_on_the_devices_counts_as_moved_and_nothing_else_of_what_was_dropped() {
        let whole = AmendReport { dropped_blocks: 16, freed_bytes: 256 << 10, ..AmendReport::default() };
        let report = AmendReport { left_blocks: 4, left_bytes: 64 << 10, ..whole };
        assert_eq!(left(Ok(report)).unwrap(), Outcome::Moved { blocks: 4, bytes: 64 << 10 });
        assert_eq!(left(Ok(AmendReport::default())).unwrap(), Outcome::Gone);
    }

    #[test]
    fn chunks_that_change_too_fast_are_busy_and_not_out_of_reach() {
        let kind = |error: ReadError| kind_of(&AmendError::Read(GetError::Read(error)));
        assert_eq!(kind(ReadError::Unsettled { attempts: 16 }), StuckKind::Busy);
        assert_eq!(kind(ReadError::NoHolder { blocks: 1, first: 0 }), StuckKind::Unreadable);
    }
}
