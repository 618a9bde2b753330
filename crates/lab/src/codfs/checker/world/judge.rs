//! What must hold: every way to read a chunk gives the same bytes, and bytes that a writer may expect.

use super::{Actor, Bytes, K, M, Progress, STAND_IN, Update, Violation, World, product, quotient};
use std::collections::VecDeque;

impl World {
    /// Whether every listed chunk's versions are level: what a decode of a missing chunk's newest bytes waits for.
    pub(super) fn is_level(&self) -> bool {
        let level = |actor: Actor| {
            self.data_core(actor).is_some_and(|core| core.is_serving() && core.committed() == core.staged())
        };
        (0..K).all(|chunk| level(if self.listed[chunk] { chunk } else { STAND_IN }))
            && self.parities().iter().any(|parity| self.parity[*parity as usize].core.is_some())
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.links.values().all(VecDeque::is_empty)
            && (0..K + M).all(|node| self.steps(node) == 0)
            && self.is_level()
    }

    /// Whether a version that a writer is answered for survives a loss of all power: it is durable at the chunk's own node,
    /// if it has one, and at every listed parity node.
    pub(super) fn is_durable(&self, actor: Actor, version: u64) -> Result<(), Violation> {
        let chunk = self.chunk_of(actor);
        let own = actor == STAND_IN || self.data[actor].durable.version >= version;
        let logged = self.parities().iter().all(|parity| {
            let disk = &self.parity[*parity as usize].durable;
            let merged = disk.merged.get(&(chunk as u16)).is_some_and(|merged| *merged >= version);
            let of = |(_, record): &(u64, super::Record)| {
                (record.chunk as usize, record.version) == (chunk, version)
            };
            merged || disk.log.iter().any(of)
        });
        if own && logged {
            return Ok(());
        }
        Err(Violation(format!("version {version} of chunk {chunk} is answered and not durable everywhere")))
    }

    /// A data chunk's bytes by the others and one parity chunk, or by any of them that is up.
    pub(super) fn decode(&self, chunk: usize, parity: Option<usize>) -> Option<Bytes> {
        let other = 1 - chunk;
        if !self.listed[other] || self.data[other].core.is_none() {
            return None;
        }
        let usable = |number: &usize| self.listed[K + number] && self.parity[*number].core.is_some();
        let number = parity.filter(usable).or_else(|| parity.is_none().then(|| (0..M).find(usable))?)?;
        let mut bytes = self.parity[number].now.current(number);
        for (byte, other_byte) in bytes.iter_mut().zip(self.data[other].now.content) {
            *byte = quotient(number, chunk, *byte ^ product(number, other, other_byte));
        }
        Some(bytes)
    }

    /// Every way to read every chunk gives the same bytes, and bytes that somebody may expect there.
    pub(super) fn check(&self, when: &str) -> Result<(), Violation> {
        for chunk in 0..K {
            let own =
                (self.listed[chunk] && self.data[chunk].core.is_some()).then(|| self.data[chunk].now.content);
            let decoded = (0..M).filter_map(|parity| self.decode(chunk, Some(parity)));
            let ways: Vec<Bytes> = own.into_iter().chain(decoded).collect();
            if ways.windows(2).any(|two| two[0] != two[1]) {
                return Err(Violation(format!("in {when} chunk {chunk} reads as {ways:?}")));
            }
            let Some(bytes) = ways.first() else { continue };
            self.may_be_read(when, chunk, *bytes, &self.acked())?;
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
