//! What a node is started with.

use std::{net::SocketAddr, path::PathBuf, time::Duration};
use steadfast_disk::{EmulationSpec, LaneConfig};
use steadfast_protocol::serve::{AdmissionPolicy, Limits, ReserveOptions, SweepOptions};

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// One directory for each device; the first that remembers, of those that can be written, says which node this is.
    pub dirs: Vec<PathBuf>,
    /// Takes a new name, whatever its directories remember: their disks were moved here from another server.
    pub rename: bool,
    /// The metadata server, `host:port`.
    pub meta: String,
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Where others reach it, `host:port`; by default where it listens, or, where that is every address, the
    /// address from which the metadata server is reached.
    pub advertise: Option<String>,
    /// Where the admin port listens (`/metrics`, `/healthz`); none when absent.
    pub admin: Option<SocketAddr>,
    /// The site's name, for buckets that spread over sites.
    pub site: String,
    /// Puts every device under an emulation that can be redrawn while it runs; `None`: the disks as they are.
    pub emulate: Option<EmulationSpec>,
    /// Bytes of each new device; by default nine tenths of what is free on its filesystem, shared by the new
    /// devices on it.
    pub capacity_bytes: Option<u64>,
    /// Takes the whole capacity of each new device from its filesystem at once, by writing zeros over it.
    pub thick: bool,
    /// From one heartbeat to the next.
    pub heartbeat: Duration,
    /// How long another server may have this one's name, or a device that lies here, before it is taken to keep it.
    pub taken_for: Duration,
    /// When and what to sweep.
    pub sweep: SweepOptions,
    /// When reserved space that updates do not need is given back. How much is reserved first is each bucket's to say.
    pub reserve: ReserveOptions,
    /// What it admits.
    pub limits: Limits,
    /// Who may reserve bandwidth of its devices.
    pub admission: AdmissionPolicy,
    /// Bytes that all write streams together may have granted or resident.
    pub write_budget_bytes: u64,
    /// Bytes that the segments whose primary it is may take together, parity included; clients store by themselves what does
    /// not fit.
    pub ingest_budget_bytes: u64,
    /// How the lanes group their work.
    pub lane: LaneConfig,
    /// Its connections.
    pub net: steadfast_net::Options,
}

impl NodeOptions {
    /// A node on these directories; everything else as usual.
    pub fn new(dirs: Vec<PathBuf>, meta: impl Into<String>, listen: SocketAddr) -> Self {
        Self {
            dirs,
            rename: false,
            meta: meta.into(),
            listen,
            advertise: None,
            admin: None,
            site: String::new(),
            emulate: None,
            capacity_bytes: None,
            thick: false,
            // A reader's planner sees a changed speed or a dead node within about a second.
            heartbeat: Duration::from_millis(500),
            // One that has ended counts as alive for a while, all that are known do when the metadata server starts.
            taken_for: Duration::from_secs(30),
            // Garbage is rare and costs only space: once every ten minutes, and nothing younger than that.
            sweep: SweepOptions { interval: Duration::from_secs(600), age_min: Duration::from_secs(600) },
            reserve: ReserveOptions::default(),
            limits: Limits::default(),
            admission: AdmissionPolicy::default(),
            // With as much for reads a node stays under 128 MiB, sockets and index included.
            write_budget_bytes: 32 << 20,
            // Five segments of 16 MiB under (6, 4), or one of the largest.
            ingest_budget_bytes: 128 << 20,
            lane: LaneConfig::default(),
            net: steadfast_net::Options::default(),
        }
    }
}
