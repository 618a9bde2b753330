//! The stream from a data chunk's host to a parity chunk's: made when there is none, made again when it is lost.

use super::{Updates, data};
use bytes::Bytes;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use steadfast_net::{Event as NetEvent, Open, Stream};
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId,
    message::{
        self, Fault, LogEvent, LogPush, NodeEvent, NodeFault, NodePush, NodeRequest, Priority,
        UPDATE_BYTES_MAX,
    },
    serve::parity_log::{ChunkNumber, ParityNumber},
};
use tokio::{sync::mpsc, time::sleep};

/// Between two attempts to reach a node.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of records that may come back at a time: what a levelling fetches, one after the other.
const CREDIT: u32 = 4 * UPDATE_BYTES_MAX;

/// What is sent on it.
pub(super) type Command = (LogPush, Bytes);

/// Where it leads.
pub(super) struct Target {
    pub(super) device: DeviceId,
    pub(super) segment: SegmentId,
    pub(super) epoch: Epoch,
    pub(super) chunk: ChunkNumber,
    pub(super) parity: ParityNumber,
}

/// Keeps a stream until nobody sends commands any more.
pub(super) async fn run(
    updates: Arc<Updates>,
    target: Target,
    mut commands: mpsc::UnboundedReceiver<Command>,
    host: mpsc::UnboundedSender<data::Event>,
) {
    let say = |event| host.send(data::Event::Link { parity: target.parity, event }).is_ok();
    loop {
        if let Some(stream) = open(&updates, &target).await
            && !carry(stream, &mut commands, &say, &|| updates.peers.forget(target.device)).await
        {
            return;
        }
        if !say(LinkEvent::Lost) || commands.is_closed() {
            return;
        }
        sleep(PAUSE).await;
    }
}

/// What a link tells its host.
pub(crate) enum LinkEvent {
    /// The parity node said this, with this payload.
    Heard(LogEvent, Bytes),
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

/// Sends and hears until the stream is lost; false once no more is to be sent.
async fn carry(
    mut stream: Stream,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    say: &impl Fn(LinkEvent) -> bool,
    moved: &impl Fn(),
) -> bool {
    // What was meant for a stream before this one: its host learns that it is lost, and asks anew.
    while commands.try_recv().is_ok() {}
    let mut credit = 0;
    let mut waiting: VecDeque<Command> = VecDeque::new();
    loop {
        while let Some((_, payload)) = waiting.front()
            && payload.len() as u64 <= credit
        {
            let (push, payload) = waiting.pop_front().expect("just looked at");
            credit -= payload.len() as u64;
            if stream.send_now(message::encode(&NodePush::Log(push)), payload).is_err() {
                return true;
            }
        }
        tokio::select! {
            event = stream.recv() => match event {
                Some(NetEvent::Credit(bytes)) => credit += u64::from(bytes),
                Some(NetEvent::Data { body, payload }) => {
                    let Ok(NodeEvent::Log(event)) = message::decode(&body) else { return true };
                    stream.grant(u32::try_from(payload.len()).unwrap_or(0));
                    if !say(LinkEvent::Heard(event, payload.freeze())) {
                        return false;
                    }
                }
                Some(NetEvent::Failed(fault)) => {
                    if matches!(fault, Fault::Node(NodeFault::UnknownDevice(_))) {
                        moved();
                    }
                    tracing::debug!(%fault, "a parity node ended the stream of differences");
                    return true;
                }
                Some(NetEvent::Cancelled) => {}
                Some(NetEvent::End(_) | NetEvent::Lost(_)) | None => return true,
            },
            command = commands.recv() => match command {
                Some(command) => waiting.push_back(command),
                None => {
                    stream.cancel();
                    return false;
                }
            },
        }
    }
}
