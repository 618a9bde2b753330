//! `codfs/checker`: every order of events of a few updates. The update cores that serve data
//! ([`steadfast_protocol::serve::parity_log`]) are driven through each state that they can reach, with crashes at any step,
//! a node left out of the layout (dead, or, of a data chunk, only suspected and still at work), merges and degraded gathers.
//!
//! Depth first over the set of states seen; a state is the whole world, so nothing is explored twice, and nothing is left
//! out within the limits of a case and [`STATES_MAX`]. Where states came to that bound, metric `exhaustive` is 0, and
//! random walks look at what lies beyond. At every quiet moment all ways to read every chunk (its own node, a decode by either
//! parity chunk) must give the same bytes, and bytes that a reader may expect. A degraded gather goes on while all else does; it
//! must give what the versions that it chose say, of both chunks, and nothing older than what was acknowledged when it began. A
//! violation is an error that names the events leading to it. Four bugs are put in on purpose and must be found: metric `found`,
//! with the number of `events` that show each.
//!
//! A node that is left out is a new epoch for the cores of those that stay, and another stands in for its data chunk (§5.2): the paper's
//! way, which the cores can. `steadfast_node` does not go it: whoever changes such a segment ends its updates by a fence at the devices and
//! stores it anew, as `codfs/storm` does.

pub mod world;

use self::world::{Event, Limits, Planted, Violation, World, Write};
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
    ("one-update", &[Write { chunk: 0, bytes: [3, 5] }]),
];
const ONE_CHUNK: [Write; 2] = [Write { chunk: 0, bytes: [3, 5] }, Write { chunk: 0, bytes: [7, 0] }];

/// What may happen beside the updates.
const CASES: [(&str, Limits); 7] = [
    ("gather", Limits { crashes: 0, exclusions: 0, merges: 0, gathers: 1 }),
    ("merge gather", Limits { crashes: 0, exclusions: 0, merges: 1, gathers: 1 }),
    ("crash", Limits { crashes: 1, exclusions: 0, merges: 0, gathers: 0 }),
    ("crash merge", Limits { crashes: 1, exclusions: 0, merges: 1, gathers: 0 }),
    ("crash gather", Limits { crashes: 1, exclusions: 0, merges: 0, gathers: 1 }),
    ("left-out", Limits { crashes: 0, exclusions: 1, merges: 0, gathers: 0 }),
    ("crash left-out merge gather", Limits { crashes: 1, exclusions: 1, merges: 1, gathers: 1 }),
];

/// Bugs, and what may happen until each is found.
const PLANTED: [(&str, Planted, Limits); 4] = [
    ("merge-before-commit", Planted::MergeBeforeCommit, CRASH_MERGE),
    ("lost-delta", Planted::LostDelta, CRASH_MERGE),
    ("applied-twice", Planted::AppliedTwice, CRASH_MERGE),
    ("gather-newest", Planted::GatherNewest, Limits { crashes: 0, exclusions: 0, merges: 0, gathers: 1 }),
];
const CRASH_MERGE: Limits = Limits { crashes: 1, exclusions: 0, merges: 1, gathers: 0 };

/// Runs it.
///
/// # Errors
/// A violation, or a planted bug that was not found.
pub fn run(options: &Options, mut report: Report, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let seed = report.seed();
    let states_max = if options.quick { STATES_MAX_QUICK } else { STATES_MAX };
    let wanted = |case: &str| options.case.as_ref().is_none_or(|part| case.contains(part));
    for (scheme, mode) in [("plr", Mode::Logged), ("fo", Mode::InPlace)] {
        for (writes_name, writes) in &WRITES {
            for (limits_name, limits) in &CASES {
                let case = format!("{scheme} {writes_name} {limits_name}");
                // In place nothing is merged.
                let merging = limits.merges > 0 && limits.exclusions == 0;
                if !wanted(&case) || mode == Mode::InPlace && merging {
                    continue;
                }
                let outcome = explore(mode, writes, *limits, None, states_max, seed);
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
                report.complete()?;
            }
        }
    }
    for (name, planted, limits) in PLANTED {
        let case = format!("planted {name}");
        if !wanted(&case) {
            continue;
        }
        // Deeper than a quick run goes: some of them take a crash at one moment of many.
        let outcome = explore(Mode::Logged, &ONE_CHUNK, limits, Some(planted), STATES_MAX, seed);
        let Some((violation, events)) = outcome.violation else {
            bail!("{case}: not found in {} states", outcome.states);
        };
        say(&format!("{case}: found after {} states: {}", outcome.states, violation.0));
        report.add(NAME, &case, "found", 1.0, "1");
        report.add(NAME, &case, "states", outcome.states as f64, "1");
        report.add(NAME, &case, "events", events.len() as f64, "1");
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
    /// The first violation, and how it came about.
    pub violation: Option<(Violation, Vec<Event>)>,
}

/// Explores every order of events of these writes; `states_max` bounds memory. Where it does, walks from the first state to an
/// end follow, at each of whose steps `seed` draws one of the events: a search in depth that is cut short has seen all ways to
/// end of a few beginnings, a walk sees one way of any.
pub fn explore(
    mode: Mode,
    writes: &[Write],
    limits: Limits,
    planted: Option<Planted>,
    states_max: u64,
    seed: u64,
) -> Outcome {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let first = World::new(mode, writes, limits, planted);
    // 128 bits of each state: two of 10^7 states are taken for one with a probability of 10^-25.
    let name = |world: &World| (hasher.hash_one(world), hasher.hash_one((world, 1u8)));
    let mut seen = HashSet::from([name(&first)]);
    let mut outcome = Outcome { states: 1, transitions: 0, finals: 0, violation: None };
    let drawn = |world: &World, name: (u64, u64)| {
        let mut events = world.events();
        events.sort_by_cached_key(|event| hasher.hash_one((event, name, seed)));
        events
    };
    let mut path: Vec<(World, Vec<Event>, Option<Event>)> = Vec::new();
    let events = drawn(&first, name(&first));
    path.push((first, events, None));
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
            walk(World::new(mode, writes, limits, planted), &mut random, &mut outcome);
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

    /// Small enough for a debug build: each way of updating, with a crash at any step; and the planted bugs.
    #[test]
    fn no_order_of_events_breaks_it_and_planted_bugs_are_found() {
        let options = Options { case: None, quick: true, ..Options::default() };
        for case in [
            "plr one-chunk gather",
            "plr one-chunk merge gather",
            "plr one-chunk crash",
            "fo two-chunks",
            "planted",
        ] {
            let options = Options { case: Some(case.to_owned()), ..options.clone() };
            run(&options, Report::new(1), &mut |line| println!("{line}")).unwrap();
        }
    }

    /// Beyond the cases above, which have one crash: two nodes have a version that neither has flushed, lose it while it is read,
    /// and the next update is stamped with its number. Named before it was durable it would be decoded with the other.
    #[test]
    fn a_version_that_two_nodes_lose_while_it_is_read_is_not_mixed_with_the_next() {
        let limits = Limits { crashes: 2, exclusions: 0, merges: 0, gathers: 1 };
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
        for event in &events {
            if let Err(violation) = world.step(event) {
                panic!("{event:?}: {}", violation.0);
            }
        }
        if let Err(mixed) = world.step(&Event::GiveRows(parity)) {
            panic!("{}", mixed.0);
        }
    }
}
