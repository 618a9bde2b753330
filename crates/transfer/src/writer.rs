//! Drives a write core over TCP: opens what it asks for, encodes and pushes, and tells it what the devices say.

use crate::{
    Arrivals, Maker,
    streams::{Event, Streams},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_net::Pool;
use steadfast_protocol::{
    DeviceId, Epoch, IntentId, Time,
    message::{NodeAnswer, NodeRequest, Priority, WriteOpen},
    policy::Policy,
    read::Cause,
    write::{Action, FailureKind, Input, WriteDone, WriteError, WriteSpec, Writer},
};

/// How whoever writes reaches devices.
pub trait Route {
    /// Where the device is served, as far as is known.
    fn address(&self, device: DeviceId) -> Option<String>;

    /// The request as it is sent: under the device's reservation, where there is one.
    fn request(&self, _device: DeviceId, request: NodeRequest) -> NodeRequest {
        request
    }

    /// The class of its streams.
    fn priority(&self) -> Priority;
}

/// One segment being written.
pub struct SegmentWriter<R> {
    /// To the devices.
    pub route: R,
    /// The connections.
    pub pool: Pool,
    /// The blocks.
    pub maker: Arc<Maker>,
    /// The bucket's.
    pub policy: Policy,
    /// Of the version that is being made.
    pub epoch: Epoch,
    /// What it is part of.
    pub intent: IntentId,
}

impl<R: Route> SegmentWriter<R> {
    /// Writes until the core is done; says of each device that it is written to, of each stream what it said, and when all that it takes is
    /// on its way.
    ///
    /// # Errors
    /// The core's.
    ///
    /// # Panics
    /// Where the plan is none; see [`Writer::new`].
    pub async fn run(
        self,
        spec: WriteSpec,
        mut touch: impl FnMut(DeviceId),
        mut said: impl FnMut(&Event),
        ending: impl FnOnce(),
    ) -> Result<WriteDone, WriteError> {
        let start = Instant::now();
        // Pieces under a name of their own: a segment of chunks that has some is changed in place no more, and none of them needs a log.
        let moves = !spec.given.is_empty();
        let mut core = Writer::new(spec, Time(0));
        let mut ending = Some(ending);
        let mut streams = Streams::new(self.route.priority());
        let (mut arriving, each) = (Arrivals::of(&self.maker), core.follows_each_arrival());
        if let Some(originals) = arriving.now() {
            core.handle(Time(0), Input::Arrived { originals });
        }
        loop {
            while let Some(action) = core.poll() {
                match action {
                    Action::Open { device, expected_blocks, chunk } => {
                        touch(device);
                        self.open(&mut streams, (device, expected_blocks, chunk), moves);
                    }
                    Action::Push { device, indices } => streams.push(device, indices),
                    Action::Finish { device } => streams.finish(device),
                    Action::Cancel { device } => streams.cancel(device),
                    Action::Done(done) => return Ok(done),
                    Action::Failed(error) => return Err(error),
                }
            }
            if let Some(ending) = ending.take_if(|_| core.ending()) {
                ending();
            }
            let wake_at = core.wake_at().map(|at| start + Duration::from_nanos(at.0));
            let input = tokio::select! {
                event = streams.next(wake_at) => match event {
                    Some((device, event)) => {
                        said(&event);
                        if let Event::Failed(cause) = &event {
                            tracing::debug!(%device, %cause, "a write stream failed");
                        }
                        input(device, event)
                    }
                    None => Some(Input::Tick),
                },
                originals = arriving.more(!each) => Some(Input::Arrived { originals }),
            };
            if let Some(input) = input {
                core.handle(Time(start.elapsed().as_nanos() as u64), input);
            }
        }
    }

    fn open(
        &self,
        streams: &mut Streams,
        (device, expected_blocks, chunk): (DeviceId, u32, Option<u32>),
        moves: bool,
    ) {
        let chunk_bytes = u64::from(expected_blocks) * u64::from(self.maker.geometry.block_bytes);
        let kept = match (&self.policy, chunk) {
            (Policy::Parity(policy), Some(chunk)) => policy.kept_beside(chunk, chunk_bytes),
            _ => None,
        };
        let reserve_bytes = kept.map(|bytes| if moves { 0 } else { bytes });
        let request = NodeRequest::Write(WriteOpen {
            device,
            segment: self.maker.segment,
            version: self.maker.version,
            intent: self.intent,
            block_bytes: self.maker.geometry.block_bytes,
            granule_bytes: self.maker.geometry.granule_bytes,
            expected_blocks,
            reserve_bytes,
        });
        let request = self.route.request(device, request);
        let maker = Some(Arc::clone(&self.maker));
        streams.open(&self.pool, device, self.route.address(device), &request, self.epoch, 0, maker);
    }
}

/// What the core is told of an event.
fn input(device: DeviceId, event: Event) -> Option<Input> {
    Some(match event {
        Event::Opened => Input::Opened { device },
        Event::Credit(bytes) => Input::Credit { device, bytes: bytes.into() },
        Event::Confirmed(blocks) | Event::Ended(NodeAnswer::Written { blocks }) => {
            Input::Confirmed { device, blocks }
        }
        Event::Ended(_) => Input::Failed { device, cause: FailureKind::Protocol },
        Event::Failed(Cause::Unreachable(_)) => Input::Failed { device, cause: FailureKind::Unreachable },
        Event::Failed(Cause::Fault(fault)) => Input::Failed { device, cause: FailureKind::from(&fault) },
        Event::Slice { .. } | Event::State(_) => return None,
    })
}
