//! The command line, as `steadfast --help` shows it.

use crate::{
    commands::{config::Config, documents, top::Top},
    logging,
    tuning::Tuning,
};
use clap::{
    Args, Parser, Subcommand,
    builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser},
};
use std::{net::SocketAddr, path::PathBuf};
use steadfast_disk::EmulationSpec;
use steadfast_protocol::{policy::Policy, serve::AdmissionPolicy};

/// A distributed store whose slowest disk does not set your speed.
#[derive(Debug, Parser)]
#[command(name = "steadfast", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Configuration file; flags and the environment win over it (`steadfast config example`)
    // An empty path is taken: the variable may be set to nothing, which names no file.
    #[arg(
        long,
        global = true,
        env = crate::config::VARIABLE,
        value_name = "FILE",
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        help_heading = "Program"
    )]
    pub(crate) config: Option<PathBuf>,
    /// How events on standard error are written, one a line
    #[arg(
        long,
        global = true,
        env = "STEADFAST_LOG_FORMAT",
        value_enum,
        default_value = "text",
        help_heading = "Program",
        hide_short_help = true
    )]
    pub(crate) log_format: logging::Format,
    /// Which events: a level, or levels of parts such as `info,steadfast_node=debug` [default: info of servers, warn]
    #[arg(
        long,
        global = true,
        env = "STEADFAST_LOG",
        value_name = "FILTER",
        help_heading = "Program",
        hide_short_help = true
    )]
    pub(crate) log: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what it is for: a cluster of 64 unequal disks, read five ways, then broken and read again
    Demo(Demo),
    /// Run a local cluster in the foreground
    Up(Up),
    /// Run a metadata server
    Meta(Meta),
    /// Run a storage server
    Node(Node),
    /// Make and list buckets
    #[command(subcommand)]
    Bucket(Bucket),
    /// Store a file (or standard input, `-`) as BUCKET/KEY, or over some of its bytes
    Put(Put),
    /// Write the file (or standard input, `-`) over bytes of BUCKET/KEY from an offset on: `put --range N-`, and in a bucket of
    /// policy `parity` behind the object's end too
    Write(Write),
    /// Give an object of a bucket of policy `parity` another size: what is behind it goes, what it lacks is zero
    Truncate(Truncate),
    /// Fetch BUCKET/KEY into a file (or standard output, `-`)
    Get(Get),
    /// List buckets, or the objects of BUCKET whose keys begin with a prefix (BUCKET/PREFIX)
    Ls(List),
    /// Describe an object: its size, code, redundancy and where its blocks lie
    Stat(Stat),
    /// Give an object another redundancy: blocks are added or dropped, the rest stays as it is
    Tune(Tune),
    /// Remove an object
    Rm(Remove),
    /// Show storage servers and devices
    Status(Status),
    Top(Top),
    /// Add, drain, remove and list devices
    #[command(subcommand)]
    Device(crate::commands::device::Device),
    /// Complete segments of buckets of policy `parity` that were stored with fewer chunks while servers were missing
    Repair(Repair),
    /// Slow down, stall or free an emulated device of a running cluster
    Emulate(Emulate),
    /// Make a recorded trace's reads and writes of an object in BUCKET, as fast as its devices let them
    Replay(Replay),
    /// Run a named experiment
    #[command(subcommand)]
    Lab(Lab),
    /// Run one access of an experiment again under the simulator
    #[command(subcommand)]
    Sim(Sim),
    /// Measure a library on its own, beside rivals and the machine's limits
    #[command(subcommand)]
    Bench(Bench),
    /// Check a configuration file, or print one that explains itself
    #[command(subcommand)]
    Config(Config),
    /// Print a script that completes commands in a shell
    Completions(documents::Completions),
    /// Print the manual page, or write those of all commands into a directory
    Man(documents::Man),
}

/// Which cluster to talk to.
#[derive(Debug, Args)]
pub(crate) struct Cluster {
    /// Address of the metadata server
    #[arg(long, env = "STEADFAST_CLUSTER", value_name = "HOST:PORT", value_parser = crate::units::place)]
    pub(crate) cluster: String,
    #[command(flatten)]
    pub(crate) tuning: Tuning,
}

/// Before or behind others.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Class {
    /// Give way to what others read and write, and take what they leave
    #[arg(long)]
    pub(crate) background: bool,
}

/// How to answer.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Print JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The file to store, of 1 MiB at least (the paper's figures are of 1 GiB); 256 MiB made from the seed when absent
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Repeats the same disks and data
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Keep the cluster's directories here instead of in memory
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Where the cluster lives; made when absent, continued when present
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Storage servers; another number than the cluster has is refused [default: as many as it has, a new one 8]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) nodes: Option<u32>,
    /// Devices of each storage server; another number than they have is refused [default: as many as they have, in a new cluster 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) devices: Option<u32>,
    /// Emulate disks, for instance `rate=100MB,latency=5ms`; `rotational=no` has them written to as flash, whatever the system says of
    /// them, `rotational=yes` as rotating disks; `steadfast emulate` redraws them. For this start alone
    #[arg(long, value_name = "SPEC", value_parser = crate::units::emulation)]
    pub(crate) emulate: Option<String>,
    /// Where the metadata server listens; kept from the last run when absent
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Bytes each new device may use, for instance `20GiB`; those that are there stay as they are [default: in a new cluster an equal
    /// share of nine tenths of what is free]
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = crate::units::capacity)]
    pub(crate) capacity: Option<u64>,
    /// Take each new device's whole capacity from its filesystem at once, so that no write is a first one
    #[arg(long)]
    pub(crate) thick: bool,
    /// Who may reserve bandwidth of the devices: `capacity`, `priority` or `open`, as for `steadfast node`, whose default
    /// it is when absent
    #[arg(long, value_name = "POLICY")]
    pub(crate) admission: Option<AdmissionPolicy>,
    /// Have every server write its messages to DIR/logs/NAME.trace.jsonl, a JSON object a line
    #[arg(long)]
    pub(crate) trace: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Meta {
    /// Where the metadata lies
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: SocketAddr,
    /// Where `/metrics` and `/healthz` are answered; nowhere when absent
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<SocketAddr>,
    /// What lies there was put back from an older copy: give out no name that was given out since, and give up what was stored under
    /// those. For one start
    #[arg(long)]
    pub(crate) restored: bool,
    /// Seconds that a put may be silent before its space is taken back
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) lease: u32,
    /// Write every message to and from this server here, a JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Node {
    /// One directory for each device
    #[arg(long, required = true, num_args = 1.., value_name = "DIR")]
    pub(crate) dir: Vec<PathBuf>,
    /// Take a new name: the disks were moved here from a server that goes on with others
    #[arg(long)]
    pub(crate) rename: bool,
    /// Address of the metadata server
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::units::place)]
    pub(crate) meta: String,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: SocketAddr,
    /// Where others reach this server; when absent where it listens, or, where that is every address, the one of this
    /// machine from which it reaches the metadata server
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::units::place)]
    pub(crate) advertise: Option<String>,
    /// Where `/metrics` and `/healthz` are answered; nowhere when absent
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<SocketAddr>,
    /// Name of the place where this server stands, for buckets that spread over sites
    #[arg(long, default_value = "default")]
    pub(crate) site: String,
    /// Emulate the devices' speed, for instance `rate=100MB,latency=5ms,jitter=0.1`; `rotational=no` has them written to as flash,
    /// whatever the system says of them (virtual disks often claim to rotate), `rotational=yes` as rotating disks; `off` only makes it
    /// possible
    #[arg(long, value_name = "SPEC", value_parser = crate::units::emulated)]
    pub(crate) emulate: Option<EmulationSpec>,
    /// Bytes each new device may use, for instance `20GiB`; when absent its share of nine tenths of what is free on its filesystem, with
    /// the other new devices of this server there
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = crate::units::capacity)]
    pub(crate) capacity: Option<u64>,
    /// Take each new device's whole capacity from its filesystem at once, so that no write is a first one
    #[arg(long)]
    pub(crate) thick: bool,
    /// Who may reserve bandwidth of its devices: `capacity` (first come, first admitted), `priority` (foreground may take
    /// what background reserved) or `open` (everybody, and nothing is kept)
    #[arg(long, value_name = "POLICY", default_value = "capacity")]
    pub(crate) admission: AdmissionPolicy,
    /// Seconds between two sweeps for what dead writers left
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) sweep: u32,
    /// Seconds from one look at the space reserved for updates to the next: what updates do not need is given back; 0: nothing
    /// ever is
    #[arg(long, default_value_t = 43_200, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub(crate) reserve_period: u32,
    /// Seconds from one look for segments that were stored with fewer chunks while servers were missing to the next: they are
    /// completed once there are enough; 0: nobody looks, and `steadfast repair` does it
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub(crate) repair_period: u32,
    /// Write every message to and from this server here, a JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bucket {
    /// Make a bucket
    Create {
        /// Its name: 3 to 63 lower-case letters, digits, `-` and `.`
        name: String,
        /// How its data is protected: `rateless:redundancy=0.5,tolerate=2` (also `code=mix-a|mix-b|mix-c`,
        /// `code=lt,c=1,delta=0.5`, `domain=device|node|site`, `devices=N`),
        /// `parity:code=rs(6,4),segment=16MiB,update=plr|fo,reserve=4MiB` (also `domain=`, and `least=5`: chunks that a segment is
        /// written with at least while servers are missing), `stripe`, or
        /// `replicated:copies=4,read=speculative|adaptive`
        #[arg(long, default_value = "rateless")]
        policy: Policy,
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        output: Output,
    },
    /// List buckets
    Ls {
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        output: Output,
    },
    /// Remove a bucket that has no objects
    Rm {
        /// Its name
        name: String,
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The file to store, or `-` for standard input
    pub(crate) file: PathBuf,
    /// BUCKET/KEY
    pub(crate) object: crate::object_name::ObjectName,
    /// What it wants beyond what the bucket's policy says: any of `bandwidth=400MB,latency=2s,redundancy=1,tolerate=3,
    /// devices=16,sites=2,accesses=4,priority=background`; with `--range` all but `devices` and `sites`
    #[arg(long, value_name = "WISHES", value_parser = crate::units::wishes)]
    pub(crate) qos: Option<steadfast_client::Quality>,
    /// Change bytes A to B of the object, counted from 0, both included (`A-` for as many as the file has): only the coded
    /// blocks that hold them are written
    #[arg(long, value_name = "A-B", allow_negative_numbers = true, value_parser = crate::units::byte_range)]
    pub(crate) range: Option<(u64, Option<u64>)>,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Write {
    /// BUCKET/KEY
    pub(crate) object: crate::object_name::ObjectName,
    /// The first byte to change, counted from 0; between the object's end and it there will be zeros
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = crate::units::offset)]
    pub(crate) offset: u64,
    /// The file that has the new bytes, or `-` for standard input
    pub(crate) file: PathBuf,
    /// Make the object where there is none
    #[arg(long)]
    pub(crate) create: bool,
    /// What it wants, as `put --range` takes it; only where the bytes lie within the object
    #[arg(long, value_name = "WISHES", value_parser = crate::units::wishes)]
    pub(crate) qos: Option<steadfast_client::Quality>,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Truncate {
    /// BUCKET/KEY
    pub(crate) object: crate::object_name::ObjectName,
    /// Bytes it is to have, such as 0, 4096, 20GiB
    #[arg(value_name = "SIZE", allow_negative_numbers = true, value_parser = crate::units::size)]
    pub(crate) size: u64,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The trace, plain or packed with gzip: CloudPhysics, HP Labs' workstations, or a search engine's disks (MQSim)
    pub(crate) trace: PathBuf,
    /// A bucket of policy `parity`
    pub(crate) bucket: String,
    /// The object in it; stored first where it is not there
    #[arg(long, default_value = "replay", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// Bytes of the object, 1 MiB at least; regions that the trace touches beyond them share the place of the first ones
    /// [default: as many as the trace touches]
    #[arg(long, value_name = "SIZE", value_parser = crate::units::bytes)]
    pub(crate) size: Option<u64>,
    /// Only the first requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Requests outstanding at a time
    #[arg(long, value_name = "D", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) depth: u16,
    /// When writes are made durable: `write` (each before it is done), a number of writes, or `end` (the cache stores what it
    /// has no room for)
    #[arg(long, value_name = "WHEN", default_value = "write")]
    pub(crate) sync: steadfast_lab::replay::SyncRule,
    /// Begin no request before its time in the trace
    #[arg(long)]
    pub(crate) paced: bool,
    /// Memory for what was written and is not stored yet, and as much for what is read again [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::units::bytes)]
    pub(crate) cache: Option<u64>,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// BUCKET/KEY
    pub(crate) object: crate::object_name::ObjectName,
    /// D: blocks stored beyond the data, as a share of it; no less than the failures to survive need
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub(crate) redundancy: f64,
    #[command(flatten)]
    pub(crate) class: Class,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// BUCKET/KEY
    pub(crate) object: crate::object_name::ObjectName,
    /// Where to write it, or `-` for standard output
    pub(crate) file: PathBuf,
    /// Only bytes A to B, counted from 0, both included (`A-` to the end)
    #[arg(long, value_name = "A-B", allow_negative_numbers = true, value_parser = crate::units::byte_range)]
    pub(crate) range: Option<(u64, Option<u64>)>,
    /// How much to ask for: `adaptive` (what is needed, and more where a straggler would hold it up), `all`, `all-at-once`
    /// (without windows), or `k+N` (what is needed and N blocks more)
    #[arg(long, value_name = "RULE", default_value = "adaptive", value_parser = crate::units::request_rule)]
    pub(crate) request: steadfast_client::RequestRule,
    /// What it wants: any of `bandwidth=400MB,latency=200ms,accesses=4,priority=background`
    #[arg(long, value_name = "WISHES", value_parser = crate::units::wishes_of_a_get)]
    pub(crate) qos: Option<steadfast_client::Quality>,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// BUCKET or BUCKET/PREFIX; all buckets when absent
    pub(crate) place: Option<String>,
    /// Sizes and times too
    #[arg(short)]
    pub(crate) long: bool,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// BUCKET/KEY
    pub(crate) object: crate::object_name::ObjectName,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// BUCKET/KEY
    pub(crate) object: crate::object_name::ObjectName,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Repair {
    /// Go on with other objects where one cannot be completed
    #[arg(long)]
    pub(crate) keep_going: bool,
    #[command(flatten)]
    pub(crate) class: Class,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Emulate {
    /// The device, as `steadfast status` names it (the first digits are enough)
    pub(crate) device: String,
    /// For instance `rate=10MB`, `stall`, `error`, `full`, `rotational=no`, `off`; what it does not name is as with `off`
    #[arg(value_parser = crate::units::emulation)]
    pub(crate) spec: String,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    /// Name the experiments
    List,
    /// Run experiments by name
    Run {
        /// Names, as `steadfast lab list` gives them
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        output: Output,
        /// Repeats the same disks and data
        #[arg(long)]
        seed: Option<u64>,
        /// Draws of each case or accesses of each point, where the experiment has many (`requests`: rounds, one more where
        /// they are odd in number)
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        draws: Option<u32>,
        /// Only cases whose name contains this, where the experiment can choose
        #[arg(long)]
        case: Option<String>,
        /// Fewer accesses of each point, for a first look, where the experiment has many
        #[arg(long)]
        quick: bool,
        /// Keep what is done in this file, and go on from it: an interrupted run comes to the same figures
        #[arg(long, value_name = "FILE")]
        resume: Option<PathBuf>,
        /// Write a picture of the figures here, where the experiment has one (`codes/overhead`: two panels, SVG)
        #[arg(long, value_name = "FILE.svg")]
        plot: Option<PathBuf>,
    },
    /// Make one page with charts of what `lab run --json` printed; it needs no network
    Report {
        /// Files of JSON lines, any number of experiments in each
        #[arg(required = true, value_name = "RESULTS.jsonl")]
        results: Vec<PathBuf>,
        /// Where to write the page
        #[arg(long, value_name = "FILE.html", default_value = "report.html")]
        output: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// Repeat the run that a seed names: its trace's hash, its latency and its counts
    Replay {
        /// The seed of the run
        #[arg(long)]
        seed: u64,
        /// The scheme, as cases name it
        #[arg(long, default_value = "rateless-b")]
        scheme: String,
        /// Disks of the access: the point `disks=N` of `robustore/disks`
        #[arg(long, value_name = "N", default_value_t = 64, conflicts_with_all = ["experiment", "point"])]
        disks: u32,
        /// Another experiment's access
        #[arg(long, value_name = "NAME", requires = "point")]
        experiment: Option<String>,
        /// The point of that experiment, as its cases name it
        #[arg(long, value_name = "POINT", requires = "experiment")]
        point: Option<String>,
        /// The access's number
        #[arg(long, value_name = "N", default_value_t = 0)]
        access: u32,
        /// Write every message here, a JSON object a line
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
        /// Change one byte of this message on the way, the first being 1, and say how that was found out
        #[arg(long, value_name = "N")]
        flip: Option<u64>,
        #[command(flatten)]
        output: Output,
    },
}

/// What `bench io` measures.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(crate) enum BenchPolicy {
    /// D = 0.5, f = 2
    #[default]
    Rateless,
    /// (6, 4) chunks
    Parity,
}

impl From<BenchPolicy> for steadfast_lab::io::Measured {
    fn from(policy: BenchPolicy) -> Self {
        match policy {
            BenchPolicy::Rateless => Self::Rateless,
            BenchPolicy::Parity => Self::Parity,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Erasure codes: rates of encoding, reconstruction, deltas and decoding
    Codes {
        #[command(flatten)]
        output: Output,
        /// Few rounds, for a first look
        #[arg(long)]
        quick: bool,
        /// Only the cases that have this in their name
        #[arg(long, value_name = "SUBSTRING")]
        only: Option<String>,
        /// Run our kernels at this instruction set instead of the widest: portable, ssse3, avx2, avx2-gfni, avx512 or
        /// avx512-gfni
        #[arg(long, value_name = "NAME")]
        tier: Option<String>,
        /// Repeats the same bytes, graphs and arrivals
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// The whole store on six real directories and on emulated disks: rates, processor time, latencies
    Io {
        #[command(flatten)]
        output: Output,
        /// Whose buckets: whole objects of either, and small updates of `parity`
        #[arg(long, value_enum, default_value_t)]
        policy: BenchPolicy,
        /// Few rounds, for a first look
        #[arg(long)]
        quick: bool,
        /// Only the cases that have this in their name
        #[arg(long, value_name = "SUBSTRING")]
        only: Option<String>,
        /// Where the real directories are made; the system's place for temporary files when absent
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Repeats the same bytes
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// One client of `bench io`: waits for a line, makes its accesses
    #[command(hide = true)]
    Access {
        #[command(flatten)]
        cluster: Cluster,
        #[arg(long)]
        object: crate::object_name::ObjectName,
        /// Bytes to write; reads when absent
        #[arg(long)]
        put: Option<u64>,
        #[arg(long, default_value_t = 1)]
        count: u32,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}
