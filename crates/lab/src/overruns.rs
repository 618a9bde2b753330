//! Whether emulated disks were what they are said to be: on a machine that is too busy, operations end later than the model says, and
//! what is measured is the machine (design.md, decision 12).

use anyhow::Result;
use std::collections::BTreeMap;
use steadfast_client::Client;
use steadfast_protocol::{DeviceId, message::DeviceReport};

/// The share of operations that may end late; above it a run says nothing.
pub(crate) const MAX: f64 = 0.01;

/// How many operations ended late, and of how many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Late {
    late: f64,
    operations: f64,
}

impl Late {
    /// What a run is judged by: the late ones of all operations of all devices, over all that was measured of a case. A device that did
    /// little counts little; the worst of many short accesses would be void by one operation.
    pub(crate) fn share(self) -> f64 {
        self.late / self.operations.max(1.0)
    }
}

impl std::iter::Sum for Late {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            late: sum.late + one.late,
            operations: sum.operations + one.operations,
        })
    }
}

/// What the devices had done when they were emulated anew: from then on those late are counted.
pub(crate) struct Begun(BTreeMap<DeviceId, u64>);

impl Begun {
    pub(crate) async fn now(client: &Client) -> Result<Self> {
        Self::without(client, &[]).await
    }

    /// The same without the devices of servers that are `dead`.
    pub(crate) async fn without(client: &Client, dead: &[String]) -> Result<Self> {
        let devices = devices(client, dead).await?;
        Ok(Self(devices.iter().map(|device| (device.device, operations(device))).collect()))
    }

    /// Those late since, of the devices that were there then; all of them have to answer.
    pub(crate) async fn late(&self, client: &Client, dead: &[String]) -> Result<Late> {
        let devices = devices(client, dead).await?;
        let late = devices.iter().filter_map(|device| {
            let before = *self.0.get(&device.device)?;
            Some(late_of(operations(device).saturating_sub(before), device.overruns_ppm))
        });
        Ok(late.sum())
    }
}

/// Of so many operations of one device.
fn late_of(operations: u64, overruns_ppm: u32) -> Late {
    let operations = operations as f64;
    Late { late: f64::from(overruns_ppm) / 1e6 * operations, operations }
}

fn operations(device: &DeviceReport) -> u64 {
    device.activity.medium_reads + device.activity.medium_writes
}

async fn devices(client: &Client, dead: &[String]) -> Result<Vec<DeviceReport>> {
    let mut all = Vec::new();
    let nodes = client.registry().await?.nodes;
    for node in nodes.iter().filter(|node| !dead.contains(&node.record.address)) {
        all.extend(client.node_status(&node.record.address).await?.devices);
    }
    Ok(all)
}

/// A share for a table: whether the run is void.
pub(crate) fn show(share: f64) -> String {
    format!("{share:.4}{}", if share > MAX { " void" } else { "" })
}

/// What is to be said beside the figures of a run that is void.
pub(crate) fn warning(share: f64) -> &'static str {
    if share > MAX { "; void: this machine was too busy to emulate the disks" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_did_little_counts_little() {
        // One late of ten, and one of 190.
        let late: Late = [late_of(10, 100_000), late_of(190, 5263)].into_iter().sum();
        assert!((late.share() - 0.01).abs() < 1e-6, "{late:?}");
        assert_eq!(Late::default().share(), 0.0);
    }
}
