//! The metadata server: drives the governing cores ([`steadfast_protocol::meta`]) over a store in memory, one request after
//! the other. What a change wrote is kept through a crash, as the real server's is durable before it answers.

use crate::{
    message::{Message, StreamId},
    network::HostId,
    world::{Event, Wire},
};
use core::time::Duration;
use std::collections::BTreeMap;
use steadfast_protocol::{
    ClusterId, Time,
    message::{Change, MetaAnswer, MetaFault, MetaRequest},
    meta::{self, Liveness, MemoryStore, Terms},
};

/// A storage server says when it dies: here nobody waits for heartbeats.
const DEAD_AFTER: Duration = Duration::from_secs(u32::MAX as u64);

pub(crate) struct MetaHost {
    store: MemoryStore,
    liveness: Liveness,
    terms: Terms,
    /// How long it works on a request.
    service: Duration,
    /// When it has answered all it was asked.
    free: Time,
    /// Who waits for an answer, and what they asked; by turn.
    waiting: BTreeMap<u64, (HostId, StreamId, MetaRequest)>,
    turns: u64,
    pub(crate) alive: bool,
}

impl MetaHost {
    pub(crate) fn new(cluster: ClusterId, service: Duration) -> Self {
        let mut store = MemoryStore::new();
        let (established, writes) = meta::view::transact(&store, |txn| meta::establish(txn, cluster));
        established.expect("a store in memory is read");
        store.apply(writes);
        Self {
            store,
            liveness: Liveness::new(Time(0), DEAD_AFTER),
            terms: Terms::default(),
            service,
            free: Time(0),
            waiting: BTreeMap::new(),
            turns: 0,
            alive: true,
        }
    }

    /// A request has come: it waits for its turn.
    pub(crate) fn heard(&mut self, wire: &mut Wire, from: HostId, stream: StreamId, message: Message) {
        match message {
            Message::Ask(request) if self.alive => {
                self.free = self.free.max(wire.now()) + self.service;
                self.turns += 1;
                self.waiting.insert(self.turns, (from, stream, *request));
                wire.at(self.free, Event::Governed { turn: self.turns });
            }
            // Nobody is there, or the request came damaged: its connection is over.
            Message::Ask(_) | Message::Damaged => wire.send(HostId::Meta, from, stream, Message::Lost),
            other => panic!("a metadata server got {other:?}"),
        }
    }

    /// A request's turn is over: it is carried out and answered, unless the server died before.
    pub(crate) fn governed(&mut self, wire: &mut Wire, turn: u64) {
        let Some((from, stream, request)) = self.waiting.remove(&turn) else { return };
        let answer = self.govern(wire.now(), request);
        wire.send(HostId::Meta, from, stream, Message::Answer(Box::new(answer)));
    }

    /// It dies: who waits finds the connection lost, and does not know what became of the request.
    pub(crate) fn crash(&mut self, wire: &mut Wire) {
        self.alive = false;
        for (_, (from, stream, _)) in core::mem::take(&mut self.waiting) {
            wire.send(HostId::Meta, from, stream, Message::Lost);
        }
    }

    /// It is back, with all that was committed; who was heard of it does not know.
    pub(crate) fn restart(&mut self, now: Time) {
        self.alive = true;
        self.free = now;
        self.liveness = Liveness::new(now, DEAD_AFTER);
    }

    /// Carries a request out.
    pub(crate) fn govern(&mut self, now: Time, request: MetaRequest) -> Result<MetaAnswer, MetaFault> {
        match request {
            MetaRequest::Change { id, change } => {
                self.expire(now);
                let (answer, writes) = meta::view::transact(&self.store, |txn| {
                    meta::change(txn, now, &self.terms, &self.liveness, id, &change)
                });
                self.store.apply(writes);
                if let (Ok(_), Change::RegisterNode(record)) = (&answer, &change) {
                    self.liveness.registered(now, record.node);
                }
                answer
            }
            MetaRequest::Ask(query) => meta::ask(&self.store, now, &self.liveness, &query),
            MetaRequest::Heartbeat(heartbeat) => {
                meta::heartbeat(&self.store, now, &mut self.liveness, heartbeat)
            }
            MetaRequest::Account(accesses) => {
                self.liveness.account(&accesses);
                Ok(MetaAnswer::Done)
            }
            MetaRequest::Drain(progress) => self.liveness.drain(now, progress),
        }
    }

    /// What is due is expired before anything changes, as the real server's tick does.
    fn expire(&mut self, now: Time) {
        loop {
            let (expired, writes) =
                meta::view::transact(&self.store, |txn| meta::expire(txn, now, &self.terms));
            self.store.apply(writes);
            if !expired.expect("a store in memory is read").more {
                return;
            }
        }
    }
}
