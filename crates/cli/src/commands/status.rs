//! `steadfast status` and `steadfast emulate`.

use super::{
    connect,
    health::{DeviceNow, Devices, show_time},
    print_json,
};
use crate::{
    arguments::{Emulate, Status},
    units::show_bytes,
};
use anyhow::bail;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;
use steadfast_protocol::message::NodeState;

pub(crate) async fn run(arguments: Status) -> anyhow::Result<()> {
    let client = connect(&arguments.cluster).await?;
    let registry = client.registry().await?;
    let devices = Devices::of(&registry);
    if arguments.output.json {
        let stragglers: Vec<_> = devices
            .devices
            .iter()
            .filter_map(|device| {
                let times_slower = device.times_slower?;
                Some(json!({ "device": device.device, "times_slower": times_slower }))
            })
            .collect();
        let mut value = serde_json::to_value(&registry)?;
        value["stragglers"] = stragglers.into();
        return print_json(&value);
    }
    let alive = registry.nodes.iter().filter(|node| node.alive).count();
    println!("cluster {}: {alive} of {} storage servers alive", registry.cluster, registry.nodes.len());
    println!("{}", devices.summary());
    if let Some(admin) = &registry.admin {
        println!("metadata server: http://{admin}/metrics");
    }
    println!("{}", table(&registry.nodes, &devices.devices));
    for node in registry.nodes.iter().filter(|node| node.alive) {
        if let Some(admin) = &node.activity.admin {
            println!("{}: http://{admin}/metrics", node.record.address);
        }
    }
    Ok(())
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
        for (row, device) in devices.by_ref().take(node.record.devices.len()).enumerate() {
            let heard = |text: String| if device.state == "unheard" { String::new() } else { text };
            table.add_row([
                if row == 0 { device.server.clone() } else { String::new() },
                device.device[..12].to_owned(),
                if node.alive { device.word() } else { silence(node.silent_ms) },
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
    let registry = client.registry().await?;
    let named: Vec<_> = registry
        .nodes
        .iter()
        .flat_map(|node| &node.record.devices)
        .map(|&(device, _)| device)
        .filter(|device| device.to_string().starts_with(&arguments.device))
        .collect();
    match named[..] {
        [device] => client.emulate(device, &arguments.spec).await?,
        [] => bail!("no device begins with `{}`; `steadfast status` names them", arguments.device),
        _ => bail!("{} devices begin with `{}`; give more digits", named.len(), arguments.device),
    }
    Ok(())
}
