//! Events in the order of their time; of those at the same time the one scheduled first is first.

use std::{cmp::Reverse, collections::BinaryHeap};
use steadfast_protocol::Time;

/// The events to come, and the time.
#[derive(Debug)]
pub struct Engine<E> {
    now: Time,
    sequence: u64,
    /// When, in which order, and where in `waiting`.
    order: BinaryHeap<Reverse<(Time, u64, usize)>>,
    /// Events do not move while they wait.
    waiting: Vec<Option<E>>,
    free: Vec<usize>,
}

impl<E> Default for Engine<E> {
    fn default() -> Self {
        Self { now: Time(0), sequence: 0, order: BinaryHeap::new(), waiting: Vec::new(), free: Vec::new() }
    }
}

impl<E> Engine<E> {
    /// The time: of the event taken last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Events taken and to come.
    pub fn scheduled(&self) -> u64 {
        self.sequence
    }

    /// Schedules an event.
    ///
    /// # Panics
    /// When `at` is in the past.
    pub fn at(&mut self, at: Time, event: E) {
        assert!(at >= self.now, "an event at {at:?}, and it is {:?}", self.now);
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.waiting.push(None);
                self.waiting.len() - 1
            }
        };
        self.waiting[place] = Some(event);
        self.order.push(Reverse((at, self.sequence, place)));
        self.sequence += 1;
    }

    /// Takes the next event; the time is then its.
    pub fn take(&mut self) -> Option<E> {
        let Reverse((at, _, place)) = self.order.pop()?;
        self.now = at;
        self.free.push(place);
        self.waiting[place].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_scheduling() {
        let mut engine = Engine::default();
        for (at, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            engine.at(Time(at), name);
        }
        let mut seen = Vec::new();
        while let Some(name) = engine.take() {
            seen.push((engine.now().0, name));
            if name == 'b' {
                engine.at(Time(3), 'x');
                engine.at(Time(5), 'e');
            }
        }
        assert_eq!(seen, [(3, 'a'), (3, 'b'), (3, 'x'), (5, 'c'), (5, 'd'), (5, 'e')]);
        assert_eq!(engine.waiting.len(), 4, "places are used again");
    }

    #[test]
    #[should_panic(expected = "an event at")]
    fn nothing_is_scheduled_in_the_past() {
        let mut engine = Engine::default();
        engine.at(Time(5), ());
        engine.take();
        engine.at(Time(4), ());
    }
}
