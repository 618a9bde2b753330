//! Which request goes to a device next while bandwidth of it is reserved: start-time fair queueing with a bounded number
//! of bytes at the device (SFQ(D): Goyal 1996; Jin, Chase and Kaur 2004).
//!
//! Every flow has a weight: a reservation its share of the device's time, all work without one together what is left.
//! A request costs the time it takes at the device. It is tagged with the virtual time at which it would start if each
//! flow had a device of its own, as slow as its weight is small; the lowest tag goes first. So a flow that asks for its
//! share gets it whatever the others do, and what a flow does not use goes to the others at once: nothing waits while the
//! device is idle. A request that is taken out again, or comes back undone, costs its flow nothing: readers ask for more than
//! they need, and take back what they did not.
//!
//! Invariants: a flow's requests go in the order they came; bytes at the device exceed the depth by at most one request.

use crate::ReservationId;
use std::collections::{BTreeMap, VecDeque};

/// Whose requests are served together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flow {
    /// An access that reserved bandwidth.
    Reserved(ReservationId),
    /// Accesses that did not.
    BestEffort,
    /// Work that nobody waits for.
    Background,
}

/// The requests of one device that wait for their turn.
#[derive(Clone, Debug, Default)]
pub struct Fair {
    flows: BTreeMap<Flow, Line>,
    virtual_s: f64,
    waiting_bytes: u64,
    at_device_bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct Line {
    /// The virtual time at which the flow's last request would end.
    finish_s: f64,
    /// When the flow last had rested before it asked for more.
    since_s: f64,
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: u64,
    start_s: f64,
    span_s: f64,
    bytes: u64,
}

/// What a request costs its flow.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    flow: Flow,
    /// Seconds of virtual time.
    span_s: f64,
    /// The end of its span.
    finish_s: f64,
}

impl Fair {
    /// A request of `flow`, which has the share `weight` of the device, comes in; it takes the device `cost_s` seconds. What that costs
    /// the flow can be given back by [`Fair::refund`] once the request has gone to the device.
    ///
    /// # Panics
    /// When `weight` is not a positive number: the driver's mistake.
    pub fn submit(&mut self, flow: Flow, weight: f64, request: u64, bytes: u64, cost_s: f64) -> Charge {
        assert!(weight > 0.0 && weight.is_finite(), "a flow of weight {weight}");
        let line = self.flows.entry(flow).or_default();
        let start_s = line.finish_s.max(self.virtual_s);
        let span_s = cost_s / weight;
        if line.finish_s < start_s {
            line.since_s = start_s;
        }
        line.finish_s = start_s + span_s;
        line.waiting.push_back(Waiting { request, start_s, span_s, bytes });
        self.waiting_bytes += bytes;
        Charge { flow, span_s, finish_s: start_s + span_s }
    }

    /// The request that goes to the device now; none while `depth_bytes` are there.
    pub fn next(&mut self, depth_bytes: u64) -> Option<u64> {
        if self.at_device_bytes >= depth_bytes.max(1) {
            return None;
        }
        let first = |(&flow, line): (&Flow, &Line)| Some((line.waiting.front()?.start_s, flow));
        let (start_s, flow) =
            self.flows.iter().filter_map(first).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
        let next = self.flows.get_mut(&flow)?.waiting.pop_front()?;
        self.virtual_s = self.virtual_s.max(start_s);
        self.waiting_bytes -= next.bytes;
        self.at_device_bytes += next.bytes;
        // A flow that has been idle for long has nothing to remember.
        let now_s = self.virtual_s;
        self.flows.retain(|_, line| !line.waiting.is_empty() || line.finish_s > now_s);
        Some(next.request)
    }

    /// A request that [`Fair::next`] did not give, of so many bytes, went to the device.
    pub fn passed(&mut self, bytes: u64) {
        self.at_device_bytes += bytes;
    }

    /// A request came back from the device.
    ///
    /// # Panics
    /// When so much was not there: the driver's mistake.
    pub fn finished(&mut self, bytes: u64) {
        assert!(bytes <= self.at_device_bytes, "{bytes} bytes came back of {}", self.at_device_bytes);
        self.at_device_bytes -= bytes;
    }

    /// Takes out the waiting requests that `unwanted` names; those behind them move up.
    pub fn withdraw(&mut self, unwanted: impl Fn(u64) -> bool) {
        for line in self.flows.values_mut() {
            let mut saved_s = 0.0;
            line.waiting.retain_mut(|waiting| {
                let drop = unwanted(waiting.request);
                if drop {
                    self.waiting_bytes -= waiting.bytes;
                    saved_s += waiting.span_s;
                } else {
                    waiting.start_s = (waiting.start_s - saved_s).max(self.virtual_s);
                }
                !drop
            });
            line.finish_s -= saved_s;
        }
    }

    /// A request that [`Fair::next`] gave came back undone: what waits of its flow moves up.
    pub fn refund(&mut self, charge: Charge) {
        let Some(line) = self.flows.get_mut(&charge.flow) else { return };
        // The flow rested since: its later requests were not put off by this one.
        if charge.finish_s <= line.since_s {
            return;
        }
        for waiting in &mut line.waiting {
            waiting.start_s = (waiting.start_s - charge.span_s).max(self.virtual_s);
        }
        line.finish_s -= charge.span_s;
    }

    /// Bytes of the requests that wait here.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Bytes of the requests at the device.
    pub fn at_device_bytes(&self) -> u64 {
        self.at_device_bytes
    }

    /// Whether none waits here.
    pub fn is_empty(&self) -> bool {
        self.flows.values().all(|line| line.waiting.is_empty())
    }
}
