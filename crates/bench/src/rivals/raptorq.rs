//! `raptorq` (RFC 6330). Its symbol length is a 16-bit number, so a symbol is a little shorter than a block of
//! 64 KiB.

use super::{Objects, Timer};
use anyhow::{Context, Result, ensure};
use raptorq::{EncodingPacket, ObjectTransmissionInformation, SourceBlockDecoder, SourceBlockEncoder};

/// Symbols have to be whole words of this.
const ALIGN: usize = 8;
/// Symbols received beyond K; RFC 6330 promises that two leave one object in a million undecoded.
const EXTRA: usize = 2;

/// Objects of K symbols.
pub(super) struct Object {
    originals: usize,
    symbol_len: usize,
    received: Vec<EncodingPacket>,
}

impl Object {
    pub(super) fn new(originals: usize, block_len: usize) -> Self {
        let longest = usize::from(u16::MAX) / ALIGN * ALIGN;
        Self { originals, symbol_len: block_len.min(longest), received: Vec::new() }
    }

    fn object<'a>(&self, originals: &'a [u8]) -> &'a [u8] {
        &originals[..self.originals * self.symbol_len]
    }

    fn information(&self) -> ObjectTransmissionInformation {
        let len = (self.originals * self.symbol_len) as u64;
        ObjectTransmissionInformation::new(len, self.symbol_len as u16, 1, 1, ALIGN as u8)
    }

    /// The object's bytes are fewer than ours where symbols are shorter: seconds as if they were as many.
    fn scaled(&self, originals: &[u8], seconds: f64) -> f64 {
        seconds * originals.len() as f64 / (self.originals * self.symbol_len) as f64
    }
}

impl Objects for Object {
    fn name(&self) -> String {
        "raptorq 2.0".to_owned()
    }

    fn encode(&mut self, originals: &[u8], blocks: usize, seconds: Timer<'_>) -> Result<f64> {
        let (information, object) = (self.information(), self.object(originals));
        let mut made = 0;
        let taken = seconds(&mut || {
            let encoder = SourceBlockEncoder::new(0, &information, object);
            made = encoder.repair_packets(0, blocks as u32).len();
        });
        ensure!(made == blocks, "{made} of {blocks} packets");
        Ok(self.scaled(originals, taken))
    }

    fn prepare_decode(&mut self, originals: &[u8], order: &[u32]) -> Result<()> {
        let encoder = SourceBlockEncoder::new(0, &self.information(), self.object(originals));
        let sources = encoder.source_packets();
        self.received.clear();
        for index in order.iter().take(self.originals + EXTRA).map(|index| *index as usize) {
            self.received.push(match index.checked_sub(self.originals) {
                None => sources[index].clone(),
                Some(repair) => {
                    encoder.repair_packets(repair as u32, 1).pop().context("no such repair packet")?
                }
            });
        }
        Ok(())
    }

    fn decode(&mut self, originals: &[u8], seconds: Timer<'_>) -> Result<f64> {
        let (information, object) = (self.information(), self.object(originals));
        let packets = self.received.clone();
        let mut decoder = SourceBlockDecoder::new(0, &information, object.len() as u64);
        let mut packets = Some(packets);
        let mut decoded = None;
        let taken = seconds(&mut || decoded = packets.take().and_then(|packets| decoder.decode(packets)));
        ensure!(decoded.as_deref() == Some(object), "not decoded from {} symbols", self.received.len());
        Ok(self.scaled(originals, taken))
    }
}
