//! Streams to devices: each a task of its own that connects, forwards what arrives, and carries out what the core
//! asks. The drivers of reads and writes see one queue of events and never a connection.

use crate::Maker;
use bytes::{Bytes, BytesMut};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};
use steadfast_net::{Open, Pool, StreamReceiver, StreamSender};
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch, IndexRanges,
    message::{self, Fault, NodeAnswer, NodeEvent, NodePush, NodeRequest, Priority, ReadState, Slice},
    read::Cause,
};
use tokio::sync::{mpsc, watch};

/// What a stream says.
pub enum Event {
    /// Its OPEN went out.
    Opened,
    /// What the chunk held when the slices that follow were read.
    State(ReadState),
    /// A slice of a block arrived.
    Slice {
        /// Which.
        slice: Slice,
        /// Its bytes.
        payload: BytesMut,
    },
    /// Blocks became durable.
    Confirmed(IndexRanges),
    /// The device takes so many more payload bytes.
    Credit(u32),
    /// It is over, with this answer.
    Ended(NodeAnswer),
    /// It is over, without.
    Failed(Cause),
}

/// The streams of one access.
pub struct Streams {
    say: mpsc::Sender<(DeviceId, u64, Event)>,
    heard: mpsc::Receiver<(DeviceId, u64, Event)>,
    /// The stream that is open at each device; a device opened anew gets a new number.
    open: BTreeMap<DeviceId, Handle>,
    opened: u64,
    /// Devices whose server was out of reach: a core that asks again cannot do without.
    unreached: BTreeSet<DeviceId>,
    /// Their class of service.
    priority: Priority,
}

/// Events of an access's streams that were said and not heard: slices of 256 MiB, where they are full. Others wait with their connections.
const UNHEARD_MAX: usize = 1024;
/// Bytes of an event beside its payload. A slice takes one checksum a granule, 256 bytes as it is sent; a confirmation the ranges of
/// what became durable at once.
const SAID_BYTES_MAX: usize = 64 << 10;

struct Handle {
    number: u64,
    commands: mpsc::UnboundedSender<Command>,
    cancelled: watch::Sender<bool>,
}

enum Command {
    Grant(u32),
    Push(core::ops::Range<BlockIndex>),
    Finish,
}

impl Streams {
    /// None yet; those to come are of this class.
    pub fn new(priority: Priority) -> Self {
        let (say, heard) = mpsc::channel(UNHEARD_MAX);
        Self { say, heard, open: BTreeMap::new(), opened: 0, unreached: BTreeSet::new(), priority }
    }

    /// Opens a stream to `device` at `address`; `maker` makes the blocks that are pushed on it.
    pub fn open(
        &mut self,
        pool: &Pool,
        device: DeviceId,
        address: Option<String>,
        request: &NodeRequest,
        epoch: Epoch,
        credit: u32,
        maker: Option<Arc<Maker>>,
    ) {
        self.opened += 1;
        let number = self.opened;
        let (commands, asked) = mpsc::unbounded_channel();
        let (cancelled, cancel) = watch::channel(false);
        let say = self.say.clone();
        let speaker = Speaker { device, number, say };
        let open =
            Open { body: message::encode(request), priority: self.priority, epoch, deadline: None, credit };
        let (pool, again) = (pool.clone(), self.unreached.remove(&device));
        tokio::spawn(async move {
            let last = match address {
                Some(address) => run((&pool, &address, again), open, &speaker, asked, cancel, maker).await,
                None => Event::Failed(Cause::Unreachable("no server serves this device".to_owned())),
            };
            speaker.say(last).await;
        });
        self.open.insert(device, Handle { number, commands, cancelled });
    }

    /// Grants `bytes` more payload bytes.
    pub fn grant(&self, device: DeviceId, bytes: u32) {
        self.command(device, Command::Grant(bytes));
    }

    /// Pushes these blocks.
    pub fn push(&self, device: DeviceId, indices: core::ops::Range<BlockIndex>) {
        self.command(device, Command::Push(indices));
    }

    /// Says that no more blocks will be pushed, or that no more are wanted than are being read.
    pub fn finish(&self, device: DeviceId) {
        self.command(device, Command::Finish);
    }

    fn command(&self, device: DeviceId, command: Command) {
        if let Some(handle) = self.open.get(&device) {
            // A stream that has ended has said so; the command is late.
            let _ = handle.commands.send(command);
        }
    }

    /// Cancels the device's stream; its answer still comes.
    pub fn cancel(&self, device: DeviceId) {
        if let Some(handle) = self.open.get(&device) {
            handle.cancelled.send_replace(true);
        }
    }

    /// Whether any stream has not ended yet.
    pub fn any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The next event; `None` when `until` has come first.
    pub async fn next(&mut self, until: Option<Instant>) -> Option<(DeviceId, Event)> {
        loop {
            let heard = match until {
                Some(until) => tokio::time::timeout_at(until.into(), self.heard.recv()).await.ok()?,
                None => self.heard.recv().await,
            };
            let current = self.current(heard.expect("this end keeps a sender"));
            if current.is_some() {
                return current;
            }
        }
    }

    /// The next event that is here already.
    pub fn try_next(&mut self) -> Option<(DeviceId, Event)> {
        loop {
            let heard = self.heard.try_recv().ok()?;
            let current = self.current(heard);
            if current.is_some() {
                return current;
            }
        }
    }

    /// What a stream said, if it is the one that is open at its device.
    fn current(&mut self, (device, number, event): (DeviceId, u64, Event)) -> Option<(DeviceId, Event)> {
        if self.open.get(&device).is_none_or(|handle| handle.number != number) {
            return None;
        }
        if matches!(event, Event::Ended(_) | Event::Failed(_)) {
            self.open.remove(&device);
        }
        if matches!(event, Event::Failed(Cause::Unreachable(_))) {
            self.unreached.insert(device);
        }
        Some((device, event))
    }
}

/// Says what a stream's task has to say.
struct Speaker {
    device: DeviceId,
    number: u64,
    say: mpsc::Sender<(DeviceId, u64, Event)>,
}

impl Speaker {
    /// Waits while too much was said that nobody has heard: what comes then stays with the connection, which has its own bounds.
    async fn say(&self, event: Event) {
        // Nobody listens any more when the access is over.
        let _ = self.say.send((self.device, self.number, event)).await;
    }
}

/// The whole life of a stream; its last event. `again`: there was nobody at this address, or no more, a moment ago.
async fn run(
    (pool, address, again): (&Pool, &str, bool),
    open: Open,
    speaker: &Speaker,
    asked: mpsc::UnboundedReceiver<Command>,
    mut cancel: watch::Receiver<bool>,
    maker: Option<Arc<Maker>>,
) -> Event {
    let connecting = async {
        if again { pool.connection_after_all(address).await } else { pool.connection(address).await }
    };
    let connected = tokio::select! {
        connected = connecting => connected,
        _ = cancel.wait_for(|&cancelled| cancelled) => return Event::Failed(Cause::Fault(Fault::Cancelled)),
    };
    let stream = match connected.map_err(|error| error.to_string()) {
        Ok(connection) => connection.open(open).map_err(|error| error.to_string()),
        Err(error) => Err(error),
    };
    let (sender, receiver) = match stream {
        Ok(stream) => stream.into_split(),
        Err(error) => return Event::Failed(Cause::Unreachable(format!("{address}: {error}"))),
    };
    speaker.say(Event::Opened).await;
    // The answer ends the stream, whatever is still being sent.
    tokio::select! {
        last = receive(receiver, speaker) => last,
        never = carry_out(&sender, asked, cancel, maker) => match never {},
    }
}

async fn receive(mut receiver: StreamReceiver, speaker: &Speaker) -> Event {
    loop {
        let protocol = |detail: String| Event::Failed(Cause::Fault(Fault::Protocol(detail)));
        match receiver.recv().await {
            Some(steadfast_net::Event::Data { body, .. }) if body.len() > SAID_BYTES_MAX => {
                return protocol(format!(
                    "an event of {} bytes, at most {SAID_BYTES_MAX} are allowed",
                    body.len()
                ));
            }
            Some(steadfast_net::Event::Data { body, payload }) => match message::decode(&body) {
                Ok(NodeEvent::Slice(slice)) => speaker.say(Event::Slice { slice, payload }).await,
                Ok(NodeEvent::Confirmed { blocks }) => speaker.say(Event::Confirmed(blocks)).await,
                Ok(NodeEvent::State(state)) => speaker.say(Event::State(state)).await,
                Ok(NodeEvent::Log(_)) => return protocol("only a log stream is answered so".to_owned()),
                Err(error) => return protocol(error.to_string()),
            },
            Some(steadfast_net::Event::Credit(bytes)) => speaker.say(Event::Credit(bytes)).await,
            Some(steadfast_net::Event::End(body)) => {
                return message::decode(&body).map_or_else(|error| protocol(error.to_string()), Event::Ended);
            }
            Some(steadfast_net::Event::Failed(fault)) => return Event::Failed(Cause::Fault(fault)),
            Some(steadfast_net::Event::Cancelled) => {}
            Some(steadfast_net::Event::Lost(lost)) => {
                return Event::Failed(Cause::Unreachable(lost.to_string()));
            }
            None => return Event::Failed(Cause::Unreachable("the connection was lost".to_owned())),
        }
    }
}

/// Carries out commands until the stream is cancelled or its access is over, cancels, and then waits for its answer.
async fn carry_out(
    sender: &StreamSender,
    mut asked: mpsc::UnboundedReceiver<Command>,
    mut cancel: watch::Receiver<bool>,
    maker: Option<Arc<Maker>>,
) -> core::convert::Infallible {
    tokio::select! {
        _ = cancel.wait_for(|&cancelled| cancelled) => {}
        // What blocks are made of goes with it: a node that hangs may keep its answer back for as long as it likes.
        () = async move {
            while let Some(command) = asked.recv().await {
                match (command, maker.as_deref()) {
                    (Command::Grant(bytes), _) => { sender.grant(bytes); }
                    (Command::Push(indices), Some(maker)) => push(sender, indices, maker).await,
                    (Command::Finish, _) => {
                        let _ = sender.send(message::encode(&NodePush::Finish), Bytes::new()).await;
                    }
                    (Command::Push(_), None) => unreachable!("a read pushes nothing"),
                }
            }
        } => {}
    }
    // Also when the access ended and nobody asks for anything any more: a stream left open would keep its part of the
    // node's write budget for as long as the connection lives.
    sender.cancel();
    core::future::pending().await
}

/// Sends these blocks, slice by slice. A lost connection is told by the receiving half.
async fn push(sender: &StreamSender, indices: core::ops::Range<BlockIndex>, maker: &Maker) {
    for made in maker.make(indices).await {
        let slice_bytes = message::PAYLOAD_BYTES_MAX as usize;
        let granules = slice_bytes / maker.granule_bytes();
        for (number, sums) in made.sums.chunks(granules).enumerate() {
            let offset = number * slice_bytes;
            let payload = made.block.slice(offset..made.block.len().min(offset + slice_bytes));
            let offset = u32::try_from(offset).expect("a block is at most 1 MiB");
            let slice = Slice { index: made.index, offset, sums: sums.to_vec() };
            if sender.send(message::encode(&NodePush::Slice(slice)), payload).await.is_err() {
                return;
            }
        }
    }
}
