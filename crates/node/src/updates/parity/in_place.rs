//! Differences that go into the parity chunk at once, and the device's room for what is held of them.

use super::{Asked, Host};
use crate::updates::not_in_place;
use bytes::Bytes;
use steadfast_disk::{Op, OpError, OpOutput, device::UpdateError};
use steadfast_protocol::{
    message::LogEvent,
    serve::parity_log::{ChunkNumber, Difference, Overwrite, ParityInput},
};
use tokio::sync::oneshot;

impl Host {
    /// Overwrites with the next difference, once the one before it has its place: none goes in before an earlier one.
    pub(super) fn overwrite(&mut self) {
        let Some(Overwrite { chunk, version, reply, bytes, reserved }) = self.overwrites.start() else {
            return;
        };
        let segment = self.chunk.segment;
        let difference =
            self.arrived.get(&reply).and_then(|arrived| Difference::decode(&arrived.record).ok());
        let product = difference.as_ref().and_then(|difference| self.of.product(difference).ok());
        let Some((difference, product)) = difference.zip(product) else {
            let why =
                format_args!("version {version} of chunk {chunk} is to be overwritten with and is not here");
            self.over = Some(not_in_place(segment, why));
            return;
        };
        let (epoch, offset) = (self.core.epoch(), difference.offset);
        let (of, spend) = ((chunk, version), self.room.spend(if reserved { bytes } else { 0 }));
        let op = Op::Overwrite { segment, epoch, offset, product: product.into(), of, spend };
        self.ask(Asked::Overwrite { chunk, version }, op);
    }

    /// Gives up what waits of a data chunk: whoever asks what is here of it sends that again.
    pub(super) fn withdraw(&mut self, chunk: ChunkNumber) {
        let (withdrawn, mut bytes) = self.overwrites.withdraw(chunk);
        for link in self.links.values_mut().filter(|link| link.chunk == chunk) {
            link.stale_reserves = link.reserves;
            bytes = bytes.saturating_sub(std::mem::take(&mut link.reserving));
        }
        if let Some((first, count)) = withdrawn {
            self.core.handle(ParityInput::Withdrawn { chunk, first, count });
        }
        self.unreserve(bytes);
    }

    /// The device keeps so much of what the segment has for a data chunk.
    pub(super) fn reserved(&mut self, stream: u64, bytes: u64, kept: u64) {
        let Some(link) = self.links.get_mut(&stream) else { return self.unreserve(kept) };
        link.reserves -= 1;
        if link.stale_reserves > 0 {
            // The segment's part was given back when its chunk was asked for.
            link.stale_reserves -= 1;
            return self.unreserve(kept);
        }
        link.reserving -= bytes;
        self.overwrites.give_back(link.chunk, bytes - kept);
        self.say(stream, &LogEvent::Reserved { bytes: kept }, Bytes::new());
    }

    /// Gives the device's room back, where there is any, and no longer keeps others from it where nothing waits for it.
    pub(super) fn unreserve(&mut self, bytes: u64) {
        if let Some(op) = self.room.give_back(bytes, self.overwrites.waits_for_room()) {
            self.ask(Asked::Unreserve, op);
            if bytes > 0 && self.overwrites.waits_for_room() {
                // The device forgets that this one waits when it hears that: it hears of it again, right behind.
                self.overwrites.again();
                self.overwrite();
            }
        }
    }

    pub(super) fn overwritten(
        &mut self,
        chunk: ChunkNumber,
        version: u64,
        answer: Result<OpOutput, OpError>,
    ) {
        match answer {
            Ok(OpOutput::Staged(staged)) => {
                if let Some(placed) = self.overwrites.placed(staged.version) {
                    self.arrived.remove(&placed.reply);
                }
                self.ask(Asked::Barrier { chunk, version }, Op::Barrier);
                self.overwrite();
            }
            Ok(other) => unreachable!("an overwrite is answered as staged, not {other:?}"),
            // Tried again when something was released, here or of another segment.
            Err(OpError::Update(UpdateError::Held { .. })) => {
                self.room.waits();
                let bytes = self.overwrites.not_placed();
                let is_gone = !self.links.values().any(|link| link.chunk == chunk);
                if self.core.is_asked(chunk) || is_gone {
                    // Nobody can commit it before whoever sent it asks what is here of it, and sends it again: it keeps no others from
                    // room meanwhile.
                    self.withdraw(chunk);
                }
                self.unreserve(bytes);
                // Those that have room go past it.
                self.overwrite();
            }
            Err(error) => self.over = Some(self.failed(error)),
        }
    }

    /// Sends a difference that is held where it was overwritten with.
    pub(super) fn held(
        &self,
        stream: u64,
        version: u64,
        answer: Result<OpOutput, OpError>,
        sent: oneshot::Sender<u64>,
    ) {
        let chunk = self.links.get(&stream).map(|link| link.chunk);
        let staged = match answer {
            Ok(OpOutput::Held(held)) => held
                .into_iter()
                .find(|staged| staged.of.is_some() && staged.of == chunk.map(|chunk| (chunk, version))),
            _ => None,
        };
        let record = staged.zip(chunk).and_then(|(staged, chunk)| {
            let bytes = self.of.difference(chunk, &staged.difference).ok()?;
            let (offset, sums) = (staged.offset, vec![0; staged.sums.len()]);
            Some(Difference { chunk, version, offset, sums, bytes: bytes.into() }.encode())
        });
        self.give(stream, version, record, sent);
    }
}
