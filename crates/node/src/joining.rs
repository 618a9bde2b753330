//! A node takes a further device while it runs.
//!
//! ```text
//!   directory ──look, format──▶ device ──list──▶ listed ──register──▶ served, attended
//!                                                   │ refused
//!                                                   └──▶ closed, listed as it was before
//! ```
//!
//! One at a time, on a task of their own: formatting may take long, and whoever asked may go away meanwhile. A device that was set aside, as
//! another server had it ([`served`]), joins in the same way once no server that is alive has it.

use crate::{
    NodeError, NodeOptions, chores, devices,
    membership::{Meta, not_ours},
    node::blocking,
    roster::{Places, Roster},
    served,
    service::Service,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use steadfast_protocol::{
    DeviceId,
    message::{Fault, NodeFault, NodeRecord},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

/// How often it is asked who has the devices that were set aside, in heartbeats. Picked by eye: about as many as a server may miss before it
/// counts as gone.
const AGAIN_BEATS: u32 = 5;

/// A directory that is to be a device.
pub(crate) struct Wish {
    pub(crate) dir: PathBuf,
    /// Bytes of a new device; by default as the node was started.
    pub(crate) capacity_bytes: Option<u64>,
    /// Whether it takes its whole capacity at once; also where the node was started so.
    pub(crate) thick: bool,
    pub(crate) answer: oneshot::Sender<Result<DeviceId, Fault>>,
}

/// What a joining device needs of its node.
pub(crate) struct Joining {
    pub(crate) service: Arc<Service>,
    pub(crate) meta: Arc<Meta>,
    /// As the node registers, but for the devices.
    pub(crate) record: NodeRecord,
    /// Nobody watches its connections.
    pub(crate) options: NodeOptions,
    pub(crate) roster: Arc<Roster>,
}

impl Joining {
    /// Carries out wishes for ever.
    pub(crate) async fn run(self, mut wishes: mpsc::Receiver<Wish>) {
        let mut chores = JoinSet::new();
        let mut again = interval(self.options.heartbeat * AGAIN_BEATS);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            while chores.try_join_next().is_some() {}
            tokio::select! {
                wish = wishes.recv() => match wish {
                    Some(wish) => self.carry_out(wish, &mut chores).await,
                    None => return,
                },
                _ = again.tick() => self.ask_for_contested(&mut chores).await,
            }
        }
    }

    async fn carry_out(&self, wish: Wish, chores: &mut JoinSet<()>) {
        let Wish { dir, capacity_bytes, thick, answer } = wish;
        let outcome = match self.join(dir.clone(), (capacity_bytes, thick), chores).await {
            Ok(device) => {
                tracing::info!(%device, dir = %dir.display(), "a device was added");
                Ok(device)
            }
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "no device was added");
                Err(Fault::Node(fault_of(&dir, &error)))
            }
        };
        // Whoever asked may be gone: the device is there all the same.
        let _gone = answer.send(outcome);
    }

    /// Has those devices join that no other server has any more.
    async fn ask_for_contested(&self, chores: &mut JoinSet<()>) {
        let mut contested = self.service.devices.to_ask_for(self.service.now());
        if contested.is_empty() {
            return;
        }
        // Opening a device to be refused again is work for its disk.
        let names = contested.keys().copied().collect();
        let own = (self.record.cluster, Some(self.record.node));
        let elsewhere = not_ours(&self.options.meta, own, &self.options.net, &names).await;
        contested.retain(|device, _| !elsewhere.contains(device));
        for (device, dir) in contested {
            match self.join(dir.clone(), (None, false), chores).await {
                Ok(joined) => {
                    tracing::info!(device = %joined, dir = %dir.display(), "a device that another server had is served here");
                }
                Err(error) => {
                    tracing::debug!(%device, dir = %dir.display(), %error, "a device stays set aside")
                }
            }
        }
    }

    async fn join(
        &self,
        dir: PathBuf,
        (capacity_bytes, thick): (Option<u64>, bool),
        chores: &mut JoinSet<()>,
    ) -> Result<DeviceId, NodeError> {
        let cluster = self.record.cluster.expect("a node knows its cluster when it serves");
        let node = self.record.node;
        let mut options = self.options.clone();
        options.capacity_bytes = capacity_bytes.or(options.capacity_bytes);
        options.thick |= thick;
        let roster = self.roster.clone();
        let there: Places =
            self.service.devices.all().iter().map(|device| (device.id, device.dir.clone())).collect();
        let (device, before) = blocking(move || {
            let had = roster.had(&dir, &there)?;
            let device = devices::add(&dir, (&there, had), node, cluster, &options)?;
            match roster.insert(device.id, &device.dir) {
                Ok(before) => Ok((Arc::new(device), before)),
                Err(error) => {
                    served::close(&device);
                    Err(error)
                }
            }
        })
        .await??;
        let mut devices = self.service.devices.record();
        devices.push(served::entry(&device));
        // Heartbeats tell of it only from here on: a refusal is this device's, not the node's. Should the node register
        // in between, without it, its next heartbeat makes that good.
        if let Err(error) = self.meta.register(&NodeRecord { devices, ..self.record.clone() }).await {
            let (roster, closing) = (self.roster.clone(), device.clone());
            blocking(move || {
                served::close(&closing);
                roster.take_back(closing.id, before)
            })
            .await??;
            return Err(error);
        }
        self.service.devices.insert(device.clone());
        chores::begin(chores, &self.service, &self.meta, &device, &self.options);
        Ok(device.id)
    }
}

/// What is said to whoever wanted `dir` to be a device. [`NodeFault::NotAdded`] is for what is wrong with the directory or the capacity,
/// for which another one is to be named; all else may be well with the same ones the next time.
fn fault_of(dir: &Path, error: &NodeError) -> NodeFault {
    let dir = dir.display().to_string();
    let detail = match error {
        NodeError::Refused { fault, .. } => fault.to_string(),
        error => error.to_string(),
    };
    match error {
        NodeError::Relative { .. }
        | NodeError::Name { .. }
        | NodeError::DirectoryTwice { .. }
        | NodeError::DeviceTwice { .. }
        | NodeError::Removed { .. }
        | NodeError::MixedClusters { .. }
        | NodeError::Gone { .. }
        | NodeError::Space(_)
        | NodeError::Device { .. }
        | NodeError::Format { .. } => NodeFault::NotAdded { dir, detail },
        _ => NodeFault::Invalid(format!("no device was added in {dir}: {detail}")),
    }
}
