//! `steadfast status` and `steadfast emulate`.

use super::{connect, print_json};
use crate::{
    arguments::{Emulate, Status},
    units::show_bytes,
};
use anyhow::bail;
use comfy_table::{CellAlignment, Table, presets};
use steadfast_protocol::message::{DeviceHealth, DeviceReport};

pub(crate) async fn run(arguments: Status) -> anyhow::Result<()> {
    let client = connect(&arguments.cluster).await?;
    let registry = client.registry().await?;
    if arguments.output.json {
        return print_json(&registry);
    }
    let alive = registry.nodes.iter().filter(|node| node.alive).count();
    println!("cluster {}: {alive} of {} storage servers alive", registry.cluster, registry.nodes.len());
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
        "corrupt",
    ]);
    for node in &registry.nodes {
        for (row, &(device, capacity)) in node.record.devices.iter().enumerate() {
            let report = node.devices.iter().find(|report| report.device == device);
            let used = report.map_or(0, |report| report.capacity_bytes.saturating_sub(report.free_bytes));
            table.add_row([
                if row == 0 { node.record.address.clone() } else { String::new() },
                device.to_string()[..12].to_owned(),
                if node.alive { state(report).to_owned() } else { silence(node.silent_ms) },
                show_bytes(used),
                show_bytes(capacity),
                speed(report.map(|report| report.read_bytes_per_s)),
                speed(report.map(|report| report.write_bytes_per_s)),
                report.map_or_else(String::new, |report| report.queue_length.to_string()),
                report.map_or_else(String::new, |report| report.corrupt_blocks.to_string()),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    Ok(())
}

fn state(report: Option<&DeviceReport>) -> &'static str {
    match report.map(|report| report.health) {
        None => "unheard",
        Some(DeviceHealth::Ok) => "ok",
        Some(DeviceHealth::Full) => "full",
        Some(DeviceHealth::Stalled) => "stalled",
        Some(DeviceHealth::Failed) => "failed",
    }
}

fn silence(silent_ms: Option<u64>) -> String {
    silent_ms.map_or_else(|| "dead".to_owned(), |silent| format!("dead for {} s", silent / 1000))
}

fn speed(bytes_per_s: Option<u64>) -> String {
    match bytes_per_s {
        None | Some(0) => "-".to_owned(),
        Some(rate) => format!("{:.0} MB/s", rate as f64 / 1e6),
    }
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
