//! What must hold: every way to read a chunk gives the same bytes, and bytes that a writer may expect.

use super::{Bytes, DataNode, K, M, Progress, Update, Violation, World, product, quotient};
use std::collections::VecDeque;
use steadfast_protocol::serve::parity_log::DataChunk;

impl World {
    /// Whether the versions of every data chunk are level.
    fn is_level(&self) -> bool {
        let level = |node: &DataNode| {
            let level = |core: &DataChunk| core.is_serving() && core.committed() == core.staged();
            node.core.as_ref().is_some_and(level)
        };
        self.data.iter().all(level) && self.parity.iter().any(|node| node.core.is_some())
    }

    /// Whether nothing is on its way, to a node or to a medium.
    pub(super) fn is_still(&self) -> bool {
        self.links.values().all(VecDeque::is_empty) && (0..K + M).all(|node| self.steps(node) == 0)
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.is_still() && self.is_level()
    }

    /// Whether a version that a writer is answered for survives a loss of all power: it is durable at the chunk's node, and at every
    /// parity node.
    pub(super) fn is_durable(&self, chunk: usize, version: u64) -> Result<(), Violation> {
        let own = self.data[chunk].durable.version >= version;
        let logged = self.parity.iter().all(|node| {
            let merged = node.durable.merged.get(&(chunk as u16)).is_some_and(|merged| *merged >= version);
            let of = |(_, record): &(u64, super::Record)| {
                (record.chunk as usize, record.version) == (chunk, version)
            };
            merged || node.durable.log.iter().any(of)
        });
        if own && logged {
            return Ok(());
        }
        Err(Violation(format!("version {version} of chunk {chunk} is answered and not durable everywhere")))
    }

    /// A data chunk's bytes by the other one and this parity chunk, where their nodes are up.
    fn decode(&self, chunk: usize, number: usize) -> Option<Bytes> {
        let other = 1 - chunk;
        if !self.is_up(other) || !self.is_up(K + number) {
            return None;
        }
        let mut bytes = self.parity[number].now.current(number);
        for (byte, other_byte) in bytes.iter_mut().zip(self.data[other].now.content) {
            *byte = quotient(number, chunk, *byte ^ product(number, other, other_byte));
        }
        Some(bytes)
    }

    /// Every way to read every chunk gives the same bytes, and bytes that somebody may expect there.
    pub(super) fn check(&self, when: &str) -> Result<(), Violation> {
        for chunk in 0..K {
            let own = self.is_up(chunk).then(|| self.data[chunk].now.content);
            let decoded = (0..M).filter_map(|parity| self.decode(chunk, parity));
            let ways: Vec<Bytes> = own.into_iter().chain(decoded).collect();
            if ways.windows(2).any(|two| two[0] != two[1]) {
                return Err(Violation(format!("in {when} chunk {chunk} reads as {ways:?}")));
            }
            let Some(bytes) = ways.first() else { continue };
            self.may_be_read(when, chunk, *bytes, &self.acked())?;
        }
        Ok(())
    }

    /// Where nodes refuse updates chunks need not become level any more. What was acknowledged must be left, for a later fence to find.
    pub(super) fn check_answered(&self) -> Result<(), Violation> {
        for (chunk, version) in &self.answered {
            let chunk = usize::from(*chunk);
            (1..=*version).try_for_each(|version| self.is_durable(chunk, version))?;
            let bytes = self.data[chunk].durable.content;
            self.may_be_read("what is left behind a fence", chunk, bytes, &self.acked())?;
        }
        Ok(())
    }

    /// Whether these bytes of a chunk are such as a reader may expect that begins when the updates `acked` are.
    pub(super) fn may_be_read(
        &self,
        when: &str,
        chunk: usize,
        bytes: Bytes,
        acked: &[usize],
    ) -> Result<(), Violation> {
        for (row, byte) in bytes.iter().enumerate() {
            let expected = self.expected(chunk, row, acked);
            if !expected.contains(byte) {
                let why = format!("in {when} chunk {chunk} row {row} is {byte}, not one of {expected:?}");
                return Err(Violation(why));
            }
        }
        Ok(())
    }

    /// What may stand in a row: no write that one acknowledged before another began has replaced.
    fn expected(&self, chunk: usize, row: usize, acked: &[usize]) -> Vec<u8> {
        let writes = |update: &Update| update.write.chunk == chunk && update.write.bytes[row] != 0;
        let began = |update: &Update| update.progress != Progress::Waiting;
        let all: Vec<(usize, &Update)> =
            self.updates.iter().enumerate().filter(|(_, update)| writes(update) && began(update)).collect();
        let replaced = |number: usize| {
            all.iter().any(|(other, update)| acked.contains(other) && update.after.contains(&number))
        };
        let mut expected: Vec<u8> = all
            .iter()
            .filter(|(number, _)| !replaced(*number))
            .map(|(_, update)| update.write.bytes[row])
            .collect();
        if !all.iter().any(|(number, _)| acked.contains(number)) {
            expected.push(0);
        }
        expected
    }
}
