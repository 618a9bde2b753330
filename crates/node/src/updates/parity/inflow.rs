//! From a data node's stream to the host of a parity chunk.
//!
//! ```text
//!   stream ──▶ what came before the host greeted waits ──▶ host
//!                    Fetch ──▶ one at a time, while the opener takes a record and the connection has few bytes unsent
//! ```
//!
//! Records are all that a parity node sends in bulk. One is asked of the device once it may be sent, so that none waits in memory for a
//! reader that takes it slowly.

use super::Event;
use std::collections::VecDeque;
use steadfast_net::{Event as NetEvent, Stream};
use steadfast_protocol::message::{self, Fault, LogPush, NodePush, UPDATE_BYTES_MAX};
use tokio::sync::{mpsc, oneshot};

/// Records that a data node may have asked for and not got. Picked by eye: it asks for one after the other.
const FETCHES_MAX: usize = 16;
/// The longest record, and more: the bytes of an update, what else there is of the granules that it reaches into, and their checksums.
const RECORD_BYTES_MAX: u64 = 2 * UPDATE_BYTES_MAX as u64;

/// Gives a stream's messages to its host until either is over. `credit`: what its opener takes; `welcome`: the host greets it, or does not
/// take it.
pub(in crate::updates) async fn forward(
    number: u64,
    (stream, credit): (&mut Stream, u32),
    host: &mpsc::UnboundedSender<Event>,
    mut welcome: oneshot::Receiver<()>,
) {
    let sender = stream.sender();
    let mut fetches = Fetches { credit: credit.into(), waiting: VecDeque::new(), under_way: None };
    // Data nodes say nothing before they are greeted. What others do stays with the connection, which bounds it, but for the first.
    let (mut early, mut is_welcome) = (None, false);
    loop {
        let event = match early.take_if(|_| is_welcome) {
            Some(early) => Some(early),
            None => tokio::select! {
                event = stream.recv(), if early.is_none() => event,
                _ = &mut welcome, if !is_welcome => {
                    is_welcome = true;
                    continue;
                }
                sent = answer(&mut fetches.under_way), if fetches.under_way.is_some() => {
                    fetches.answered(sent);
                    continue;
                }
                ready = sender.ready(), if fetches.are_due() => {
                    // Lost: the stream says so, too.
                    if ready.is_err() || fetches.ask(number, host).is_none() {
                        break;
                    }
                    continue;
                }
                () = host.closed() => break,
            },
        };
        match event {
            Some(data @ NetEvent::Data { .. }) if !is_welcome => early = Some(data),
            Some(NetEvent::Data { body, payload }) => match message::decode(&body) {
                Ok(NodePush::Log(LogPush::Fetch { version })) => {
                    if fetches.waiting.len() == FETCHES_MAX {
                        stream.fail(&Fault::Protocol(format!(
                            "more than {FETCHES_MAX} records are asked for and not taken"
                        )));
                        break;
                    }
                    fetches.waiting.push_back(version);
                }
                Ok(NodePush::Log(push)) => {
                    let push = Event::Push { stream: number, push, payload: payload.freeze() };
                    if host.send(push).is_err() {
                        break;
                    }
                }
                _ => {
                    stream.fail(&Fault::Protocol("a stream of differences takes nothing else".to_owned()));
                    break;
                }
            },
            Some(NetEvent::Credit(bytes)) => fetches.credit += u64::from(bytes),
            Some(NetEvent::Cancelled) => {
                stream.fail(&Fault::Cancelled);
                break;
            }
            Some(NetEvent::Lost(_) | NetEvent::End(_) | NetEvent::Failed(_)) | None => break,
        }
    }
    let _ = host.send(Event::Closed { stream: number });
}

/// Records that a data node asks for.
struct Fetches {
    /// Bytes that it takes.
    credit: u64,
    /// Their versions, in the order they were asked for.
    waiting: VecDeque<u64>,
    /// The host was asked for one; it answers how many bytes it sent.
    under_way: Option<oneshot::Receiver<u64>>,
}

impl Fetches {
    /// Whether the host may be asked for the next.
    fn are_due(&self) -> bool {
        self.under_way.is_none() && !self.waiting.is_empty() && self.credit >= RECORD_BYTES_MAX
    }

    /// Asks the host for the next; none where it is gone.
    fn ask(&mut self, stream: u64, host: &mpsc::UnboundedSender<Event>) -> Option<()> {
        let version = self.waiting.pop_front()?;
        let (sent, answer) = oneshot::channel();
        self.under_way = Some(answer);
        host.send(Event::Fetch { stream, version, sent }).ok()
    }

    fn answered(&mut self, sent: u64) {
        self.under_way = None;
        self.credit = self.credit.saturating_sub(sent);
    }
}

/// How many bytes were sent for the record that is under way.
async fn answer(under_way: &mut Option<oneshot::Receiver<u64>>) -> u64 {
    match under_way {
        // Where the host ends, or the record cannot be had, none are.
        Some(answer) => answer.await.unwrap_or(0),
        None => std::future::pending().await,
    }
}
