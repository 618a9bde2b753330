//! `codfs/storm`: overlapping updates of one segment while nodes lose power. The update cores
//! ([`steadfast_protocol::serve::parity_log`]) over real devices ([`steadfast_disk::Device`]) and the real code, (6, 4)
//! Reed-Solomon, on media that remember every write: a power loss keeps any subset of the sectors that were not flushed, on
//! one node, on two, or on all six at once, at any step, also of the recovery before; or all of them, as when a process is
//! killed.
//!
//! Updates of random bytes, unaligned, several at a time, as many uncommitted as the windows of their chunks let, messages in any
//! order between different nodes. After each storm
//! of power losses, when all is quiet: every byte of every chunk is what the last acknowledged update left there, or what
//! one whose writer heard nothing would have; and whichever two of the six chunks are taken away, the other four decode
//! to the same bytes (the logs included). Everything is drawn from the seed.
//!
//! Metrics, over all runs: `updates`, `acknowledged`, `unanswered` (a crash came first), `power_losses`, `nodes_cut`,
//! `recoveries_cut`, `merges`, `adopted` (differences that a log brought back to the data), `bytes_compared`.

mod node;

use self::node::{CHUNK_BYTES, DataNode, ParityNode};
use crate::{
    Options,
    report::{NotOffered, Report},
    robustore::settings::{DRAWS_MAX, Draws, stream},
};
use anyhow::{Context, Result, anyhow, ensure};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::{BTreeMap, VecDeque};
use steadfast_codes::mds::{Code, Kind};
use steadfast_protocol::{
    Epoch, Time,
    serve::parity_log::{DataAction, DataInput, Difference, ParityAction, ParityInput, Refusal},
};

/// The experiment's name.
pub const NAME: &str = "codfs/storm";
/// Runs, each from a seed of its own; two hundred and 10^5 updates take some minutes.
const RUNS: u32 = 200;
/// Of a quick run.
const RUNS_QUICK: u32 = 10;
const UPDATES_A_RUN: usize = 500;
/// Updates that are not answered at a time: more than the windows of all chunks let through, so that some wait.
const UNANSWERED_MAX: usize = 32;
/// Steps between two storms at most: a few dozen updates.
const CALM_STEPS_MAX: u64 = 1200;
const K: usize = 4;
const M: usize = 2;

/// What all runs came to.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    updates: u64,
    acknowledged: u64,
    unanswered: u64,
    power_losses: u64,
    nodes_cut: u64,
    recoveries_cut: u64,
    merges: u64,
    adopted: u64,
    bytes_compared: u64,
}

impl Counts {
    fn metrics(&self) -> [(&'static str, u64); 9] {
        [
            ("updates", self.updates),
            ("acknowledged", self.acknowledged),
            ("unanswered", self.unanswered),
            ("power_losses", self.power_losses),
            ("nodes_cut", self.nodes_cut),
            ("recoveries_cut", self.recoveries_cut),
            ("merges", self.merges),
            ("adopted", self.adopted),
            ("bytes_compared", self.bytes_compared),
        ]
    }
}

/// Runs it.
///
/// # Errors
/// What does not hold, with the seed that shows it.
pub fn run(options: &Options, mut report: Report, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let seed = report.seed();
    let draws = Draws { usual: RUNS, quick: RUNS_QUICK };
    // One run again: the number that a failure names.
    let numbers = match &options.case {
        None => 0..draws.count(options)?,
        Some(case) => {
            let number = case.strip_prefix("run=").and_then(|number| number.parse::<u32>().ok());
            let number = number.filter(|&number| number < DRAWS_MAX);
            let number = number.ok_or_else(|| {
                NotOffered(format!("{NAME} has no case `{case}`: there are run=0 to run={}", DRAWS_MAX - 1))
            })?;
            number..number + 1
        }
    };
    let runs = numbers.end - numbers.start;
    let mut counts = Counts::default();
    for number in numbers {
        Storm::new(stream(seed, number.into())).and_then(|storm| storm.run(&mut counts)).with_context(
            || format!("`steadfast lab run {NAME} --seed {seed} --case run={number}` repeats it"),
        )?;
        if options.case.is_none() && (number + 1) % 20 == 0 {
            say(&format!("{} of {runs} runs, {} updates, all as it should be", number + 1, counts.updates));
        }
    }
    report.add(NAME, "plr rs(6,4)", "runs", f64::from(runs), "1");
    for (metric, value) in counts.metrics() {
        report.add(NAME, "plr rs(6,4)", metric, value as f64, "1");
    }
    Ok(report)
}

/// The report as lines for people.
pub fn show(report: &Report) -> String {
    let line = |record: &steadfast_report::Record| {
        format!("{:<16} {:>14}\n", record.metric, record.value.unwrap_or_default())
    };
    report.records.iter().map(line).collect()
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
    random: Pcg64,
    code: Code,
    data: Vec<DataNode>,
    parity: Vec<ParityNode>,
    /// From and to: data nodes first, then parity nodes.
    links: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// What was last seen in each data chunk, and all that was asked for since.
    model: Vec<Vec<u8>>,
    updates: Vec<Update>,
    begun: usize,
    replies: u64,
}

/// The data node that asked.
fn asker(reply: u64) -> usize {
    (reply / 2) as usize % K
}

impl Storm {
    fn new(seed: u64) -> Result<Self> {
        let mut random = Pcg64::seed_from_u64(seed);
        let code = Code::new(Kind::ReedSolomon, K, M)?;
        let mut model = vec![vec![0; CHUNK_BYTES]; K];
        model.iter_mut().for_each(|chunk| random.fill_bytes(chunk));
        let mut parities = vec![vec![0; CHUNK_BYTES]; M];
        let chunks: Vec<&[u8]> = model.iter().map(|chunk| &chunk[..]).collect();
        let mut outputs: Vec<&mut [u8]> = parities.iter_mut().map(|chunk| &mut chunk[..]).collect();
        code.encode(&chunks, &mut outputs)?;
        let data = (0..K).map(|chunk| DataNode::new(chunk, &model[chunk])).collect::<Result<_>>()?;
        let parity = (0..M).map(|number| ParityNode::new(number, &parities[number]));
        let parity = parity.collect::<Result<_>>()?;
        let (links, updates, begun, replies) = Default::default();
        let mut storm = Self { random, code, data, parity, links, model, updates, begun, replies };
        (0..K + M).try_for_each(|node| storm.start(node))?;
        Ok(storm)
    }

    fn run(mut self, counts: &mut Counts) -> Result<()> {
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
            self.calm_down(counts)?;
            self.check(counts)?;
        }
        Ok(())
    }

    /// One thing that can happen.
    fn step(&mut self, counts: &mut Counts) -> Result<()> {
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
                let chunk = below(&mut self.random, K as u64) as usize;
                self.input(chunk, DataInput::Tick, counts)
            }
            _ => self.idle(counts),
        }
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
        self.data[chunk].admit()?;
        self.run_data(chunk, counts)
    }

    fn input(&mut self, chunk: usize, input: DataInput, counts: &mut Counts) -> Result<()> {
        let node = &mut self.data[chunk];
        match &input {
            DataInput::Connected { parity } => node.connected(*parity),
            DataInput::Lost { parity } => node.window.lost(Time(0), *parity),
            _ => {}
        }
        let again = matches!(input, DataInput::Connected { .. } | DataInput::Tick);
        let Some(core) = node.core.as_mut() else { return Ok(()) };
        core.handle(input);
        if again {
            node.admit()?;
        }
        self.run_data(chunk, counts)
    }

    fn parity_input(&mut self, number: usize, input: ParityInput, counts: &mut Counts) -> Result<()> {
        let Some(core) = self.parity[number].core.as_mut() else { return Ok(()) };
        core.handle(input);
        self.run_parity(number, counts)
    }

    fn run_data(&mut self, chunk: usize, counts: &mut Counts) -> Result<()> {
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
                    self.data[chunk].admit()?;
                }
                DataAction::Answer { request, version } => {
                    self.updates[request as usize].progress = Progress::Acked(version);
                    counts.acknowledged += 1;
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
                    let message = if reply.is_multiple_of(2) {
                        Message::Acked { through }
                    } else {
                        Message::Versions { received: through }
                    };
                    self.send((K + number, asker(reply)), message);
                }
                ParityAction::Refuse { reply, reason } => {
                    self.send((K + number, asker(reply)), Message::Refused { reason });
                }
                ParityAction::Overwrite { .. } | ParityAction::Release { .. } => {
                    return Err(anyhow!("nothing is updated in place here"));
                }
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
                let reply = self.reply(from, 1);
                self.parity_input(to - K, ParityInput::Ask { reply, epoch, session, chunk }, counts)
            }
            Message::Difference { difference, session, committed } => {
                let (reply, version) = (self.reply(from, 0), difference.version);
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
                let node = &mut self.parity[to - K];
                let log = node.core.as_ref().context("up")?.log();
                let entry = log.copied().find(|entry| (entry.chunk, entry.version) == (chunk, version));
                let answer = match entry {
                    Some(entry) => Message::Fetched { difference: node.record(entry.sequence)? },
                    None => Message::NotFetched { version },
                };
                self.send((to, from), answer);
                Ok(())
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

    /// Names a question of a data node, differently each time.
    fn reply(&mut self, from: usize, kind: u64) -> u64 {
        self.replies += 1;
        (self.replies * K as u64 + from as u64) * 2 + kind
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

    /// Some nodes lose power at once, and have it again.
    fn power_loss(&mut self, counts: &mut Counts) -> Result<()> {
        counts.power_losses += 1;
        let victims: Vec<usize> = match below(&mut self.random, 4) {
            0 => (0..K + M).collect(),
            1 => vec![below(&mut self.random, (K + M) as u64) as usize],
            _ => {
                let first = below(&mut self.random, (K + M) as u64) as usize;
                vec![first, (first + 1 + below(&mut self.random, (K + M) as u64 - 1) as usize) % (K + M)]
            }
        };
        counts.nodes_cut += victims.len() as u64;
        for &node in &victims {
            self.links.retain(|(from, to), _| *from != node && *to != node);
            // All, none or some of what was not flushed survives: a killed process, a careful disk, a torn one.
            let kept = below(&mut self.random, 4);
            let random = &mut self.random;
            let survives = |_: usize, _: usize| match kept {
                0 => true,
                1 => false,
                _ => below(random, 2) == 0,
            };
            match node.checked_sub(K) {
                Some(number) => self.parity[number].crash(survives),
                None => self.data[node].crash(survives),
            }
            for request in 0..self.updates.len() {
                if self.updates[request].chunk == node {
                    self.unanswered(request, counts);
                }
            }
        }
        for &node in &victims {
            if let Some(number) = node.checked_sub(K) {
                let parity = number as u16;
                (0..K).try_for_each(|chunk| self.input(chunk, DataInput::Lost { parity }, counts))?;
            }
        }
        for &node in &victims {
            let again = below(&mut self.random, 4) == 0;
            counts.recoveries_cut += u64::from(again);
            let disk = match node.checked_sub(K) {
                Some(number) => &mut self.parity[number].disk,
                None => &mut self.data[node].disk,
            };
            disk.reopen(again.then_some(&mut self.random))?;
            self.start(node)?;
        }
        for &node in &victims {
            if let Some(number) = node.checked_sub(K) {
                let parity = number as u16;
                (0..K)
                    .filter(|chunk| !victims.contains(chunk))
                    .collect::<Vec<_>>()
                    .into_iter()
                    .try_for_each(|chunk| self.input(chunk, DataInput::Connected { parity }, counts))?;
            } else {
                self.run_data(node, counts)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, node: usize) -> Result<()> {
        match node.checked_sub(K) {
            Some(number) => self.parity[number].start(),
            None => self.data[node].start(&(0..M as u16).collect::<Vec<_>>(), node as u16),
        }
    }

    fn unanswered(&mut self, request: usize, counts: &mut Counts) {
        let update = &mut self.updates[request];
        if update.progress == Progress::Sent {
            update.progress = Progress::Unanswered(update.version);
            counts.unanswered += 1;
        }
    }

    /// Everything that is on its way arrives.
    fn calm_down(&mut self, counts: &mut Counts) -> Result<()> {
        for _ in 0..100_000 {
            while let Some((from, to)) = self.links.keys().next().copied() {
                self.deliver(from, to, counts)?;
            }
            for node in 0..K + M {
                self.flush(node, counts)?;
            }
            (0..K).try_for_each(|chunk| self.input(chunk, DataInput::Tick, counts))?;
            let idle = |node: &DataNode| {
                let level = node.core.as_ref().is_some_and(|core| core.is_idle() && core.is_serving());
                level && !node.disk.is_dirty()
            };
            let flushed = |node: &ParityNode| !node.disk.is_dirty() && node.done.is_empty();
            if self.links.is_empty() && self.data.iter().all(idle) && self.parity.iter().all(flushed) {
                return Ok(());
            }
        }
        let states: Vec<_> = self.data.iter().map(|node| &node.core).collect();
        Err(anyhow!("with all nodes up it never comes to rest: {states:?}"))
    }

    /// Every byte is one that may be there, and any four chunks give all.
    fn check(&mut self, counts: &mut Counts) -> Result<()> {
        ensure!(
            self.updates.iter().all(|update| update.progress != Progress::Sent),
            "an update has no answer"
        );
        let mut chunks: Vec<Vec<u8>> = Vec::new();
        for chunk in 0..K {
            let content = self.data[chunk].disk.content()?;
            self.compare(chunk, &content)?;
            counts.bytes_compared += content.len() as u64;
            chunks.push(content);
        }
        for number in 0..M {
            chunks.push(self.parity[number].current()?);
        }
        for first in 0..K + M {
            for second in first + 1..K + M {
                let left = (0..K + M).filter(|chunk| *chunk != first && *chunk != second);
                let left: Vec<(usize, &[u8])> = left.map(|chunk| (chunk, &chunks[chunk][..])).collect();
                let mut decoded = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
                let [one, two] = &mut decoded;
                self.code.reconstruct(&left, &mut [(first, one), (second, two)])?;
                ensure!(
                    decoded[0] == chunks[first] && decoded[1] == chunks[second],
                    "without chunks {first} and {second} the others decode to something else"
                );
                counts.bytes_compared += 2 * CHUNK_BYTES as u64;
            }
        }
        chunks.truncate(K);
        self.model = chunks;
        self.updates.clear();
        Ok(())
    }

    /// Compares a chunk with what was acknowledged since the last look, in the order of versions.
    fn compare(&self, chunk: usize, content: &[u8]) -> Result<()> {
        let mut newest: Vec<(u64, u8)> = self.model[chunk].iter().map(|byte| (0, *byte)).collect();
        let of_chunk = || self.updates.iter().filter(|update| update.chunk == chunk);
        for update in of_chunk() {
            let Progress::Acked(version) = update.progress else { continue };
            for (newest, byte) in newest[update.offset..].iter_mut().zip(&update.bytes) {
                if version > newest.0 {
                    *newest = (version, *byte);
                }
            }
        }
        let mut wrong: Vec<bool> =
            newest.iter().zip(content).map(|((_, expected), byte)| expected != byte).collect();
        for update in of_chunk() {
            // One that never got a version never happened.
            let Progress::Unanswered(Some(version)) = update.progress else { continue };
            for (at, byte) in (update.offset..).zip(&update.bytes) {
                if version > newest[at].0 && content[at] == *byte {
                    wrong[at] = false;
                }
            }
        }
        match wrong.iter().position(|wrong| *wrong) {
            None => Ok(()),
            Some(at) => Err(anyhow!(
                "byte {at} of chunk {chunk} is {}, not {} of version {}",
                content[at],
                newest[at].1,
                newest[at].0
            )),
        }
    }

    fn send(&mut self, (from, to): (usize, usize), message: Message) {
        let up = |node: usize| match node.checked_sub(K) {
            Some(number) => self.parity[number].core.is_some(),
            None => self.data[node].core.is_some(),
        };
        if up(from) && up(to) {
            self.links.entry((from, to)).or_default().push_back(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_a_storm_is_repeated_alone_and_neighbouring_seeds_share_none() {
        let updates = |seed, options: &Options| {
            let report = run(options, Report::new(seed), &mut |_| ())?;
            anyhow::Ok(
                ["runs", "acknowledged", "bytes_compared"].map(|of| report.value(NAME, "plr rs(6,4)", of)),
            )
        };
        let one = |case: &str| Options { case: Some(case.to_owned()), ..Options::default() };
        let [first, second] = ["run=0", "run=1"].map(|case| updates(7, &one(case)).unwrap());
        assert_eq!(first, updates(7, &Options { draws: Some(1), ..Options::default() }).unwrap());
        assert_ne!(second, updates(8, &one("run=0")).unwrap(), "run 1 of 7 is run 0 of 8");
        let refused = updates(7, &one("run=x")).unwrap_err();
        assert!(refused.to_string().contains("there are run=0 to run="), "{refused}");
    }

    #[test]
    fn every_synced_byte_survives_some_storms() {
        let seed =
            std::env::var("STEADFAST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_123);
        println!("STEADFAST_SEED={seed}");
        let options = Options { draws: Some(4), ..Options::default() };
        let report = run(&options, Report::new(seed), &mut |line| println!("{line}")).unwrap();
        let value = |metric| report.value(NAME, "plr rs(6,4)", metric).unwrap();
        assert_eq!(value("updates"), 2000.0);
        // A storm that never hits a phase proves nothing of it.
        for metric in ["acknowledged", "unanswered", "power_losses", "recoveries_cut", "merges", "adopted"] {
            assert!(value(metric) > 0.0, "{metric}");
        }
    }
}
