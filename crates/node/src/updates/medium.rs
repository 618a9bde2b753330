//! What hosts and readers ask of a device: one operation of its lane at a time, and its answer.

use super::{damaged_parity, logged::Records};
use crate::{devices::ServedDevice, fault::fault};
use steadfast_disk::{
    DeviceId, Op, OpError, OpOutput, Priority as LanePriority, SegmentId,
    device::{LogEntry, LogError, ReadError, Staged, UpdateError, UpdatesInfo},
    media::MediumError,
};
use steadfast_protocol::{
    message::{Fault, NodeFault},
    serve::parity_log::{Difference, VersionsByChunk},
};
use tokio::sync::{SemaphorePermit, oneshot};

/// What stands against a change of parity, as a fault: what is there and is damaged, or cannot be read, ends all of them, and so does a log
/// that cannot be written.
pub(super) fn not_changed(device: DeviceId, segment: SegmentId, error: OpError) -> Fault {
    match error {
        OpError::Update(UpdateError::Read(error)) if is_damage(&error) => {
            damaged_parity(device, segment, error)
        }
        OpError::Update(UpdateError::Log(
            error @ (LogError::Corrupt { .. }
            | LogError::Damaged { .. }
            | LogError::Medium(MediumError::Io { .. })),
        )) => damaged_parity(device, segment, error),
        error => Fault::Node(fault(device, error)),
    }
}

/// Whether these bytes are not to be had again.
pub(super) fn is_damage(error: &ReadError) -> bool {
    matches!(error, ReadError::Corrupt { .. } | ReadError::Medium(MediumError::Io { .. }))
}

/// Bytes of a log that are read at once: 10 ms of a disk of 100 MB/s is what others wait.
pub(super) const READ_BYTES: u64 = 1 << 20;

/// Whose operations they are, and how soon they are done.
pub(super) type Lane = (u64, LanePriority);

/// One operation of a device's lane, and its answer. Dropped before that, what the lane has not begun of the stream is withdrawn:
/// on a device that stands still it would wait for nobody.
pub(super) async fn ask(device: &ServedDevice, (stream, class): Lane, op: Op) -> Result<OpOutput, OpError> {
    struct Withdraw<'a>(&'a ServedDevice, u64);
    impl Drop for Withdraw<'_> {
        fn drop(&mut self) {
            self.0.lane.cancel(self.1);
        }
    }
    let (answer, answered) = oneshot::channel();
    device.lane.submit(stream, class, op, Box::new(move |result| drop(answer.send(result))));
    let withdraw = Withdraw(device, stream);
    let result = answered.await.unwrap_or(Err(OpError::Closed));
    std::mem::forget(withdraw);
    result
}

/// Waits until what a host before this one did to the device is durable: what it finds there counts as that.
pub(super) async fn settle(device: &ServedDevice, lane: Lane) -> Result<(), Fault> {
    ask(device, lane, Op::Barrier).await.map(drop).map_err(|error| Fault::Node(fault(device.id, error)))
}

/// What a device says of a chunk.
pub(super) async fn describe(
    device: &ServedDevice,
    lane: Lane,
    segment: SegmentId,
) -> Result<UpdatesInfo, Fault> {
    match ask(device, lane, Op::DescribeUpdates { segment }).await {
        Ok(OpOutput::Updates(info)) => Ok(info),
        Ok(other) => unreachable!("a description answers a description, not {other:?}"),
        Err(error) => Err(Fault::Node(fault(device.id, error))),
    }
}

/// What a device holds of a chunk: changes that were not released.
pub(super) async fn held(
    device: &ServedDevice,
    lane: Lane,
    segment: SegmentId,
) -> Result<Vec<Staged>, Fault> {
    match ask(device, lane, Op::Held { segment: Some(segment) }).await {
        Ok(OpOutput::Held(held)) => Ok(held),
        Ok(other) => unreachable!("what is held is answered by what is held, not {other:?}"),
        Err(error) => Err(Fault::Node(fault(device.id, error))),
    }
}

/// What a device says of a chunk, and which versions of data chunks it holds, with its log: of that only those records are read that nobody
/// has read since it is served.
pub(super) async fn versions(
    device: &ServedDevice,
    lane: Lane,
    segment: SegmentId,
) -> Result<(UpdatesInfo, VersionsByChunk), Fault> {
    // Before the device is asked: whether all of this is durable it says then.
    let known = device.logged.of(segment);
    let mut info = describe(device, lane, segment).await?;
    let mut behind = Vec::new();
    let is_behind = |last: &LogEntry| last.sequence >= known.unknown_from(&info);
    if info.damaged || info.log.last().is_some_and(is_behind) {
        let _one_of_few = device.logs.acquire().await.expect("it is never closed");
        // Not their bytes, which are as many as the log has.
        let keep = |difference: Difference| (difference.chunk, difference.version);
        (info, behind) = log_behind(device, lane, segment, &known, keep).await?;
    }
    let known = known.and(&info, behind);
    let held = known.held(&info);
    device.logged.learn(segment, known);
    Ok((info, held))
}

/// What a device says of a parity chunk, and what a reader keeps of the records of its log: only so many have a log of the device in memory
/// at a time, and this one for as long as it keeps what comes with it.
pub(super) async fn log_for_reader<Kept>(
    device: &ServedDevice,
    lane: Lane,
    segment: SegmentId,
    keep: impl Fn(Difference) -> Kept,
) -> Result<(UpdatesInfo, Vec<Kept>, Option<SemaphorePermit<'_>>), Fault> {
    let info = describe(device, lane, segment).await?;
    if info.log.is_empty() && !info.damaged {
        return Ok((info, Vec::new(), None));
    }
    let one_of_few = device.logs.acquire().await.expect("it is never closed");
    let (info, log) = log(device, lane, segment, keep).await?;
    Ok((info, log, Some(one_of_few)))
}

/// What a device says of a parity chunk, and what is to be kept of the records of its log. One that is taken out meanwhile makes it begin
/// again.
pub(super) async fn log<Kept>(
    device: &ServedDevice,
    lane: Lane,
    segment: SegmentId,
    keep: impl Fn(Difference) -> Kept,
) -> Result<(UpdatesInfo, Vec<Kept>), Fault> {
    log_behind(device, lane, segment, &Records::default(), keep).await
}

/// The same of those of its records alone that are behind what is known of it.
async fn log_behind<Kept>(
    device: &ServedDevice,
    lane: Lane,
    segment: SegmentId,
    known: &Records,
    keep: impl Fn(Difference) -> Kept,
) -> Result<(UpdatesInfo, Vec<Kept>), Fault> {
    const ATTEMPTS: u32 = 8;
    'again: for _ in 0..ATTEMPTS {
        let info = describe(device, lane, segment).await?;
        if info.damaged {
            return Err(damaged_parity(device.id, segment, "its log lost records"));
        }
        let behind = info.log.partition_point(|entry| entry.sequence < known.unknown_from(&info));
        let entries = &info.log[behind..];
        let mut log = Vec::with_capacity(entries.len());
        while let Some(next) = entries.get(log.len()) {
            let end = entries.last().map_or(next.sequence, |last| last.sequence + 1);
            let op = Op::LogReadRun { segment, sequences: next.sequence..end, bytes_max: READ_BYTES };
            match ask(device, lane, op).await {
                Ok(OpOutput::LogRecords(records)) => {
                    for record in &records {
                        let decoded = Difference::decode(record);
                        let decoded =
                            decoded.map_err(|malformed| damaged_parity(device.id, segment, malformed));
                        log.push(keep(decoded?));
                    }
                }
                Ok(other) => unreachable!("records are answered by records, not {other:?}"),
                Err(OpError::Update(UpdateError::Log(LogError::NoRecord { .. }))) => continue 'again,
                Err(error) => return Err(not_changed(device.id, segment, error)),
            }
        }
        return Ok((info, log));
    }
    Err(overtaken(device.id, segment))
}

pub(super) fn overtaken(device: DeviceId, segment: SegmentId) -> Fault {
    Fault::Node(NodeFault::Overtaken { device, segment })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_of_rows_and_of_records_ends_changes_and_other_errors_are_told_as_they_are() {
        let (device, segment) = (DeviceId(1), SegmentId(2));
        let log = |error| OpError::Update(UpdateError::Log(error));
        let is_damage = |error| {
            let fault = not_changed(device, segment, error);
            matches!(
                fault,
                Fault::Node(NodeFault::DamagedParity { device: DeviceId(1), segment: SegmentId(2), .. })
            )
        };
        let row = ReadError::Corrupt { segment, index: 3, granule: 0 };
        assert!(is_damage(OpError::Update(UpdateError::Read(row))));
        let unreadable = MediumError::Io { kind: std::io::ErrorKind::Other, offset: 0 };
        assert!(is_damage(OpError::Update(UpdateError::Read(ReadError::Medium(unreadable.clone())))));
        assert!(is_damage(log(LogError::Medium(unreadable))));
        assert!(!is_damage(log(LogError::Medium(MediumError::Full))));
        assert!(is_damage(log(LogError::Corrupt { segment, sequence: 4 })));
        assert!(is_damage(log(LogError::Damaged { segment, missing: 4..6 })));
        assert!(!is_damage(log(LogError::NoRecord { segment, sequence: 4, first: 5, next: 6 })));
        assert!(!is_damage(OpError::Closed));
    }
}
