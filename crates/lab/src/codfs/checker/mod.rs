//! `codfs/checker`: every order of events of a few updates. The update cores that serve data
//! ([`steadfast_protocol::serve::parity_log`]) are driven through each state that they can reach, with crashes at any step,
//! merges, degraded gathers, and fences of who stores the segment anew.
//!
//! Depth first over the set of states seen; a state is the whole world, so nothing is explored twice, and nothing is left
//! out within the limits of a case and [`STATES_MAX`]. Where states came to that bound, metric `exhaustive` is 0, and
//! random walks look at what lies beyond. At every quiet moment all ways to read every chunk (its own node, a decode by either
//! parity chunk) must give the same bytes, and bytes that a reader may expect. A degraded gather goes on while all else does; it
//! must give what the versions that it chose say, of both chunks, and nothing older than what was acknowledged when it began. A
//! violation is an error that names the events leading to it. Bugs are put in on purpose, of nodes and of who stores the segment anew, and
//! each must be found by the violation that it is: metric `found`, with the number of `events` that show it.
//!
//! A fence comes to all nodes or to some ([`steadfast_protocol::chunks::Fence`]), to each on its own. What is read behind it the segment
//! is stored anew of, so all that was ever acknowledged must be in that, also what is acknowledged only later; where it is given up, what
//! was acknowledged must be where it was. Metric `stored_anew` counts the states, and ends of walks, in which it had been read, and
//! `stored_anew_least` those of the fence ([`world::REACHED`]) behind which it had been in the fewest: where nobody comes to read, nothing
//! is judged.

pub mod world;

use self::world::{Event, K, Limits, Planted, REACHED, Violation, World, Write};
use crate::{
    Options,
    report::{NotOffered, Report},
};
use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use steadfast_protocol::serve::parity_log::Mode;

/// The experiment's name.
pub const NAME: &str = "codfs/checker";
/// States of one case at most: 16 bytes each are remembered, and these take some minutes. Enough for all of a crash and a gather
/// beside two updates of one chunk.
const STATES_MAX: u64 = 2_500_000;
/// Of a quick run.
const STATES_MAX_QUICK: u64 = 50_000;
/// One walk for so many states, where those came to the bound: about as many steps as half the states took.
const WALKS_SHARE: u64 = 100;

/// Two updates of one chunk that share a row, and of two chunks that do; one alone, of which a crash and a gather beside each
/// other are few enough states to see all.
const WRITES: [(&str, &[Write]); 3] = [
    ("one-chunk", &ONE_CHUNK),
    ("two-chunks", &[Write { chunk: 0, bytes: [3, 0] }, Write { chunk: 1, bytes: [7, 9] }]),
    ("one-update", &ONE_UPDATE),
];
const ONE_CHUNK: [Write; 2] = [Write { chunk: 0, bytes: [3, 5] }, Write { chunk: 0, bytes: [7, 0] }];
const ONE_UPDATE: [Write; 1] = [Write { chunk: 0, bytes: [3, 5] }];

/// What may happen beside the updates.
const CASES: [(&str, Limits); 8] = [
    ("gather", GATHER),
    ("merge gather", Limits { merges: 1, ..GATHER }),
    ("crash", CRASH),
    ("crash merge", CRASH_MERGE),
    ("crash gather", Limits { crashes: 1, ..GATHER }),
    ("fence", FENCE),
    ("merge fence", Limits { merges: 1, ..FENCE }),
    ("crash fence", Limits { crashes: 1, ..FENCE }),
];
const GATHER: Limits = Limits { gathers: 1, ..Limits::NONE };
const CRASH: Limits = Limits { crashes: 1, ..Limits::NONE };
const CRASH_MERGE: Limits = Limits { merges: 1, ..CRASH };
const FENCE: Limits = Limits { fences: 1, ..Limits::NONE };

/// A bug that is to be found.
struct Bug {
    name: &'static str,
    planted: Planted,
    /// How parity takes the updates that show it, which those are, and what may happen beside them.
    mode: Mode,
    writes: &'static [Write],
    limits: Limits,
    /// What happens first: nothing, or what leaves few enough states that it is found whatever `seed` draws.
    begun: &'static [Event],
    /// Of the only violation that it may show as.
    shows: &'static str,
}

/// Bugs of nodes, and the last of who stores the segment anew.
const PLANTED: [Bug; 8] = [
    Bug {
        name: "merge-before-commit",
        planted: Planted::MergeBeforeCommit,
        mode: Mode::Logged,
        writes: &ONE_CHUNK,
        limits: CRASH_MERGE,
        begun: &[],
        shows: "was asked for 0/",
    },
    // Beside crashes and merges it would show as five violations.
    Bug {
        name: "lost-delta",
        planted: Planted::LostDelta,
        mode: Mode::Logged,
        writes: &ONE_CHUNK,
        limits: Limits::NONE,
        begun: &[],
        shows: "chunk 0 reads as",
    },
    Bug {
        name: "applied-twice",
        planted: Planted::AppliedTwice,
        mode: Mode::Logged,
        writes: &ONE_CHUNK,
        limits: CRASH_MERGE,
        begun: &[],
        shows: "chunk 0 reads as",
    },
    Bug {
        name: "fo applied-twice",
        planted: Planted::AppliedTwice,
        mode: Mode::InPlace,
        writes: &ONE_UPDATE,
        limits: CRASH,
        begun: &[],
        shows: "chunk 0 reads as",
    },
    Bug {
        name: "gather-newest",
        planted: Planted::GatherNewest,
        mode: Mode::Logged,
        writes: &ONE_CHUNK,
        limits: GATHER,
        begun: &[],
        shows: "gives chunk 0 as",
    },
    Bug {
        name: "fenced-acknowledges",
        planted: Planted::FencedAcknowledges,
        mode: Mode::Logged,
        writes: &ONE_UPDATE,
        limits: FENCE,
        begun: &[],
        shows: "chunk 0 is stored anew at version 0, and 1 is acknowledged",
    },
    Bug {
        name: "fenced-forgets",
        planted: Planted::FencedForgets,
        mode: Mode::Logged,
        writes: &ONE_CHUNK,
        limits: FENCE,
        begun: &ACKNOWLEDGED,
        shows: "version 1 of chunk 0 is answered and not durable everywhere",
    },
    Bug {
        name: "reads-unfenced",
        planted: Planted::ReadsUnfenced,
        mode: Mode::Logged,
        writes: &ONE_UPDATE,
        limits: Limits { crashes: 1, ..FENCE },
        begun: &HALF_LOGGED,
        shows: "chunk 0 is stored anew at version 0, and 1 is acknowledged",
    },
];
/// The first update is acknowledged.
const ACKNOWLEDGED: [Event; 8] = [
    Event::Begin(0),
    Event::Deliver(0, K),
    Event::Deliver(0, K + 1),
    Event::Flush(0),
    Event::Flush(K),
    Event::Flush(K + 1),
    Event::Deliver(K, 0),
    Event::Deliver(K + 1, 0),
];
/// One parity node has the update and is fenced; to the other it is on its way. The other data node is down.
const HALF_LOGGED: [Event; 6] = [
    Event::Begin(0),
    Event::Deliver(0, K + 1),
    Event::Crash(1, 0),
    Event::StoreAnew([false, false, false, true]),
    Event::Fence(K + 1),
    Event::Flush(K + 1),
];

/// Runs it.
///
/// # Errors
/// A violation, or a planted bug that was not found, or showed as another one.
pub fn run(options: &Options, mut report: Report, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let seed = report.seed();
    let states_max = if options.quick { STATES_MAX_QUICK } else { STATES_MAX };
    let wanted = |case: &str| options.case.as_ref().is_none_or(|part| case.contains(part));
    for (scheme, mode) in [("plr", Mode::Logged), ("fo", Mode::InPlace)] {
        for (writes_name, writes) in &WRITES {
            for (limits_name, limits) in &CASES {
                let case = format!("{scheme} {writes_name} {limits_name}");
                // In place nothing is merged.
                if !wanted(&case) || mode == Mode::InPlace && limits.merges > 0 {
                    continue;
                }
                let first = World::new(mode, writes, *limits, None);
                let outcome = explore(&first, states_max, seed);
                if let Some((violation, events)) = outcome.violation {
                    bail!("{case}: {}, after {events:?}", violation.0);
                }
                say(&format!("{case}: {} states", outcome.states));
                let exhaustive = f64::from(u8::from(outcome.states < states_max));
                for (metric, value) in [
                    ("states", outcome.states as f64),
                    ("transitions", outcome.transitions as f64),
                    ("final_states", outcome.finals as f64),
                    ("exhaustive", exhaustive),
                    ("violations", 0.0),
                ] {
                    report.add(NAME, &case, metric, value, "1");
                }
                if limits.fences > 0 {
                    let all = outcome.stored_anew.iter().sum::<u64>();
                    let least = outcome.stored_anew.iter().copied().min().unwrap_or(0);
                    report.add(NAME, &case, "stored_anew", all as f64, "1");
                    report.add(NAME, &case, "stored_anew_least", least as f64, "1");
                }
                report.complete()?;
            }
        }
    }
    for bug in &PLANTED {
        let case = format!("planted {}", bug.name);
        if !wanted(&case) {
            continue;
        }
        let mut first = World::new(bug.mode, bug.writes, bug.limits, Some(bug.planted));
        if let Err(early) = bug.begun.iter().try_for_each(|event| first.step(event)) {
            bail!("{case}: {}, within {:?}", early.0, bug.begun);
        }
        // Deeper than a quick run goes: some of them take a crash at one moment of many.
        let outcome = explore(&first, STATES_MAX, seed);
        let Some((violation, events)) = outcome.violation else {
            bail!("{case}: not found in {} states", outcome.states);
        };
        if !violation.0.contains(bug.shows) {
            bail!("{case}: found as `{}` and not as `{}`, after {events:?}", violation.0, bug.shows);
        }
        say(&format!("{case}: found after {} states: {}", outcome.states, violation.0));
        report.add(NAME, &case, "found", 1.0, "1");
        report.add(NAME, &case, "states", outcome.states as f64, "1");
        report.add(NAME, &case, "events", (bug.begun.len() + events.len()) as f64, "1");
        report.complete()?;
    }
    if report.records.is_empty() {
        return Err(NotOffered(format!(
            "no case of {NAME} contains `{}`",
            options.case.as_deref().unwrap_or_default()
        ))
        .into());
    }
    Ok(report)
}

/// The report as a table for people.
pub fn show(report: &Report) -> String {
    let mut cases: Vec<&str> = Vec::new();
    for record in &report.records {
        if cases.last() != Some(&record.case.as_str()) {
            cases.push(&record.case);
        }
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["case", "states", "transitions", "final states", "found"]);
    for case in cases {
        let value = |metric: &str| {
            report.value(NAME, case, metric).map_or_else(String::new, |value| format!("{value}"))
        };
        let bound = if report.value(NAME, case, "exhaustive") == Some(0.0) { " (bound)" } else { "" };
        let found = match (report.value(NAME, case, "found"), report.value(NAME, case, "events")) {
            (Some(_), Some(events)) => format!("the bug, by {events} events"),
            _ => "nothing wrong".to_owned(),
        };
        let states = value("states") + bound;
        table.add_row([case.to_owned(), states, value("transitions"), value("final_states"), found]);
    }
    table.to_string()
}

/// What the checker found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Different states of the world.
    pub states: u64,
    /// Events tried.
    pub transitions: u64,
    /// States in which every update had its outcome and nothing was on its way.
    pub finals: u64,
    /// States, and ends of walks, in which somebody had read what the segment is stored anew of: by the fence of [`REACHED`] that came
    /// before. A state to which two of them lead counts for the first.
    pub stored_anew: [u64; REACHED.len()],
    /// The first violation, and how it came about.
    pub violation: Option<(Violation, Vec<Event>)>,
}

impl Outcome {
    /// The segment was read behind the fence that came among these events.
    fn was_stored_anew<'e>(&mut self, came: impl IntoIterator<Item = &'e Event>) {
        for event in came {
            let Event::StoreAnew(reached) = event else { continue };
            if let Some(number) = REACHED.iter().position(|fence| fence == reached) {
                self.stored_anew[number] += 1;
            }
        }
    }
}

/// Explores every order of events from `first` on; `states_max` bounds memory. Where it does, walks from the first state to an
/// end follow, at each of whose steps `seed` draws one of the events: a search in depth that is cut short has seen all ways to
/// end of a few beginnings, a walk sees one way of any.
pub fn explore(first: &World, states_max: u64, seed: u64) -> Outcome {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    // 128 bits of each state: two of 10^7 states are taken for one with a probability of 10^-25.
    let name = |world: &World| (hasher.hash_one(world), hasher.hash_one((world, 1u8)));
    let mut seen = HashSet::from([name(first)]);
    let stored_anew = [0; REACHED.len()];
    let mut outcome = Outcome { states: 1, transitions: 0, finals: 0, stored_anew, violation: None };
    let drawn = |world: &World, name: (u64, u64)| {
        let mut events = world.events();
        events.sort_by_cached_key(|event| hasher.hash_one((event, name, seed)));
        events
    };
    let mut path: Vec<(World, Vec<Event>, Option<Event>)> = Vec::new();
    let events = drawn(first, name(first));
    path.push((first.clone(), events, None));
    while let Some((world, events, _)) = path.last_mut() {
        let Some(event) = events.pop() else {
            path.pop();
            continue;
        };
        let mut next = world.clone();
        outcome.transitions += 1;
        if let Err(violation) = next.step(&event) {
            let came = path.into_iter().filter_map(|(_, _, event)| event).chain([event]).collect();
            outcome.violation = Some((violation, came));
            return outcome;
        }
        let named = name(&next);
        if outcome.states >= states_max || !seen.insert(named) {
            continue;
        }
        outcome.states += 1;
        outcome.finals += u64::from(next.is_over());
        if next.is_stored_anew() {
            outcome.was_stored_anew(path.iter().filter_map(|(_, _, event)| event.as_ref()));
        }
        let events = drawn(&next, named);
        if events.is_empty() && !next.is_over() {
            let stuck =
                Violation(format!("nothing can happen any more and not all is over: {}", next.outcome()));
            let came = path.into_iter().filter_map(|(_, _, event)| event).chain([event]).collect();
            outcome.violation = Some((stuck, came));
            return outcome;
        }
        path.push((next, events, Some(event)));
    }
    if outcome.states >= states_max {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        for _ in 0..states_max / WALKS_SHARE {
            walk(first.clone(), &mut random, &mut outcome);
            if outcome.violation.is_some() {
                break;
            }
        }
    }
    outcome
}

/// Goes from `world` to an end.
fn walk(mut world: World, random: &mut Pcg64Mcg, outcome: &mut Outcome) {
    let mut came = Vec::new();
    loop {
        let mut events = world.events();
        if events.is_empty() {
            if world.is_over() {
                outcome.finals += 1;
                if world.is_stored_anew() {
                    outcome.was_stored_anew(&came);
                }
            } else {
                let said = format!("nothing can happen any more and not all is over: {}", world.outcome());
                outcome.violation = Some((Violation(said), came));
            }
            return;
        }
        let drawn = random.next_u64() % events.len() as u64;
        let event = events.swap_remove(drawn as usize);
        outcome.transitions += 1;
        let stepped = world.step(&event);
        came.push(event);
        if let Err(violation) = stepped {
            outcome.violation = Some((violation, came));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_all(world: &mut World, events: &[Event]) {
        for event in events {
            if let Err(violation) = world.step(event) {
                panic!("{event:?}: {}", violation.0);
            }
        }
    }

    /// Small enough for a debug build: each way of updating, with a crash at any step and behind a fence; and the planted bugs.
    #[test]
    fn no_order_of_events_breaks_it_and_planted_bugs_are_found() {
        let options = Options { case: None, quick: true, ..Options::default() };
        for case in [
            "plr one-chunk gather",
            "plr one-chunk merge gather",
            "plr one-chunk crash",
            "plr one-update fence",
            "fo two-chunks",
            "planted",
        ] {
            let options = Options { case: Some(case.to_owned()), ..options.clone() };
            let report = run(&options, Report::new(1), &mut |line| println!("{line}")).unwrap();
            // Behind each of the fences.
            let least = report.records.iter().filter(|record| record.metric == "stored_anew_least");
            least.for_each(|record| assert!(record.value > Some(0.0), "{}", record.case));
        }
    }

    /// Beyond the cases above, which have one crash: two nodes have a version that neither has flushed, lose it while it is read,
    /// and the next update is stamped with its number. Named before it was durable it would be decoded with the other.
    #[test]
    fn a_version_that_two_nodes_lose_while_it_is_read_is_not_mixed_with_the_next() {
        let limits = Limits { crashes: 2, ..GATHER };
        let mut world = World::new(Mode::Logged, &ONE_CHUNK, limits, None);
        let (data, parity) = (0, world::K);
        let mut events = vec![
            Event::Begin(0),
            Event::Deliver(data, parity),
            Event::Gather([data, parity]),
            Event::TellVersions(data),
            Event::TellVersions(parity),
            // It reads its rows, and must not give them.
            Event::GiveRows(data),
            Event::GiveRows(data),
            Event::Crash(data, 0),
            Event::Crash(parity, 0),
            Event::Restart(data),
            Event::Restart(parity),
        ];
        // Both ask and are answered; what the earlier life had sent to the other log is late.
        for _ in 0..2 {
            events.extend([Event::Deliver(data, parity), Event::Deliver(data, parity + 1)]);
            events.extend([Event::Deliver(parity, data), Event::Deliver(parity + 1, data)]);
        }
        // The same number again; what was read is gone, and what is read now waits for its flush.
        events.extend([Event::Begin(1), Event::Deliver(data, parity), Event::GiveRows(data)]);
        events.extend([Event::Flush(data), Event::GiveRows(data)]);
        step_all(&mut world, &events);
        if let Err(mixed) = world.step(&Event::GiveRows(parity)) {
            panic!("{}", mixed.0);
        }
    }

    /// One parity node is fenced, the other acknowledges, the writer is answered; only then it is asked what there is.
    #[test]
    fn what_is_acknowledged_while_a_fence_is_made_is_stored_anew() {
        let mut world = World::new(Mode::Logged, &ONE_UPDATE, FENCE, None);
        let (data, other, parity, fenced) = (0, 1, world::K, world::K + 1);
        let tell = [Event::TellVersions(data), Event::TellVersions(other)];
        let mut events = vec![
            Event::Begin(0),
            Event::Deliver(data, parity),
            Event::Deliver(data, fenced),
            Event::Flush(data),
            Event::StoreAnew([false, false, false, true]),
            Event::Fence(fenced),
            Event::Flush(fenced),
            Event::Flush(parity),
            Event::Deliver(fenced, data),
            Event::Deliver(parity, data),
        ];
        events.extend(tell.clone());
        events.push(Event::ReadAnew);
        events.extend(tell);
        // Each reads them, and gives them.
        events.extend([data, data, other, other].map(Event::GiveRows));
        step_all(&mut world, &events);
        assert!(world.is_stored_anew(), "{}", world.outcome());
        assert!(world.outcome().contains("Acked"), "{}", world.outcome());
    }

    /// It has a change that no parity node has. Nobody was answered for that; but whoever reads does not know, and it may be back.
    #[test]
    fn a_node_that_dies_after_it_named_what_parity_lacks_is_not_stood_in_for() {
        let limits = Limits { crashes: 1, ..FENCE };
        let mut world = World::new(Mode::Logged, &ONE_UPDATE, limits, None);
        let mut events = vec![Event::Begin(0), Event::StoreAnew([true; world::K + world::M])];
        let nodes = 0..world::K + world::M;
        events.extend(nodes.flat_map(|node| [Event::Fence(node), Event::Flush(node)]));
        events.extend([Event::Crash(0, 0), Event::ReadAnew]);
        step_all(&mut world, &events);
        let reads = |event: &Event| matches!(event, Event::GiveRows(_) | Event::TellVersions(_));
        assert!(!world.events().iter().any(reads), "it is given up");
        assert!(!world.is_stored_anew());
    }
}
