//! What the cores want, carried out: messages and operations of media.

use super::{
    Actor, EPOCH, K, Message, Planted, Progress, Record, Violation, World, Write, asked, reply, xor,
};
use steadfast_protocol::serve::parity_log::{
    DataAction, DataChunk, DataInput, Overwrite, ParityAction, ParityInput,
};

impl World {
    pub(super) fn at_data(&mut self, from: Actor, chunk: usize, message: Message) -> Result<(), Violation> {
        let parity = (from - K) as u16;
        let node = &mut self.data[chunk];
        let input = match message {
            Message::Versions { epoch, received } => DataInput::Versions { parity, epoch, received },
            Message::Acked { through } => DataInput::Acked { parity, through },
            Message::Refused { reason } => DataInput::Refused { parity, reason },
            Message::Fetched { record } => {
                node.kept.insert(record.version, record);
                DataInput::Fetched { version: record.version }
            }
            other => unreachable!("{other:?} is for parity nodes"),
        };
        if let Some(core) = &mut node.core {
            core.handle(input);
        }
        self.run_data(chunk)
    }

    pub(super) fn at_parity(&mut self, from: Actor, to: Actor, message: Message) -> Result<(), Violation> {
        let number = to - K;
        let node = &mut self.parity[number];
        let Some(core) = node.core.as_mut() else { return Ok(()) };
        match message {
            Message::Ask { epoch, session, chunk } => {
                let reply = reply(from, session, epoch, 0);
                core.handle(ParityInput::Ask { reply, epoch, session, chunk });
            }
            Message::Difference { epoch, session, record, committed } => {
                let (chunk, version) = (record.chunk, record.version);
                let reply = reply(from, session, epoch, version);
                node.arrived.insert(reply, record);
                let bytes = 1;
                core.handle(ParityInput::Difference {
                    reply,
                    epoch,
                    session,
                    chunk,
                    version,
                    bytes,
                    committed,
                });
            }
            Message::Committed { epoch, chunk, through } => {
                core.handle(ParityInput::Committed { epoch, chunk, through });
            }
            Message::Fetch { chunk, version } => {
                let logged = node.now.log.iter().map(|(_, record)| record).chain(node.now.held.values());
                let found = logged.copied().find(|record| (record.chunk, record.version) == (chunk, version));
                let record = found.ok_or_else(|| {
                    Violation(format!("parity {number} was asked for {chunk}/{version} and has it no more"))
                })?;
                self.send(to, from, Message::Fetched { record });
            }
            other => unreachable!("{other:?} is for data nodes"),
        }
        self.run_parity(number)
    }

    /// Carries out what a data chunk's core wants.
    pub(super) fn run_data(&mut self, chunk: usize) -> Result<(), Violation> {
        loop {
            let node = &mut self.data[chunk];
            let Some(action) = node.core.as_mut().and_then(DataChunk::poll) else { return Ok(()) };
            match action {
                DataAction::Ask { parity, epoch, session } => {
                    let ask = Message::Ask { epoch, session, chunk: chunk as u16 };
                    self.send(chunk, K + parity as usize, ask);
                }
                DataAction::Fetch { parity, version } => {
                    let fetch = Message::Fetch { chunk: chunk as u16, version };
                    self.send(chunk, K + parity as usize, fetch);
                }
                // Its device refuses that: it never becomes level, and serves nobody.
                DataAction::Adopt { .. } if node.now.epoch > EPOCH => self.forget_updates(chunk),
                DataAction::Adopt { version } => {
                    let record = node.kept[&version];
                    node.stage(record);
                    node.adopting.push(version);
                }
                DataAction::Stage { request } => self.stage(chunk, request as usize),
                DataAction::Send { parity, version, epoch, committed } => {
                    let record = *node.kept.get(&version).ok_or_else(|| {
                        Violation(format!("chunk {chunk} is to send version {version} and has it no more"))
                    })?;
                    let session = node.session;
                    let difference = Message::Difference { epoch, session, record, committed };
                    self.send(chunk, K + parity as usize, difference);
                }
                DataAction::Tell { parity, epoch, committed } => {
                    let tell = Message::Committed { epoch, chunk: chunk as u16, through: committed };
                    self.send(chunk, K + parity as usize, tell);
                }
                DataAction::Release { through } => {
                    node.kept.retain(|version, _| *version > through);
                    let disks = [&mut node.durable, &mut node.now].into_iter().chain(&mut node.steps);
                    disks.for_each(|disk| disk.held.retain(|version, _| *version > through));
                }
                DataAction::Answer { request, version } => {
                    self.is_durable(chunk, version)?;
                    self.finished(request as usize, Progress::Acked);
                    self.note_answer(chunk as u16, version);
                    self.check_stored()?;
                }
                DataAction::Unknown { request } => self.finished(request as usize, Progress::Unknown),
                DataAction::Outdated => {
                    return Err(Violation(format!("chunk {chunk} is outdated by crashes alone")));
                }
                DataAction::Behind { parity } => {
                    return Err(Violation(format!(
                        "chunk {chunk}: parity {parity} fell behind what is kept"
                    )));
                }
            }
        }
    }

    fn stage(&mut self, chunk: usize, update: usize) {
        let request = update as u64;
        let node = &mut self.data[chunk];
        let Some(core) = &mut node.core else { return };
        if node.now.epoch > EPOCH {
            // Its device refuses it.
            core.handle(DataInput::NotStaged { request });
            return self.finished(update, Progress::Unknown);
        }
        let version = core.staged() + 1;
        let Write { bytes, .. } = self.updates[update].write;
        let old = node.now.content;
        let difference = std::array::from_fn(|row| if bytes[row] == 0 { 0 } else { old[row] ^ bytes[row] });
        let record = Record { chunk: chunk as u16, version, bytes: difference };
        core.handle(DataInput::Staged { request, version });
        node.kept.insert(version, record);
        node.stage(record);
        let mut content = old;
        xor(&mut content, difference);
        self.note_content(chunk as u16, version, content);
    }

    /// Answers on the connection of the question: to an earlier life of the asker there is none.
    fn answer(&mut self, number: usize, reply: u64, message: Message) {
        let (actor, session, ..) = asked(reply);
        if self.data[actor].session == session {
            self.send(K + number, actor, message);
        }
    }

    /// Carries out what a parity chunk's core wants.
    pub(super) fn run_parity(&mut self, number: usize) -> Result<(), Violation> {
        loop {
            let planted = self.planted;
            let node = &mut self.parity[number];
            let Some(core) = &mut node.core else { return Ok(()) };
            let Some(action) = core.poll() else { return Ok(()) };
            // Changes come to the device under the epoch that the core knows.
            let takes_all = planted == Some(Planted::FencedAcknowledges) && number == 1;
            let is_refused = core.epoch() < node.now.epoch && !takes_all;
            match action {
                ParityAction::Append { .. } | ParityAction::Overwrite { .. } if is_refused => {
                    self.begin_parity_anew(number)?;
                }
                ParityAction::Append { chunk, version, sequence, reply } => {
                    let record = node.arrived.remove(&reply).expect("it arrived");
                    if sequence != node.now.next {
                        return Err(Violation(format!("parity {number}: record {sequence} is out of turn")));
                    }
                    node.now.next += 1;
                    if planted == Some(Planted::LostDelta) && number == 1 && version == 2 {
                        node.now.merged.insert(chunk, version);
                    } else {
                        node.now.log.push_back((sequence, record));
                    }
                    node.wait(ParityInput::Appended { chunk, version, sequence, bytes: 1 });
                }
                ParityAction::Overwrite { chunk, version, reply } => {
                    let reserved = false;
                    node.overwrites.ask(Overwrite { chunk, version, bytes: 1, reply, reserved });
                    node.overwrite(number, planted);
                }
                // Under whatever epoch the device has: it changes nothing that is read.
                ParityAction::Merge { sequences, merged, log_start } => {
                    if sequences.iter().ne(node
                        .now
                        .log
                        .iter()
                        .take(sequences.len())
                        .map(|(number, _)| number))
                    {
                        return Err(Violation(format!("parity {number} merges what is not the log's start")));
                    }
                    for (_, record) in node.now.log.clone().into_iter().take(sequences.len()) {
                        node.now.add(number, record);
                    }
                    if planted == Some(Planted::AppliedTwice) {
                        // The patches are one operation, versions and start another.
                        node.steps.push(node.now.clone());
                    }
                    node.now.merged.extend(merged);
                    node.now.log.retain(|(sequence, _)| *sequence >= log_start);
                    node.wait(ParityInput::Merged);
                }
                ParityAction::Fence { epoch } => {
                    node.now.epoch = node.now.epoch.max(epoch);
                    node.wait(ParityInput::Fenced { epoch });
                }
                ParityAction::Ack { reply, through, .. } => {
                    node.arrived.remove(&reply);
                    let message = match asked(reply) {
                        (_, _, epoch, 0) => Message::Versions { epoch, received: through },
                        _ => Message::Acked { through },
                    };
                    self.answer(number, reply, message);
                }
                ParityAction::Refuse { reply, reason } => {
                    node.arrived.remove(&reply);
                    self.answer(number, reply, Message::Refused { reason });
                }
                ParityAction::Release { chunk, through } => {
                    let Some(released) = node.overwrites.release(chunk, through) else { continue };
                    let disks = [&mut node.durable, &mut node.now].into_iter().chain(&mut node.steps);
                    disks.for_each(|disk| disk.held.retain(|number, _| *number > released));
                }
            }
        }
    }
}
