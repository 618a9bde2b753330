//! Hosts, the links between them, and connections: what is sent on one connection arrives in order, after the link's
//! delay, at the speed of the slower of the two hosts' interfaces.
//!
//! The dissertation's network is a delay and nothing else (§6.2.2): [`Link::delay`] alone is that. Loss is what TCP makes of
//! it: the message and all behind it on the connection come a retransmission later (RFC 6298: a round trip and four times its
//! variation, 200 ms at least, as Linux has it).

use crate::{
    message::FRAME_BYTES,
    random::{self, Purpose},
};
use core::time::Duration;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use steadfast_protocol::Time;

/// The shortest time after which an unanswered segment is sent again.
const RETRANSMIT_MIN: Duration = Duration::from_millis(200);

/// One host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HostId {
    /// A client.
    Client(u32),
    /// A storage server.
    Node(u32),
    /// The metadata server.
    Meta,
}

impl HostId {
    fn number(self) -> u64 {
        match self {
            HostId::Client(number) => u64::from(number) << 1,
            HostId::Node(number) => u64::from(number) << 1 | 1,
            HostId::Meta => 1 << 33,
        }
    }
}

/// The way between two hosts, one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// How long a message is on the way.
    pub delay: Duration,
    /// Up to so much more, drawn evenly for each message: messages on different connections overtake each other.
    pub jitter: Duration,
    /// The probability that a message has to be sent again.
    pub loss: f64,
}

impl Link {
    /// A way of half `round_trip`, and nothing else.
    pub fn of_round_trip(round_trip: Duration) -> Self {
        Self { delay: round_trip / 2, jitter: Duration::ZERO, loss: 0.0 }
    }
}

/// What the hosts' interfaces and links do to messages.
#[derive(Debug)]
pub struct Network {
    seed: u64,
    link: Link,
    links: BTreeMap<(HostId, HostId), Link>,
    /// Bytes per second of a host's interface, each direction.
    speeds: BTreeMap<HostId, f64>,
    /// When an interface has sent or received all it has to.
    sending_until: BTreeMap<HostId, Time>,
    receiving_until: BTreeMap<HostId, Time>,
    /// When the last message of a connection arrives.
    arrived: BTreeMap<(HostId, HostId), Time>,
    cut: BTreeSet<(HostId, HostId)>,
    random: BTreeMap<(HostId, HostId), Pcg64Mcg>,
}

impl Network {
    /// All hosts are linked by `link`, and their interfaces have no limit.
    pub fn new(seed: u64, link: Link) -> Self {
        Self {
            seed,
            link,
            links: BTreeMap::new(),
            speeds: BTreeMap::new(),
            sending_until: BTreeMap::new(),
            receiving_until: BTreeMap::new(),
            arrived: BTreeMap::new(),
            cut: BTreeSet::new(),
            random: BTreeMap::new(),
        }
    }

    /// The way from `from` to `to` is another one.
    pub fn set_link(&mut self, from: HostId, to: HostId, link: Link) {
        self.links.insert((from, to), link);
    }

    /// The interface of `host` takes so many bytes per second, each direction.
    ///
    /// # Panics
    /// When that is not a positive number.
    pub fn set_speed(&mut self, host: HostId, bytes_per_s: f64) {
        assert!(bytes_per_s > 0.0, "an interface of {bytes_per_s} bytes per second");
        self.speeds.insert(host, bytes_per_s);
    }

    /// From now on nothing comes through between the two, either way; or again.
    pub fn set_cut(&mut self, one: HostId, other: HostId, cut: bool) {
        for way in [(one, other), (other, one)] {
            if cut {
                self.cut.insert(way)
            } else {
                self.cut.remove(&way)
            };
        }
    }

    /// When a message sent at `now` arrives; `None` where it never does.
    pub fn deliver(&mut self, now: Time, from: HostId, to: HostId, payload_bytes: u32) -> Option<Time> {
        if self.cut.contains(&(from, to)) {
            return None;
        }
        let bytes = u64::from(payload_bytes) + FRAME_BYTES;
        let link = self.links.get(&(from, to)).copied().unwrap_or(self.link);
        let takes = |speed: Option<&f64>| speed.map(|speed| Duration::from_secs_f64(bytes as f64 / speed));
        let mut at = now;
        let sending = takes(self.speeds.get(&from));
        if let Some(takes) = sending {
            let until = self.sending_until.entry(from).or_default();
            *until = at.max(*until) + takes;
            at = *until;
        }
        at = at + link.delay;
        if link.jitter > Duration::ZERO || link.loss > 0.0 {
            let name = from.number() << 32 | to.number();
            let random = self
                .random
                .entry((from, to))
                .or_insert_with(|| random::stream(self.seed, Purpose::Link, name));
            at = at + link.jitter.mul_f64(random::unit(random));
            if random::unit(random) < link.loss {
                at = at + RETRANSMIT_MIN.max(2 * link.delay + 4 * link.jitter);
            }
        }
        if let Some(takes) = takes(self.speeds.get(&to)) {
            // The last byte is here at `at` at the soonest, the first came as much sooner as sending took. It may come while another
            // message is received, and waits for its turn.
            let first = Time(at.0.saturating_sub(sending.unwrap_or_default().as_nanos() as u64));
            let until = self.receiving_until.entry(to).or_default();
            *until = at.max(first.max(*until) + takes);
            at = *until;
        }
        let last = self.arrived.entry((from, to)).or_default();
        *last = at.max(*last);
        Some(*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = HostId::Client(0);
    const B: HostId = HostId::Node(0);
    const C: HostId = HostId::Node(1);

    fn millis(at: Option<Time>) -> f64 {
        at.unwrap().0 as f64 / 1e6
    }

    #[test]
    fn a_delay_is_a_delay_and_a_cut_is_silence() {
        let mut network = Network::new(1, Link::of_round_trip(Duration::from_millis(10)));
        assert_eq!(millis(network.deliver(Time(0), A, B, 1 << 20)), 5.0);
        network.set_cut(B, A, true);
        assert_eq!(network.deliver(Time(0), A, B, 1), None);
        assert_eq!(network.deliver(Time(0), B, A, 1), None);
        assert_eq!(millis(network.deliver(Time(0), A, C, 1)), 5.0);
        network.set_cut(A, B, false);
        assert_eq!(millis(network.deliver(Time(0), A, B, 1)), 5.0);
    }

    #[test]
    fn messages_to_one_host_take_its_interface_one_after_the_other() {
        let mut network = Network::new(1, Link::of_round_trip(Duration::from_millis(2)));
        network.set_speed(A, 1e6);
        let bytes = 100_000 - FRAME_BYTES as u32;
        assert_eq!(millis(network.deliver(Time(0), B, A, bytes)), 101.0);
        assert_eq!(millis(network.deliver(Time(0), C, A, bytes)), 201.0);
        let idle = Time(1_000_000_000);
        assert_eq!(millis(network.deliver(idle, B, A, bytes)), 1101.0, "also after a rest");
        assert_eq!(
            millis(network.deliver(Time(0), A, B, bytes)),
            101.0,
            "the other direction is another one"
        );
        assert_eq!(millis(network.deliver(Time(0), A, C, bytes)), 201.0);
        // What is sent as fast as it is received takes the time once.
        network.set_speed(B, 1e6);
        let later = Time(2_000_000_000);
        assert_eq!(millis(network.deliver(later, B, A, bytes)), 2101.0);
    }

    #[test]
    fn a_connection_keeps_its_order_whatever_is_lost_or_late() {
        let delay = Duration::from_millis(1);
        let mut network = Network::new(7, Link { delay, jitter: Duration::from_millis(5), loss: 0.05 });
        let mut last = [0.0; 2];
        let (mut overtaken, mut late) = (false, false);
        for step in 0..1000u64 {
            let now = Time(step * 100_000);
            let arrivals = [B, C].map(|to| millis(network.deliver(now, A, to, 10)));
            assert!(arrivals[0] >= last[0] && arrivals[1] >= last[1]);
            overtaken |= arrivals[0] > arrivals[1];
            late |= arrivals[0] > now.0 as f64 / 1e6 + 200.0;
            last = arrivals;
        }
        assert!(overtaken && late);
    }
}
