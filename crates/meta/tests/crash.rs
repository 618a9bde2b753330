//! Kill -9 under load: what was acknowledged is there, what is asked again answers the same, and the server is back
//! at once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

mod support;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};
use steadfast_meta::{Service, Store};
use steadfast_protocol::{
    IntentId, RequestId, Time,
    message::{Change, MetaAnswer, MetaFault, PutBegun, encode},
    meta::{self, Liveness, Terms},
};
use support::{BUCKET, ask, begin, block_on, commit, list, lookup, options, seed, set_up, setup};

const WORKER_DIR: &str = "STEADFAST_TEST_WORKER_DIR";
const WORKER_ROUND: &str = "STEADFAST_TEST_WORKER_ROUND";
const CLIENTS: u64 = 12;

/// One client's requests: each follows from those before and their answers alone.
struct Plan {
    client: u128,
    count: u64,
    last: Option<PutBegun>,
    objects: BTreeMap<String, u64>,
    committing: Option<(String, u32)>,
}

impl Plan {
    fn new(round: u64, client: u64) -> Self {
        let client = (u128::from(round) + 1) << 64 | u128::from(client);
        Self { client, count: 0, last: None, objects: BTreeMap::new(), committing: None }
    }

    fn key(&self, number: u64) -> String {
        format!("client-{:x}/{}", self.client, number % 7)
    }

    fn next(&self) -> (RequestId, Change) {
        let id = RequestId { client: self.client, count: self.count };
        let remove = |number| Change::Remove { bucket: BUCKET.into(), key: self.key(number) };
        let change = match (self.count % 4, &self.last) {
            (1, Some(last)) => commit(last, (self.count % 1000) as u32),
            // Removes what is there and what is not.
            (2, _) => remove(self.count / 4 * 3),
            (3, _) => Change::Abort { intent: IntentId(u64::MAX - self.count) },
            _ => begin(&self.key(self.count / 4)),
        };
        (id, change)
    }

    fn take(&mut self, change: &Change, answer: &Result<MetaAnswer, MetaFault>) {
        match (change, answer) {
            (Change::BeginPut { .. }, Ok(MetaAnswer::Begun(begun))) => {
                self.last = Some(begun.clone());
                self.committing = Some((self.key(self.count / 4), 0));
            }
            (Change::Commit { size, .. }, Ok(MetaAnswer::Committed { .. })) => {
                let (key, _) = self.committing.take().expect("a commit follows a begin");
                self.objects.insert(key, *size);
            }
            (Change::Remove { key, .. }, Ok(MetaAnswer::Removed { .. })) => {
                assert!(self.objects.remove(key).is_some(), "removed what was never there");
            }
            (Change::Remove { key, .. }, Err(MetaFault::NoObject { .. })) => {
                assert!(!self.objects.contains_key(key), "{key} was lost");
            }
            (Change::Abort { .. }, Err(MetaFault::IntentOver(_))) => {}
            other => panic!("unexpected: {other:?}"),
        }
        self.count += 1;
    }
}

/// Not a test of its own: the process that is killed.
#[test]
fn worker() {
    let Ok(dir) = env::var(WORKER_DIR) else { return };
    let round: u64 = env::var(WORKER_ROUND).unwrap().parse().unwrap();
    let service = Arc::new(Service::open(&options(Path::new(&dir))).unwrap());
    block_on(async {
        let mut clients = tokio::task::JoinSet::new();
        (0..CLIENTS).for_each(|client| {
            let service = Arc::clone(&service);
            clients.spawn(async move {
                let mut plan = Plan::new(round, client);
                loop {
                    let (id, change) = plan.next();
                    let answer = ask(&service, id, change.clone()).await;
                    let hex: String = encode(&answer).iter().map(|byte| format!("{byte:02x}")).collect();
                    writeln!(std::io::stdout(), "acknowledged {client} {} {hex} whole", plan.count).unwrap();
                    plan.take(&change, &answer);
                }
            });
        });
        if let Some(Err(ended)) = clients.join_next().await {
            panic!("a client ended: {ended}");
        }
    });
}

fn start_worker(dir: &Path, round: u64) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["worker", "--exact", "--nocapture"])
        .env(WORKER_DIR, dir)
        .env(WORKER_ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lets a worker run until it acknowledged `changes`, kills it, and gives everything that it acknowledged.
fn run_and_kill(dir: &Path, round: u64, changes: usize) -> BTreeMap<(u64, u64), String> {
    /// Far longer than it takes to the next line on a busy machine.
    const WITHIN: Duration = Duration::from_secs(60);
    let mut worker = start_worker(dir, round);
    let output = BufReader::new(worker.stdout.take().unwrap());
    let (tell, lines) = mpsc::channel();
    // A worker that stands still says nothing, and its output does not end.
    thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let mut acknowledged = BTreeMap::new();
    let mut take = |line: String| {
        let mut words = line.split(' ').skip_while(|&word| word != "acknowledged").skip(1);
        let mut word = || words.next();
        // What was cut short was not acknowledged whole; what was is all its client's next change needs to be on its way.
        if let (Some(client), Some(count), Some(answer), Some("whole")) = (word(), word(), word(), word()) {
            acknowledged.insert((client.parse().unwrap(), count.parse().unwrap()), answer.to_owned());
        }
    };
    for line in 0..changes {
        match lines.recv_timeout(WITHIN) {
            Ok(line) => take(line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                worker.kill().unwrap();
                panic!("the worker stands still after {line} lines");
            }
        }
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
    // What it still wrote before it died.
    lines.iter().for_each(&mut take);
    acknowledged
}

#[test]
fn acknowledged_changes_survive_and_answer_the_same() {
    let mut random = Pcg64Mcg::seed_from_u64(seed());
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let service = Service::open(&options(dir.path())).unwrap();
        set_up(&service).await;
    });
    let mut expected = BTreeMap::new();
    let mut retried = 0;
    for round in 0..5 {
        let acknowledged = run_and_kill(dir.path(), round, 20 + random.next_u32() as usize % 1500);
        assert!(acknowledged.len() > 10);
        let service = Service::open(&options(dir.path())).unwrap();
        block_on(async {
            for client in 0..CLIENTS {
                let mut plan = Plan::new(round, client);
                while let Some(before) = acknowledged.get(&(client, plan.count)) {
                    let (id, change) = plan.next();
                    let answer = ask(&service, id, change.clone()).await;
                    let hex: String = encode(&answer).iter().map(|byte| format!("{byte:02x}")).collect();
                    assert_eq!(&hex, before, "request {id:?} answers otherwise: {answer:?}");
                    plan.take(&change, &answer);
                }
                // The next was perhaps on its way: asked again it takes effect once.
                let (id, change) = plan.next();
                let answer = ask(&service, id, change.clone()).await;
                assert_eq!(ask(&service, id, change.clone()).await, answer);
                plan.take(&change, &answer);
                retried += 1;
                expected.extend(plan.objects);
            }
            let listed: BTreeMap<_, _> =
                list(&service, "", 100).await.into_iter().map(|object| (object.key, object.size)).collect();
            assert_eq!(listed, expected);
            for key in expected.keys() {
                assert!(lookup(&service, key).await.is_ok(), "{key} has no layouts");
            }
        });
    }
    assert_eq!(retried, 5 * CLIENTS);
}

#[test]
fn fifty_thousand_objects_are_back_at_once_after_a_kill() {
    const OBJECTS: u64 = 50_000;
    // Generous: with debug assertions the database walks its pages on opening, without them it does not. That nothing is walked
    // whole is seen below.
    const BOUND: Duration = Duration::from_secs(20);
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path().to_owned(), OBJECTS);
    let acknowledged = run_and_kill(dir.path(), 0, 100);
    assert!(acknowledged.len() >= 50);
    let began = Instant::now();
    let service = Service::open(&options(dir.path())).unwrap();
    block_on(async {
        assert!(lookup(&service, "object-00000017").await.is_ok());
        let took = began.elapsed();
        println!("{} ms to the first answer", took.as_millis());
        assert!(took < BOUND, "{took:?} until the first answer");
        assert_eq!(list(&service, "object-", 1000).await.len() as u64, OBJECTS);
        service.stop().await;
    });
    // Killed again: the database must not ask for the walk over everything that it calls a repair.
    run_and_kill(dir.path(), 1, 100);
    let walked = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&walked);
    let mut builder = redb::Builder::new();
    builder.set_repair_callback(move |_| seen.store(true, Ordering::Relaxed));
    builder.open(dir.path().join("meta.redb")).unwrap();
    assert!(!walked.load(Ordering::Relaxed), "the store was walked whole after a kill");
}

/// Puts objects by the cores' own changes, thousands to a commit.
fn fill(dir: PathBuf, objects: u64) {
    let store = Store::open(&dir, 64 << 20).unwrap();
    let (terms, liveness) = (Terms::default(), Liveness::new(Time(0), Duration::MAX));
    let mut count = 0;
    let mut change = |batch: &mut steadfast_meta::store::Batch<'_>, change: Change| {
        count += 1;
        let id = RequestId { client: u128::MAX, count };
        batch.transact(|txn| meta::change(txn, Time(1), &terms, &liveness, id, &change))
    };
    store.write(|batch| setup().into_iter().for_each(|setup| drop(change(batch, setup).unwrap()))).unwrap();
    for first in (0..objects).step_by(5000) {
        let filled = store.write(|batch| {
            for object in first..objects.min(first + 5000) {
                let begun = support::begun(change(batch, begin(&format!("object-{object:08}"))));
                change(batch, commit(&begun, 10)).unwrap();
            }
            while batch.transact(|txn| meta::expire(txn, Time(u64::MAX / 2), &terms)).unwrap().more {}
        });
        filled.unwrap();
    }
}
