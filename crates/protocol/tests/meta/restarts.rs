//! What a restart changes whose clock is another than before: nothing ends early, and nothing lasts much longer.

use crate::support::World;
use core::time::Duration;
use steadfast_protocol::{
    Time,
    message::{Change, MetaAnswer, MetaFault},
};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const MOMENT: Duration = Duration::from_nanos(1);

fn world() -> World {
    let mut world = World::six();
    // Far enough from the beginning of time to go back.
    world.pass(20 * YEAR);
    world
}

fn renew(world: &mut World, begun: &steadfast_protocol::message::PutBegun) -> Result<MetaAnswer, MetaFault> {
    world.change(Change::Renew { intent: begun.intent })
}

/// Two puts are under way when the server restarts at another time: one is renewed, the other has died.
fn restart(at: impl Fn(Time) -> Time) {
    let mut world = world();
    let (alive, dead) = (world.begin("alive", 1), world.begin("dead", 1));
    let at = at(world.now);
    world.restart(at);
    world.expire_all();
    assert_eq!(world.records(0x40), 2, "no lease ends while a server restarts");
    world.pass(Duration::from_secs(20));
    assert_eq!(renew(&mut world, &alive), Ok(MetaAnswer::Done));
    world.pass(Duration::from_secs(10) - MOMENT);
    assert_eq!(world.expire().intents, 0);
    world.pass(MOMENT);
    assert_eq!(renew(&mut world, &dead), Err(MetaFault::IntentOver(dead.intent)));
    assert_eq!(world.expire().intents, 1);
    // The one that was renewed ends when it says.
    world.pass(Duration::from_secs(20) - MOMENT);
    assert_eq!(world.expire().intents, 0);
    let more = world.change(Change::MoreSegments { intent: alive.intent, segments: 1 });
    assert!(matches!(more, Ok(MetaAnswer::Segments(_))));
    world.pass(MOMENT);
    assert_eq!(world.commit(&alive, &[100]), Err(MetaFault::IntentOver(alive.intent)));
    assert_eq!(world.expire().intents, 1);
    assert_eq!([0x40, 0x41, 0x42].map(|tag| world.records(tag)), [0; 3]);
}

/// What comes as it should moves no lease; a server that did not run, or whose store took nothing, begins them anew.
#[test]
fn leases_begin_anew_once_the_server_was_stopped_or_its_store_failed() {
    const TICK: Duration = Duration::from_secs(1);
    for stopped in [true, false] {
        let mut world = world();
        world.terms.held_up(world.now, Duration::ZERO, TICK);
        let begun = world.begin("k", 1);
        for _ in 0..29 {
            world.pass(TICK);
            assert!(!world.terms.held_up(world.now, Duration::ZERO, TICK), "it was there all the time");
        }
        // Its writer renews every 10 s, had it been heard.
        if stopped {
            world.pass(Duration::from_secs(60));
            assert!(world.terms.held_up(world.now, Duration::ZERO, TICK));
        } else {
            world.pass(TICK);
            world.terms.failed(world.now);
        }
        assert_eq!(world.expire().intents, 0, "stopped: {stopped}");
        world.pass(Duration::from_secs(30) - MOMENT);
        assert_eq!(renew(&mut world, &begun), Ok(MetaAnswer::Done), "stopped: {stopped}");
        world.pass(Duration::from_secs(30));
        assert_eq!(world.expire().intents, 1, "and ends once nobody renews it");
    }
}

#[test]
fn every_put_has_its_lease_after_a_restart_whose_clock_is_ahead() {
    restart(|before| before + Duration::from_secs(3600));
    restart(|before| before + 10 * YEAR);
}

#[test]
fn every_put_has_one_lease_after_a_restart_whose_clock_is_behind() {
    restart(|before| Time(before.0 - u64::try_from((10 * YEAR).as_nanos()).unwrap()));
    restart(|before| Time(before.0 - 60_000_000_000));
}

#[test]
fn answers_are_kept_as_long_after_a_restart_as_ever_and_not_longer() {
    let hour = 3600 * 1_000_000_000;
    for at in [
        |before: Time| Time(before.0 + 3600 * 1_000_000_000),
        |before: Time| Time(before.0 - 3600 * 1_000_000_000),
    ] {
        let mut world = world();
        assert!(world.now.0 > hour);
        world.expire_all();
        let id = world.next_id();
        let begin = Change::BeginPut { bucket: "data".into(), key: "k".into(), segments: 1 };
        let answer = world.change_as(id, &begin);
        let at = at(world.now);
        world.restart(at);
        world.pass(world.terms.answers_kept - MOMENT);
        world.expire_all();
        assert_eq!(world.change_as(id, &begin), answer);
        world.pass(MOMENT);
        world.expire_all();
        assert_eq!([0x50, 0x51].map(|tag| world.records(tag)), [0; 2]);
        assert_ne!(world.change_as(id, &begin), answer);
    }
}
