//! `robustore/real-64`: whether the simulator tells the truth. Sixty-four emulated disks under eight storage servers, all of
//! them processes of their own, are read as in `robustore/disks`; each read stands beside the simulator's own run of it.
//!
//! One model of the disk serves both sides ([`steadfast_disk::model`]), and the same cores decide; what differs is all
//! the rest: threads, sockets, checksums, decoding, and the time that these take. A pair shares the draw of the
//! disks, the layout (the cluster's, which the simulator is given), the code's seed and what was known of the
//! disks' speeds. The objects are written with emulation off.
//!
//! | metric | what |
//! |---|---|
//! | `bandwidth`, `latency_mean`, `latency_sd`, `io_overhead`, `share_of_ideal` | of the real reads, `limit` being the simulator's; and of the simulator's (`driver=simulator`) |
//! | `latency_pairs_sd` | s.d. of the real latencies' shares of the simulated |
//! | `overruns` | the share of operations that the emulation ended late: above 0.01 the run is void |

use super::{
    access::{self, Watch},
    draw::{Disk, Draw},
    ideal,
    parameters::{self, Parameters},
    scheme::{SCHEMES, Scheme},
    settings,
};
use crate::{
    Options,
    cluster::{LocalCluster, Shape},
    original::Original,
    overruns::{self, Begun, Late},
    report::{Report, mean, standard_deviation},
};
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use std::{collections::BTreeMap, path::Path, time::Duration};
use steadfast_client::{Client, RequestRule};
use steadfast_protocol::{DeviceId, Time, layout::SegmentLayout};

/// The experiment's name.
pub const NAME: &str = "robustore/real-64";

/// What the registry says of a device is at most two heartbeats old by then.
const HEARD: Duration = Duration::from_millis(1100);
/// A byte comes within it from the slowest disk, dilated.
const PATIENCE: Duration = Duration::from_secs(120);
const KEY: &str = "object";
/// What the cases of the simulator's reads end with.
const SIMULATED: &str = " driver=simulator";

/// One read, done twice.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// Seconds.
    real: f64,
    simulated: f64,
    ideal: f64,
    real_overhead: f64,
    simulated_overhead: f64,
    late: Late,
}

/// Runs it with `program` as the servers' executable.
///
/// # Errors
/// When the cluster cannot be run, a read fails or a byte comes back wrong.
pub async fn run(
    program: &Path,
    options: &Options,
    mut report: Report,
    say: &mut dyn FnMut(&str),
) -> Result<Report> {
    let seed = report.seed();
    let experiment = parameters::find(NAME).context("a file for it")??;
    let (point, parameters) = experiment.points.first().context("one point")?;
    let case = |scheme: Scheme| format!("{point} scheme={}", scheme.name());
    let asked = |scheme: &Scheme| options.case.as_ref().is_none_or(|part| case(*scheme).contains(part));
    let schemes: Vec<Scheme> = SCHEMES.into_iter().filter(asked).collect();
    if schemes.is_empty() {
        return Err(settings::no_case(NAME).into());
    }
    let mut stage = Stage::start(program, parameters, seed).await?;
    for scheme in schemes {
        stage.load(scheme, say).await?;
        let mut pairs = Vec::new();
        let accesses = options.draws.unwrap_or(accesses(parameters, scheme, options.quick));
        for number in 0..accesses {
            let pair = stage.pair(scheme, number).await?;
            say(&format!(
                "{}: access {} of {accesses}: {:.2} s, simulated {:.2} s",
                scheme.name(),
                number + 1,
                pair.real,
                pair.simulated
            ));
            pairs.push(pair);
        }
        add(&mut report, parameters, &case(scheme), &pairs);
        report.complete()?;
    }
    stage.cluster.stop();
    Ok(report)
}

/// RAID-0 and RRAID-S wait for the slowest of disks.
fn accesses(parameters: &Parameters, scheme: Scheme, quick: bool) -> u32 {
    match scheme {
        Scheme::Stripe | Scheme::ReplicatedSpeculative => parameters.quick_accesses,
        _ if quick => parameters.quick_accesses,
        _ => parameters.accesses,
    }
}

/// Whose bucket a scheme reads: one object of copies is read both ways, as the request rule says.
fn bucket(scheme: Scheme) -> Scheme {
    match scheme {
        Scheme::ReplicatedSpeculative => Scheme::ReplicatedAdaptive,
        _ => scheme,
    }
}

struct Stage {
    cluster: LocalCluster,
    /// Asks for all, and asks adaptively.
    clients: [Client; 2],
    /// Every device, in the order in which a draw names its disks.
    devices: Vec<DeviceId>,
    original: Original,
    parameters: Parameters,
    /// By bucket.
    loaded: BTreeMap<&'static str, SegmentLayout>,
    seed: u64,
    /// Last, so that it goes when the servers are gone.
    _scratch: crate::scratch::Scratch,
}

impl Stage {
    async fn start(program: &Path, parameters: &Parameters, seed: u64) -> Result<Self> {
        let (disks, each) = (parameters.disks, parameters.disks_per_node);
        ensure!(disks.is_multiple_of(each), "{disks} disks on servers of {each}");
        // A stripe, four copies, and twice N = 4 K blocks, unevenly.
        let stored = parameters.object_bytes() * 14 / u64::from(disks);
        let capacity = 2 * stored;
        let scratch = crate::scratch::Scratch::new(capacity * u64::from(disks))?;
        let shape = Shape {
            nodes: disks / each,
            devices: each,
            emulate: Some("off".to_owned()),
            capacity_bytes: Some(capacity),
            thick: scratch.in_memory(),
            ..Shape::default()
        };
        let cluster = LocalCluster::start(program, scratch.path(), &shape)?;
        let client = async |request| {
            let options = steadfast_client::Options {
                seed: Some(seed),
                // K as in the dissertation: one segment.
                segment_bytes: parameters.object_bytes(),
                request,
                patience: PATIENCE,
                ..steadfast_client::Options::default()
            };
            cluster.client(options).await
        };
        let clients = [client(RequestRule::AllAtOnce).await?, client(RequestRule::ADAPTIVE).await?];
        let registry = clients[0].registry().await?;
        let mut devices = Vec::new();
        for node in 0..shape.nodes as usize {
            let address = cluster.node_address(node);
            let state = registry.nodes.iter().find(|state| state.record.address == address);
            let state = state.with_context(|| format!("storage server at {address} did not register"))?;
            devices.extend(state.record.devices.iter().map(|&(device, _)| device));
        }
        ensure!(devices.len() == disks as usize, "{} devices registered", devices.len());
        let length = usize::try_from(parameters.object_bytes()).context("object size")?;
        Ok(Self {
            cluster,
            clients,
            devices,
            original: Original::make(length, seed),
            parameters: parameters.clone(),
            loaded: BTreeMap::new(),
            seed,
            _scratch: scratch,
        })
    }

    /// The client that reads as the scheme does.
    fn client(&self, scheme: Scheme) -> &Client {
        &self.clients[usize::from(scheme.rule() != RequestRule::AllAtOnce)]
    }

    /// Stores what the scheme reads, if it is not there, as fast as the machine can.
    async fn load(&mut self, scheme: Scheme, say: &mut dyn FnMut(&str)) -> Result<()> {
        let (bucket, name) = (bucket(scheme), bucket(scheme).name());
        if self.loaded.contains_key(name) {
            return Ok(());
        }
        say(&format!("loading {name}"));
        self.emulate(|_| "off".to_owned()).await?;
        let client = &self.clients[0];
        client.create_bucket(name, bucket.policy(&self.parameters)).await?;
        client.put(name, KEY, self.original.source()?, Some(self.original.length())).await?;
        let stat = client.stat(name, KEY).await?;
        ensure!(stat.segments.len() == 1, "an object of one segment has {}", stat.segments.len());
        self.loaded.extend(stat.segments.into_iter().map(|layout| (name, layout)));
        Ok(())
    }

    async fn emulate(&self, spec: impl Fn(usize) -> String) -> Result<()> {
        for (place, &device) in self.devices.iter().enumerate() {
            self.clients[0].emulate(device, &spec(place)).await?;
        }
        Ok(())
    }

    /// Access `number`, on the cluster and in the simulator.
    async fn pair(&self, scheme: Scheme, number: u32) -> Result<Pair> {
        let drawn = Draw::new(&self.parameters, self.seed, number, 0);
        self.emulate(|place| format!("drive={}", drawn.disks[place].spec)).await?;
        tokio::time::sleep(HEARD).await;
        let client = self.client(scheme);
        let registry = client.registry().await?;
        let reports = registry.nodes.iter().flat_map(|node| &node.devices);
        let seen: BTreeMap<DeviceId, u64> =
            reports.map(|report| (report.device, report.read_bytes_per_s)).collect();

        let begun = Begun::now(client).await?;
        let (sink, compared) = self.original.comparison()?;
        let got = client.get(bucket(scheme).name(), KEY, None, sink).await.context(scheme.name())?;
        let whole = compared.wrong() == 0 && compared.taken() == self.original.length();
        ensure!(whole, "{}: bytes came back wrong", scheme.name());
        let late = begun.late(client, &[]).await?;

        // The same disks, by the names that a world gives them.
        let disks = drawn.disks.iter().zip(0..).map(|(disk, number)| Disk { number, ..*disk }).collect();
        let draw = Draw { disks, ..drawn };
        let mut layout = self.loaded[bucket(scheme).name()].clone();
        let mut speeds = BTreeMap::new();
        for holder in &mut layout.holders {
            let place = self.devices.iter().position(|device| *device == holder.device);
            let own = draw.disks[place.context("a holder is a device of the cluster")?].device();
            speeds.insert(own, seen.get(&holder.device).copied().unwrap_or(0));
            holder.device = own;
        }
        let held = |disk: &Disk| {
            let mine = layout.holders.iter().filter(|holder| holder.device == disk.device());
            mine.map(steadfast_protocol::layout::Holder::count).sum::<u32>()
        };
        let held: Vec<u32> = draw.disks.iter().map(held).collect();
        // What lies on the disks as copies of a stripe is no any-K: its ideal is that of the code's layouts.
        let ideal = match scheme {
            Scheme::RatelessLt | Scheme::RatelessB => ideal::read_of(&self.parameters, &draw, held)?,
            _ => ideal::read(&self.parameters, &draw)?,
        };
        let parameters = &self.parameters;
        let (mut world, reader) = access::world(parameters, &draw, Watch::default());
        world.preload(&layout, draw.seed);
        let code = layout.code.code()?;
        let read = access::reading(parameters, scheme, scheme.rule(), &layout, code, draw.seed, |device| {
            speeds.get(&device).copied().unwrap_or(0)
        });
        let id = world.read(reader, Time(0), read);
        world.run();
        let outcome = access::succeeded(&world, id, scheme)?;
        let simulated = access::sample(parameters, &world, outcome, outcome.medium_bytes)?;
        Ok(Pair {
            real: got.latency.as_secs_f64(),
            simulated: simulated.latency,
            ideal: ideal.latency.as_secs_f64(),
            real_overhead: got.io_overhead(),
            simulated_overhead: simulated.io_overhead,
            late,
        })
    }
}

fn add(report: &mut Report, parameters: &Parameters, case: &str, pairs: &[Pair]) {
    let megabytes = parameters.object_bytes() as f64 / 1e6;
    let of = |part: fn(&Pair) -> f64| pairs.iter().map(part).collect::<Vec<f64>>();
    let bandwidth =
        |seconds: Vec<f64>| mean(&seconds.iter().map(|seconds| megabytes / seconds).collect::<Vec<f64>>());
    let (real, simulated) = (of(|pair| pair.real), of(|pair| pair.simulated));
    let simulated_case = format!("{case}{SIMULATED}");
    let mut both = |metric: &'static str, ours: f64, simulators: f64, unit: &'static str| {
        let record = report.add(NAME, case, metric, ours, unit);
        record.limit = Some(simulators);
        record.ratio = (simulators > 0.0).then(|| ours / simulators);
        report.add(NAME, &simulated_case, metric, simulators, unit);
    };
    both("bandwidth", bandwidth(real.clone()), bandwidth(simulated.clone()), "MB/s");
    both("latency_mean", mean(&real), mean(&simulated), "s");
    both("latency_sd", standard_deviation(&real), standard_deviation(&simulated), "s");
    let ideal = bandwidth(of(|pair| pair.ideal));
    both("share_of_ideal", bandwidth(real) / ideal, bandwidth(simulated) / ideal, "share");
    let overheads = [of(|pair| pair.real_overhead), of(|pair| pair.simulated_overhead)].map(|all| mean(&all));
    both("io_overhead", overheads[0], overheads[1], "share of the object");
    let shares = of(|pair| pair.real / pair.simulated);
    report.add(NAME, case, "latency_pairs_sd", standard_deviation(&shares), "share of the simulated");
    report.add(NAME, case, "accesses", pairs.len() as f64, "accesses");
    let late = pairs.iter().map(|pair| pair.late).sum::<Late>().share();
    report.add(NAME, case, "overruns", late, "share of operations");
}

/// The report as a table for people.
pub fn show(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "",
        "mean s",
        "simulated",
        "ratio",
        "s.d. s",
        "simulated",
        "ratio",
        "sent",
        "simulated",
        "of ideal",
        "overruns",
    ]);
    let mut cases: Vec<&str> = report.records.iter().map(|record| record.case.as_str()).collect();
    cases.retain(|case| !case.ends_with(SIMULATED));
    cases.dedup();
    for case in cases {
        let find = |metric: &str| {
            report.records.iter().find(|record| record.case == case && record.metric == metric)
        };
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
        let value = |metric: &str| number(find(metric).and_then(|record| record.value));
        let limit = |metric: &str| number(find(metric).and_then(|record| record.limit));
        let ratio = |metric: &str| number(find(metric).and_then(|record| record.ratio));
        let late = find("overruns").and_then(|record| record.value).unwrap_or(0.0);
        table.add_row([
            case.to_owned(),
            value("latency_mean"),
            limit("latency_mean"),
            ratio("latency_mean"),
            value("latency_sd"),
            limit("latency_sd"),
            ratio("latency_sd"),
            value("io_overhead"),
            limit("io_overhead"),
            value("share_of_ideal"),
            overruns::show(late),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
