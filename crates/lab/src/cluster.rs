//! A cluster of real processes on this machine, started by running the program again.
//!
//! ```text
//! DIR/meta/            the metadata server's store
//! DIR/node-NN/disk-M/  one directory for each device
//! DIR/logs/NAME.log    what each process says; DIR/logs/NAME.trace.jsonl its messages, where they are wanted
//! DIR/cluster.json     the shape, so that the next start finds the same devices at the same address; and where each
//!                      server and its admin port listen
//! ```
//!
//! A process says `listening on ADDRESS` once it serves. None outlives the one that started it: each asks the
//! kernel for a signal on its parent's death ([`die_with_parent`]), also when the parent is killed.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};
use steadfast_client::{Client, Options};
use steadfast_protocol::words::counted;

/// The environment variable that names the starting process to its children.
const PARENT: &str = "STEADFAST_PARENT";
/// The file of the shape.
pub(crate) const RECORD: &str = "cluster.json";
/// A server that has not said where it listens by then is broken; a cold start takes well under a second.
const START_WITHIN: Duration = Duration::from_secs(30);
/// No device is given less without being told so.
const CAPACITY_MIN_BYTES: u64 = 16 << 20;
/// A server that has not stopped by then after a polite signal is killed.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// How large a cluster is and how its servers are started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Storage servers.
    pub nodes: u32,
    /// Devices of each.
    pub devices: u32,
    /// Emulation of every device, where wanted.
    pub emulate: Option<String>,
    /// Bytes each device may use.
    pub capacity_bytes: Option<u64>,
    /// Whether that is taken from the filesystem at once.
    pub thick: bool,
    /// Who may reserve bandwidth of the devices, as `steadfast node --admission` takes it; its default when absent.
    pub admission: Option<String>,
    /// Where the metadata server listens.
    pub listen: String,
    /// Seconds a put may be silent.
    pub lease_s: u32,
    /// Seconds between two sweeps.
    pub sweep_s: u32,
    /// Seconds from one look at reserves to the next; 0: none is ever given back.
    pub reserve_period_s: u32,
    /// Seconds between two looks for degraded segments; 0: nobody looks.
    pub repair_period_s: u32,
    /// Whether every server writes its messages down.
    #[serde(skip)]
    pub trace: bool,
    /// Set for every server beside what it inherits.
    #[serde(skip)]
    pub environment: Vec<(String, String)>,
}

/// What `cluster.json` holds.
#[derive(Serialize)]
struct Recorded<'a> {
    #[serde(flatten)]
    shape: &'a Shape,
    servers: Vec<ServerRecord<'a>>,
}

/// What a start takes of it: whatever else the build that wrote it knew of is of no account.
#[derive(Debug, Deserialize, PartialEq)]
struct Before {
    nodes: u32,
    devices: u32,
    listen: String,
    /// Of each device that a start has still to make.
    #[serde(default)]
    capacity_bytes: Option<u64>,
}

/// A cluster is to be started with other numbers of servers or devices than it has: some would be left out, or be new.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} holds a cluster of {} with {} each: start it with `--nodes {nodes} --devices {devices}`, or without `--nodes` and \
     `--devices`, or choose another directory",
    dir.display(),
    counted(nodes, "node"),
    counted(devices, "device")
)]
pub struct OtherShape {
    /// Where it lives.
    pub dir: PathBuf,
    /// Storage servers that it has.
    pub nodes: u32,
    /// Devices of each.
    pub devices: u32,
}

#[derive(Serialize)]
struct ServerRecord<'a> {
    name: &'a str,
    address: &'a str,
    admin: &'a str,
}

impl Default for Shape {
    /// What `steadfast up` starts.
    fn default() -> Self {
        Self {
            nodes: 8,
            devices: 2,
            emulate: None,
            capacity_bytes: None,
            thick: false,
            admission: None,
            listen: "127.0.0.1:0".to_owned(),
            lease_s: 60,
            sweep_s: 30,
            reserve_period_s: 43_200,
            repair_period_s: 10,
            trace: false,
            environment: Vec::new(),
        }
    }
}

/// A running local cluster; dropping it kills its processes.
#[derive(Debug)]
pub struct LocalCluster {
    program: PathBuf,
    dir: PathBuf,
    shape: Shape,
    meta: Server,
    nodes: Vec<Server>,
}

/// A process that goes when nobody has it any more: also one of several of which another did not come up, for it must not write where
/// everything is about to be removed.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Already gone is what was wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

#[derive(Debug)]
struct Server {
    name: String,
    child: Process,
    address: String,
    admin: String,
    /// Whether [`LocalCluster::ended`] has told that it did.
    end_told: bool,
}

impl LocalCluster {
    /// How many storage servers the cluster in a directory has, and how many devices each of them; nothing where there is none.
    ///
    /// # Errors
    /// When its record is damaged or cannot be read.
    pub fn before(dir: &Path) -> Result<Option<(u32, u32)>> {
        Ok(recorded(dir)?.map(|before| (before.nodes, before.devices)))
    }

    /// Starts a metadata server and the storage servers below `dir`, which is made or continued.
    ///
    /// `program` is the `steadfast` executable.
    ///
    /// # Errors
    /// When a process does not come up; the error holds the last lines of its log. [`OtherShape`] where the cluster there is not of as many
    /// servers and devices.
    pub fn start(program: &Path, dir: &Path, shape: &Shape) -> Result<Self> {
        fs::create_dir_all(dir.join("logs")).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut shape = shape.clone();
        let before = recorded(dir)?;
        let is_first = before.is_none();
        if is_first && shape.capacity_bytes.is_none() && !has_a_device(dir, &shape) {
            shape.capacity_bytes = Some(share(dir, free_bytes(dir)?, &shape)?);
        }
        if let Some(before) = before {
            if (before.nodes, before.devices) != (shape.nodes, shape.devices) {
                let Before { nodes, devices, .. } = before;
                return Err(OtherShape { dir: dir.to_owned(), nodes, devices }.into());
            }
            if shape.listen.ends_with(":0") {
                shape.listen = before.listen;
            }
            shape.capacity_bytes = shape.capacity_bytes.or(before.capacity_bytes);
        }
        let meta = Launch::meta(program, dir, &shape)?.ready()?;
        shape.listen.clone_from(&meta.address);
        let mut cluster =
            Self { program: program.to_owned(), dir: dir.to_owned(), shape, meta, nodes: Vec::new() };
        cluster.record()?;
        match cluster.launch_nodes() {
            Ok(()) => Ok(cluster),
            Err(error) => {
                // Another shape may be what it takes, as long as there is no device of this one.
                if is_first && !has_a_device(dir, &cluster.shape) {
                    let _ = fs::remove_file(dir.join(RECORD));
                }
                Err(error)
            }
        }
    }

    /// All at once: each formats its devices on the first start.
    fn launch_nodes(&mut self) -> Result<()> {
        let launches: Result<Vec<Launch>> = (0..self.shape.nodes)
            .map(|node| Launch::node(&self.program, &self.dir, &self.shape, node))
            .collect();
        for launch in launches? {
            self.nodes.push(launch.ready()?);
        }
        self.record()
    }

    fn record(&self) -> Result<()> {
        let servers = core::iter::once(&self.meta).chain(&self.nodes);
        let servers = servers
            .map(|Server { name, address, admin, .. }| ServerRecord { name, address, admin })
            .collect();
        let recorded = Recorded { shape: &self.shape, servers };
        write_record(&self.dir, &recorded)
    }

    /// The metadata server's address: what `--cluster` takes.
    pub fn address(&self) -> &str {
        &self.meta.address
    }

    /// A client, once every storage server has registered.
    ///
    /// # Errors
    /// When the metadata server is out of reach, or a storage server does not register.
    pub async fn client(&self, options: Options) -> Result<Client> {
        let client = Client::connect(self.address(), options).await?;
        let deadline = Instant::now() + START_WITHIN;
        loop {
            let registered = client.registry().await?.nodes;
            let missing = self.nodes.iter().find(|server| {
                !registered.iter().any(|node| node.alive && node.record.address == server.address)
            });
            match missing {
                None => return Ok(client),
                Some(Server { name, .. }) if Instant::now() > deadline => {
                    bail!("{name} does not register; see {}", log_of(&self.dir, name).display())
                }
                Some(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// What a server says, by its name.
    pub fn log(&self, name: &str) -> PathBuf {
        log_of(&self.dir, name)
    }

    /// Where the cluster lives.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directories of a storage server's devices.
    pub fn device_dirs(&self, node: usize) -> Vec<PathBuf> {
        let node = u32::try_from(node).expect("few nodes");
        (0..self.shape.devices).map(|device| device_dir(&self.dir, node, device)).collect()
    }

    /// Name, process id and address of every server, the metadata server first.
    pub fn processes(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        core::iter::once(&self.meta)
            .chain(&self.nodes)
            .map(|server| (server.name.as_str(), server.child.id(), server.address.as_str()))
    }

    /// Name and address of every server's admin port, the metadata server's first.
    pub fn admin_ports(&self) -> impl Iterator<Item = (&str, &str)> {
        core::iter::once(&self.meta)
            .chain(&self.nodes)
            .map(|server| (server.name.as_str(), server.admin.as_str()))
    }

    /// Address of a storage server.
    pub fn node_address(&self, node: usize) -> &str {
        &self.nodes[node].address
    }

    /// Kills a storage server at once (SIGKILL).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill_node(&mut self, node: usize) -> Result<()> {
        self.nodes[node].kill()
    }

    /// Kills the metadata server at once (SIGKILL).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill_meta(&mut self) -> Result<()> {
        self.meta.kill()
    }

    /// Starts a killed storage server again on its own devices, at a new address.
    ///
    /// # Errors
    /// As [`LocalCluster::start`].
    pub fn restart_node(&mut self, node: usize) -> Result<()> {
        let number = u32::try_from(node).context("node number")?;
        self.nodes[node].kill()?;
        self.nodes[node] = Launch::node(&self.program, &self.dir, &self.shape, number)?.ready()?;
        self.record()
    }

    /// Starts the killed metadata server again at the same address.
    ///
    /// # Errors
    /// As [`LocalCluster::start`].
    pub fn restart_meta(&mut self) -> Result<()> {
        self.meta.kill()?;
        self.meta = Launch::meta(&self.program, &self.dir, &self.shape)?.ready()?;
        self.record()
    }

    /// Names of the servers found to have ended since this was asked last: each is told once.
    pub fn ended(&mut self) -> Vec<String> {
        let servers = core::iter::once(&mut self.meta).chain(&mut self.nodes);
        servers.filter_map(|server| server.has_newly_ended().then(|| server.name.clone())).collect()
    }

    /// Stops every server politely, the metadata server last.
    pub fn stop(mut self) {
        for server in &mut self.nodes {
            server.signal_stop();
        }
        let deadline = Instant::now() + STOP_WITHIN;
        for server in &mut self.nodes {
            server.wait_until(deadline);
        }
        self.meta.signal_stop();
        self.meta.wait_until(Instant::now() + STOP_WITHIN);
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for server in self.nodes.iter_mut().chain([&mut self.meta]) {
            // Already gone is what was wanted.
            let _ = server.child.kill();
        }
        for server in self.nodes.iter_mut().chain([&mut self.meta]) {
            let _ = server.child.wait();
        }
    }
}

/// Writes the record whole or not at all: a start that is killed meanwhile, or a machine that loses power, leaves the one before.
fn write_record(dir: &Path, recorded: &Recorded<'_>) -> Result<()> {
    let (path, new) = (dir.join(RECORD), dir.join("cluster.json.new"));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(recorded)?)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(dir)?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// The shape a directory was last started with.
fn recorded(dir: &Path) -> Result<Option<Before>> {
    let path = dir.join(RECORD);
    match fs::read(&path) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(before) => Ok(Some(before)),
            Err(error) => {
                // Without them the next start would be of another shape, and leave devices out.
                let repeat = match held(dir) {
                    (0, _) | (_, 0) => "the `--nodes` and `--devices` of the start before".to_owned(),
                    (nodes, devices) => format!("`--nodes {nodes} --devices {devices}`"),
                };
                bail!(
                    "{} is damaged ({error}): remove it, and start the cluster with {repeat}",
                    path.display()
                )
            }
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// How many nodes have directories there, and how many devices the first one has.
fn held(dir: &Path) -> (u32, u32) {
    let count = |dir_of: &dyn Fn(u32) -> PathBuf| (0..).take_while(|&number| dir_of(number).is_dir()).count();
    let nodes = count(&|node| node_dir(dir, node));
    let devices = count(&|device| device_dir(dir, 0, device));
    (nodes as u32, devices as u32)
}

fn log_of(dir: &Path, name: &str) -> PathBuf {
    dir.join("logs").join(format!("{name}.log"))
}

fn node_dir(dir: &Path, node: u32) -> PathBuf {
    dir.join(format!("node-{node:02}"))
}

fn device_dir(dir: &Path, node: u32, device: u32) -> PathBuf {
    node_dir(dir, node).join(format!("disk-{device}"))
}

/// What the filesystem of a directory has free, bytes.
fn free_bytes(dir: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(dir).with_context(|| format!("cannot look at {}", dir.display()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// What each of the devices, all of them new and on one filesystem, may use: nine tenths of what is free, shared.
fn share(dir: &Path, free_bytes: u64, shape: &Shape) -> Result<u64> {
    let devices = u64::from(shape.nodes) * u64::from(shape.devices);
    let share = free_bytes / 10 * 9 / devices.max(1);
    ensure!(
        share >= CAPACITY_MIN_BYTES,
        "{} has {} MB free, too little for {}: make room, ask for fewer (`--nodes`, `--devices`), or say how large they are \
         (`--capacity`)",
        dir.display(),
        free_bytes / 1_000_000,
        counted(devices, "device")
    );
    Ok(share)
}

/// Whether any device was made: one that was not leaves nothing in its directory.
fn has_a_device(dir: &Path, shape: &Shape) -> bool {
    let nodes = (0..shape.nodes).map(|node| node_dir(dir, node));
    let devices = nodes.filter_map(|node| fs::read_dir(node).ok()).flatten().flatten();
    let mut files = devices.filter_map(|device| fs::read_dir(device.path()).ok());
    files.any(|mut files| files.next().is_some())
}

/// A process started and not yet heard of.
struct Launch {
    name: String,
    log: PathBuf,
    child: Process,
    stdout: ChildStdout,
}

impl Launch {
    fn meta(program: &Path, dir: &Path, shape: &Shape) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("meta").arg("--dir").arg(dir.join("meta")).args(["--listen", &shape.listen]);
        command.args(["--lease", &shape.lease_s.to_string()]);
        Self::spawn("meta", dir, shape, command)
    }

    fn node(program: &Path, dir: &Path, shape: &Shape, node: u32) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("node").args(["--meta", &shape.listen, "--listen", "127.0.0.1:0"]);
        command.args(["--sweep", &shape.sweep_s.to_string()]);
        command.args(["--reserve-period", &shape.reserve_period_s.to_string()]);
        command.args(["--repair-period", &shape.repair_period_s.to_string()]);
        if let Some(spec) = &shape.emulate {
            command.args(["--emulate", spec]);
        }
        if let Some(capacity) = shape.capacity_bytes {
            command.args(["--capacity", &capacity.to_string()]);
            if shape.thick {
                command.arg("--thick");
            }
        }
        if let Some(policy) = &shape.admission {
            command.args(["--admission", policy]);
        }
        command.arg("--dir").args((0..shape.devices).map(|device| device_dir(dir, node, device)));
        Self::spawn(&format!("node-{node:02}"), dir, shape, command)
    }

    fn spawn(name: &str, dir: &Path, shape: &Shape, mut command: Command) -> Result<Self> {
        let log = log_of(dir, name);
        let log_file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        command.args(["--admin", "127.0.0.1:0"]);
        if shape.trace {
            command.arg("--trace").arg(dir.join("logs").join(format!("{name}.trace.jsonl")));
        }
        // What they are is said in full: a configuration file of whoever runs this is about other servers.
        command.env_remove("STEADFAST_CONFIG");
        command.envs(shape.environment.iter().map(|(name, value)| (name, value)));
        command.env(PARENT, std::process::id().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let stdout = child.stdout.take().expect("piped above");
        Ok(Self { name: name.to_owned(), log, child: Process(child), stdout })
    }

    /// Waits until the process says where it listens.
    fn ready(self) -> Result<Server> {
        let (said, heard) = std::sync::mpsc::channel();
        let stdout = self.stdout;
        // Reads on after the first line, so that the process never blocks on a full pipe.
        std::thread::spawn(move || {
            let mut admin = String::new();
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(address) = line.strip_prefix(crate::ADMIN) {
                    address.trim().clone_into(&mut admin);
                }
                if let Some(address) = line.strip_prefix(crate::LISTENING) {
                    let _ = said.send((address.trim().to_owned(), std::mem::take(&mut admin)));
                }
            }
        });
        match heard.recv_timeout(START_WITHIN) {
            Ok((address, admin)) => {
                Ok(Server { name: self.name, child: self.child, address, admin, end_told: false })
            }
            Err(_) => {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                let last = log.lines().next_back().unwrap_or("nothing");
                bail!("{} did not start; its log {} ends with: {last}", self.name, self.log.display())
            }
        }
    }
}

impl Server {
    fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        self.child.wait().with_context(|| format!("cannot reap {}", self.name))?;
        Ok(())
    }

    fn has_newly_ended(&mut self) -> bool {
        let newly = !self.end_told && matches!(self.child.try_wait(), Ok(Some(_)));
        self.end_told |= newly;
        newly
    }

    fn signal_stop(&mut self) {
        // The number of one that was waited for may be another process's by now.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // Already gone is what was wanted.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    fn wait_until(&mut self, deadline: Instant) {
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends this process when the one that started it as part of a local cluster ends, however that ends.
///
/// # Errors
/// When that one is gone already, or the kernel refuses.
pub fn die_with_parent() -> Result<()> {
    let Some(parent) = std::env::var_os(PARENT) else { return Ok(()) };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("cannot follow the starting process")?;
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    if now.as_deref() != parent.to_str() {
        bail!("the process that started this one is gone");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_another_build_is_taken_and_a_damaged_one_says_what_to_repeat() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(recorded(dir.path()).unwrap(), None);
        let file = dir.path().join(RECORD);
        let text = r#"{"nodes":3,"devices":2,"emulate":null,"listen":"127.0.0.1:7","of_a_later_build":[1]}"#;
        fs::write(&file, text).unwrap();
        let listen = "127.0.0.1:7".to_owned();
        let before = Before { nodes: 3, devices: 2, listen, capacity_bytes: None };
        assert_eq!(recorded(dir.path()).unwrap(), Some(before));
        assert_eq!(LocalCluster::before(dir.path()).unwrap(), Some((3, 2)));
        fs::write(&file, &text[..20]).unwrap();
        let damaged = || recorded(dir.path()).unwrap_err().to_string();
        assert!(damaged().ends_with("the `--nodes` and `--devices` of the start before"), "{}", damaged());
        for (node, device) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
            fs::create_dir_all(device_dir(dir.path(), node, device)).unwrap();
        }
        assert!(damaged().ends_with("start the cluster with `--nodes 3 --devices 2`"), "{}", damaged());
    }

    #[test]
    fn new_devices_share_what_their_filesystem_has_free() {
        let (dir, usual) = (Path::new("/made/here"), Shape::default());
        assert_eq!(share(dir, 160 << 30, &usual).unwrap(), (160 << 30) / 10 * 9 / 16);
        // A server with two of them alone would find enough.
        let refused = share(dir, 100_000_000, &usual).unwrap_err().to_string();
        assert!(refused.starts_with("/made/here has 100 MB free, too little for 16 devices"), "{refused}");
        assert!(free_bytes(Path::new("/")).unwrap() > 0);
        assert!(free_bytes(Path::new("/no such place")).is_err());
    }

    #[test]
    fn a_cluster_is_started_with_what_it_has_and_no_error_but_that_is_about_its_shape() {
        let dir = tempfile::tempdir().unwrap();
        let usual = Shape::default();
        write_record(dir.path(), &Recorded { shape: &usual, servers: Vec::new() }).unwrap();
        assert_eq!(LocalCluster::before(dir.path()).unwrap(), Some((8, 2)));
        // Nothing that could be run: it fails before that, or by that.
        let program = dir.path().join("no program");
        let refused = |shape: &Shape| LocalCluster::start(&program, dir.path(), shape).unwrap_err();
        for other in [Shape { nodes: 3, ..Shape::default() }, Shape { devices: 1, ..Shape::default() }] {
            let error = refused(&other);
            let has = OtherShape { dir: dir.path().to_owned(), nodes: 8, devices: 2 };
            assert_eq!(error.downcast_ref::<OtherShape>(), Some(&has), "{error}");
            assert!(error.to_string().contains("`--nodes 8 --devices 2`, or without `--nodes`"), "{error}");
        }
        let error = refused(&usual);
        assert!(error.downcast_ref::<OtherShape>().is_none(), "{error}");
        assert!(error.to_string().starts_with("cannot run"), "{error}");
    }

    #[test]
    fn a_record_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let write = |nodes| {
            let shape = Shape { nodes, ..Shape::default() };
            write_record(dir.path(), &Recorded { shape: &shape, servers: Vec::new() }).unwrap();
        };
        write(3);
        // Another name of the file as it is.
        let kept = dir.path().join("kept");
        fs::hard_link(dir.path().join(RECORD), &kept).unwrap();
        write(4);
        assert_eq!(recorded(dir.path()).unwrap().map(|before| before.nodes), Some(4));
        assert!(fs::read_to_string(&kept).unwrap().contains("\"nodes\": 3"), "written over in place");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
    }
}
