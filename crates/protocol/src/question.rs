//! One request to the metadata server: when it is asked again, and when the asker is told that nobody answers.
//!
//! ```text
//!            attempt failed, or silent for ATTEMPT            its span is over
//!   Asked ─────────────────────────────────────────▶ Pausing ───────────────────▶ given up
//!     ▲                                                 │ pause over
//!     └─────────────────────────────────────────────────┘
//! ```
//!
//! The request keeps its [`RequestId`](crate::RequestId) through all attempts, so that a change whose answer was lost takes
//! effect once.

use crate::Time;
use core::time::Duration;

/// How long a question is asked again at least before the caller is told: a metadata server that restarts after a crash
/// answers within a second or two.
const ASK_FOR: Duration = Duration::from_secs(10);
/// How long at most: a change that is asked for again after its answer was forgotten would be taken for a new one
/// ([`Terms::answers_kept`](crate::meta::Terms::answers_kept); half of that).
const ASK_FOR_MAX: Duration = Duration::from_secs(300);
/// How long one attempt may take; picked by eye, well above a slow group commit.
pub const ATTEMPT: Duration = Duration::from_secs(5);
/// The pause between two attempts; a connection that cannot be made is held back for longer by who makes it.
const PAUSE: Duration = Duration::from_millis(50);

/// A question that was asked and has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    began: Time,
    ask_for: Duration,
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
    /// It is asked for the first time, and again for as long as a restart of the server takes.
    pub fn new(now: Time) -> Self {
        Self::lasting(now, ASK_FOR)
    }

    /// The same, and again for as long as the asker can wait, within what makes sense.
    pub fn lasting(now: Time, span: Duration) -> Self {
        Self { began: now, ask_for: span.clamp(ASK_FOR, ASK_FOR_MAX) }
    }

    /// An attempt failed: the way was lost, or silent for [`ATTEMPT`], or the server refused it for `refused`.
    pub fn failed(&self, now: Time, refused: Option<Duration>) -> Next {
        let waited = now.since(self.began);
        // However long the server says: it is the asker who waits.
        let left = self.ask_for.checked_sub(waited);
        left.map_or(Next::GiveUp(waited), |left| Next::Again(refused.unwrap_or_default().min(left) + PAUSE))
    }

    /// The server has answered every attempt since `since`, and could not do what was asked: it is there, and is given no longer than a
    /// restart takes.
    pub fn undone(&self, now: Time, since: Time) -> Next {
        match self.failed(now, None) {
            Next::Again(_) if now.since(since) > ASK_FOR => Next::GiveUp(now.since(self.began)),
            next => next,
        }
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

    #[test]
    fn who_answers_is_given_no_longer_than_a_restart_takes() {
        let second = |seconds: u64| Time(seconds * 1_000_000_000);
        let question = Question::lasting(second(0), Duration::from_secs(60));
        assert_eq!(question.undone(second(30), second(20)), Next::Again(PAUSE));
        assert_eq!(question.undone(second(31), second(20)), Next::GiveUp(Duration::from_secs(31)));
        assert_eq!(question.failed(second(31), None), Next::Again(PAUSE), "one that is away");
        // However seldom it is there: not beyond what the asker can wait.
        assert_eq!(question.undone(second(61), second(55)), Next::GiveUp(Duration::from_secs(61)));
    }

    #[test]
    fn who_can_wait_asks_longer_and_never_for_what_was_forgotten() {
        let asked_for = |span: u64| {
            let question = Question::lasting(Time(0), Duration::from_secs(span));
            let asks = |at: &u64| question.failed(Time(at * 1_000_000_000), None) == Next::Again(PAUSE);
            (0..1000).take_while(asks).count() as u64 - 1
        };
        assert_eq!([1, 10, 60, 300, 86_400].map(asked_for), [10, 10, 60, 300, 300]);
        let kept = crate::meta::Terms::default().answers_kept;
        assert!(kept - ASK_FOR_MAX > 2 * (ATTEMPT + PAUSE));
    }
}
