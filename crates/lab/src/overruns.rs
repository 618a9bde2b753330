//! Whether emulated disks were what they are said to be: on a machine that is too busy, operations end later than the model says, and
//! what is measured is the machine (design.md, decision 12).

use anyhow::Result;
use steadfast_client::Client;

/// The share of operations that may end late; above it a run says nothing.
pub(crate) const MAX: f64 = 0.01;

/// The share of each device's operations that ended late since it was emulated anew.
pub(crate) async fn shares(client: &Client) -> Result<Vec<f64>> {
    shares_but(client, &[]).await
}

/// The same without the devices of servers that are `dead`.
pub(crate) async fn shares_but(client: &Client, dead: &[String]) -> Result<Vec<f64>> {
    let mut shares = Vec::new();
    let nodes = client.registry().await?.nodes;
    for node in nodes.iter().filter(|node| !dead.contains(&node.record.address)) {
        let status = client.node_status(&node.record.address).await?;
        shares.extend(status.devices.iter().map(|device| f64::from(device.overruns_ppm) / 1e6));
    }
    Ok(shares)
}

/// A share for a table: whether the run is void.
pub(crate) fn show(share: f64) -> String {
    format!("{share:.4}{}", if share > MAX { " void" } else { "" })
}

/// What is to be said beside the figures of a run that is void.
pub(crate) fn warning(share: f64) -> &'static str {
    if share > MAX { "; void: this machine was too busy to emulate the disks" } else { "" }
}
