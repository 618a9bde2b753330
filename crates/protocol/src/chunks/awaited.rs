//! Which chunks may yet be read that are not: where others lack changes, what those would make up for is not lost before they are.

use crate::{
    message::{ChunkVersions, Fault, NodeAnswer, NodeFault},
    read::Cause,
};
use std::collections::BTreeSet;

/// Chunks of which nothing is read, because their nodes did not answer to a fence (`answers`, in the chunks' order) and are done `without`
/// for that, or did not say since what they hold (`versions`), and whose nodes may do both yet: they are out of reach, or had no room or no
/// time for it, or their servers are without the disks. What has failed, as far as its node knows, is not waited for, whether it refuses
/// the fence for that or cannot tell since what it holds.
pub fn awaited(
    answers: &[Result<NodeAnswer, Cause>],
    versions: &[Result<ChunkVersions, Cause>],
    without: &BTreeSet<u32>,
) -> Vec<u32> {
    let is_awaited = |chunk: u32, answer: &Result<NodeAnswer, Cause>| {
        let (is_named, may_be) = match versions.get(chunk as usize) {
            Some(Ok(_)) => (true, true),
            Some(Err(cause)) => (false, may_pass(cause)),
            None => (false, true),
        };
        match answer {
            // It refuses updates, and did not say more.
            Ok(_) | Err(Cause::Fault(Fault::Node(NodeFault::StaleEpoch { .. }))) => !is_named && may_be,
            Err(cause) => may_pass(cause) && may_be && (!is_named || without.contains(&chunk)),
        }
    };
    (0..).zip(answers).filter(|&(chunk, answer)| is_awaited(chunk, answer)).map(|(chunk, _)| chunk).collect()
}

/// Whether who did not answer for this cause may do so later.
fn may_pass(cause: &Cause) -> bool {
    match cause {
        Cause::Unreachable(_) => true,
        // Its server serves it no more, or not yet: the disk may be mounted again, or be elsewhere.
        Cause::Fault(Fault::Node(fault)) => matches!(fault, NodeFault::UnknownDevice(_)),
        Cause::Fault(fault) => {
            matches!(fault, Fault::Refused { .. } | Fault::DeadlinePassed | Fault::Cancelled)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceId, SegmentId, message::RefusalReason};

    const DEVICE: DeviceId = DeviceId(1);
    const SEGMENT: SegmentId = SegmentId(1);

    fn faulty<Answer>(fault: Fault) -> Result<Answer, Cause> {
        Err(Cause::Fault(fault))
    }

    fn unreachable<Answer>() -> Result<Answer, Cause> {
        Err(Cause::Unreachable("its server is down".to_owned()))
    }

    #[test]
    fn who_may_answer_yet_is_awaited_and_what_has_failed_is_not() {
        let refused = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 5 };
        let later = NodeFault::StaleEpoch { given: 3, current: 4 };
        let medium = NodeFault::Medium { device: DEVICE, detail: "EIO".to_owned() };
        let gone = NodeFault::UnknownSegment { device: DEVICE, segment: SEGMENT };
        for (answer, is_awaited) in [
            (unreachable(), true),
            (faulty(refused), true),
            (faulty(Fault::DeadlinePassed), true),
            (faulty(Fault::Node(NodeFault::UnknownDevice(DEVICE))), true),
            // It was told, and went away since.
            (Ok(NodeAnswer::Done), true),
            (faulty(Fault::Node(later)), true),
            (faulty(Fault::Node(medium)), false),
            (faulty(Fault::Node(gone)), false),
        ] {
            let expected: &[u32] = if is_awaited { &[0] } else { &[] };
            let alone = core::slice::from_ref(&answer);
            assert_eq!(awaited(alone, &[unreachable()], &BTreeSet::new()), expected, "{answer:?}");
        }
    }

    /// Its log is damaged: it is fenced, and says the same each time.
    #[test]
    fn who_cannot_tell_what_it_holds_is_not_awaited() {
        let damaged = || {
            let detail = "its log lost records".to_owned();
            faulty(Fault::Node(NodeFault::DamagedParity { device: DEVICE, segment: SEGMENT, detail }))
        };
        let refused = Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 5 };
        for answer in [Ok(NodeAnswer::Done), faulty(refused)] {
            let alone = core::slice::from_ref(&answer);
            assert!(awaited(alone, &[damaged()], &BTreeSet::new()).is_empty(), "{answer:?}");
            assert_eq!(awaited(alone, &[faulty(Fault::DeadlinePassed)], &BTreeSet::new()), [0], "{answer:?}");
        }
    }

    #[test]
    fn what_is_read_is_not_awaited() {
        let versions = [(); 4].map(|()| Ok(ChunkVersions::default()));
        let refused = || faulty(Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 5 });
        // One is data and was named; one is parity that may take changes yet; one lacks some, and said so.
        let answers = [refused(), Ok(NodeAnswer::Done), refused(), Ok(NodeAnswer::Done)];
        assert_eq!(awaited(&answers, &versions, &[2, 3].into()), [2]);
        let answers = [unreachable(), Ok(NodeAnswer::Done), unreachable(), Ok(NodeAnswer::Done)];
        let versions = [unreachable(), versions[1].clone(), unreachable(), versions[3].clone()];
        assert_eq!(awaited(&answers, &versions, &[2].into()), [0, 2]);
    }
}
