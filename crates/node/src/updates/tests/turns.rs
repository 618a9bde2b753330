//! Whose turn it is to be with a host: its task's, or a thread's that has an answer.

use super::super::{
    Hosts, Updates,
    host::{Host, Lane, Running},
};
use crate::{
    devices::ServedDevice,
    membership::{Meta, hello},
};
use std::{
    sync::{Arc, Barrier, Mutex},
    thread,
};
use steadfast_disk::{OpError, OpOutput, SegmentId};
use steadfast_net::{Options, Pool};
use steadfast_protocol::message::{Fault, Role};
use tokio::sync::mpsc;

/// Writes down what it does, and on which thread; breaks an invariant at question 13.
#[derive(Default)]
struct Scribe {
    did: Vec<(&'static str, u32, thread::ThreadId)>,
    over: bool,
    /// Done once it has seen to all answers, before it goes.
    going: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Scribe {
    fn did(&mut self, what: &'static str, number: u32) {
        self.did.push((what, number, thread::current().id()));
    }
}

impl Host for Scribe {
    type Event = ();
    type Asked = u32;

    const ENDS: &'static str = "a test is over";

    fn hosts(_: &Updates) -> &Hosts<()> {
        unreachable!("it is in no list")
    }

    async fn begin(
        _: &Arc<Updates>,
        _: Arc<ServedDevice>,
        _: SegmentId,
        _: mpsc::UnboundedSender<()>,
        _: Lane<Self>,
    ) -> Result<Self, Fault> {
        Ok(Self::default())
    }

    fn answered(&mut self, asked: u32, _: Result<OpOutput, OpError>) {
        assert_ne!(asked, 13);
        self.did("answered", asked);
    }

    fn carry_out(&mut self, _: &Arc<Updates>) {
        let done = self.did.len() as u32;
        self.did("carried out", done);
    }

    fn is_over(&self) -> bool {
        if let Some(going) = self.going.lock().unwrap().take() {
            going();
        }
        self.over
    }

    async fn serve(_: &Running<Self>, _: &mut mpsc::UnboundedReceiver<()>) -> Option<Fault> {
        None
    }

    async fn end(self, _: &Fault, _: &mut mpsc::UnboundedReceiver<()>) {}

    fn turn_away((): (), _: &Fault) {}
}

fn running() -> Arc<Running<Scribe>> {
    let meta = Meta::new("127.0.0.1:1", super::NODE, super::CLUSTER, &Options::default(), 1);
    let pool = Pool::new(hello(Role::Node(super::NODE), Some(super::CLUSTER)), Options::default());
    let running = Running::new(Arc::new(Updates::new(Arc::new(meta), pool)));
    running.put(Scribe::default());
    Arc::new(running)
}

#[tokio::test]
async fn an_answer_is_heard_where_it_comes_and_left_where_another_thread_is_with_the_host() {
    let running = running();
    let here = thread::current().id();
    let elsewhere = |number: u32| {
        let running = running.clone();
        thread::spawn(move || {
            running.answered(number, Ok(OpOutput::Durable));
            thread::current().id()
        })
    };
    let lane = elsewhere(1).join().unwrap();
    let seen = running.with(|host| host.did.clone());
    assert_eq!(seen, [("answered", 1, lane), ("carried out", 1, lane)]);
    // While this thread is with it, others leave their answers and do not wait.
    running.with(|_| {
        for number in 2..5 {
            elsewhere(number).join().unwrap();
        }
    });
    let seen = running.with(|host| host.did.clone());
    let answered: Vec<_> = seen.iter().filter(|did| did.0 == "answered").map(|did| (did.1, did.2)).collect();
    assert_eq!(answered, [(1, lane), (2, here), (3, here), (4, here)], "in the order of the lane");
    // One that comes when all are seen to, and the host is not left yet.
    let late = running.clone();
    let answering = move || drop(thread::spawn(move || late.answered(9, Ok(OpOutput::Durable))).join());
    running.with(|host| host.going = Mutex::new(Some(Box::new(answering))));
    let seen = running.with(|host| host.did.clone());
    assert!(seen.contains(&("answered", 9, here)), "nobody else would see to it");
    // Many at once: none is lost, whoever is with it.
    let all = Arc::new(Barrier::new(8));
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let (running, all) = (running.clone(), all.clone());
            thread::spawn(move || {
                all.wait();
                for number in 0..500 {
                    match thread {
                        0 => running.with(|_| ()),
                        _ => running.answered(1000 * thread + number, Ok(OpOutput::Durable)),
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let seen = running.with(|host| std::mem::take(&mut host.did));
    let mut answered: Vec<_> = seen.iter().filter(|did| did.0 == "answered").map(|did| did.1).collect();
    answered.retain(|&number| number >= 1000);
    assert!((1..8).all(|thread| answered.iter().filter(|&&number| number / 1000 == thread).is_sorted()));
    assert_eq!(answered.len(), 7 * 500);
}

#[tokio::test]
async fn its_task_learns_that_it_is_over_and_a_broken_invariant_is_its_own_end() {
    let running = running();
    running.with(|host| host.over = true);
    running.answered(1, Ok(OpOutput::Durable));
    running.over.notified().await;
    let broken = running.clone();
    let lane = thread::spawn(move || broken.answered(13, Ok(OpOutput::Durable)));
    lane.join().expect("the lane's thread goes on");
    running.over.notified().await;
    running.answered(2, Ok(OpOutput::Durable));
    let serving = tokio::spawn(async move { running.with(|_| ()) });
    assert!(serving.await.unwrap_err().is_panic());
}
