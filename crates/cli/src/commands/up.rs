//! `steadfast up`.

use crate::{arguments::Up, exit::check_thick};
use anyhow::Context;
use serde_json::json;
use std::time::Duration;
use steadfast_lab::cluster::{LocalCluster, Shape};
use steadfast_protocol::words::counted;

/// `environment` is set for every server.
pub(crate) async fn run(arguments: Up, environment: Vec<(String, String)>) -> anyhow::Result<()> {
    check_thick(arguments.thick, arguments.capacity)?;
    let usual = Shape::default();
    let (nodes, devices) = LocalCluster::before(&arguments.dir)?.unwrap_or((usual.nodes, usual.devices));
    let shape = Shape {
        nodes: arguments.nodes.unwrap_or(nodes),
        devices: arguments.devices.unwrap_or(devices),
        emulate: arguments.emulate,
        capacity_bytes: arguments.capacity,
        thick: arguments.thick,
        admission: arguments.admission.map(|policy| policy.to_string()),
        listen: arguments.listen.map_or(usual.listen, |address| address.to_string()),
        trace: arguments.trace,
        environment,
        ..Shape::default()
    };
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut cluster = LocalCluster::start(&program, &arguments.dir, &shape)?;
    // What is printed next works at once.
    cluster.client(steadfast_client::Options::default()).await?;
    if arguments.output.json {
        let processes: Vec<_> = cluster
            .processes()
            .zip(cluster.admin_ports())
            .map(|((name, pid, address), (_, admin))| {
                json!({ "name": name, "pid": pid, "address": address, "admin": admin })
            })
            .collect();
        announce!("{}", json!({ "cluster": cluster.address(), "processes": processes }));
    } else {
        let (servers, devices) = (counted(shape.nodes, "storage server"), counted(shape.devices, "device"));
        announce!("a cluster of {servers} with {devices} each is up:");
        for ((name, pid, address), (_, admin)) in cluster.processes().zip(cluster.admin_ports()) {
            announce!("  {name:<8} pid {pid:<8} {address:<21} http://{admin}/metrics");
        }
        announce!("\nIn another terminal:\n");
        announce!("  export STEADFAST_CLUSTER={}", cluster.address());
        announce!("  steadfast bucket create photos --policy rateless:redundancy=0.5,tolerate=2");
        announce!("  steadfast put FILE photos/first");
        announce!("  steadfast get photos/first COPY");
        announce!("  steadfast status");
        announce!("  steadfast top");
        announce!("\nCtrl-C stops it; the same command continues it.");
    }
    let mut stop = std::pin::pin!(super::stop::stop_asked());
    loop {
        tokio::select! {
            asked = &mut stop => {
                asked?;
                break;
            }
            () = tokio::time::sleep(Duration::from_millis(500)) => {
                for name in cluster.ended() {
                    let log = cluster.log(&name);
                    tell!("{name} has ended; see {}. Ctrl-C and the same command start it again", log.display());
                }
            }
        }
    }
    cluster.stop();
    Ok(())
}
