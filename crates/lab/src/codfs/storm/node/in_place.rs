//! Differences that go into the parity chunk at once, and the device's room for what is held of them: as the host of a parity chunk in
//! `steadfast_node` does it, but that the device answers at once.

use super::{ParityNode, SEGMENT};
use anyhow::{Context, Result};
use steadfast_disk::{
    Epoch,
    device::{Spend, UpdateError},
};
use steadfast_protocol::serve::parity_log::{Difference, Overwrite, ParityInput, held_bytes};

/// The device's one host.
const OWNER: u64 = 1;

impl ParityNode {
    /// A difference that arrived is to go in.
    pub(in super::super) fn overwrite_with(&mut self, chunk: u16, version: u64, reply: u64) -> Result<()> {
        let bytes = held_bytes(self.arrived.get(&reply).context("it arrived")?.record_length());
        self.overwrites.ask(Overwrite { chunk, version, bytes, reply, reserved: false });
        self.overwrite()
    }

    /// Overwrites with those that have room, one after the other.
    fn overwrite(&mut self) -> Result<()> {
        while let Some(Overwrite { chunk, version, reply, bytes, reserved }) = self.overwrites.start() {
            let difference = self.arrived.get(&reply).context("it arrived")?;
            let (offset, product) = (difference.offset, self.of.product(difference)?);
            let spend = Spend { owner: OWNER, bytes: if reserved { bytes } else { 0 } };
            let change = (offset, &product[..]);
            let device = self.disk.device()?;
            match device.overwrite_from(SEGMENT, Epoch(1), change, (chunk, version), Some(spend)) {
                Ok(staged) => {
                    self.overwrites.placed(staged.version);
                    self.arrived.remove(&reply);
                    self.done.push(ParityInput::Overwritten { chunk, version });
                }
                // Tried again when something was released.
                Err(UpdateError::Held { .. }) => {
                    self.waits = true;
                    let bytes = self.overwrites.not_placed();
                    let is_asked = self.core.as_ref().is_some_and(|core| core.is_asked(chunk));
                    if is_asked || !self.links.contains(&chunk) {
                        // Whoever sent it asks what is here of it, and sends it again.
                        self.withdraw(chunk)?;
                    }
                    self.unreserve(bytes)?;
                }
                Err(error) => return Err(error).context("overwrite"),
            }
        }
        Ok(())
    }

    /// There may be room where there was none.
    pub(in super::super) fn overwrite_again(&mut self) -> Result<()> {
        self.overwrites.again();
        self.overwrite()
    }

    /// Gives up what waits of a data chunk: whoever asks what is here of it sends that again.
    pub(super) fn withdraw(&mut self, chunk: u16) -> Result<()> {
        let (withdrawn, bytes) = self.overwrites.withdraw(chunk);
        if let Some(((first, count), core)) = withdrawn.zip(self.core.as_mut()) {
            core.handle(ParityInput::Withdrawn { chunk, first, count });
        }
        self.unreserve(bytes)
    }

    /// Keeps room for differences of a data chunk that are to come: how much.
    pub(in super::super) fn reserve(&mut self, chunk: u16, least: u64, bytes: u64) -> Result<u64> {
        let bytes = self.overwrites.reserve(chunk, least, bytes);
        if bytes == 0 {
            return Ok(0);
        }
        let kept = self.disk.device()?.reserve(OWNER, least, bytes);
        self.overwrites.give_back(chunk, bytes - kept);
        Ok(kept)
    }

    /// So much of that is not needed.
    pub(in super::super) fn give_back(&mut self, chunk: u16, bytes: u64) -> Result<()> {
        let bytes = self.overwrites.give_back(chunk, bytes);
        self.unreserve(bytes)
    }

    /// Gives the device's room back, where there is any, and no longer keeps others from it where nothing waits for it.
    pub(super) fn unreserve(&mut self, bytes: u64) -> Result<()> {
        let others_wait = self.overwrites.waits_for_room();
        let is_over = self.waits && !others_wait;
        self.waits &= others_wait;
        if bytes > 0 || is_over {
            self.disk.device()?.unreserve(OWNER, bytes);
            if bytes > 0 && others_wait {
                return self.overwrite_again();
            }
        }
        Ok(())
    }

    /// A data chunk's versions are committed: what was held of them may go.
    pub(in super::super) fn release(&mut self, chunk: u16, through: u64) -> Result<()> {
        if let Some(through_version) = self.overwrites.release(chunk, through) {
            self.disk.device()?.release(SEGMENT, through_version).context("release")?;
        }
        self.overwrite()
    }

    /// Whether a difference waits for room that is not reserved.
    pub(in super::super) fn waits_for_room(&self) -> bool {
        self.overwrites.waits_for_room()
    }

    /// A difference that is in the log, or held where it was overwritten with.
    pub(in super::super) fn difference(&mut self, chunk: u16, version: u64) -> Result<Option<Difference>> {
        let log = self.core.as_ref().context("up")?.log();
        let entry = log.copied().find(|entry| (entry.chunk, entry.version) == (chunk, version));
        if let Some(entry) = entry {
            return self.record(entry.sequence).map(Some);
        }
        let Some(staged) = self.disk.held()?.into_iter().find(|staged| staged.of == Some((chunk, version)))
        else {
            return Ok(None);
        };
        let bytes = self.of.difference(chunk, &staged.difference)?;
        let (offset, sums) = (staged.offset, vec![0; staged.sums.len()]);
        Ok(Some(Difference { chunk, version, offset, sums, bytes: bytes.into() }))
    }
}
