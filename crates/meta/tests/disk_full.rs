//! A disk that takes no more: changes fail with a typed error, reads go on, nothing acknowledged is lost.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

mod support;

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};
use steadfast_meta::Service;
use steadfast_protocol::{
    RequestId,
    message::{MetaAnswer, MetaFault},
};
use support::{ask, begin, block_on, commit, list, lookup, options, set_up};

const WORKER_DIR: &str = "STEADFAST_TEST_FULL_DIR";

/// Not a test of its own: runs where files cannot grow beyond a limit.
#[test]
fn worker() {
    let Ok(dir) = env::var(WORKER_DIR) else { return };
    let service = Service::open(&options(Path::new(&dir))).unwrap();
    block_on(async {
        let mut put = 0;
        let fault = loop {
            match put_one(&service, put).await {
                Ok(_) => put += 1,
                Err(fault) => break fault,
            }
            assert!(put < 100_000, "the limit was never met");
        };
        assert!(matches!(fault, MetaFault::Store(_)), "{fault:?}");
        // Again and again: refused or, where room was left, taken; reads go on either way.
        for _ in 0..5 {
            assert!(lookup(&service, &key(0)).await.is_ok());
            assert_eq!(list(&service, "", 1000).await.len() as u64, put);
            match put_one(&service, put).await {
                Ok(_) => put += 1,
                Err(fault) => assert!(matches!(fault, MetaFault::Store(_)), "{fault:?}"),
            }
        }
        println!("\nacknowledged {put}");
    });
}

fn key(put: u64) -> String {
    format!("{put:08}/{}", "long".repeat(200))
}

async fn put_one(service: &Service, put: u64) -> Result<MetaAnswer, MetaFault> {
    let id = |step| RequestId { client: 9, count: put * 2 + step };
    let begun = match ask(service, id(0), begin(&key(put))).await? {
        MetaAnswer::Begun(begun) => begun,
        other => panic!("{other:?}"),
    };
    ask(service, id(1), commit(&begun, 1)).await
}

#[test]
fn a_full_disk_stops_changes_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let service = Service::open(&options(dir.path())).unwrap();
        set_up(&service).await;
    });
    // The file may grow to 4 MiB: writes beyond fail with EFBIG once the signal is ignored.
    let script = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" worker --exact --nocapture";
    let worker = Command::new("sh")
        .args(["-c", script])
        .arg(env::current_exe().unwrap())
        .env(WORKER_DIR, dir.path())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&worker.stdout).into_owned();
    assert!(worker.status.success(), "{printed}");
    let acknowledged: u64 = printed
        .lines()
        .find_map(|line| line.strip_prefix("acknowledged ")?.parse().ok())
        .expect("the worker says what it acknowledged");
    assert!(acknowledged > 10);
    // Room again.
    let service = Service::open(&options(dir.path())).unwrap();
    block_on(async {
        let before = list(&service, "", 1000).await.len() as u64;
        assert!(before >= acknowledged, "{before} of {acknowledged} objects");
        assert!(put_one(&service, acknowledged).await.is_ok());
        assert!(put_one(&service, acknowledged + 1).await.is_ok());
    });
}
