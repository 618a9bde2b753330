//! One request to the metadata server: when it is asked again, and when the asker is told that nobody answers.
//!
//! ```text
//!            attempt failed, or silent for ATTEMPT              ASK_FOR is over
//!   Asked ─────────────────────────────────────────▶ Pausing ───────────────────▶ given up
//!     ▲                                                 │ pause over
//!     └─────────────────────────────────────────────────┘
//! ```
//!
//! The request keeps its [`RequestId`](crate::RequestId) through all attempts, so that a change whose answer was lost takes
//! effect once.

use crate::Time;
use core::time::Duration;

/// How long one question is asked again before the caller is told: a metadata server that restarts after a crash
/// answers within a second or two.
const ASK_FOR: Duration = Duration::from_secs(10);
/// How long one attempt may take; picked by eye, well above a slow group commit.
pub const ATTEMPT: Duration = Duration::from_secs(5);
/// The pause between two attempts; a connection that cannot be made is held back for longer by who makes it.
const PAUSE: Duration = Duration::from_millis(50);

/// A question that was asked and has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    began: Time,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask again after this pause.
    Again(Duration),
    /// Tell the asker that nobody answered for so long.
    GiveUp(Duration),
}

impl Question {
    /// It is asked for the first time.
    pub fn new(now: Time) -> Self {
        Self { began: now }
    }

    /// An attempt failed: the way was lost, or silent for [`ATTEMPT`], or the server refused it for `refused`.
    pub fn failed(&self, now: Time, refused: Option<Duration>) -> Next {
        let waited = now.since(self.began);
        // However long the server says: it is the asker who waits.
        let left = ASK_FOR.checked_sub(waited);
        left.map_or(Next::GiveUp(waited), |left| Next::Again(refused.unwrap_or_default().min(left) + PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_again_until_its_time_is_over() {
        let second = |seconds: u64| Time(seconds * 1_000_000_000);
        let question = Question::new(second(3));
        assert_eq!(question.failed(second(3), None), Next::Again(PAUSE));
        let refused = Duration::from_millis(300);
        assert_eq!(question.failed(second(12), Some(refused)), Next::Again(refused + PAUSE));
        let weeks = Duration::from_millis(u32::MAX.into());
        assert_eq!(question.failed(second(12), Some(weeks)), Next::Again(Duration::from_secs(1) + PAUSE));
        assert_eq!(question.failed(second(14), Some(refused)), Next::GiveUp(Duration::from_secs(11)));
    }
}
