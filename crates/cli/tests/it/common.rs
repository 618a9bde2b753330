//! A cluster in a temporary directory, the program as its client, and bytes to store.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::{
    fmt, fs,
    io::{BufRead, BufReader, Cursor, Read, Write},
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Output, Stdio},
    sync::mpsc::{self, Receiver},
    time::{Duration, Instant},
};
use steadfast_client::{AmendError, Client, FileError, Options, PutError, PutReport};
use steadfast_lab::cluster::{LocalCluster, Shape};
use steadfast_protocol::{
    DeviceId,
    message::{DeviceHealth, NodeState, NodeStatus},
};
use tempfile::TempDir;

/// How long something may take that is soon done: much longer than a machine that is busy with other things holds a process up.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_steadfast"))
}

/// The seed of this run: `STEADFAST_SEED`, or one that never changes.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("STEADFAST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_061_120);
    println!("STEADFAST_SEED={seed}");
    seed
}

/// A small cluster with quick sweeps. Its leases outlast what a busy machine holds a client up.
pub(crate) fn shape(nodes: u32, devices: u32) -> Shape {
    Shape {
        nodes,
        devices,
        capacity_bytes: Some(256 << 20),
        lease_s: 20,
        sweep_s: 1,
        emulate: Some("off".to_owned()),
        ..Shape::default()
    }
}

/// Takes a port of this machine (0: a free one) that nobody listens on, nor will while this lives: a free one would
/// soon be some other test's server's.
pub(crate) fn deaf(address: &str) -> (OwnedFd, SocketAddr) {
    let address: SocketAddr = address.parse().unwrap();
    let socket =
        net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    // Those whom a server served there a moment ago do not keep it.
    net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    net::bind(&socket, &address).unwrap();
    let address = net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

/// A running cluster and its directory.
pub(crate) struct Bed {
    pub(crate) cluster: LocalCluster,
    pub(crate) dir: TempDir,
}

impl Bed {
    pub(crate) fn start(shape: &Shape) -> Self {
        let dir = tempfile::Builder::new().prefix("steadfast-test-").tempdir().unwrap();
        let cluster = LocalCluster::start(program(), &dir.path().join("cluster"), shape).unwrap();
        block_on(cluster.client(Options::default())).unwrap();
        Self { cluster, dir }
    }

    /// A cluster with one bucket named `data` under `policy`.
    pub(crate) fn with_bucket(shape: &Shape, policy: &str) -> Self {
        let bed = Self::start(shape);
        bed.ok(&["bucket", "create", "data", "--policy", policy]);
        bed
    }

    /// Runs the program as a client of the cluster.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).env("STEADFAST_CLUSTER", self.cluster.address());
        command
    }

    /// Runs it, and it must succeed; its standard output.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a change until it succeeds; what it says. On a busy machine a device that is well counts as stalled for a while: where
    /// the policy needs all that there are, nothing can be planned then.
    pub(crate) fn settled(&self, arguments: &[&str]) -> String {
        self.settled_from(arguments, &[])
    }

    /// The same of a change whose bytes come from standard input.
    pub(crate) fn settled_from(&self, arguments: &[&str], input: &[u8]) -> String {
        let deadline = Instant::now() + WITHIN;
        loop {
            let mut command = self.command(arguments);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            // It may end before it has read all.
            let _ = child.stdin.take().unwrap().write_all(input);
            let output = child.wait_with_output().unwrap();
            if output.status.success() {
                return String::from_utf8(output.stdout).unwrap();
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(is_not_now(output.status) && Instant::now() < deadline, "{arguments:?}: {said}");
            println!("again: {said}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Runs it, and it must fail with this code; what it says.
    pub(crate) fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        said
    }

    /// A file of bytes made from a seed, below the test's directory.
    pub(crate) fn file(&self, name: &str, length: usize, seed: u64) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes(length, seed)).unwrap();
        path
    }

    /// Stores a file as `data/KEY`.
    pub(crate) fn put(&self, file: &Path, key: &str) {
        self.settled(&["put", file.to_str().unwrap(), &format!("data/{key}")]);
    }

    /// Fetches `data/KEY` and compares.
    pub(crate) fn get_equals(&self, key: &str, expected: &[u8]) {
        let copy = self.dir.path().join("copy");
        self.ok(&["get", &format!("data/{key}"), copy.to_str().unwrap()]);
        assert!(fs::read(&copy).unwrap() == expected, "data/{key} came back different");
    }

    /// A library client whose patience no busy machine exhausts.
    pub(crate) async fn client(&self) -> Client {
        self.client_of_patience(Duration::from_secs(30)).await
    }

    /// A library client that soon gives up what nobody answers.
    pub(crate) async fn impatient(&self) -> Client {
        self.client_of_patience(Duration::from_secs(3)).await
    }

    /// A library client that waits so long for what nobody answers.
    pub(crate) async fn client_of_patience(&self, patience: Duration) -> Client {
        let options = Options { patience, ..Options::default() };
        Client::connect(self.cluster.address(), options).await.unwrap()
    }

    /// Starts a server again and waits until the metadata server knows its new address.
    pub(crate) fn restart(&mut self, node: usize) {
        self.cluster.restart_node(node).unwrap();
        let address = self.cluster.node_address(node);
        block_on(async {
            let client = self.client().await;
            eventually("the server is registered", WITHIN, async || {
                let registry = client.registry().await.unwrap();
                registry.nodes.iter().any(|node| node.record.address == address)
            })
            .await;
        });
    }

    /// The number of the server that has a device, as [`LocalCluster`] counts them.
    pub(crate) async fn server_of(&self, client: &Client, device: DeviceId) -> usize {
        let nodes = client.registry().await.unwrap().nodes;
        let has = |node: &&NodeState| node.record.devices.iter().any(|(known, _)| *known == device);
        let server = nodes.iter().find(has).unwrap();
        (0..nodes.len()).find(|&node| self.cluster.node_address(node) == server.record.address).unwrap()
    }

    /// What all storage servers themselves say now. None is left out that is held up: what it has would seem to be gone.
    pub(crate) async fn statuses(&self, client: &Client) -> Vec<NodeStatus> {
        let mut statuses = Vec::new();
        for node in client.registry().await.unwrap().nodes {
            eventually("a server says how it is", WITHIN, async || {
                let Ok(status) = client.node_status(&node.record.address).await else { return false };
                statuses.push(status);
                true
            })
            .await;
        }
        statuses
    }

    /// Bytes used on all devices, as the storage servers themselves say now; all of them are up.
    pub(crate) async fn used_bytes(&self, client: &Client) -> u64 {
        let statuses = self.statuses(client).await;
        let devices = statuses.iter().flat_map(|status| &status.devices);
        devices.map(|device| device.capacity_bytes - device.free_bytes).sum()
    }
}

/// An error that may say no more than that devices seemed to stall just then.
pub(crate) trait Passing: fmt::Display {
    fn is_passing(&self) -> bool;
}

impl Passing for PutError {
    fn is_passing(&self) -> bool {
        matches!(self, Self::Plan(_))
    }
}

impl Passing for AmendError {
    fn is_passing(&self) -> bool {
        matches!(self, Self::Plan(_))
    }
}

impl Passing for FileError {
    fn is_passing(&self) -> bool {
        matches!(self, Self::Write(error) if error.is_passing())
    }
}

/// Makes a change by the library until it succeeds, as [`Bed::settled`] does by the program.
pub(crate) async fn settled<T, E: Passing>(mut change: impl AsyncFnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + WITHIN;
    loop {
        match change().await {
            Ok(done) => return done,
            Err(error) if error.is_passing() && Instant::now() < deadline => println!("again: {error}"),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Stores bytes as `data/KEY` by the library.
pub(crate) async fn put(client: &Client, key: &str, content: &[u8]) -> PutReport {
    let size = Some(content.len() as u64);
    settled(async || client.put("data", key, Cursor::new(content.to_vec()), size).await).await
}

/// `length` bytes made from `seed`.
pub(crate) fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// A runtime as the program has it.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Polls until `holds`, and fails when it never does.
pub(crate) async fn eventually(what: &str, time: Duration, holds: impl AsyncFnMut() -> bool) {
    assert!(within(time, holds).await, "{what}: not within {time:?}");
}

/// Polls until `holds`; whether it did in that time.
pub(crate) async fn within(time: Duration, mut holds: impl AsyncFnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    while !holds().await {
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    true
}

/// Waits until the cluster knows that a device is well.
pub(crate) async fn known_to_be_well(client: &Client, device: DeviceId) {
    eventually("the device is known to be well", WITHIN, async || {
        let nodes = client.registry().await.unwrap().nodes;
        let mut reports = nodes.iter().flat_map(|node| &node.devices);
        reports.any(|report| report.device == device && report.health == DeviceHealth::Ok)
    })
    .await;
}

/// Whether a command ended so because too few devices, or too little of the data, seemed to be there for a moment, as where some stall.
pub(crate) fn is_not_now(status: ExitStatus) -> bool {
    matches!(status.code(), Some(5 | 6 | 9))
}

/// One of six tries must show what is to be shown: of what a busy machine may spoil, and hardly as often as that.
pub(crate) fn once_of(what: &str, mut shown: impl FnMut() -> bool) {
    let shown = (1..=6).find(|_| shown());
    println!("{what}: {shown:?} tries");
    assert!(shown.is_some(), "{what}: in none of six tries");
}

/// A process that does not outlive the test, however that ends.
pub(crate) struct Killed(pub(crate) std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a process of ours a signal.
pub(crate) fn signal(process: &std::process::Child, signal: rustix::process::Signal) {
    let pid = i32::try_from(process.id()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Waits until a process of ours hears SIGTERM: one that came before would end it as if it did not know of it.
pub(crate) fn hears_term(process: &std::process::Child) {
    let file = format!("/proc/{}/status", process.id());
    let heard = || {
        let status = fs::read_to_string(&file).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    };
    let deadline = Instant::now() + WITHIN;
    while heard() >> (rustix::process::Signal::TERM.as_raw() - 1) & 1 == 0 {
        assert!(Instant::now() < deadline, "it does not listen for signals");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How a process of ours ends, which it is to do soon.
pub(crate) fn ended(process: &mut std::process::Child) -> ExitStatus {
    let deadline = Instant::now() + WITHIN;
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a process says, line by line. It is read to its end whether or not anybody listens, so that the process waits for nobody.
pub(crate) fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = mpsc::channel();
    let lines = BufReader::new(from).lines().map_while(Result::ok);
    std::thread::spawn(move || lines.for_each(|line| drop(tell.send(line))));
    told
}

/// Waits for the line in which something is found, and no longer than for that.
pub(crate) fn heard<T>(told: &Receiver<String>, find: impl Fn(&str) -> Option<T>) -> T {
    let deadline = Instant::now() + WITHIN;
    let mut others = Vec::new();
    loop {
        let line = told.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let line = line.unwrap_or_else(|error| panic!("not heard, {error}: {others:#?}"));
        if let Some(found) = find(&line) {
            return found;
        }
        others.push(line);
    }
}
