//! How long a metadata server is away after `kill -9`, how many changes it commits in a second, and how long it takes to list all, page
//! by page.
//!
//! ```text
//! cargo run --release -p steadfast-meta --example million [OBJECTS] [DIRECTORY]
//! ```
//!
//! Builds a store of OBJECTS (a million by default), then several times over starts itself as a second process that
//! puts objects from 16 tasks, kills it with SIGKILL in the middle of that, and times opening the store up to the first
//! answer. Prints one JSON object a line.

use anyhow::{Context, Result, bail};
use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_meta::{MetaOptions, Service, Store};
use steadfast_protocol::{
    DeviceId, IndexRanges, NodeId, RequestId, Time,
    layout::{CodeKind, CodeSpec, Geometry, Holder, SegmentLayout},
    message::{Change, LIST_PAGE_MAX, MetaAnswer, MetaRequest, NodeRecord, PutBegun, Query},
    meta::{self, Liveness, Terms},
    policy::{Pledge, Policy},
};

const WORKER: &str = "STEADFAST_MILLION_WORKER";
const BUCKET: &str = "data";
const OBJECT_BYTES: u64 = 64 << 20;
const KILLS: u64 = 5;
const CACHE_BYTES: usize = 64 << 20;

fn main() -> Result<()> {
    if let Ok(dir) = env::var(WORKER) {
        return put_until_killed(Path::new(&dir));
    }
    let mut arguments = env::args().skip(1);
    let objects: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse()).context("OBJECTS")?;
    let scratch = tempfile::tempdir()?;
    let dir = arguments.next().map_or(scratch.path().join("meta"), PathBuf::from);

    rates(&scratch.path().join("empty"), "empty store")?;
    let began = Instant::now();
    fill(&dir, objects)?;
    print("build", "seconds", began.elapsed().as_secs_f64());
    print("build", "file_bytes", std::fs::metadata(dir.join("meta.redb"))?.len() as f64);
    for _ in 0..KILLS {
        kill_and_time(&dir)?;
    }
    list(&dir, objects)?;
    rates(&dir, "full store")
}

/// Lists the bucket by pages as large as there are.
fn list(dir: &Path, objects: u64) -> Result<()> {
    let service = Service::open(&options(dir))?;
    let began = Instant::now();
    let (mut keys, mut pages, mut slowest, mut after) = (0, 0, 0.0_f64, None::<String>);
    let runtime = runtime()?;
    loop {
        let query = Query::List {
            bucket: BUCKET.into(),
            prefix: "run-".into(),
            after: after.clone(),
            limit: LIST_PAGE_MAX,
        };
        let asked = Instant::now();
        let MetaAnswer::Page { objects: page, more } =
            runtime.block_on(service.handle(MetaRequest::Ask(query)))?
        else {
            bail!("a listing answers a page")
        };
        slowest = slowest.max(asked.elapsed().as_secs_f64());
        if page.windows(2).any(|pair| pair[0].key >= pair[1].key) {
            bail!("a page is out of order");
        }
        keys += page.len() as u64;
        pages += 1;
        after = page.last().map(|object| object.key.clone());
        if !more {
            break;
        }
    }
    if keys != objects {
        bail!("{keys} of {objects} keys were listed");
    }
    print("list", "seconds", began.elapsed().as_secs_f64());
    print("list", "pages", f64::from(pages));
    print("list", "slowest_page_seconds", slowest);
    print("list", "resident_bytes", resident_bytes(std::process::id())?);
    Ok(())
}

fn print(case: &str, metric: &str, value: f64) {
    println!(r#"{{"experiment":"meta-million","case":"{case}","metric":"{metric}","value":{value}}}"#);
}

/// Puts objects by the cores' own changes, thousands to a commit; their intents and answers expire on the way.
fn fill(dir: &Path, objects: u64) -> Result<()> {
    let store = Store::open(dir, 1 << 30)?;
    let (terms, liveness) = (Terms::default(), Liveness::new(Time(0), Duration::MAX));
    let mut count = 0;
    let mut change = |batch: &mut steadfast_meta::store::Batch<'_>, change: Change| {
        count += 1;
        let id = RequestId { client: 1, count };
        batch.transact(|txn| meta::change(txn, Time(1), &terms, &liveness, id, &change))
    };
    store.write(|batch| -> Result<()> {
        for setup in setup() {
            change(batch, setup)?;
        }
        Ok(())
    })??;
    let mut next = 0;
    while next < objects {
        let until = objects.min(next + 5000);
        store.write(|batch| -> Result<()> {
            for object in next..until {
                let key = format!("run-{:03}/image-{object:09}", object % 1000);
                let MetaAnswer::Begun(begun) = change(batch, begin(key))? else { bail!("no put") };
                change(batch, commit(&begun))?;
            }
            while batch.transact(|txn| meta::expire(txn, Time(u64::MAX / 2), &terms))?.more {}
            Ok(())
        })??;
        next = until;
    }
    Ok(())
}

fn setup() -> Vec<Change> {
    let node = |node: u128| {
        Change::RegisterNode(NodeRecord {
            node: NodeId(node),
            cluster: None,
            address: format!("127.0.0.1:{}", 7000 + node),
            site: String::new(),
            devices: vec![(DeviceId(node), 1 << 42)],
        })
    };
    let mut setup: Vec<Change> = (1..=6).map(node).collect();
    setup.push(Change::CreateBucket { bucket: BUCKET.into(), policy: Policy::Rateless(Default::default()) });
    setup
}

fn begin(key: String) -> Change {
    Change::BeginPut { bucket: BUCKET.into(), key, segments: 1 }
}

fn commit(begun: &PutBegun) -> Change {
    let geometry = Geometry::coded(OBJECT_BYTES);
    let share = geometry.originals * 3 / 12;
    let holder = |device: u32| {
        let blocks = IndexRanges::from(device * share..(device + 1) * share);
        Holder::whole(DeviceId(u128::from(device) + 1), begun.segments[0], begun.version, blocks)
    };
    let layout = SegmentLayout {
        segment: begun.segments[0],
        version: begun.version,
        epoch: begun.epoch,
        length: OBJECT_BYTES,
        code: CodeSpec { kind: CodeKind::Mix, originals: geometry.originals, seed: begun.segments[0].0 },
        block_bytes: geometry.block_bytes,
        granule_bytes: geometry.granule_bytes,
        holders: (0..6).map(holder).collect(),
    };
    Change::Commit {
        intent: begun.intent,
        size: OBJECT_BYTES,
        segments: vec![layout],
        pledge: Pledge::default(),
        base: None,
    }
}

fn options(dir: &Path) -> MetaOptions {
    MetaOptions { cache_bytes: CACHE_BYTES, ..MetaOptions::new(dir, "127.0.0.1:0") }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Puts one object: two changes.
async fn put(service: &Service, client: u128, count: &mut u64) -> Result<()> {
    let mut ask = async |change| {
        *count += 1;
        service.handle(MetaRequest::Change { id: RequestId { client, count: *count }, change }).await
    };
    let MetaAnswer::Begun(begun) = ask(begin(format!("load/{client:x}/object"))).await? else {
        bail!("no put")
    };
    ask(commit(&begun)).await?;
    Ok(())
}

fn unique() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() << 16
}

fn put_until_killed(dir: &Path) -> Result<()> {
    let service = Arc::new(Service::open(&options(dir))?);
    runtime()?.block_on(async {
        let tasks: Vec<_> = (0..16)
            .map(|task| {
                let service = Arc::clone(&service);
                tokio::spawn(async move {
                    let (client, mut count) = (unique() + task, 0);
                    loop {
                        put(&service, client, &mut count).await?;
                        println!("put");
                    }
                })
            })
            .collect();
        for task in tasks {
            let ended: Result<()> = task.await?;
            ended?;
        }
        Ok(())
    })
}

fn kill_and_time(dir: &Path) -> Result<()> {
    let mut child = Command::new(env::current_exe()?)
        .env(WORKER, dir)
        .stdout(Stdio::piped())
        .spawn()
        .context("worker")?;
    let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
    let puts = lines.take(200).filter(|line| line.is_ok()).count();
    if puts < 200 {
        bail!("the worker ended after {puts} puts");
    }
    print("under load", "resident_bytes", resident_bytes(child.id())?);
    child.kill()?;
    child.wait()?;

    let began = Instant::now();
    let service = Service::open(&options(dir))?;
    print("after kill -9", "open_seconds", began.elapsed().as_secs_f64());
    let query = Query::Lookup { bucket: BUCKET.into(), key: "run-007/image-000000007".into() };
    runtime()?.block_on(service.handle(MetaRequest::Ask(query)))?;
    print("after kill -9", "first_read_seconds", began.elapsed().as_secs_f64());
    runtime()?.block_on(put(&service, unique(), &mut 0))?;
    print("after kill -9", "first_put_seconds", began.elapsed().as_secs_f64());
    Ok(())
}

fn resident_bytes(process: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024.0)
}

fn rates(dir: &Path, case: &str) -> Result<()> {
    let service = Arc::new(Service::open(&options(dir))?);
    let runtime = runtime()?;
    runtime.block_on(async {
        for (count, change) in (1..).zip(setup()) {
            let id = RequestId { client: unique(), count };
            // A store that was filled has its bucket.
            let _known = service.handle(MetaRequest::Change { id, change }).await;
        }
    });
    for writers in [1u64, 64] {
        let began = Instant::now();
        let puts = if writers == 1 { 100 } else { 40 };
        runtime.block_on(async {
            let tasks: Vec<_> = (0..writers)
                .map(|writer| {
                    let service = Arc::clone(&service);
                    tokio::spawn(async move {
                        let (client, mut count) = (unique() + u128::from(writer), 0);
                        for _ in 0..puts {
                            put(&service, client, &mut count).await?;
                        }
                        anyhow::Ok(())
                    })
                })
                .collect();
            for task in tasks {
                task.await??;
            }
            anyhow::Ok(())
        })?;
        let changes = (2 * puts * writers) as f64;
        print(
            case,
            &format!("changes_per_second_{writers}_writers"),
            changes / began.elapsed().as_secs_f64(),
        );
    }
    Ok(())
}
