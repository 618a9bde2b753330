//! `steadfast status` and `steadfast emulate`.

use super::{
    connect,
    device::one,
    doings::{self, Kept, is_silent},
    health::{DeviceNow, Devices, at_risk, missing, show_time},
    print_json, repair,
};
use crate::{
    arguments::{Emulate, Status},
    harmless::harmless,
    units::show_bytes,
};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::json;
use std::net::SocketAddr;
use steadfast_protocol::message::{DrainState, NodeState, Registry};

/// What `--json` gives: all that the metadata server knows, and what is made of it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    registry: &'a Registry,
    /// All devices, by the names that commands take.
    devices: &'a [DeviceNow],
    /// Those far slower than their peers.
    stragglers: Vec<&'a str>,
    /// Those that no storage server registers any more, the first of very many.
    missing_devices: Vec<String>,
    /// Bandwidth kept for accesses on all of them.
    kept: Kept,
    /// Segments with fewer chunks than their buckets' codes, and the bytes of what they lack; of very many the first.
    degraded_segments: u64,
    degraded_bytes: u64,
}

pub(crate) async fn run(arguments: Status) -> anyhow::Result<()> {
    let client = connect(&arguments.cluster).await?;
    let registry = client.registry().await?;
    let devices = Devices::of(&registry);
    let degraded = client.degraded().await?;
    if arguments.output.json {
        let stragglers = devices.devices.iter().filter(|device| device.times_slower.is_some());
        let shown = Shown {
            registry: &registry,
            devices: &devices.devices,
            stragglers: stragglers.map(|device| device.device.as_str()).collect(),
            missing_devices: registry.missing.iter().map(|(device, _)| device.to_string()).collect(),
            kept: Kept::of(&registry),
            degraded_segments: degraded.segments,
            degraded_bytes: degraded.lacking_bytes,
        };
        return print_json(&shown);
    }
    let alive = registry.nodes.iter().filter(|node| node.alive).count();
    say!("cluster {}: {alive} of {} storage servers alive", registry.cluster, registry.nodes.len())?;
    say!("{}", devices.summary())?;
    if let Some(admin) = &registry.admin {
        say!("metadata server: http://{}/metrics", reached(admin, &arguments.cluster.cluster))?;
    }
    if let Some(line) = missing(&registry) {
        say!("{line}")?;
    }
    let ill = devices.devices.iter().any(|device| !matches!(device.state, "ok" | "full"));
    if ill || !registry.missing.is_empty() {
        let buckets = client.buckets().await?;
        for risk in at_risk(&registry, &devices, &buckets, degraded.segments > 0).iter() {
            say!("{risk}")?;
        }
    }
    if let Some(line) = repair::degraded(&degraded) {
        say!("{line}")?;
    }
    say!("{}", table(&registry.nodes, &devices.devices))?;
    for line in doings::drains(&registry) {
        say!("{line}")?;
    }
    for DrainState { progress, .. } in registry.drains.iter().filter(|drain| is_silent(drain)) {
        let devices = progress.devices.iter().map(|device| device.to_string()[..12].to_owned());
        say!(
            "nobody moves what lies on {} any more: run `steadfast device {}` again",
            devices.collect::<Vec<_>>().join(", "),
            if progress.lost { "remove --lost" } else { "drain" }
        )?;
    }
    for line in doings::reads(&registry.accesses).iter() {
        say!("{line}")?;
    }
    say!("{}", doings::writes(&registry.accesses))?;
    for line in doings::amends(&registry.accesses).iter() {
        say!("{line}")?;
    }
    for line in Kept::of(&registry).line().iter() {
        say!("{line}")?;
    }
    for node in registry.nodes.iter().filter(|node| node.alive) {
        if let Some(admin) = &node.activity.admin {
            let address = &node.record.address;
            say!("{}: http://{}/metrics", harmless(address), harmless(&reached(admin, address)))?;
        }
    }
    Ok(())
}

/// Where the admin port is reached that a server at `address` registered: one that listens at every address says none, and is where its
/// server is.
fn reached(admin: &str, address: &str) -> String {
    let host = address.rsplit_once(':').map(|(host, _)| host);
    match (admin.parse::<SocketAddr>(), host) {
        (Ok(listens), Some(host)) if listens.ip().is_unspecified() => format!("{host}:{}", listens.port()),
        _ => admin.to_owned(),
    }
}

fn table(nodes: &[NodeState], devices: &[DeviceNow]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "storage server",
        "device",
        "state",
        "used",
        "capacity",
        "reads",
        "writes",
        "queue",
        "service",
        "corrupt",
    ]);
    let mut devices = devices.iter();
    for node in nodes {
        if node.record.devices.is_empty() {
            let state = if node.alive { "no devices".to_owned() } else { silence(node.silent_ms) };
            table.add_row([harmless(&node.record.address).into_owned(), "-".to_owned(), state]);
        }
        for (row, device) in devices.by_ref().take(node.record.devices.len()).enumerate() {
            let repaired = device.leaving.is_some_and(|leaving| leaving.lost);
            let heard = |text: String| if device.state == "unheard" { String::new() } else { text };
            table.add_row([
                if row == 0 { harmless(&device.server).into_owned() } else { String::new() },
                device.device[..12].to_owned(),
                if node.alive || repaired { device.word() } else { silence(node.silent_ms) },
                show_bytes(device.used_bytes),
                show_bytes(device.capacity_bytes),
                speed(device.read_speed_bytes_per_s),
                speed(device.write_speed_bytes_per_s),
                heard(device.queued_operations.to_string()),
                heard(show_time(device.service_s)),
                heard(device.corrupt_blocks.to_string()),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn silence(silent_ms: Option<u64>) -> String {
    silent_ms.map_or_else(|| "dead".to_owned(), |silent| format!("dead for {} s", silent / 1000))
}

fn speed(bytes_per_s: u64) -> String {
    if bytes_per_s == 0 { "-".to_owned() } else { format!("{:.0} MB/s", bytes_per_s as f64 / 1e6) }
}

pub(crate) async fn emulate(arguments: Emulate) -> anyhow::Result<()> {
    let client = connect(&arguments.cluster).await?;
    let device = one(&client.registry().await?, &arguments.device)?;
    client.emulate(device, &arguments.spec).await?;
    if arguments.output.json {
        return print_json(&json!({ "device": device.to_string(), "emulation": arguments.spec }));
    }
    say!("device {device}: emulation {}", arguments.spec)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_port_of_every_address_is_where_its_server_is() {
        for (admin, address, expected) in [
            ("0.0.0.0:7011", "10.0.0.2:7010", "10.0.0.2:7011"),
            ("[::]:7011", "[fd00::2]:7010", "[fd00::2]:7011"),
            ("0.0.0.0:7011", "store.example:7010", "store.example:7011"),
            ("127.0.0.1:7011", "10.0.0.2:7010", "127.0.0.1:7011"),
        ] {
            assert_eq!(reached(admin, address), expected);
        }
    }
}
