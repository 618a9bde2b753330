//! When a device that was out of reach is asked again, where a read cannot do without it: a server that restarts is away for a second
//! or two.

use super::Cause;
use core::time::Duration;

/// The second pause; each that follows is twice as long, the first is none.
const PAUSE: Duration = Duration::from_millis(200);
/// Failures of one device after which it is given up: 3 s after the first.
const FAILURES_MAX: u32 = 6;

/// How long after its last failure a device is asked again, which failed so often; `None` where it is not. Once, and at once, where the
/// read does not wait ([`super::ReadPlan::waits`]).
pub(super) fn pause(waits: bool, cause: Option<&Cause>, failures: u32) -> Option<Duration> {
    match (cause, failures) {
        (Some(Cause::Unreachable(_)), 0 | 1) => Some(Duration::ZERO),
        (Some(Cause::Unreachable(_)), 2..FAILURES_MAX) if waits => Some(PAUSE * (1 << (failures - 2))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_restarts_is_asked_for_three_seconds_where_there_is_no_other_way() {
        let lost = Cause::Unreachable("gone".to_owned());
        let pauses = |waits| -> Vec<Duration> {
            (1..).map_while(|failures| pause(waits, Some(&lost), failures)).collect()
        };
        assert_eq!(pauses(true).len(), 5);
        assert_eq!(pauses(true).iter().sum::<Duration>(), Duration::from_secs(3));
        assert_eq!(pauses(false), [Duration::ZERO]);
        assert_eq!(pause(true, Some(&Cause::Fault(crate::message::Fault::Cancelled)), 1), None);
    }
}
