use super::*;

const MS: u64 = 1_000_000;

fn at_ms(ms: u64) -> Time {
    Time(ms * MS)
}

fn link(delay_ms: u64, rate_bytes_per_s: Option<u64>) -> Link {
    Link { delay: Duration::from_millis(delay_ms), rate_bytes_per_s }
}

#[test]
fn a_frame_is_serialised_then_delayed() {
    let mut pacer = Pacer::new(link(50, Some(1_000_000)));
    assert!(pacer.ready(at_ms(3)));
    pacer.put(at_ms(3), 10_000, 'a');
    assert_eq!(pacer.wake_at(false), Some(at_ms(63)));
    assert_eq!(pacer.pop_due(Time(63 * MS - 1)), None);
    assert_eq!(pacer.pop_due(at_ms(63)), Some('a'));
    assert!(pacer.is_empty());
    assert_eq!(pacer.wake_at(false), None);
}

#[test]
fn frames_wait_for_the_link_and_not_for_the_delay_of_others() {
    let mut pacer = Pacer::new(link(100, Some(1_000_000)));
    pacer.put(at_ms(0), 5_000, 1);
    assert!(!pacer.ready(at_ms(1)));
    assert_eq!(pacer.wake_at(true), Some(at_ms(5)));
    assert!(pacer.ready(at_ms(5)));
    pacer.put(at_ms(5), 5_000, 2);
    assert_eq!(pacer.len(), 2);
    assert_eq!((pacer.pop_due(at_ms(105)), pacer.pop_due(at_ms(105))), (Some(1), None));
    assert_eq!(pacer.pop_due(at_ms(110)), Some(2));
}

/// A timer that is up to a millisecond late at every step does not change when the last frame goes.
#[test]
fn lateness_does_not_add_up() {
    let mut pacer = Pacer::new(link(0, Some(100_000_000)));
    let mut now = Time(0);
    let mut left = 1_000;
    let mut late_ns = 0;
    loop {
        while left > 0 && pacer.ready(now) {
            pacer.put(now, 65_536, left);
            left -= 1;
        }
        if left == 0 {
            break;
        }
        late_ns = (late_ns + 377_777) % MS;
        now = Time(pacer.wake_at(true).expect("a frame waits").0 + late_ns);
        while pacer.pop_due(now).is_some() {}
    }
    let ideal_ns = 1_000 * 655_360;
    assert_eq!(pacer.free_at, Time(ideal_ns));
}

#[test]
fn an_idle_link_saves_no_time_up() {
    let mut pacer = Pacer::new(link(0, Some(1_000_000)));
    pacer.put(at_ms(0), 1_000, 'a');
    assert!(!pacer.ready(at_ms(0)));
    assert!(pacer.ready(at_ms(1)));
    pacer.put(at_ms(1), 1_000, 'b');
    pacer.idle();
    // Nothing waited between 2 and 100 ms: the next frame starts when it comes.
    assert!(pacer.ready(at_ms(100)));
    pacer.put(at_ms(100), 1_000, 'c');
    assert_eq!(pacer.free_at, at_ms(101));
}

#[test]
fn a_link_without_a_rate_only_delays() {
    let mut pacer = Pacer::new(link(10, None));
    for frame in 0..100 {
        assert!(pacer.ready(at_ms(1)));
        pacer.put(at_ms(1), 1 << 20, frame);
    }
    assert_eq!(pacer.pop_due(at_ms(10)), None);
    for frame in 0..100 {
        assert_eq!(pacer.pop_due(at_ms(11)), Some(frame));
    }
    assert!(Link::default().is_transparent());
    assert!(!link(1, None).is_transparent() && !link(0, Some(1)).is_transparent());
}
