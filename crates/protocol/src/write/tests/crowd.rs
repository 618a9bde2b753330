//! Many writers at nodes that have memory for few of them: the write cores against [`WriteStream`]s that share a [`Budget`].

use super::{
    model::{Disk, Draw, MS, disk, spec},
    *,
};
use crate::{
    IntentId, SegmentId, Version,
    message::WriteOpen,
    serve::{Budget, WriteAction, WriteInput, WriteStream},
};
use std::collections::BTreeMap;
use steadfast_codes::rateless::Kind;

const BLOCK: u32 = 64 << 10;
const GRANULE: u32 = 4 << 10;
/// A disk takes so long for a block.
const WRITE_NS: u64 = MS;

/// What a writer says to a node.
enum Said {
    Open { expected_blocks: u32 },
    Block(BlockIndex),
    Finish,
    Cancel,
}

enum Event {
    AtNode(usize, usize, Said),
    Written(usize, usize, BlockIndex),
    AtWriter(usize, Input),
    Tick(usize),
}

struct Node {
    budget: Budget,
    streams: BTreeMap<usize, WriteStream>,
    idle_at: u64,
}

struct Crowd {
    now: u64,
    order: u64,
    events: BTreeMap<(u64, u64), Event>,
    nodes: Vec<Node>,
    writers: Vec<Writer>,
    ended: Vec<Option<Result<WriteDone, WriteError>>>,
    /// Of messages between a writer and a node: who comes first differs from node to node.
    delays: Vec<Vec<u64>>,
}

impl Crowd {
    /// `count` writers of one segment each, all at once, at nodes with memory for the blocks of so many streams.
    fn run(specs: Vec<WriteSpec>, nodes: usize, floors: u64, seed: u64) -> Self {
        let node =
            || Node { budget: Budget::new(floors * u64::from(BLOCK)), streams: BTreeMap::new(), idle_at: 0 };
        let mut draw = Draw::new(seed);
        let delays = specs.iter().map(|_| (0..nodes).map(|_| MS / 4 + draw.below(MS)).collect()).collect();
        let mut crowd = Self {
            now: 0,
            order: 0,
            events: BTreeMap::new(),
            nodes: (0..nodes).map(|_| node()).collect(),
            ended: specs.iter().map(|_| None).collect(),
            writers: specs.into_iter().map(|spec| Writer::new(spec, Time(0))).collect(),
            delays,
        };
        (0..crowd.writers.len()).for_each(|writer| crowd.carry_out(writer));
        while let Some(((at, _), event)) = crowd.events.pop_first() {
            crowd.now = at;
            crowd.happen(event);
        }
        crowd
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.order += 1;
        self.events.insert((self.now + delay, self.order), event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::AtWriter(writer, input) => self.tell(writer, input),
            Event::Tick(writer) => self.tell(writer, Input::Tick),
            Event::AtNode(node, writer, Said::Open { expected_blocks }) => {
                self.open(node, writer, expected_blocks);
            }
            Event::AtNode(node, writer, Said::Block(index)) => {
                let sums = BLOCK / GRANULE;
                self.at_node(node, writer, WriteInput::Slice { index, offset: 0, bytes: BLOCK, sums });
            }
            Event::AtNode(node, writer, Said::Finish) => self.at_node(node, writer, WriteInput::Finish),
            Event::AtNode(node, writer, Said::Cancel) => self.at_node(node, writer, WriteInput::Cancel),
            Event::Written(node, writer, index) => {
                self.at_node(node, writer, WriteInput::Written { index, result: Ok(()) });
            }
        }
    }

    fn tell(&mut self, writer: usize, input: Input) {
        self.writers[writer].handle(Time(self.now), input);
        self.carry_out(writer);
    }

    fn carry_out(&mut self, writer: usize) {
        while let Some(action) = self.writers[writer].poll() {
            let (device, said) = match action {
                Action::Open { device, expected_blocks, .. } => {
                    (device, vec![Said::Open { expected_blocks }])
                }
                Action::Push { device, indices } => (device, indices.map(Said::Block).collect()),
                Action::Finish { device } => (device, vec![Said::Finish]),
                Action::Cancel { device } => (device, vec![Said::Cancel]),
                Action::Done(done) => {
                    self.ended[writer] = Some(Ok(done));
                    continue;
                }
                Action::Failed(error) => {
                    self.ended[writer] = Some(Err(error));
                    continue;
                }
            };
            let node = device.0 as usize;
            for said in said {
                self.after(self.delays[writer][node], Event::AtNode(node, writer, said));
            }
        }
        if let Some(at) = self.writers[writer].wake_at() {
            self.after(at.0.saturating_sub(self.now).max(1), Event::Tick(writer));
        }
    }

    fn open(&mut self, node: usize, writer: usize, expected_blocks: u32) {
        let open = WriteOpen {
            device: DeviceId(node as u128),
            segment: SegmentId(writer as u64),
            version: Version(1),
            intent: IntentId(writer as u64),
            block_bytes: BLOCK,
            granule_bytes: GRANULE,
            expected_blocks,
            reserve_bytes: None,
        };
        let (budget, speed) = (&mut self.nodes[node].budget, u64::from(BLOCK) * (1_000_000_000 / WRITE_NS));
        match WriteStream::new(Time(self.now), &open, IndexRanges::new(), speed, budget) {
            Ok(stream) => {
                self.nodes[node].streams.insert(writer, stream);
                self.say(node, writer, Input::Opened { device: open.device });
                self.pump(node);
            }
            Err(fault) => {
                let cause = FailureKind::from(&fault);
                self.say(node, writer, Input::Failed { device: open.device, cause });
            }
        }
    }

    fn say(&mut self, node: usize, writer: usize, input: Input) {
        self.after(self.delays[writer][node], Event::AtWriter(writer, input));
    }

    fn at_node(&mut self, node: usize, writer: usize, input: WriteInput) {
        let Node { budget, streams, .. } = &mut self.nodes[node];
        if let Some(stream) = streams.get_mut(&writer) {
            stream.handle(Time(self.now), input, budget);
        }
        self.pump(node);
    }

    /// Carries out what the streams of a node ask for, until none has anything to do.
    fn pump(&mut self, node: usize) {
        let device = DeviceId(node as u128);
        let here: Vec<usize> = self.nodes[node].streams.keys().copied().collect();
        for writer in here {
            loop {
                let Node { budget, streams, idle_at } = &mut self.nodes[node];
                let Some(stream) = streams.get_mut(&writer) else { break };
                if stream.is_starved() {
                    stream.handle(Time(self.now), WriteInput::Tick, budget);
                }
                let Some(action) = stream.poll() else { break };
                match action {
                    WriteAction::Grant(bytes) => {
                        self.say(node, writer, Input::Credit { device, bytes: bytes.into() });
                    }
                    WriteAction::Write { index } => {
                        *idle_at = self.now.max(*idle_at) + WRITE_NS;
                        let delay = *idle_at - self.now;
                        self.after(delay, Event::Written(node, writer, index));
                    }
                    WriteAction::Confirm { blocks } => {
                        self.say(node, writer, Input::Confirmed { device, blocks });
                    }
                    WriteAction::Withdraw => {}
                    WriteAction::End { blocks } => {
                        streams.remove(&writer);
                        self.say(node, writer, Input::Confirmed { device, blocks });
                    }
                    WriteAction::Fail(fault) => panic!("{fault}"),
                }
            }
        }
    }
}

/// Three times as many writers as nodes have room for get through one after the other: none keeps room at one node while it waits
/// for another.
#[test]
fn more_writers_than_nodes_have_room_for_all_get_through() {
    let disks: Vec<Disk> = (0..6).map(|domain| disk(domain, 100.0)).collect();
    let rule = Rule { redundancy: 0.5, tolerate: 2 };
    for (kind, rule) in [
        (Kind::ReedSolomon { data: 4, parity: 2 }, rule),
        (Kind::Replicated, Rule { redundancy: 0.0, tolerate: 0 }),
    ] {
        let specs: Vec<WriteSpec> = (0..24).map(|_| spec((kind, 16), BLOCK, rule, &disks, 6)).collect();
        let crowd = Crowd::run(specs, 6, 8, seed_or(7));
        for (writer, ended) in crowd.ended.iter().enumerate() {
            assert!(matches!(ended, Some(Ok(_))), "writer {writer} of {kind:?}: {ended:?}");
        }
        assert!(crowd.nodes.iter().all(|node| node.streams.is_empty() && node.budget.used_bytes() == 0));
    }
}
