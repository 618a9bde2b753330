//! `steadfast device`: devices that come and go.

use super::{connect, connect_as, doings::Moved, print_json};
use crate::{
    arguments::{Class, Cluster, Output},
    exit::Refusal,
    harmless::harmless,
    progress,
    units::show_bytes,
};
use clap::Subcommand;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use steadfast_client::{Client, DrainError, DrainOptions, DrainReport};
use steadfast_protocol::{
    DeviceId,
    message::{DeviceHealth, DeviceReport, DeviceState, Holding, NodeState, Registry},
    words::{counted, counted_are},
};

/// What `device ls` says of a device that no server registers and that was not removed.
const MISSING: &str = "missing";

#[derive(Debug, Subcommand)]
pub(crate) enum Device {
    /// List devices: what they are to do, where they are, and what they hold
    Ls {
        /// Do not count what they hold: that takes a look at every segment of the cluster
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        output: Output,
    },
    /// Give a running storage server a further disk. New objects use it at once; what is stored stays where it is, until it
    /// is stored again
    Add {
        /// The storage server: its address, or the first digits of one of its devices
        #[arg(long, value_name = "NODE")]
        node: String,
        /// The directory on that server's machine, a full path
        dir: String,
        /// Bytes the device may use, for instance `20GiB`; as the server was started when absent
        #[arg(
            long,
            value_name = "SIZE",
            allow_negative_numbers = true,
            value_parser = crate::units::capacity
        )]
        capacity: Option<u64>,
        /// Take the device's whole capacity from its filesystem at once, so that no write is a first one; so it is anyway
        /// where the server was started with `--thick`
        #[arg(long, requires = "capacity")]
        thick: bool,
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        output: Output,
    },
    /// Move what lies on devices elsewhere, so that they can be removed. Reads and writes go on; when cut short, run it again
    Drain {
        /// Devices, by their first digits, or storage servers, by their address
        #[arg(required = true, value_name = "DEVICE|NODE")]
        names: Vec<String>,
        /// Let the devices take data again instead
        #[arg(long, conflicts_with_all = ["force", "keep_going"])]
        cancel: bool,
        /// Begin although a bucket could not keep its promise any more, and leave the devices draining where that fails
        #[arg(long)]
        force: bool,
        /// Go on with other objects where one cannot be moved
        #[arg(long)]
        keep_going: bool,
        #[command(flatten)]
        class: Class,
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        output: Output,
    },
    /// Remove empty devices from the cluster, for good
    Remove {
        /// Devices, by their first digits, or storage servers with all their devices, by their address
        #[arg(required = true, value_name = "DEVICE|NODE")]
        names: Vec<String>,
        /// Their disks are dead: repair what they held from what others hold, all at once and as far as that goes, and then remove them
        #[arg(long)]
        lost: bool,
        #[command(flatten)]
        class: Class,
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        output: Output,
    },
}

pub(crate) async fn run(command: Device) -> anyhow::Result<()> {
    match command {
        Device::Ls { quick, cluster, output } => list(quick, &cluster, output).await,
        Device::Add { node, dir, capacity, thick, cluster, output } => {
            add(&node, &dir, (capacity, thick), &cluster, output).await
        }
        Device::Drain { names, cancel, force, keep_going, class, cluster, output } => {
            let client = connect_as(class, &cluster).await?;
            let registry = client.registry().await?;
            let devices = match several(&registry, &names) {
                Err(error) => return Err(or_unserved(error, &client, &registry, &names).await),
                found => found?,
            };
            if cancel {
                return reactivate(&client, &devices, output).await;
            }
            let mut options = DrainOptions { force, ..DrainOptions::default() };
            options.limits.keep_going = keep_going;
            let drained = drain(&client, &devices, &options, output).await;
            client.tidy().await;
            told(&devices, &drained?, output)
        }
        Device::Remove { names, lost, class, cluster, output } => {
            let client = connect_as(class, &cluster).await?;
            let registry = client.registry().await?;
            let devices = match several(&registry, &names) {
                Err(_) if lost => lost_ones(&registry, &client.holdings().await?, &names)?,
                Err(error) => return Err(or_unserved(error, &client, &registry, &names).await),
                found => found?,
            };
            remove(&client, &devices, lost, output).await
        }
    }
}

async fn list(quick: bool, cluster: &Cluster, output: Output) -> anyhow::Result<()> {
    let client = connect(cluster).await?;
    let registry = client.registry().await?;
    let holdings = if quick { None } else { Some(client.holdings().await?) };
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let mut header = vec!["device", "state", "health", "storage server", "site", "capacity", "free"];
    if holdings.is_some() {
        header.extend(["segments", "blocks", "bytes of blocks"]);
    }
    table.set_header(header);
    for (node, device, capacity) in devices_of(&registry) {
        let state = state(registry.state(device));
        let report = node.devices.iter().find(|report| report.device == device);
        let held = holdings.as_ref().map(|all| all.get(&device).copied().unwrap_or_default());
        let free = report.map_or(capacity, |report| report.free_bytes);
        if output.json {
            print_json(&json!({
                "device": device.to_string(),
                "state": state,
                "health": health(node, report),
                "node": node.record.node.to_string(),
                "address": node.record.address,
                "site": node.record.site,
                "capacity_bytes": capacity,
                "free_bytes": free,
                "extents": report.map(|report| report.extents),
                "segments": held.map(|held| held.segments),
                "blocks": held.map(|held| held.blocks),
                "block_bytes": held.map(|held| held.bytes),
            }))?;
            continue;
        }
        let mut row = vec![
            device.to_string()[..12].to_owned(),
            state.to_owned(),
            health(node, report).to_owned(),
            harmless(&node.record.address).into_owned(),
            harmless(&node.record.site).into_owned(),
            show_bytes(capacity),
            show_bytes(free),
        ];
        if let Some(Holding { segments, blocks, bytes, .. }) = held {
            row.extend([segments.to_string(), blocks.to_string(), show_bytes(bytes)]);
        }
        table.add_row(row);
    }
    for node in registry.nodes.iter().filter(|node| node.record.devices.is_empty() && !output.json) {
        let none = || "-".to_owned();
        let health = if node.alive { "no devices" } else { "dead" };
        let (address, site) = (harmless(&node.record.address), harmless(&node.record.site));
        table.add_row([none(), none(), health.to_owned(), address.into_owned(), site.into_owned()]);
    }
    for device in unserved(&registry, holdings.as_ref()) {
        let held = holdings.as_ref().map(|all| all.get(&device).copied().unwrap_or_default());
        let (device, state) = (device.to_string(), state(registry.state(device)));
        if output.json {
            print_json(&json!({
                "device": device,
                "state": state,
                "health": MISSING,
                "node": null,
                "address": null,
                "site": null,
                "capacity_bytes": null,
                "free_bytes": null,
                "extents": null,
                "segments": held.map(|held| held.segments),
                "blocks": held.map(|held| held.blocks),
                "block_bytes": held.map(|held| held.bytes),
            }))?;
            continue;
        }
        let none = || "-".to_owned();
        let mut row = vec![device[..12].to_owned(), state.to_owned(), MISSING.to_owned()];
        row.extend([none(), none(), none(), none()]);
        if let Some(Holding { segments, blocks, bytes, .. }) = held {
            row.extend([segments.to_string(), blocks.to_string(), show_bytes(bytes)]);
        }
        table.add_row(row);
    }
    if !output.json {
        for column in table.column_iter_mut().skip(5) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        say!("{table}")?;
    }
    Ok(())
}

async fn add(
    node: &str,
    dir: &str,
    (capacity, thick): (Option<u64>, bool),
    cluster: &Cluster,
    output: Output,
) -> anyhow::Result<()> {
    let client = connect(cluster).await?;
    let registry = client.registry().await?;
    let address = match server(&registry, node) {
        Some(server) => server.record.address.clone(),
        None if node.contains(':') => return Err(no_server(&registry, node).into()),
        None => {
            let device = one(&registry, node)?;
            let mut of = devices_of(&registry).filter(|&(_, other, _)| other == device);
            let unknown = || Refusal::Missing(format!("no storage server has device {device}"));
            of.next().ok_or_else(unknown)?.0.record.address.clone()
        }
    };
    let device = client.add_device(&address, dir, capacity, thick).await?;
    if output.json {
        return print_json(&json!({ "added": device.to_string(), "address": address, "dir": dir }));
    }
    say!("added device {device} in {dir} to the storage server {}", harmless(&address))?;
    say!("New objects use it from now on. What is stored stays where it is until it is stored again.")?;
    Ok(())
}

async fn drain(
    client: &Client,
    devices: &BTreeSet<DeviceId>,
    options: &DrainOptions,
    output: Output,
) -> anyhow::Result<DrainReport> {
    let held = client.holdings().await?;
    let there = held.values().filter(|holding| devices.contains(&holding.device));
    let (bytes, blocks) =
        there.fold((0, 0), |(bytes, blocks), held| (bytes + held.bytes, blocks + held.blocks));
    let bar = progress::bytes_and_count(bytes, output.json);
    let drained = client
        .drain(devices, options, |totals| {
            // Puts that were under way bring more than was there at first.
            bar.set_length(bytes.max(totals.bytes));
            bar.set_position(totals.bytes);
            bar.set_message(format!("{}/{} blocks", totals.blocks, blocks.max(totals.blocks)));
        })
        .await;
    bar.finish_and_clear();
    Ok(drained?)
}

/// A drain that is done, as JSON.
#[derive(Serialize)]
struct Drained {
    drained: Vec<String>,
    #[serde(flatten)]
    moved: Moved,
    extents_left: u64,
}

fn told(devices: &BTreeSet<DeviceId>, report: &DrainReport, output: Output) -> anyhow::Result<()> {
    let moved = Moved::of(&report.totals, report.latency);
    let drained: Vec<String> = devices.iter().map(DeviceId::to_string).collect();
    if output.json {
        let extents_left = report.extents_left;
        return print_json(&Drained { drained, moved, extents_left });
    }
    say!("nothing of any object is on {} any more; moved {moved}", drained.join(", "))?;
    if report.extents_left > 0 {
        say!(
            "{} left of puts under way or of writers that died; if one of those puts commits, drain once more",
            counted_are(report.extents_left, "extent")
        )?;
    }
    say!(
        "`steadfast device remove DEVICE` takes a device out; `steadfast device drain --cancel` lets it take data again."
    )?;
    Ok(())
}

async fn reactivate(client: &Client, devices: &BTreeSet<DeviceId>, output: Output) -> anyhow::Result<()> {
    // All of them before anything is said: that nobody reads it leaves none draining.
    let (mut active, mut failed) = (Vec::new(), None);
    for &device in devices {
        match client.set_device_state(device, DeviceState::Active).await {
            Ok(()) => active.push(device),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    for device in active {
        if output.json {
            print_json(&json!({ "active": device.to_string() }))?;
        } else {
            say!("device {device} takes data again")?;
        }
    }
    Ok(failed.map_or(Ok(()), Err)?)
}

/// Why a lost device is not removed; where some of it was repaired, that it can go on.
fn stays_draining(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<DrainError>() {
        Some(DrainError::Stuck { restored: false, .. }) => error.context(
            "what was held there is repaired as far as it goes; it stays draining, and the command can be run again",
        ),
        _ => error,
    }
}

/// Of lost devices what several of them held is decoded once.
async fn remove(
    client: &Client,
    devices: &BTreeSet<DeviceId>,
    lost: bool,
    output: Output,
) -> anyhow::Result<()> {
    let repaired = if lost {
        let options = DrainOptions { lost, ..DrainOptions::default() };
        let drained = drain(client, devices, &options, output).await;
        client.tidy().await;
        Some(drained.map_err(stays_draining)?.totals)
    } else {
        None
    };
    // Who still holds something is refused: before the others are gone for good.
    let held = client.holdings().await?;
    let mut in_turn: Vec<DeviceId> = devices.iter().copied().collect();
    in_turn.sort_by_key(|device| !held.contains_key(device));
    // All of them before anything is said: that nobody reads it leaves none there.
    let (mut removed, mut failed) = (Vec::new(), None);
    for device in in_turn {
        match client.remove_device(device, lost).await {
            Ok(()) => removed.push(device),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if let (Some(totals), false) = (&repaired, output.json) {
        let (objects, blocks) = (counted(totals.objects, "object"), counted(totals.blocks, "block"));
        say!("repaired {objects}: {blocks} of what {} held", counted(devices.len(), "device"))?;
    }
    // What was repaired for all of them is told once.
    let mut totals = repaired.unwrap_or_default();
    for device in removed {
        if output.json {
            let told = std::mem::take(&mut totals);
            print_json(&json!({
                "removed": device.to_string(),
                "repaired_objects": told.objects,
                "repaired_blocks": told.blocks,
            }))?;
            continue;
        }
        say!(
            "removed device {device}; its directory may be emptied and used again, but for the files `added` and `given`, \
             which list other disks of that server"
        )?;
    }
    Ok(failed.map_or(Ok(()), Err)?)
}

fn devices_of(registry: &Registry) -> impl Iterator<Item = (&NodeState, DeviceId, u64)> {
    registry.nodes.iter().flat_map(|node| {
        let devices = node.record.devices.iter();
        devices.map(move |&(device, capacity)| (node, device, capacity))
    })
}

fn server<'r>(registry: &'r Registry, address: &str) -> Option<&'r NodeState> {
    registry.nodes.iter().find(|node| node.record.address == address)
}

fn no_server(registry: &Registry, address: &str) -> Refusal {
    let known: Vec<&str> = registry.nodes.iter().map(|node| node.record.address.as_str()).collect();
    Refusal::Missing(format!("no storage server is at {address}; there are {}", known.join(", ")))
}

/// Devices that no server registers any more and that were not removed: of very many the first, and all that hold data where that is
/// known.
fn unserved(registry: &Registry, held: Option<&BTreeMap<DeviceId, Holding>>) -> BTreeSet<DeviceId> {
    let mut all: BTreeSet<DeviceId> = registry.missing.iter().map(|&(device, _)| device).collect();
    all.extend(held.into_iter().flat_map(BTreeMap::keys));
    devices_of(registry).for_each(|(_, device, _)| {
        all.remove(&device);
    });
    all
}

/// [`several`], but that servers may have been started without some of the devices named, or be gone.
fn lost_ones(
    registry: &Registry,
    held: &BTreeMap<DeviceId, Holding>,
    names: &[String],
) -> anyhow::Result<BTreeSet<DeviceId>> {
    let mut all = BTreeSet::new();
    for name in names {
        match several(registry, std::slice::from_ref(name)) {
            Ok(devices) => all.extend(devices),
            Err(error) => drop(all.insert(missing(registry, held, name).ok_or(error)?)),
        }
    }
    Ok(all)
}

/// The one of those whose name begins so; none where several do, or one that a server has.
fn missing(registry: &Registry, held: &BTreeMap<DeviceId, Holding>, name: &str) -> Option<DeviceId> {
    let is_named = |device: &DeviceId| !name.is_empty() && device.to_string().starts_with(name);
    if devices_of(registry).any(|(_, device, _)| is_named(&device)) {
        return None;
    }
    let mut named = unserved(registry, Some(held)).into_iter().filter(is_named);
    named.next().filter(|_| named.next().is_none())
}

/// The error, or, where one of the names is that of a device that no server has now, what can be done about it.
async fn or_unserved(
    error: anyhow::Error,
    client: &Client,
    registry: &Registry,
    names: &[String],
) -> anyhow::Error {
    let Ok(holdings) = client.holdings().await else { return error };
    let found = names.iter().find_map(|name| match one(registry, name) {
        Ok(_) => None,
        Err(_) => missing(registry, &holdings, name),
    });
    match found {
        None => error,
        Some(device) => {
            let said = format!(
                "no storage server registers device {device} now: start the server that has it, or, if the disk is dead, \
                 `steadfast device remove --lost {device}` repairs what it held"
            );
            Refusal::Missing(said).into()
        }
    }
}

/// The device whose name begins so.
pub(super) fn one(registry: &Registry, name: &str) -> anyhow::Result<DeviceId> {
    let named: Vec<DeviceId> = devices_of(registry)
        .map(|(_, device, _)| device)
        .filter(|device| !name.is_empty() && device.to_string().starts_with(name))
        .collect();
    match named[..] {
        [device] => Ok(device),
        [] => match name.parse() {
            // One that was removed, perhaps: the metadata server knows what to say.
            Ok(device) if name.len() == 32 => Ok(device),
            _ => {
                let said = format!("no device begins with `{name}`; `steadfast device ls` names them");
                Err(Refusal::Missing(said).into())
            }
        },
        _ => {
            let said = format!("{} devices begin with `{name}`; give more digits", named.len());
            Err(Refusal::Wrong(said).into())
        }
    }
}

/// The devices named, and all of the storage servers named.
fn several(registry: &Registry, names: &[String]) -> anyhow::Result<BTreeSet<DeviceId>> {
    let mut all = BTreeSet::new();
    for name in names {
        match server(registry, name) {
            Some(server) if server.record.devices.is_empty() => {
                return Err(Refusal::Missing(format!("{name} has no devices")).into());
            }
            Some(server) => all.extend(server.record.devices.iter().map(|&(device, _)| device)),
            None if name.contains(':') => return Err(no_server(registry, name).into()),
            None => drop(all.insert(one(registry, name)?)),
        }
    }
    Ok(all)
}

fn state(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Active => "active",
        DeviceState::Draining => "draining",
        DeviceState::Removed => "removed",
    }
}

fn health(node: &NodeState, report: Option<&DeviceReport>) -> &'static str {
    match report.map(|report| report.health) {
        _ if !node.alive => "dead",
        None => "unheard",
        Some(DeviceHealth::Ok) => "ok",
        Some(DeviceHealth::Full) => "full",
        Some(DeviceHealth::Stalled) => "stalled",
        Some(DeviceHealth::Failed) => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::said;
    use steadfast_client::ClientError;
    use steadfast_protocol::drain::{ObjectName, Stuck, StuckKind, Totals};

    #[test]
    fn a_lost_device_that_stays_draining_says_that_the_command_can_be_run_again() {
        let stuck = |restored| {
            let object = ObjectName { bucket: "photos".to_owned(), key: "first".to_owned() };
            let why = Stuck { kind: StuckKind::NoRoom, why: "so it is".to_owned() };
            let totals = Totals { stuck: [(object, why)].into(), ..Totals::default() };
            DrainError::Stuck { totals, restored }
        };
        for (error, expected) in [
            (stuck(false), true),
            // It takes data again.
            (stuck(true), false),
            (DrainError::from(ClientError::UnknownDevice(DeviceId(1))), false),
        ] {
            let cause = error.to_string();
            let error = stays_draining(error.into());
            let said = said(&error);
            let can_go_on = said.contains("it stays draining, and the command can be run again");
            assert_eq!(can_go_on, expected, "{said}");
            // The cause has the say about the code.
            assert!(said.contains(&cause) && error.is::<DrainError>(), "{said}");
        }
    }
}
