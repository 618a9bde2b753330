//! The stream from a data chunk's host to a parity chunk's: made when there is none, made again when it is lost.

use super::{Updates, data};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use steadfast_net::{Event as NetEvent, Open, Stream, StreamSender};
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId,
    message::{
        self, Fault, LogEvent, LogPush, NodeEvent, NodeFault, NodePush, NodeRequest, Priority,
        UPDATE_BYTES_MAX,
    },
    serve::parity_log::{ChunkNumber, ParityNumber},
};
use tokio::{
    sync::{Notify, mpsc},
    time::sleep,
};

/// Between two attempts to reach a node: first, and at most; doubled until it has taken something. Updates wait for a node that is started
/// again, a second at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(400));
/// Bytes of records that may come back at a time: what a levelling fetches, one after the other.
const CREDIT: u32 = 4 * UPDATE_BYTES_MAX;

/// What is sent on it.
pub(super) type Command = (LogPush, Bytes);

/// The host's end: whatever thread the host is on sends by itself. Dropped, the stream ends.
pub(super) struct Link(Arc<Shared>);

struct Shared {
    outgoing: Mutex<Outgoing>,
    /// The host is gone.
    ended: Notify,
}

#[derive(Default)]
struct Outgoing {
    /// `None`: there is no stream now.
    stream: Option<StreamSender>,
    /// Bytes of records that the parity node takes.
    credit: u64,
    /// What waits for more.
    waiting: VecDeque<Command>,
    ended: bool,
}

impl Link {
    /// A link to a parity node, kept up by a task until the host's end is dropped.
    pub(super) fn to(
        target: Target,
        updates: &Arc<Updates>,
        host: mpsc::UnboundedSender<data::Event>,
    ) -> Self {
        let shared = Arc::new(Shared { outgoing: Mutex::default(), ended: Notify::new() });
        updates.spawn(run(updates.clone(), target, shared.clone(), host));
        Self(shared)
    }

    /// Sends where there is a stream; where there is none the host learns that it is lost, and asks anew.
    pub(super) fn push(&self, command: Command) {
        let mut outgoing = self.0.outgoing();
        if outgoing.stream.is_some() {
            outgoing.waiting.push_back(command);
            outgoing.send();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.0.outgoing().ended = true;
        self.0.ended.notify_one();
    }
}

impl Shared {
    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outgoing {
    /// Sends what the credit allows.
    fn send(&mut self) {
        let Some(stream) = &self.stream else { return };
        while let Some((_, payload)) = self.waiting.front()
            && payload.len() as u64 <= self.credit
        {
            let (push, payload) = self.waiting.pop_front().expect("just looked at");
            self.credit -= payload.len() as u64;
            // Lost: the stream's end says so.
            let _ = stream.send_now(message::encode(&NodePush::Log(push)), payload);
        }
    }
}

/// Where it leads.
pub(super) struct Target {
    pub(super) device: DeviceId,
    pub(super) segment: SegmentId,
    pub(super) epoch: Epoch,
    pub(super) chunk: ChunkNumber,
    pub(super) parity: ParityNumber,
}

/// Keeps a stream until the host is gone.
async fn run(
    updates: Arc<Updates>,
    target: Target,
    link: Arc<Shared>,
    host: mpsc::UnboundedSender<data::Event>,
) {
    let say = |event| host.send(data::Event::Link { parity: target.parity, event }).is_ok();
    let mut pause = PAUSE.0;
    loop {
        if let Some(stream) = open(&updates, &target).await {
            let sender = stream.sender();
            {
                // What was meant for a stream before this one is gone with it.
                let mut outgoing = link.outgoing();
                (outgoing.stream, outgoing.credit) = (Some(sender), 0);
            }
            say(LinkEvent::Reached);
            let ended = carry(stream, &link, &say, &|| updates.peers.forget(target.device)).await;
            let mut outgoing = link.outgoing();
            outgoing.stream = None;
            outgoing.waiting.clear();
            match ended {
                Ended::HostGone => return,
                Ended::Lost { took: true } => pause = PAUSE.0,
                Ended::Lost { took: false } => {}
            }
        }
        if !say(LinkEvent::Lost) || link.outgoing().ended {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// What a link tells its host.
pub(crate) enum LinkEvent {
    /// The parity node said this, with this payload.
    Heard(LogEvent, Bytes),
    /// There is a stream, on which nothing was said yet.
    Reached,
    /// The parity node ended the stream, and why: [`LinkEvent::Lost`] comes next.
    Failed(Fault),
    /// There is no stream.
    Lost,
}

async fn open(updates: &Updates, target: &Target) -> Option<Stream> {
    let connection = updates.peers.connection(target.device).await?;
    let request = NodeRequest::Log { device: target.device, segment: target.segment, chunk: target.chunk };
    let open = Open {
        body: message::encode(&request),
        priority: Priority::Foreground,
        epoch: target.epoch,
        deadline: None,
        credit: CREDIT,
    };
    connection.open(open).ok()
}

/// How a stream ended.
enum Ended {
    HostGone,
    Lost {
        /// Whether the parity node took anything on it: then the next is tried soon.
        took: bool,
    },
}

/// Hears until the stream is lost or the host is gone.
async fn carry(
    mut stream: Stream,
    link: &Shared,
    say: &impl Fn(LinkEvent) -> bool,
    moved: &impl Fn(),
) -> Ended {
    let mut took = false;
    loop {
        let event = tokio::select! {
            event = stream.recv() => event,
            () = link.ended.notified() => {
                stream.cancel();
                return Ended::HostGone;
            }
        };
        match event {
            Some(NetEvent::Credit(bytes)) => {
                let mut outgoing = link.outgoing();
                outgoing.credit += u64::from(bytes);
                outgoing.send();
            }
            Some(NetEvent::Data { body, payload }) => {
                let Ok(NodeEvent::Log(event)) = message::decode(&body) else { return Ended::Lost { took } };
                took |= matches!(event, LogEvent::Acked { .. });
                stream.grant(u32::try_from(payload.len()).unwrap_or(0));
                if !say(LinkEvent::Heard(event, payload.freeze())) {
                    return Ended::HostGone;
                }
            }
            Some(NetEvent::Failed(fault)) => {
                if matches!(fault, Fault::Node(NodeFault::UnknownDevice(_))) {
                    moved();
                }
                tracing::debug!(%fault, "a parity node ended the stream of differences");
                if !say(LinkEvent::Failed(fault)) {
                    return Ended::HostGone;
                }
                return Ended::Lost { took };
            }
            Some(NetEvent::Cancelled) => {}
            Some(NetEvent::End(_) | NetEvent::Lost(_)) | None => return Ended::Lost { took },
        }
    }
}
