//! `codfs/storm`: overlapping updates of one segment while nodes lose power. The update cores
//! ([`steadfast_protocol::serve::parity_log`]) over real devices ([`steadfast_disk::Device`]) and the real code, (6, 4)
//! Reed-Solomon, on media that remember every write: a power loss keeps any subset of the sectors that were not flushed, on
//! one node, on two, or on all six at once, at any step, also of the recovery before; or all of them, as when a process is
//! killed. Half of them are back at once; of the others two at a time stay away, and updates and readers find them missing.
//!
//! Some disks position, as rotating ones do ([`steadfast_disk::Medium::positions`]), and others do not, as flash: on the ones the records
//! of a log go to the journal first, on the others straight to its reserve. Two bits of a run's seed say which they are: of four runs one
//! has disks that all position, one has none that does, and in two every other one does. Those find what runs of one kind do not: parity's
//! two logs are of different kinds, so that they lose different things at once and bring each other forward.
//!
//! Updates of random bytes, unaligned, several at a time, as many uncommitted as the windows of their chunks let, messages in any
//! order between different nodes; logged beside parity, or overwriting it (`plr` and `fo`). Readers that do without one or two of the
//! nodes ([`steadfast_protocol::chunks::Gather`]) go on meanwhile: what they decode must be what the chunks were at the versions that they
//! were told, and those no older than what was acknowledged when they began. After each storm
//! of power losses, when all is quiet: every byte of every chunk is what the last acknowledged update left there, or what
//! one whose writer heard nothing would have; and whichever two of the six chunks are taken away, the other four decode
//! to the same bytes (the logs included). Or the segment is stored anew in the middle of it, from what is up behind a
//! [`steadfast_protocol::chunks::Fence`], and nothing acknowledged is missing. Everything is drawn from the seed.
//!
//! Metrics, over all runs of a scheme: `runs_rotating`, `runs_flash` and `runs_mixed` (whose disks position, do not, or every other one),
//! `updates`, `acknowledged`, of those `acknowledged_away` (some node was down),
//! `unanswered` (a crash came first, or it was waited for too long),
//! `power_losses` (moments), of which `nodes_killed` kept all that they had written and `nodes_cut` did not, `stayed_away` of both,
//! `recoveries_cut`, `merges`, `adopted` (differences that a log or parity brought back to the data), `gathers` (to their end, beside
//! updates and power losses), of those `gathers_away` (nodes were down or lost power meanwhile), `rows_decoded`,
//! `gathers_unsettled` (everything changed too fast), `gathers_short` (more nodes went than there is parity for),
//! `stored_anew`, `stuck` (of those: where parity is overwritten two chunks took the room that the other needs), `bytes_compared`.
//!
//! Left out: what a node asks of parity before it serves readers again, for a device that lost what it had flushed; zeroing a reserve ahead
//! of its log while a lane is idle: the first append zeroes all of one as small as these.

mod judge;
mod node;
mod power;
mod reader;

use self::{
    node::{CHUNK_BYTES, DataNode, ParityNode, Waiter},
    reader::Reader,
};
use crate::{
    Options,
    report::{NotOffered, Report},
    robustore::settings::{DRAWS_MAX, Draws, stream},
};
use anyhow::{Context, Result, anyhow};
use core::{ops::Range, time::Duration};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::{BTreeMap, VecDeque};
use steadfast_codes::mds::{Code, Kind};
use steadfast_protocol::{
    Epoch, Time,
    serve::parity_log::{DataAction, DataInput, Difference, Mode, ParityAction, ParityInput, Refusal},
};

/// The experiment's name.
pub const NAME: &str = "codfs/storm";
/// How parity takes updates, by name.
type Scheme = (&'static str, Mode);
/// Whether the disks position: those of nodes with even numbers, and those of nodes with odd ones.
type Positions = [bool; 2];
const SCHEMES: [Scheme; 2] = [("plr", Mode::Logged), ("fo", Mode::InPlace)];
/// Runs of each, from seeds of their own; two hundred and 10^5 updates take some minutes.
const RUNS: u32 = 200;
/// Of a quick run.
const RUNS_QUICK: u32 = 10;
const UPDATES_A_RUN: usize = 500;
/// Updates that are not answered at a time: more than the windows of all chunks let through, so that some wait.
const UNANSWERED_MAX: usize = 32;
/// Steps between two storms at most: a few dozen updates.
const CALM_STEPS_MAX: u64 = 1200;
/// What a step takes: some dozens from one look at what waits for room to the next.
const STEP: Duration = Duration::from_millis(1);
const K: usize = 4;
const M: usize = 2;

/// What all runs of a scheme came to.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    runs_rotating: u64,
    runs_flash: u64,
    runs_mixed: u64,
    updates: u64,
    acknowledged: u64,
    acknowledged_away: u64,
    unanswered: u64,
    power_losses: u64,
    nodes_killed: u64,
    nodes_cut: u64,
    stayed_away: u64,
    recoveries_cut: u64,
    merges: u64,
    adopted: u64,
    gathers: u64,
    gathers_away: u64,
    rows_decoded: u64,
    gathers_unsettled: u64,
    gathers_short: u64,
    stored_anew: u64,
    stuck: u64,
    bytes_compared: u64,
}

impl Counts {
    fn metrics(&self) -> [(&'static str, u64); 22] {
        [
            ("runs_rotating", self.runs_rotating),
            ("runs_flash", self.runs_flash),
            ("runs_mixed", self.runs_mixed),
            ("updates", self.updates),
            ("acknowledged", self.acknowledged),
            ("acknowledged_away", self.acknowledged_away),
            ("unanswered", self.unanswered),
            ("power_losses", self.power_losses),
            ("nodes_killed", self.nodes_killed),
            ("nodes_cut", self.nodes_cut),
            ("stayed_away", self.stayed_away),
            ("recoveries_cut", self.recoveries_cut),
            ("merges", self.merges),
            ("adopted", self.adopted),
            ("gathers", self.gathers),
            ("gathers_away", self.gathers_away),
            ("rows_decoded", self.rows_decoded),
            ("gathers_unsettled", self.gathers_unsettled),
            ("gathers_short", self.gathers_short),
            ("stored_anew", self.stored_anew),
            ("stuck", self.stuck),
            ("bytes_compared", self.bytes_compared),
        ]
    }
}

/// A scheme as a case.
fn case_of(scheme: &str) -> String {
    format!("{scheme} rs({},{K})", K + M)
}

/// The schemes that are asked for, and the numbers of their runs: all, or one again, which a failure names.
fn asked(options: &Options) -> Result<(Vec<Scheme>, Range<u32>)> {
    let draws = Draws { usual: RUNS, quick: RUNS_QUICK };
    let Some(case) = &options.case else { return Ok((SCHEMES.to_vec(), 0..draws.count(options)?)) };
    let number = |word: &str| {
        let number = word.strip_prefix("run=")?.parse::<u32>().ok()?;
        (number < DRAWS_MAX).then_some(number)
    };
    let (numbers, words): (Vec<&str>, Vec<&str>) =
        case.split_whitespace().partition(|word| number(word).is_some());
    let name = words.join(" ");
    let schemes: Vec<Scheme> =
        SCHEMES.into_iter().filter(|(scheme, _)| case_of(scheme).contains(&name)).collect();
    if schemes.is_empty() || numbers.len() > 1 {
        let all = SCHEMES.iter().map(|(scheme, _)| case_of(scheme));
        let known = all.chain([format!("run=0 to run={} of each", DRAWS_MAX - 1)]);
        return Err(NotOffered::no_case(NAME, case, known).into());
    }
    match numbers.first().and_then(|word| number(word)) {
        Some(number) => Ok((schemes, number..number + 1)),
        None => Ok((schemes, 0..draws.count(options)?)),
    }
}

/// Runs it.
///
/// # Errors
/// What does not hold, with the seed that shows it.
pub fn run(options: &Options, mut report: Report, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let seed = report.seed();
    let (schemes, numbers) = asked(options)?;
    let runs = numbers.end - numbers.start;
    for (scheme, mode) in schemes {
        let case = case_of(scheme);
        say(&format!("{case}: {runs} runs from seed {seed}"));
        let mut counts = Counts::default();
        for number in numbers.clone() {
            let storm = Storm::new(mode, stream(seed, number.into()));
            storm.and_then(|storm| storm.run(&mut counts)).with_context(|| {
                format!(
                    "`steadfast lab run {NAME} --seed {seed} --case \"{scheme} run={number}\"` repeats it"
                )
            })?;
            if runs > 1 && (number + 1) % 20 == 0 {
                let updates = counts.updates;
                say(&format!(
                    "{case}: {} of {runs} runs, {updates} updates, all as it should be",
                    number + 1
                ));
            }
        }
        report.add(NAME, &case, "runs", f64::from(runs), "1");
        for (metric, value) in counts.metrics() {
            report.add(NAME, &case, metric, value as f64, "1");
        }
        report.complete()?;
    }
    Ok(report)
}

/// The report as lines for people.
pub fn show(report: &Report) -> String {
    let line = |record: &steadfast_report::Record| {
        format!("{:<12} {:<18} {:>14}\n", record.case, record.metric, record.value.unwrap_or_default())
    };
    let lines = report.records.iter().map(line);
    core::iter::once(format!("seed {}\n", report.seed())).chain(lines).collect()
}

fn below(random: &mut Pcg64, bound: u64) -> u64 {
    random.next_u64() % bound
}

enum Message {
    Ask { session: u64 },
    Versions { received: u64 },
    Difference { difference: Difference, session: u64, committed: u64 },
    Acked { through: u64 },
    Refused { reason: Refusal },
    Fetch { version: u64 },
    Fetched { difference: Difference },
    NotFetched { version: u64 },
    Committed { through: u64 },
    Reserve { least: u64, bytes: u64 },
    GiveBack { bytes: u64 },
    Reserved { bytes: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Sent,
    Acked(u64),
    /// Its version, where it got one.
    Unanswered(Option<u64>),
}

struct Update {
    chunk: usize,
    offset: usize,
    bytes: Vec<u8>,
    version: Option<u64>,
    progress: Progress,
}

struct Storm {
    mode: Mode,
    positions: Positions,
    random: Pcg64,
    code: Code,
    now: Time,
    steps: u64,
    data: Vec<DataNode>,
    parity: Vec<ParityNode>,
    /// From and to: data nodes first, then parity nodes.
    links: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// Nodes that stay away, and until which step.
    back_at: BTreeMap<usize, u64>,
    /// What was last seen in each data chunk, the version that it had, and all that was asked for since.
    model: Vec<Vec<u8>>,
    base: Vec<u64>,
    updates: Vec<Update>,
    begun: usize,
    replies: u64,
    reader: Option<Reader>,
    /// What the last reader found that came to its end.
    gathered: Option<Vec<Vec<u8>>>,
}

impl Storm {
    fn new(mode: Mode, seed: u64) -> Result<Self> {
        let mut random = Pcg64::seed_from_u64(seed);
        let code = Code::new(Kind::ReedSolomon, K, M)?;
        let mut model = vec![vec![0; CHUNK_BYTES]; K];
        model.iter_mut().for_each(|chunk| random.fill_bytes(chunk));
        // Of runs that follow each other the lowest bits differ.
        let positions = [seed.is_multiple_of(2), (seed / 2).is_multiple_of(2)];
        let (data, parity) = Self::stored(&code, mode, positions, &model)?;
        let mut storm = Self {
            mode,
            positions,
            random,
            code,
            now: Time(0),
            steps: 0,
            data,
            parity,
            links: BTreeMap::new(),
            back_at: BTreeMap::new(),
            model,
            base: vec![0; K],
            updates: Vec::new(),
            begun: 0,
            replies: 0,
            reader: None,
            gathered: None,
        };
        (0..K + M).try_for_each(|node| storm.start(node, &mut Counts::default()))?;
        Ok(storm)
    }

    /// A segment with these data chunks.
    fn stored(
        code: &Code,
        mode: Mode,
        positions: Positions,
        model: &[Vec<u8>],
    ) -> Result<(Vec<DataNode>, Vec<ParityNode>)> {
        let mut parities = vec![vec![0; CHUNK_BYTES]; M];
        let chunks: Vec<&[u8]> = model.iter().map(|chunk| &chunk[..]).collect();
        let mut outputs: Vec<&mut [u8]> = parities.iter_mut().map(|chunk| &mut chunk[..]).collect();
        code.encode(&chunks, &mut outputs)?;
        let data = (0..K).map(|chunk| DataNode::new(chunk, &model[chunk], mode, positions[chunk % 2]));
        let parity = (0..M).map(|number| {
            let positions = positions[(K + number) % 2];
            ParityNode::new(number, &parities[number], mode, positions)
        });
        Ok((data.collect::<Result<_>>()?, parity.collect::<Result<_>>()?))
    }

    fn run(mut self, counts: &mut Counts) -> Result<()> {
        match self.positions {
            [true, true] => counts.runs_rotating += 1,
            [false, false] => counts.runs_flash += 1,
            _ => counts.runs_mixed += 1,
        }
        while self.begun < UPDATES_A_RUN {
            for _ in 0..below(&mut self.random, CALM_STEPS_MAX) {
                self.step(counts)?;
            }
            let losses = 1 + below(&mut self.random, 3);
            for _ in 0..losses {
                self.power_loss(counts)?;
                // Too few for a recovery to be over, most of the time.
                for _ in 0..below(&mut self.random, 60) {
                    self.step(counts)?;
                }
            }
            if !self.back_at.is_empty() && below(&mut self.random, 2) == 0 {
                // Others go on without those that stay away.
                for _ in 0..below(&mut self.random, CALM_STEPS_MAX) {
                    self.step(counts)?;
                }
            }
            if below(&mut self.random, 8) == 0 {
                self.store_anew(counts)?;
            } else if self.calm_down(counts)? {
                self.check(counts)?;
            } else {
                counts.stuck += 1;
                self.store_anew(counts)?;
            }
        }
        Ok(())
    }

    fn is_up(&self, node: usize) -> bool {
        match node.checked_sub(K) {
            Some(number) => self.parity[number].core.is_some(),
            None => self.data[node].core.is_some(),
        }
    }

    /// One thing that can happen.
    fn step(&mut self, counts: &mut Counts) -> Result<()> {
        self.steps += 1;
        self.now = self.now + STEP;
        self.restore_due(counts)?;
        if self.reader.is_some() {
            for _ in 0..below(&mut self.random, 4) {
                self.answer_one(counts)?;
            }
        } else if below(&mut self.random, 32) == 0 {
            self.begin_reading(counts)?;
        }
        match below(&mut self.random, 12) {
            0..=1 => self.begin(counts),
            2..=7 => {
                let links: Vec<(usize, usize)> = self.links.keys().copied().collect();
                if links.is_empty() {
                    return self.begin(counts);
                }
                let (from, to) = links[below(&mut self.random, links.len() as u64) as usize];
                self.deliver(from, to, counts)
            }
            8..=9 => {
                let node = below(&mut self.random, (K + M) as u64) as usize;
                self.flush(node, counts)
            }
            10 => {
                let node = below(&mut self.random, (K + M) as u64) as usize;
                self.tick(node, counts)
            }
            _ => self.idle(counts),
        }
    }

    /// A node looks at what waits, and whether it has waited for too long.
    fn tick(&mut self, node: usize, counts: &mut Counts) -> Result<()> {
        if let Some(number) = node.checked_sub(K) {
            if self.parity[number].core.is_some() {
                self.parity[number].overwrite_again()?;
            }
            return self.run_parity(number, counts);
        }
        let is_sent = |update: &Update| update.chunk == node && update.progress == Progress::Sent;
        let is_waited_for = self.updates.iter().any(is_sent);
        let (now, window) = (self.now, &mut self.data[node].window);
        if is_waited_for || window.has_room() {
            if window.tick(now) || window.out_of_reach(now).is_some() {
                // Whoever asked stores the segment anew; what is stamped may be made all the same.
                window.take_waiting();
                self.give_up(node, counts);
            }
            self.admit(node)?;
        }
        self.input(node, DataInput::Tick, counts)
    }

    fn idle(&mut self, counts: &mut Counts) -> Result<()> {
        let node = below(&mut self.random, (K + M) as u64) as usize;
        if let Some(number) = node.checked_sub(K) {
            if self.parity[number].core.is_some() {
                self.parity[number].disk.idle()?;
                if below(&mut self.random, 8) == 0 {
                    return self.parity_input(number, ParityInput::MergeDue, counts);
                }
            }
        } else if self.data[node].core.is_some() {
            self.data[node].disk.idle()?;
        }
        Ok(())
    }

    fn begin(&mut self, counts: &mut Counts) -> Result<()> {
        let chunk = below(&mut self.random, K as u64) as usize;
        let unanswered = self.updates.iter().filter(|update| update.progress == Progress::Sent).count();
        if unanswered >= UNANSWERED_MAX || self.begun >= UPDATES_A_RUN || self.data[chunk].core.is_none() {
            return Ok(());
        }
        // Half of them in the first granules, so that they meet.
        let span = if below(&mut self.random, 2) == 0 { CHUNK_BYTES } else { 3 * 4096 };
        let offset = below(&mut self.random, span as u64) as usize;
        let length = 1 + below(&mut self.random, 6000.min(CHUNK_BYTES - offset) as u64) as usize;
        let mut bytes = vec![0; length];
        self.random.fill_bytes(&mut bytes);
        let request = self.updates.len() as u64;
        self.updates.push(Update { chunk, offset, bytes, version: None, progress: Progress::Sent });
        self.begun += 1;
        counts.updates += 1;
        self.data[chunk].window.ask(request, offset as u64, length as u64);
        self.admit(chunk)?;
        self.run_data(chunk, counts)
    }

    /// Gives a data chunk's core what has room; whether it gave it anything.
    fn admit(&mut self, chunk: usize) -> Result<bool> {
        let admitted = self.data[chunk].admit()?;
        for (parity, message) in admitted.messages {
            self.send((chunk, K + usize::from(parity)), message);
        }
        Ok(admitted.gave)
    }

    fn input(&mut self, chunk: usize, input: DataInput, counts: &mut Counts) -> Result<()> {
        let (now, node) = (self.now, &mut self.data[chunk]);
        let Some(core) = node.core.as_mut() else { return Ok(()) };
        let window = &mut node.window;
        match &input {
            DataInput::Lost { parity } => window.lost(now, *parity),
            DataInput::Versions { parity, .. } => window.answered(*parity),
            DataInput::Acked { parity, .. } => window.took(*parity),
            DataInput::Refused { parity, reason: Refusal::Gap } if window.needs_room_at(*parity) => {
                window.asks_in_place(*parity);
            }
            _ => {}
        }
        let connected = if let DataInput::Connected { parity } = input { Some(parity) } else { None };
        core.handle(input);
        if let Some(parity) = connected {
            node.connected(parity);
            self.admit(chunk)?;
        }
        self.run_data(chunk, counts)
    }

    fn parity_input(&mut self, number: usize, input: ParityInput, counts: &mut Counts) -> Result<()> {
        let Some(core) = self.parity[number].core.as_mut() else { return Ok(()) };
        core.handle(input);
        self.run_parity(number, counts)
    }

    fn run_data(&mut self, chunk: usize, counts: &mut Counts) -> Result<()> {
        self.act(chunk, counts)?;
        // What was just done may be what updates waited for.
        while self.data[chunk].window.needs_room() && self.admit(chunk)? {
            self.act(chunk, counts)?;
        }
        Ok(())
    }

    /// Carries out what a data chunk's core wants.
    fn act(&mut self, chunk: usize, counts: &mut Counts) -> Result<()> {
        while let Some(action) = self.data[chunk].core.as_mut().and_then(|core| core.poll()) {
            let to = |parity: u16| (chunk, K + parity as usize);
            match action {
                DataAction::Ask { parity, session, .. } => self.send(to(parity), Message::Ask { session }),
                DataAction::Fetch { parity, version } => self.send(to(parity), Message::Fetch { version }),
                DataAction::Adopt { version } => {
                    counts.adopted += 1;
                    self.data[chunk].adopt(version)?;
                }
                DataAction::Stage { request } => {
                    let update = &mut self.updates[request as usize];
                    if update.progress != Progress::Sent {
                        // Its writer was told that it is not done.
                        let node = &mut self.data[chunk];
                        node.window.forget(request);
                        node.core.as_mut().context("up")?.handle(DataInput::NotStaged { request });
                        continue;
                    }
                    let (offset, new) = (update.offset as u64, &update.bytes[..]);
                    let staged = self.data[chunk].stage(request, chunk as u16, offset, new)?;
                    let input = match staged {
                        Some(version) => {
                            update.version = Some(version);
                            DataInput::Staged { request, version }
                        }
                        // Tried again when something was released.
                        None => DataInput::NotStaged { request },
                    };
                    self.data[chunk].core.as_mut().context("up")?.handle(input);
                }
                DataAction::Send { parity, version, committed, .. } => {
                    let kept = self.data[chunk].kept.get(&version).cloned();
                    let difference = kept.with_context(|| format!("{chunk}/{version} is kept no more"))?;
                    let session = self.data[chunk].session;
                    self.send(to(parity), Message::Difference { difference, session, committed });
                }
                DataAction::Tell { parity, committed, .. } => {
                    self.send(to(parity), Message::Committed { through: committed });
                }
                DataAction::Release { through } => {
                    self.data[chunk].release(through)?;
                    self.admit(chunk)?;
                }
                DataAction::Answer { request, version } => {
                    // Its writer may have given up, and it is made all the same.
                    let progress = &mut self.updates[request as usize].progress;
                    let is_told = u64::from(*progress == Progress::Sent);
                    *progress = Progress::Acked(version);
                    counts.acknowledged += is_told;
                    counts.acknowledged_away += if self.back_at.is_empty() { 0 } else { is_told };
                }
                DataAction::Unknown { request } => self.unanswered(request as usize, counts),
                DataAction::Outdated => {
                    return Err(anyhow!("chunk {chunk} is outdated by power losses alone"));
                }
                DataAction::Behind { parity } => {
                    return Err(anyhow!("parity {parity} fell behind what {chunk} keeps"));
                }
            }
        }
        Ok(())
    }

    fn run_parity(&mut self, number: usize, counts: &mut Counts) -> Result<()> {
        while let Some(action) = self.parity[number].core.as_mut().and_then(|core| core.poll()) {
            let node = &mut self.parity[number];
            match action {
                ParityAction::Append { chunk, version, sequence, reply } => {
                    node.append(chunk, version, sequence, reply)?;
                }
                ParityAction::Merge { sequences, merged, log_start } => {
                    counts.merges += 1;
                    node.merge(&sequences, merged, log_start)?;
                }
                ParityAction::Fence { epoch } => node.fence(epoch)?,
                ParityAction::Ack { reply, through, .. } => {
                    node.arrived.remove(&reply);
                    let Some((chunk, waiter)) = node.replies.remove(&reply) else { continue };
                    let message = match waiter {
                        Waiter::Ask => Message::Versions { received: through },
                        Waiter::Difference => Message::Acked { through },
                    };
                    self.send((K + number, chunk.into()), message);
                }
                ParityAction::Refuse { reply, reason } => {
                    node.arrived.remove(&reply);
                    let Some((chunk, _)) = node.replies.remove(&reply) else { continue };
                    self.send((K + number, chunk.into()), Message::Refused { reason });
                }
                ParityAction::Overwrite { chunk, version, reply } => {
                    node.overwrite_with(chunk, version, reply)?;
                }
                ParityAction::Release { chunk, through } => node.release(chunk, through)?,
            }
        }
        Ok(())
    }

    fn deliver(&mut self, from: usize, to: usize, counts: &mut Counts) -> Result<()> {
        let message = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        self.links.retain(|_, link| !link.is_empty());
        let Some(message) = message else { return Ok(()) };
        let (epoch, chunk, parity) = (Epoch(1), from as u16, from.wrapping_sub(K) as u16);
        match message {
            Message::Ask { session } => {
                let reply = self.reply(to - K, chunk, Waiter::Ask);
                let node = &mut self.parity[to - K];
                let core = node.core.as_mut().context("up")?;
                core.handle(ParityInput::Ask { reply, epoch, session, chunk });
                if core.is_latest(chunk, epoch, session) {
                    // What was not taken of its earlier life is forgotten by the core, too.
                    node.forget(chunk)?;
                }
                self.run_parity(to - K, counts)
            }
            Message::Difference { difference, session, committed } => {
                let (reply, version) = (self.reply(to - K, chunk, Waiter::Difference), difference.version);
                let bytes = u32::try_from(difference.record_length())?;
                self.parity[to - K].arrived.insert(reply, difference);
                let input =
                    ParityInput::Difference { reply, epoch, session, chunk, version, bytes, committed };
                self.parity_input(to - K, input, counts)
            }
            Message::Committed { through } => {
                self.parity_input(to - K, ParityInput::Committed { epoch, chunk, through }, counts)
            }
            Message::Fetch { version } => {
                let answer = match self.parity[to - K].difference(chunk, version)? {
                    Some(difference) => Message::Fetched { difference },
                    None => Message::NotFetched { version },
                };
                self.send((to, from), answer);
                Ok(())
            }
            Message::Reserve { least, bytes } => {
                let bytes = self.parity[to - K].reserve(chunk, least, bytes)?;
                self.send((to, from), Message::Reserved { bytes });
                Ok(())
            }
            Message::GiveBack { bytes } => {
                self.parity[to - K].give_back(chunk, bytes)?;
                self.run_parity(to - K, counts)
            }
            Message::Reserved { bytes } => {
                self.data[to].window.reserved(parity, bytes);
                self.admit(to)?;
                self.run_data(to, counts)
            }
            Message::Versions { received } => {
                self.input(to, DataInput::Versions { parity, epoch, received }, counts)
            }
            Message::Acked { through } => self.input(to, DataInput::Acked { parity, through }, counts),
            Message::Refused { reason } => self.input(to, DataInput::Refused { parity, reason }, counts),
            Message::Fetched { difference } => {
                let version = difference.version;
                self.data[to].fetched(difference);
                self.input(to, DataInput::Fetched { version }, counts)
            }
            Message::NotFetched { version } => self.input(to, DataInput::NotFetched { version }, counts),
        }
    }

    /// Names what a parity node is to answer, differently each time.
    fn reply(&mut self, number: usize, chunk: u16, waiter: Waiter) -> u64 {
        self.replies += 1;
        self.parity[number].replies.insert(self.replies, (chunk, waiter));
        self.replies
    }

    fn flush(&mut self, node: usize, counts: &mut Counts) -> Result<()> {
        if let Some(number) = node.checked_sub(K) {
            if self.parity[number].core.is_some() {
                self.parity[number].flush()?;
            }
            return self.run_parity(number, counts);
        }
        if self.data[node].core.is_some() {
            self.data[node].flush()?;
        }
        self.run_data(node, counts)
    }

    /// The writers of what a chunk has not answered hear that it is not done, or nothing.
    fn give_up(&mut self, chunk: usize, counts: &mut Counts) {
        for request in 0..self.updates.len() {
            if self.updates[request].chunk == chunk {
                self.unanswered(request, counts);
            }
        }
    }

    fn unanswered(&mut self, request: usize, counts: &mut Counts) {
        let update = &mut self.updates[request];
        if update.progress == Progress::Sent {
            update.progress = Progress::Unanswered(update.version);
            counts.unanswered += 1;
        }
    }

    fn send(&mut self, (from, to): (usize, usize), message: Message) {
        if self.is_up(from) && self.is_up(to) {
            self.links.entry((from, to)).or_default().push_back(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLR: &str = "plr rs(6,4)";
    const FO: &str = "fo rs(6,4)";

    #[test]
    fn a_run_of_a_storm_is_repeated_alone_and_neighbouring_seeds_share_none() {
        let updates = |seed, options: &Options| {
            let report = run(options, Report::new(seed), &mut |_| ())?;
            anyhow::Ok(["runs", "acknowledged", "bytes_compared"].map(|of| report.value(NAME, PLR, of)))
        };
        let one = |case: &str| Options { case: Some(case.to_owned()), ..Options::default() };
        let [first, second] = ["plr run=0", "run=1 plr"].map(|case| updates(7, &one(case)).unwrap());
        let drawn = Options { draws: Some(1), ..one(PLR) };
        assert_eq!(first, updates(7, &drawn).unwrap());
        assert_ne!(second, updates(8, &one("plr run=0")).unwrap(), "run 1 of 7 is run 0 of 8");
        assert_eq!(updates(7, &one("fo run=0")).unwrap(), [None; 3], "the other scheme alone");
        for unknown in ["run=x", "xor", "plr run=0 run=1"] {
            let refused = updates(7, &one(unknown)).unwrap_err();
            assert!(
                refused.to_string().contains("there are plr rs(6,4), fo rs(6,4), run=0 to "),
                "{refused}"
            );
        }
    }

    #[test]
    fn every_synced_byte_survives_some_storms() {
        let seed =
            std::env::var("STEADFAST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_123);
        println!("STEADFAST_SEED={seed}");
        let options = Options { draws: Some(4), ..Options::default() };
        let report = run(&options, Report::new(seed), &mut |line| println!("{line}")).unwrap();
        println!("{}", show(&report));
        // A storm that never hits a phase proves nothing of it.
        let all = [
            "acknowledged",
            "acknowledged_away",
            "unanswered",
            "nodes_killed",
            "nodes_cut",
            "stayed_away",
            "recoveries_cut",
        ];
        let read = ["adopted", "gathers", "gathers_away", "rows_decoded", "stored_anew"];
        for (case, merges) in [(PLR, true), (FO, false)] {
            let value = |metric| report.value(NAME, case, metric).unwrap();
            assert_eq!(value("updates"), 2000.0);
            // Each of them, whatever the seed.
            assert_eq!(["runs_rotating", "runs_flash", "runs_mixed"].map(value), [1.0, 1.0, 2.0], "{case}");
            for metric in all.into_iter().chain(read) {
                assert!(value(metric) > 0.0, "{case}: {metric}");
            }
            assert_eq!(value("merges") > 0.0, merges, "{case}");
        }
    }
}
