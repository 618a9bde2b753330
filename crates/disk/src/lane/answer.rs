//! The answer that somebody waits for.

use super::{OpError, OpOutput, Reply};

/// A reply that is called once, whatever happens: with [`OpError::Closed`] where it is dropped, as where the lane's thread panics with
/// an operation in its hands.
pub(super) struct Answer(Option<Reply>);

impl Answer {
    pub(super) fn new(reply: Reply) -> Answer {
        Answer(Some(reply))
    }

    pub(super) fn give(mut self, result: Result<OpOutput, OpError>) {
        if let Some(reply) = self.0.take() {
            reply(result);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(reply) = self.0.take() {
            reply(Err(OpError::Closed));
        }
    }
}
