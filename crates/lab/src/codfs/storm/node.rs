//! One node of the storm: a device on a medium that remembers, and the core of the chunk that it holds.

mod in_place;
mod rows;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use rand_pcg::Pcg64;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};
use steadfast_disk::{
    AlignedBuf, ClusterId, Device, DeviceId, Epoch, ExtentSpec, FormatOptions, Granule, SegmentId, Updates,
    Version, checksum,
    device::{Apply, LogError, Staged, UpdateError},
    media::CrashMedium,
};
use steadfast_protocol::{
    Time,
    policy::window_bytes,
    serve::parity_log::{
        Admission, Behind, DataChunk, DataInput, Difference, Entry, Fold, Held, Medium, Mode, Overwrites,
        ParityChunk, ParityInput, ParityOf, ParityState, UpdateWindow, held_bytes, kept_from,
    },
};

use super::{K, M, Message, below};

/// The segment of the storm; each device has one chunk of it.
pub(super) const SEGMENT: SegmentId = SegmentId(7);
const VERSION: Version = Version(1);
const CLUSTER: ClusterId = ClusterId(1);
pub(super) const BLOCK_BYTES: u32 = 16 << 10;
/// Bytes of a chunk: four blocks, so that updates meet block ends, and few enough granules that they meet each other.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
/// The smallest in which every data chunk may have one of the largest updates of a storm uncommitted: ten to twenty records, so that
/// merges are on the path, and the ring wraps often.
const RESERVE_BYTES: u64 = 160 << 10;
/// What one segment may hold of a device's room for what is overwritten in place: this part of it, as with `steadfast_node`.
const SEGMENTS_LEAST: u64 = 4;
/// Of one merge, less than the device takes at once.
const MERGE_BYTES_MAX: u64 = 40 << 10;
/// The smallest journal that takes updates.
const JOURNAL_BYTES: u64 = 512 << 10;
const CAPACITY: u64 = 2 << 20;

/// A device that may be without power.
pub(super) struct Disk {
    medium: Arc<CrashMedium>,
    /// Whether it positions, as a rotating disk does; it goes on so after every power loss.
    positions: bool,
    device: Option<Device>,
    /// How often it was flushed.
    flushes: u64,
}

/// A data chunk's node.
pub(super) struct DataNode {
    /// Its disk.
    pub(super) disk: Disk,
    /// The core; absent while the node is down.
    pub(super) core: Option<DataChunk>,
    /// Which updates the core is given, and when.
    pub(super) window: UpdateWindow,
    /// Differences that may be asked for again.
    pub(super) kept: BTreeMap<u64, Difference>,
    /// Versions adopted since the last flush.
    adopted: Vec<u64>,
    /// One that the device had no room to hold.
    to_adopt: Option<u64>,
    /// How often it was started.
    pub(super) session: u64,
    /// Bytes of the reserve beside parity; none where that is overwritten in place.
    reserve_bytes: u64,
}

/// What a data chunk's window let through.
#[derive(Default)]
pub(super) struct Admitted {
    /// Whether the core was given an update.
    pub(super) gave: bool,
    /// What parity nodes are to be told about room.
    pub(super) messages: Vec<(u16, Message)>,
}

/// What a parity node was asked and has not answered.
#[derive(Clone, Copy)]
pub(super) enum Waiter {
    Ask,
    Difference,
}

/// A parity chunk's node.
pub(super) struct ParityNode {
    /// Its disk.
    pub(super) disk: Disk,
    /// Which chunk of the code it is.
    of: ParityOf,
    /// The core; absent while the node is down.
    pub(super) core: Option<ParityChunk>,
    /// Differences on their way to the log or into the chunk.
    pub(super) arrived: BTreeMap<u64, Difference>,
    /// What the core hears after the next flush.
    pub(super) done: Vec<ParityInput>,
    /// Data chunks whose nodes it hears.
    links: BTreeSet<u16>,
    /// Which of them waits for an answer, and to what.
    pub(super) replies: BTreeMap<u64, (u16, Waiter)>,
    /// In place: in which order, and what may be released.
    overwrites: Overwrites,
    /// In place: whether the device keeps others from reserving, as this one found too little room.
    waits: bool,
    /// None where it is overwritten in place.
    reserve_bytes: u64,
}

impl Disk {
    /// A device with one chunk on it, on a medium that positions or does not.
    fn new(number: u128, content: &[u8], reserve_bytes: u64, first: u32, positions: bool) -> Result<Self> {
        let medium = medium_of(vec![0; CAPACITY as usize], positions);
        let options = FormatOptions {
            checkpoint_bytes: Some(JOURNAL_BYTES),
            journal_bytes: Some(JOURNAL_BYTES),
            ..FormatOptions::new(CLUSTER, DeviceId(number))
        };
        Device::format(&*medium, options).context("format")?;
        let mut device = Device::open(medium.clone(), None).context("open")?;
        let blocks = CHUNK_BYTES as u32 / BLOCK_BYTES;
        let spec = ExtentSpec {
            segment: SEGMENT,
            version: VERSION,
            epoch: Epoch(1),
            block_bytes: BLOCK_BYTES,
            granule: Granule::KIB_4,
            expected_blocks: blocks,
            updates: Some(Updates { reserve_bytes }),
        };
        device.create_extent(spec).context("create")?;
        for (index, block) in (first * blocks..).zip(content.chunks(BLOCK_BYTES as usize)) {
            let sums = checksum::sums(block, Granule::KIB_4, SEGMENT, VERSION, index);
            device.write_block(SEGMENT, Epoch(1), index, block, &sums).context("fill")?;
        }
        device.flush().context("flush")?;
        drop(device);
        // What led here is history: the log of writes begins now.
        let medium = medium_of(medium.image(), positions);
        let mut disk = Self { medium, positions, device: None, flushes: 0 };
        disk.reopen(None)?;
        Ok(disk)
    }

    pub(super) fn device(&mut self) -> Result<&mut Device> {
        self.device.as_mut().context("the node is down")
    }

    /// Power is lost; `survives` says which sectors of unflushed writes are there after it.
    pub(super) fn cut(&mut self, survives: impl FnMut(usize, usize) -> bool) {
        self.device = None;
        let image = self.medium.crash_image(self.medium.len(), survives);
        self.medium = medium_of(image, self.positions);
    }

    /// Power is back; `again` cuts it once more at a random point of the recovery.
    pub(super) fn reopen(&mut self, again: Option<&mut Pcg64>) -> Result<()> {
        if let Some(random) = again {
            let device =
                Device::open(self.medium.clone(), Some(CLUSTER)).context("open after a power loss")?;
            drop(device);
            let at = below(random, self.medium.len() as u64 + 1) as usize;
            let image = self.medium.crash_image(at, |_, _| below(random, 2) == 0);
            self.medium = medium_of(image, self.positions);
        }
        let device = Device::open(self.medium.clone(), Some(CLUSTER)).context("open after a power loss")?;
        device.self_check();
        self.device = Some(device);
        Ok(())
    }

    /// Makes everything before durable.
    pub(super) fn flush(&mut self) -> Result<()> {
        let device = self.device()?;
        device.flush().context("flush")?;
        device.ease().context("write in place")?;
        self.flushes += 1;
        Ok(())
    }

    /// Refuses changes under earlier epochs, durably.
    pub(super) fn fence(&mut self, epoch: Epoch) -> Result<()> {
        self.device()?.fence(SEGMENT, epoch).context("fence")?;
        self.flush()
    }

    /// How often it will have been flushed once all that is there now is durable.
    pub(super) fn durable_at(&self) -> u64 {
        self.flushes + u64::from(self.is_dirty())
    }

    /// Whether what was there when [`Disk::durable_at`] said so is durable.
    pub(super) fn is_durable(&self, at: u64) -> bool {
        self.flushes >= at
    }

    /// Whether anything waits for a flush.
    pub(super) fn is_dirty(&self) -> bool {
        self.device.as_ref().is_some_and(|device| !device.is_clean())
    }

    /// Bytes of the chunk, whole granules.
    fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>> {
        let mut buffer = AlignedBuf::zeroed(0);
        let read = self.device()?.read_chunk(SEGMENT, range.clone(), &mut buffer).context("read")?;
        ensure!(read.range == range, "{range:?} became {:?}", read.range);
        Ok(buffer.to_vec())
    }

    /// Changes that were not released.
    fn held(&mut self) -> Result<Vec<Staged>> {
        self.device()?.held(SEGMENT).context("held")
    }

    /// All of the chunk as it is in place or in redo records.
    pub(super) fn content(&mut self) -> Result<Vec<u8>> {
        self.read(0..CHUNK_BYTES as u64)
    }

    /// What an idle lane does.
    pub(super) fn idle(&mut self) -> Result<()> {
        let device = self.device()?;
        device.write_back(32 << 10).context("write back")?;
        device.prepare_ahead().context("prepare")?;
        Ok(())
    }
}

impl DataNode {
    /// The node of data chunk `number`, on a disk that positions or does not.
    pub(super) fn new(number: usize, content: &[u8], mode: Mode, positions: bool) -> Result<Self> {
        let disk = Disk::new(number as u128 + 1, content, 0, number as u32, positions)?;
        let (core, kept, adopted, to_adopt, session) = Default::default();
        let window = UpdateWindow::new(Time(0), 0, []);
        Ok(Self { disk, core, window, kept, adopted, to_adopt, session, reserve_bytes: reserve_bytes(mode) })
    }

    /// Begins to serve with what is durable; these parity nodes are there.
    pub(super) fn start(&mut self, now: Time, chunk: u16, there: &[u16]) -> Result<()> {
        self.session += 1;
        let version = self.disk.device()?.updates(SEGMENT).context("describe")?.version;
        let held = self.disk.held()?;
        self.kept = held
            .into_iter()
            .map(|staged| {
                let (offset, sums, bytes) = (staged.offset, staged.sums, staged.difference);
                (staged.version, Difference { chunk, version: staged.version, offset, sums, bytes })
            })
            .collect();
        let kept = &self.kept;
        let kept_from = kept_from(version, |version| kept.contains_key(&version));
        let records = kept.iter().map(|(version, difference)| (*version, difference.record_length()));
        let seed = self.session * K as u64 + u64::from(chunk);
        self.window = UpdateWindow::new(now, M as u16, records).with_seed(seed);
        there.iter().for_each(|parity| self.connected(*parity));
        let mut core = DataChunk::new(Medium::Own, self.session, version, kept_from);
        core.handle(DataInput::Configure { epoch: Epoch(1), parities: (0..M as u16).collect() });
        self.core = Some(core);
        Ok(())
    }

    /// A parity node is there.
    pub(super) fn connected(&mut self, parity: u16) {
        self.window.connected(parity, window_bytes(self.reserve_bytes, K as u32));
        if self.reserve_bytes == 0 {
            self.window.asks_in_place(parity);
        }
    }

    /// Gives the core what the window has room for.
    pub(super) fn admit(&mut self) -> Result<Admitted> {
        let mut admitted = Admitted::default();
        let Some(core) = &mut self.core else { return Ok(admitted) };
        if self.window.needs_room() && !core.is_serving() {
            // Before it serves an update might wait for others to make room, with what is kept for it.
            self.window.is_not_level();
            return Ok(admitted);
        }
        while let Some(admission) = self.window.poll() {
            match admission {
                Admission::Update { request } => {
                    core.handle(DataInput::Update { request });
                    admitted.gave = true;
                }
                Admission::TooLarge { request } => bail!("update {request} never fits its window"),
                Admission::Reserve { parity, least, bytes } => {
                    admitted.messages.push((parity, Message::Reserve { least, bytes }));
                }
                Admission::GiveBack { parity, bytes } => {
                    admitted.messages.push((parity, Message::GiveBack { bytes }));
                }
            }
        }
        Ok(admitted)
    }

    /// Stamps an update; none where the device has to be released first.
    pub(super) fn stage(&mut self, request: u64, chunk: u16, offset: u64, new: &[u8]) -> Result<Option<u64>> {
        let staged = match self.disk.device()?.stage(SEGMENT, Epoch(1), offset, new) {
            Err(UpdateError::Held { .. }) => {
                self.window.again(request);
                return Ok(None);
            }
            other => other.context("stage")?,
        };
        let (version, offset, sums, bytes) = (staged.version, staged.offset, staged.sums, staged.difference);
        let difference = Difference { chunk, version, offset, sums, bytes };
        self.window.staged(request, version, difference.record_length());
        self.kept.insert(version, difference);
        Ok(Some(version))
    }

    /// A log has brought a difference back.
    pub(super) fn fetched(&mut self, difference: Difference) {
        self.window.keep(difference.version, difference.record_length());
        self.kept.insert(difference.version, difference);
    }

    /// Brings the chunk forward by a difference that some log had, unless the device has to be released first.
    pub(super) fn adopt(&mut self, version: u64) -> Result<()> {
        let Some(difference) = self.kept.get(&version).cloned() else {
            bail!("version {version} is to be adopted and is not here")
        };
        let end = difference.offset + difference.bytes.len() as u64;
        let base = self.disk.read(difference.offset..end)?;
        let (block_bytes, blocks) = (u64::from(BLOCK_BYTES), CHUNK_BYTES as u64 / u64::from(BLOCK_BYTES));
        let tag = |at: u64| {
            Some(checksum::Tag {
                segment: SEGMENT,
                version: VERSION,
                index: (u64::from(difference.chunk) * blocks + at / block_bytes) as u32,
                granule_number: (at % block_bytes / 4096) as u32,
            })
        };
        let Some(new) = difference.brought_forward(&base, tag) else {
            bail!("version {version} did not come out right")
        };
        match self.disk.device()?.stage(SEGMENT, Epoch(1), difference.offset, &new) {
            Err(UpdateError::Held { .. }) => self.to_adopt = Some(version),
            other => {
                let staged = other.context("adopt")?.version;
                ensure!(staged == version, "version {version} was brought forward as {staged}");
                self.adopted.push(version);
            }
        }
        Ok(())
    }

    /// Old bytes of versions up to here may go.
    pub(super) fn release(&mut self, through: u64) -> Result<()> {
        self.kept.retain(|version, _| *version > through);
        self.window.released(through);
        self.disk.device()?.release(SEGMENT, through).context("release")
    }

    /// A flush returns.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.disk.flush()?;
        let version = self.disk.device()?.updates(SEGMENT).context("describe")?.version;
        if let Some(version) = self.to_adopt.take() {
            // What went in place made room.
            self.adopt(version)?;
        }
        if let Some(core) = &mut self.core {
            core.handle(DataInput::Durable { through: version });
            for version in std::mem::take(&mut self.adopted) {
                core.handle(DataInput::Adopted { version });
            }
        }
        Ok(())
    }

    /// Power is lost.
    pub(super) fn crash(&mut self, survives: impl FnMut(usize, usize) -> bool) {
        self.disk.cut(survives);
        self.core = None;
        self.kept.clear();
        self.adopted.clear();
        self.to_adopt = None;
    }
}

impl ParityNode {
    /// The node of parity chunk `number`, on a disk that positions or does not.
    pub(super) fn new(number: usize, content: &[u8], mode: Mode, positions: bool) -> Result<Self> {
        let (reserve_bytes, chunk) = (reserve_bytes(mode), K + number);
        let disk = Disk::new(chunk as u128 + 1, content, reserve_bytes, chunk as u32, positions)?;
        let of = ParityOf::new(K as u16, M as u16, number as u16, CHUNK_BYTES as u64)?;
        let (core, arrived, done, links, replies, waits) = Default::default();
        let overwrites = Overwrites::new(0, []);
        Ok(Self { disk, of, core, arrived, done, links, replies, overwrites, waits, reserve_bytes })
    }

    /// Begins to serve with what is durable.
    pub(super) fn start(&mut self) -> Result<()> {
        let info = self.disk.device()?.updates(SEGMENT).context("describe")?;
        ensure!(!info.damaged, "a log lost records that were flushed");
        let mut log = Vec::new();
        for entry in &info.log {
            let record = self.record(entry.sequence)?;
            log.push(Entry {
                sequence: entry.sequence,
                chunk: record.chunk,
                version: record.version,
                bytes: entry.bytes,
            });
        }
        let held = self.disk.held()?.into_iter().filter_map(|staged| {
            let ((chunk, version), bytes) = (staged.of?, held_bytes(staged.difference.len()));
            Some((staged.version, Held { chunk, version, bytes }))
        });
        let window_bytes = window_bytes(self.reserve_bytes, K as u32);
        let bound = (K as u64 * window_bytes).min(info.held_bytes_max / SEGMENTS_LEAST);
        self.overwrites = Overwrites::new(bound, held);
        let (epoch, merged, log_next) = (info.epoch, info.merged, info.log_next);
        let state = ParityState { epoch, merged, log, log_next };
        let mode = if self.reserve_bytes == 0 { Mode::InPlace } else { Mode::Logged };
        let behind = Behind::of(self.reserve_bytes, window_bytes, K as u32);
        self.core = Some(ParityChunk::new(mode, state, MERGE_BYTES_MAX)?.with_bound(behind));
        Ok(())
    }

    /// A data chunk's node is there.
    pub(super) fn opened(&mut self, chunk: u16) {
        self.links.insert(chunk);
    }

    /// It is gone.
    pub(super) fn closed(&mut self, chunk: u16) -> Result<()> {
        self.links.remove(&chunk);
        self.replies.retain(|_, (to, _)| *to != chunk);
        // What it did not spend nobody will.
        let bytes = self.overwrites.give_back(chunk, u64::MAX);
        self.unreserve(bytes)
    }

    /// Drops what arrived of a data chunk and is not on its way to the device: whoever asked what is here of it sends that again.
    pub(super) fn forget(&mut self, chunk: u16) -> Result<()> {
        let full = self.done.iter().filter_map(|input| match input {
            ParityInput::Full { reply, .. } => Some(*reply),
            _ => None,
        });
        let under_way: BTreeSet<u64> =
            full.chain(self.overwrites.waiting().map(|overwrite| overwrite.reply)).collect();
        self.arrived.retain(|reply, arrived| arrived.chunk != chunk || under_way.contains(reply));
        self.withdraw(chunk)
    }

    /// A record of the log.
    pub(super) fn record(&mut self, sequence: u64) -> Result<Difference> {
        let record = self.disk.device()?.log_read(SEGMENT, sequence).context("log")?;
        Ok(Difference::decode(&record)?)
    }

    /// Appends a difference that arrived.
    pub(super) fn append(&mut self, chunk: u16, version: u64, sequence: u64, reply: u64) -> Result<()> {
        let record = self.arrived.get(&reply).context("it arrived")?.encode();
        match self.disk.device()?.log_append_at(SEGMENT, Epoch(1), sequence, &record) {
            Ok(sequence) => {
                self.arrived.remove(&reply);
                let bytes = record.len() as u32;
                self.done.push(ParityInput::Appended { chunk, version, sequence, bytes });
                Ok(())
            }
            Err(LogError::Full { .. } | LogError::OutOfTurn { .. }) => {
                // Answered in the order asked: after what is not flushed yet.
                self.done.push(ParityInput::Full { chunk, version, reply });
                Ok(())
            }
            Err(error) => Err(error).context("append"),
        }
    }

    /// Folds records into the chunk.
    pub(super) fn merge(&mut self, sequences: &[u64], merged: Vec<(u16, u64)>, log_start: u64) -> Result<()> {
        let mut fold = Fold::default();
        for sequence in sequences {
            fold.add(&self.record(*sequence)?);
        }
        let (mut patches, mut between) = (Vec::new(), Vec::new());
        let rows = fold.rows();
        for pair in rows.windows(2) {
            let gap = pair[0].end..pair[1].start;
            between.push((gap.start, Bytes::from(self.disk.read(gap)?)));
        }
        for rows in rows {
            let mut base = self.disk.read(rows.clone())?;
            self.of.add(&fold, rows.start, &mut base)?;
            patches.push((rows.start, Bytes::from(base)));
        }
        let apply = Apply { patches, merged, log_start: Some(log_start), between };
        self.disk.device()?.apply(SEGMENT, Epoch(1), apply).context("merge")?;
        self.done.push(ParityInput::Merged);
        Ok(())
    }

    /// The parity chunk with all that its log holds.
    pub(super) fn current(&mut self) -> Result<Vec<u8>> {
        let mut content = self.disk.content()?;
        let entries = self.disk.device()?.log_entries(SEGMENT).context("log")?;
        let mut fold = Fold::default();
        for entry in entries {
            fold.add(&self.record(entry.sequence)?);
        }
        self.of.add(&fold, 0, &mut content)?;
        Ok(content)
    }

    /// A flush returns.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.disk.flush()?;
        if let Some(core) = &mut self.core {
            std::mem::take(&mut self.done).into_iter().for_each(|input| core.handle(input));
        }
        Ok(())
    }

    /// An epoch is to be durable.
    pub(super) fn fence(&mut self, epoch: Epoch) -> Result<()> {
        self.disk.device()?.fence(SEGMENT, epoch).context("fence")?;
        self.done.push(ParityInput::Fenced { epoch });
        Ok(())
    }

    /// Power is lost.
    pub(super) fn crash(&mut self, survives: impl FnMut(usize, usize) -> bool) {
        self.disk.cut(survives);
        self.core = None;
        self.overwrites = Overwrites::new(0, []);
        self.waits = false;
        self.arrived.clear();
        self.done.clear();
        self.links.clear();
        self.replies.clear();
    }
}

/// A medium with this content, which positions or does not.
fn medium_of(image: Vec<u8>, positions: bool) -> Arc<CrashMedium> {
    let medium = CrashMedium::from_image(image);
    medium.set_positions(positions);
    Arc::new(medium)
}

/// Bytes beside each parity chunk.
fn reserve_bytes(mode: Mode) -> u64 {
    match mode {
        Mode::Logged => RESERVE_BYTES,
        Mode::InPlace => 0,
    }
}

/// The bytes of a chunk that a row has.
pub(super) fn of_row(row: u32) -> Range<u64> {
    u64::from(row) * u64::from(BLOCK_BYTES)..u64::from(row + 1) * u64::from(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    /// Appends a record to the log and flushes it; whether the append itself wrote to the medium.
    fn append(disk: &mut Disk) -> bool {
        let before = disk.medium.len();
        disk.device().unwrap().log_append(SEGMENT, Epoch(1), &[7; 100]).unwrap();
        let wrote = disk.medium.len() > before;
        disk.flush().unwrap();
        wrote
    }

    #[test]
    fn records_go_straight_to_the_reserve_where_a_disk_does_not_position_also_after_power_losses() {
        let mut random = Pcg64::seed_from_u64(1);
        let content = vec![0; CHUNK_BYTES];
        for positions in [true, false] {
            let mut disk = Disk::new(1, &content, RESERVE_BYTES, K as u32, positions).unwrap();
            assert_eq!(append(&mut disk), !positions);
            disk.cut(|_, _| false);
            disk.reopen(None).unwrap();
            assert_eq!(append(&mut disk), !positions, "after a power loss");
            disk.cut(|_, _| true);
            disk.reopen(Some(&mut random)).unwrap();
            assert_eq!(append(&mut disk), !positions, "after one in the recovery, too");
            assert_eq!(disk.device().unwrap().log_entries(SEGMENT).unwrap().len(), 3);
        }
    }
}
