//! One script of events gives the same actions under the simulator and under the plainest loop there is; and the simulator
//! names no scheme.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch, IndexRanges, SegmentId, Time, Version,
    layout::{CodeKind, CodeSpec, Holder, SegmentLayout},
    message::Want,
    read::{self, Action, Input, ReadCore, ReadDone, ReadPlan, RequestRule},
};
use steadfast_sim::{Fault, Link, Medium, ReadAccess, Setup, Steady, World};

const SEGMENT: SegmentId = SegmentId(5);
const VERSION: Version = Version(9);
const BLOCK: u32 = 64 << 10;
const CONTENTS: u64 = 77;

/// What went into a core, and what came out before the next.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    now: Time,
    /// None: the core was made.
    input: Option<Input>,
    actions: Vec<Action>,
}

type Steps = Arc<Mutex<Vec<Step>>>;

/// A core that notes what its driver does with it.
struct Noted {
    core: Box<dyn ReadCore + Send>,
    steps: Steps,
}

impl ReadCore for Noted {
    fn handle(&mut self, now: Time, input: Input) {
        self.steps.lock().unwrap().push(Step { now, input: Some(input.clone()), actions: Vec::new() });
        self.core.handle(now, input);
    }

    fn poll(&mut self) -> Option<Action> {
        let action = self.core.poll();
        self.steps.lock().unwrap().last_mut().unwrap().actions.extend(action.clone());
        action
    }

    fn wake_at(&self) -> Option<Time> {
        self.core.wake_at()
    }

    fn counts(&self) -> ReadDone {
        self.core.counts()
    }
}

fn layout(kind: CodeKind, originals: u32, holders: &[IndexRanges]) -> SegmentLayout {
    let holders = holders.iter().enumerate();
    SegmentLayout {
        segment: SEGMENT,
        version: VERSION,
        epoch: Epoch(1),
        length: u64::from(originals) * u64::from(BLOCK),
        code: CodeSpec { kind, originals, seed: 1 },
        block_bytes: BLOCK,
        granule_bytes: BLOCK,
        holders: holders
            .map(|(device, blocks)| Holder::whole(DeviceId(device as u128), SEGMENT, VERSION, blocks.clone()))
            .collect(),
    }
}

/// The core of the layout's read, made at `now`.
fn core(now: Time, layout: &SegmentLayout, policy: &str, rule: RequestRule) -> Box<dyn ReadCore + Send> {
    let extra = || layout.code.code().unwrap().expected_extra();
    let plan = ReadPlan::new(layout, rule, extra, |_| (0, 0));
    read::whole(now, plan, layout, &policy.parse().unwrap())
}

/// Reads under the simulator: what its driver did with the core.
fn simulated(
    layout: &SegmentLayout,
    policy: &'static str,
    rule: RequestRule,
    link: Link,
    media: Vec<Box<dyn Medium>>,
    faults: &[(Time, Fault)],
) -> Vec<Step> {
    struct Any(Box<dyn Medium>);
    impl Medium for Any {
        fn transfer(&mut self, start: Time, offset: u64, bytes: u64, writes: bool) -> Time {
            self.0.transfer(start, offset, bytes, writes)
        }
    }
    let mut world = World::new(Setup::new(3, link));
    for (device, medium) in media.into_iter().enumerate() {
        let node = world.add_node();
        world.add_device(node, DeviceId(device as u128), Any(medium));
    }
    world.preload(layout, CONTENTS);
    let client = world.add_client();
    let steps = Steps::default();
    let (kept, noted) = (layout.clone(), steps.clone());
    let make = move |now: Time| -> Box<dyn ReadCore + Send> {
        noted.lock().unwrap().push(Step { now, input: None, actions: Vec::new() });
        Box::new(Noted { core: core(now, &kept, policy, rule), steps: noted })
    };
    let access = ReadAccess {
        layout: layout.clone(),
        code: layout.code.code().unwrap(),
        contents: CONTENTS,
        core: Box::new(make),
        opening: Duration::ZERO,
        decoding: Duration::ZERO,
    };
    let id = world.read(client, Time(0), access);
    faults.iter().for_each(|&(at, fault)| world.inject(at, fault));
    world.run();
    assert!(matches!(world.outcome(id).read, Some(Ok(_))), "{:?}", world.outcome(id).read);
    drop(world);
    Arc::try_unwrap(steps).unwrap().into_inner().unwrap()
}

/// The plainest loop: tell, then take all there is.
fn plain(script: &[(Time, Option<Input>)], mut core: Box<dyn ReadCore + Send>) -> Vec<Step> {
    let mut steps = Vec::new();
    for (now, input) in script {
        if let Some(input) = input {
            core.handle(*now, input.clone());
        }
        let actions = std::iter::from_fn(|| core.poll()).collect();
        steps.push(Step { now: *now, input: input.clone(), actions });
    }
    steps
}

fn actions(steps: &[Step]) -> Vec<Action> {
    steps.iter().flat_map(|step| step.actions.clone()).collect()
}

/// A device that ends its transfers when the script says.
struct Scripted(std::vec::IntoIter<u64>);

impl Medium for Scripted {
    fn transfer(&mut self, start: Time, _offset: u64, _bytes: u64, _writes: bool) -> Time {
        // What no script names is not in time for anything.
        let at = self.0.next().unwrap_or(1_000);
        Time(start.0.max(at * 1_000_000))
    }
}

/// Figure 4-2: eight originals in sixteen blocks on four unequal disks; all are asked for all, the first eight to come are
/// enough, the rest is cancelled.
#[test]
fn the_script_of_figure_4_2_gives_the_same_actions_in_both() {
    let blocks = |device: u32| IndexRanges::from(device * 4..device * 4 + 4);
    let layout = layout(CodeKind::Mix, 8, &[0, 1, 2, 3].map(blocks));
    let (policy, rule) = ("rateless:redundancy=1,tolerate=0", RequestRule::All);
    // Who sends which block at which millisecond.
    let arrivals: [(u64, u128, BlockIndex); 8] =
        [(1, 3, 12), (2, 3, 13), (3, 0, 0), (4, 3, 14), (5, 1, 4), (6, 3, 15), (7, 0, 1), (8, 2, 8)];
    let mut script: Vec<(Time, Option<Input>)> = vec![(Time(0), None)];
    script.extend((0..4).map(|device| (Time(0), Some(Input::Opened { device: DeviceId(device) }))));
    for (missing, &(at, device, index)) in (0..8).rev().zip(&arrivals) {
        let (now, device) = (Time(at * 1_000_000), DeviceId(device));
        script.push((now, Some(Input::Slice { device, index, bytes: BLOCK })));
        script.push((now, Some(Input::Block { device, index, missing })));
        if index == 15 {
            script.push((now, Some(Input::Ended { device })));
        }
    }
    let golden = plain(&script, core(Time(0), &layout, policy, rule));
    let credit = |action: &Action| matches!(action, Action::Grant { .. });
    let telling: Vec<Action> = actions(&golden).into_iter().filter(|action| !credit(action)).collect();
    let opened = |action: &Action| matches!(action, Action::Open { want: Want::All, .. });
    assert!(telling[..4].iter().all(opened), "{telling:?}");
    assert_eq!(telling[4..7], [0, 1, 2].map(|device| Action::Cancel { device: DeviceId(device) }));
    assert!(matches!(&telling[7..], [Action::Done(ReadDone { received_blocks: 8, .. })]), "{telling:?}");

    let times = |device: u128| -> Box<dyn Medium> {
        let own = arrivals.iter().filter(|arrival| arrival.1 == device).map(|arrival| arrival.0);
        Box::new(Scripted(own.collect::<Vec<_>>().into_iter()))
    };
    let media = (0..4).map(times).collect();
    let link = Link::of_round_trip(Duration::ZERO);
    let steps = simulated(&layout, policy, rule, link, media, &[]);
    // What the simulator told the core, in order, until it was over: the script, and nothing else.
    let told: Vec<(Time, Option<Input>)> =
        steps.iter().take(script.len()).map(|step| (step.now, step.input.clone())).collect();
    assert_eq!(told, script);
    assert_eq!(actions(&steps[..script.len()]), actions(&golden));
    // What still came after the end moved nobody.
    assert!(steps.len() > script.len());
    assert_eq!(actions(&steps[script.len()..]), []);
}

/// Whatever a run under the simulator was, with jitter, a stall, a crash and a flipped bit: the plain loop, given the same
/// events, does the same, core by core.
#[test]
fn what_happened_under_the_simulator_is_a_script_for_the_plain_loop() {
    let dealt = |blocks: u32, devices: u32| -> Vec<IndexRanges> {
        (0..devices)
            .map(|device| (0..blocks).filter(|index| index % devices == device).collect::<IndexRanges>())
            .collect()
    };
    let copies = |k: u32, devices: u32| -> Vec<IndexRanges> {
        let on = |index: u32, device: u32| (index % k + index / k) % devices == device;
        (0..devices)
            .map(|device| (0..2 * k).filter(|index| on(*index, device)).collect::<IndexRanges>())
            .collect()
    };
    let k = 256;
    let coded = layout(CodeKind::Mix, k, &dealt(2 * k, 6));
    let copied = layout(CodeKind::Replicated, k, &copies(k, 6));
    let single = layout(CodeKind::Replicated, k, &dealt(k, 6));
    let millis = |at: u64| Time(at * 1_000_000);
    let block = coded.holders[0].blocks().iter().next().unwrap();
    let broken = [
        (millis(20), Fault::Crash { node: 4 }),
        (millis(30), Fault::Stall { device: DeviceId(3) }),
        (millis(300), Fault::Resume { device: DeviceId(3) }),
        (Time(0), Fault::Corrupt { device: DeviceId(0), segment: SEGMENT, index: block }),
    ];
    let stalled = [broken[1], broken[2]];
    for (name, layout, policy, rule, faults) in [
        ("all", &coded, "rateless:redundancy=1,tolerate=2", RequestRule::All, &broken[..]),
        ("few", &coded, "rateless:redundancy=1,tolerate=2", RequestRule::KPlus(2), &broken[..]),
        ("adaptive", &coded, "rateless:redundancy=1,tolerate=2", RequestRule::ADAPTIVE, &broken[..]),
        ("copies", &copied, "replicated:copies=2,read=adaptive", RequestRule::ADAPTIVE, &broken[..]),
        ("all copies", &copied, "replicated:copies=2,read=speculative", RequestRule::All, &broken[..]),
        ("single", &single, "stripe", RequestRule::ADAPTIVE, &stalled[..]),
    ] {
        let link = Link {
            delay: Duration::from_millis(1),
            jitter: Duration::from_millis(1),
            loss: if name == "single" { 0.01 } else { 0.0 },
        };
        let rates = [30e6, 60e6, 80e6, 100e6, 120e6, 150e6];
        let media = rates.map(|rate| Box::new(Steady::of(rate)) as Box<dyn Medium>).into();
        let steps = simulated(layout, policy, rule, link, media, faults);
        let script: Vec<_> = steps.iter().map(|step| (step.now, step.input.clone())).collect();
        let again = plain(&script, core(script[0].0, layout, policy, rule));
        // The driver may carry out the actions of an input while it tells the next ones: their order is what counts.
        assert_eq!(actions(&steps), actions(&again), "{name}");
        assert!(steps.len() > 500, "{name}: {} steps", steps.len());
    }
}

/// Cores come as values: deleting a scheme changes nothing here, so none is named.
#[test]
fn no_scheme_is_named_in_the_simulator() {
    let part =
        ["stripe", "striping", "replica", "rateless", "robustore", "raid", "mirror", "parity", "speculative"];
    let word = ["lt", "adaptive", "ranged"];
    // The decoder's rank is kept by the crate of the codes, whose room has this name.
    let room = "steadfast_codes::rateless::";
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut read = 0;
    for file in std::fs::read_dir(sources).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        read += 1;
        for (number, line) in text.lines().enumerate() {
            let line = line.replace(room, "").to_lowercase();
            let named = part.iter().find(|part| line.contains(**part));
            let words =
                line.split(|letter: char| !letter.is_alphanumeric()).find(|found| word.contains(found));
            assert_eq!((named.copied(), words), (None, None), "{}:{}", path.display(), number + 1);
        }
    }
    assert!(read >= 11, "{read} files");
}
