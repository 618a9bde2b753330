//! Devices that come and go: growth by one at a time, drains, removals.

use crate::{Client, ClientError, moves::Work, unexpected};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use steadfast_net::{CallError, Open};
use steadfast_protocol::{
    DeviceId,
    drain::{self, Limits, Stuck, Totals},
    message::{
        self, Change, DeviceState, DrainPhase, DrainProgress, Fault, Holding, MetaAnswer, MetaFault,
        NodeAnswer, NodeFault, NodeRequest, Priority, Query, Registry,
    },
    words::counted,
};

/// How long a storage server may take to make a device, beyond writing over the disk where that is asked for.
const ADDED_WITHIN: Duration = Duration::from_secs(600);
/// The slowest disk that is waited for while it is written over; one that is slower is made all the same.
const FILLED_BYTES_PER_S_MIN: u64 = 10_000_000;
/// Between two questions whether a device is empty.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a drain says how far it is; a person who watches sees no difference.
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// How long a removal waits for what puts under way and dead writers have on the device.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);
/// How often a removal looks again that finds another put committed meanwhile.
const LOOKS_MAX: u32 = 10;

/// How a drain goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainOptions {
    /// Objects moved at a time, and the memory for it; whether to go on where one cannot be moved.
    pub limits: Limits,
    /// Begins although a bucket could not keep its promise without the devices or there seems to be too little room, and
    /// leaves them draining where it fails.
    pub force: bool,
    /// The devices are gone for good: what they held is repaired, as far as it can still be decoded.
    pub lost: bool,
    /// How long it waits in the end for puts that had chosen the devices before.
    pub settle: Duration,
}

impl Default for DrainOptions {
    fn default() -> Self {
        Self {
            // Four objects keep disks busy while one decodes; a segment is at most 1 GiB. Picked by eye.
            limits: Limits { objects_max: 4, bytes_max: 512 << 20, keep_going: false, looks_max: None },
            force: false,
            lost: false,
            settle: Duration::from_secs(60),
        }
    }
}

/// What a drain did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Objects moved, their blocks and bytes on the devices; what could not be moved.
    pub totals: Totals,
    /// From the call to the end.
    pub latency: Duration,
    /// Extents that are still there and belong to no object: of puts under way, or of dead writers until the sweep; as last said, where
    /// a server does not say any more.
    pub extents_left: u64,
}

/// Why devices were not emptied.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The metadata server could not be asked, or refused.
    #[error(transparent)]
    Metadata(#[from] ClientError),
    /// The cluster could not do without the devices; nothing was changed.
    #[error("refused: {0}")]
    Refused(#[from] drain::Refusal),
    /// Objects that cannot be moved.
    #[error("{}", stuck(totals, *restored))]
    Stuck {
        /// What was done, and what was not.
        totals: Totals,
        /// Whether devices that had been active are so again.
        restored: bool,
    },
}

/// Why a device was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The metadata server could not be asked, or refused: the device is what it was before, unless it is unknown whether it drains now.
    #[error(transparent)]
    Metadata(#[from] ClientError),
    /// The same of a device that was draining, and is, unless it is unknown whether it was removed.
    #[error("{error}. {}", stays_draining(device))]
    Draining {
        /// The device.
        device: DeviceId,
        /// What could not be asked, or was refused.
        #[source]
        error: ClientError,
    },
    /// Objects have blocks on it.
    #[error(
        "device {} holds {} of {}: `steadfast device drain {}` moves them, or, if the disk is dead, \
         `steadfast device remove --lost {}` repairs what it held",
        .0.device, counted(.0.blocks, "block"), counted(.0.segments, "segment"), .0.device, .0.device
    )]
    Holds(Holding),
    /// Something is on it that belongs to no object.
    #[error("{}. {}", unsettled(device, *extents), stays_draining(device))]
    Unsettled {
        /// The device, which stays draining.
        device: DeviceId,
        /// How many extents; none where its server lives and does not say.
        extents: Option<u64>,
    },
}

fn unsettled(device: &DeviceId, extents: Option<u64>) -> String {
    match extents {
        Some(extents) => format!(
            "device {device} has {} of puts that are under way or of writers that died: their leases and the sweep free them",
            counted(extents, "extent")
        ),
        None => format!(
            "the server of device {device} lives and does not say whether puts have something there: that would be lost"
        ),
    }
}

fn stays_draining(device: &DeviceId) -> String {
    format!(
        "The device stays draining: try again in a while, or have it take data again by \
         `steadfast device drain --cancel {device}`"
    )
}

fn stuck(totals: &Totals, restored: bool) -> String {
    let mut said = String::new();
    if let Some((object, Stuck { why, .. })) = totals.stuck.first_key_value() {
        said = format!("{object} cannot be moved: {why}");
    }
    if totals.stuck.len() > 1 {
        said += &format!(" (and {} more)", counted(totals.stuck.len() - 1, "object"));
    }
    if restored {
        said += ". The devices take data again; what was moved before stays moved";
    }
    said
}

/// What whoever watches is told of a drain.
struct Shown<'a> {
    client: &'a Client,
    progress: DrainProgress,
    at: Option<Instant>,
}

impl<'a> Shown<'a> {
    fn new(client: &'a Client, devices: &BTreeSet<DeviceId>, lost: bool, holdings: &[Holding]) -> Self {
        let there = || holdings.iter().filter(|holding| devices.contains(&holding.device));
        let progress = DrainProgress {
            devices: devices.iter().copied().collect(),
            lost,
            blocks_before: there().map(|holding| holding.blocks).sum(),
            bytes_before: there().map(|holding| holding.bytes).sum(),
            ..DrainProgress::default()
        };
        Self { client, progress, at: None }
    }

    fn show(&mut self, phase: DrainPhase, totals: &Totals) {
        let Totals { objects, blocks, bytes, stuck, .. } = totals;
        let stuck = stuck.len() as u64;
        self.progress = DrainProgress {
            phase,
            objects: *objects,
            blocks: *blocks,
            bytes: *bytes,
            stuck,
            ..self.progress.clone()
        };
        self.at = Some(Instant::now());
        self.client.show_drain(self.progress.clone());
    }

    /// The same phase, where it was not shown a moment ago.
    fn again(&mut self, totals: &Totals) {
        if self.at.is_none_or(|at| at.elapsed() >= SHOW_EVERY) {
            self.show(self.progress.phase, totals);
        }
    }
}

/// Whether some storage server has the device.
fn is_named(registry: &Registry, device: DeviceId) -> bool {
    registry.nodes.iter().any(|node| node.record.devices.iter().any(|&(named, _)| named == device))
}

impl Client {
    /// What every device holds of committed segments; those that hold nothing are left out. Takes a look at every segment.
    ///
    /// # Errors
    /// When the metadata server cannot be asked.
    pub async fn holdings(&self) -> Result<BTreeMap<DeviceId, Holding>, ClientError> {
        let (mut all, mut after) = (BTreeMap::<DeviceId, Holding>::new(), None);
        loop {
            let (holdings, next) = match self.metadata.ask(Query::Holdings { after }).await? {
                MetaAnswer::Holdings { holdings, next } => (holdings, next),
                other => return Err(unexpected("Holdings", &other)),
            };
            for Holding { device, segments, blocks, bytes } in holdings {
                let sum = all.entry(device).or_insert_with(|| Holding { device, ..Holding::default() });
                sum.segments += segments;
                sum.blocks += blocks;
                sum.bytes += bytes;
            }
            match next {
                Some(_) => after = next,
                None => return Ok(all),
            }
        }
    }

    /// Makes a device active or draining.
    ///
    /// # Errors
    /// When there is no such device, or it was removed.
    pub async fn set_device_state(&self, device: DeviceId, state: DeviceState) -> Result<(), ClientError> {
        self.change_state(device, state, 0).await
    }

    /// Makes or finds a device in a directory of the machine of the storage server at `address`, which serves it from now
    /// on, also after a restart. A new device takes its whole capacity from its filesystem at once if `thick`, or if its
    /// server was started so.
    ///
    /// # Errors
    /// When the server cannot be reached, or fails at it; [`ClientError::NotAdded`] when the directory cannot be a device of this
    /// cluster, or not with that capacity.
    pub async fn add_device(
        &self,
        address: &str,
        dir: &str,
        capacity_bytes: Option<u64>,
        thick: bool,
    ) -> Result<DeviceId, ClientError> {
        let failed = |cause: String| ClientError::Node { address: address.to_owned(), cause };
        let connection = self.pool.connection(address).await.map_err(|error| failed(error.to_string()))?;
        let request = NodeRequest::AddDevice { dir: dir.to_owned(), capacity_bytes, thick };
        let filled = if thick { capacity_bytes.unwrap_or(0) / FILLED_BYTES_PER_S_MIN } else { 0 };
        let open = Open {
            body: message::encode(&request),
            priority: Priority::Control,
            deadline: Some(ADDED_WITHIN + Duration::from_secs(filled)),
            ..Open::default()
        };
        let refused = |error: CallError| match error {
            CallError::Fault(Fault::Node(NodeFault::NotAdded { dir, detail })) => {
                ClientError::NotAdded { address: address.to_owned(), dir, detail }
            }
            // It says itself that no device was added: the request may be as it should be.
            CallError::Fault(Fault::Node(NodeFault::Invalid(detail))) => failed(detail),
            error => failed(error.to_string()),
        };
        let (body, _) = connection.call(open).await.map_err(refused)?;
        match message::decode(&body).map_err(|error| failed(error.to_string()))? {
            NodeAnswer::Added { device } => Ok(device),
            other => Err(ClientError::Protocol(format!("expected Added, got {other:?}"))),
        }
    }

    /// Empties devices: they take no new data, and every object that has blocks on them gets blocks elsewhere instead.
    /// Objects are read and written meanwhile. Cut short, it is to be called again; it goes on with what is left.
    ///
    /// `tell` hears what was done so far, after each object.
    ///
    /// # Errors
    /// [`DrainError::Refused`] and [`DrainError::Stuck`] where the cluster cannot do without the devices; they are then as
    /// active as before, unless [`DrainOptions::force`] or [`DrainOptions::lost`] says otherwise. Where the metadata server
    /// refuses one of them before anything is moved, the others are as active as before, unless they are lost.
    pub async fn drain(
        &self,
        devices: &BTreeSet<DeviceId>,
        options: &DrainOptions,
        mut tell: impl FnMut(&Totals),
    ) -> Result<DrainReport, DrainError> {
        let start = Instant::now();
        let registry = self.registry().await?;
        let holdings: Vec<Holding> = self.holdings().await?.into_values().collect();
        if !options.force && !options.lost {
            drain::check(&registry, &self.buckets().await?, &holdings, devices)?;
        }
        let were_active: Vec<DeviceId> =
            devices.iter().copied().filter(|&device| registry.state(device) == DeviceState::Active).collect();
        self.begin_drain(devices, &registry, options.lost).await?;
        let mut report = DrainReport::default();
        let mut shown = Shown::new(self, devices, options.lost, &holdings);
        loop {
            let arrivals = self.arrivals(devices).await?;
            shown.show(DrainPhase::Moving, &report.totals);
            let limits = Limits { keep_going: options.limits.keep_going || options.lost, ..options.limits };
            let before = report.totals;
            let tell = |totals: &Totals| {
                tell(totals);
                shown.again(totals);
            };
            let work = Work::Leave { devices, lost: options.lost };
            report.totals = self.move_all(&work, limits, &before, tell).await?;
            if !report.totals.stuck.is_empty() {
                shown.show(DrainPhase::Over, &report.totals);
                let mut restored = !options.force && !options.lost;
                if restored {
                    self.activate(&were_active).await?;
                    // Those that were draining before are left so.
                    restored = were_active.len() == devices.len();
                }
                return Err(DrainError::Stuck { totals: report.totals, restored });
            }
            // Puts that chose a device before it was draining have extents there until they commit or are given up.
            let settled_by = Instant::now() + options.settle;
            loop {
                let left = if options.lost { Some(0) } else { self.extents(devices).await? };
                report.extents_left = left.unwrap_or(report.extents_left);
                if left == Some(0) || Instant::now() >= settled_by {
                    break;
                }
                if shown.progress.phase == DrainPhase::Moving {
                    shown.show(DrainPhase::Settling, &report.totals);
                }
                tokio::time::sleep(PAUSE).await;
                shown.again(&report.totals);
                if self.arrivals(devices).await? != arrivals {
                    break;
                }
            }
            if self.arrivals(devices).await? == arrivals {
                shown.show(DrainPhase::Over, &report.totals);
                report.latency = start.elapsed();
                return Ok(report);
            }
        }
    }

    /// Makes all devices draining; or, where one of them cannot be, those active again that were, unless they are lost.
    async fn begin_drain(
        &self,
        devices: &BTreeSet<DeviceId>,
        registry: &Registry,
        lost: bool,
    ) -> Result<(), ClientError> {
        // First those that no server names: what is wrong is most likely found before anything was changed.
        let (named, others): (Vec<DeviceId>, Vec<DeviceId>) =
            devices.iter().partition(|&&device| is_named(registry, device));
        let mut begun = Vec::new();
        for device in others.into_iter().chain(named) {
            let set = self.set_device_state(device, DeviceState::Draining).await;
            let may_be_set = set.as_ref().map_or_else(ClientError::leaves_unknown, |()| true);
            if may_be_set && !lost && registry.state(device) == DeviceState::Active {
                begun.push(device);
            }
            if let Err(error) = set {
                // The caller is told of the first error, also where this fails.
                if let Err(error) = self.activate(&begun).await {
                    tracing::warn!(%error, "devices stay draining");
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn activate(&self, devices: &[DeviceId]) -> Result<(), ClientError> {
        for &device in devices {
            self.set_device_state(device, DeviceState::Active).await?;
        }
        Ok(())
    }

    /// Removes a device for good: it is registered under this name no more. One that is active drains from now on.
    ///
    /// # Errors
    /// [`RemoveError::Holds`] where objects have blocks on it; it is then as active as before. [`RemoveError::Unsettled`] where something
    /// else is on it, or its server does not say, and [`RemoveError::Draining`] where that cannot be found out: it stays draining.
    pub async fn remove_device(&self, device: DeviceId, lost: bool) -> Result<(), RemoveError> {
        let was_active = self.registry().await?.state(device) == DeviceState::Active;
        self.set_device_state(device, DeviceState::Draining).await?;
        match self.remove_draining(device, lost, was_active).await {
            Err(RemoveError::Metadata(error)) => Err(RemoveError::Draining { device, error }),
            outcome => outcome,
        }
    }

    async fn remove_draining(
        &self,
        device: DeviceId,
        lost: bool,
        was_active: bool,
    ) -> Result<(), RemoveError> {
        let only = BTreeSet::from([device]);
        let deadline = Instant::now() + EMPTY_WITHIN;
        let mut looks = 0;
        loop {
            let arrivals = self.arrivals(&only).await?;
            if let Some(&holding) = self.holdings().await?.get(&device) {
                if was_active {
                    self.set_device_state(device, DeviceState::Active).await?;
                }
                return Err(RemoveError::Holds(holding));
            }
            let extents = if lost { Some(0) } else { self.extents(&only).await? };
            if extents != Some(0) {
                if Instant::now() >= deadline {
                    return Err(RemoveError::Unsettled { device, extents });
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            looks += 1;
            match self.change_state(device, DeviceState::Removed, arrivals).await {
                Err(ClientError::Refused(MetaFault::DeviceTook { .. })) if looks < LOOKS_MAX => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    async fn change_state(
        &self,
        device: DeviceId,
        state: DeviceState,
        arrivals: u64,
    ) -> Result<(), ClientError> {
        match self.metadata.change(Change::SetDeviceState { device, state, arrivals }).await? {
            MetaAnswer::Done => Ok(()),
            other => Err(unexpected("Done", &other)),
        }
    }

    /// Puts that have stored on these devices since they are draining.
    pub(crate) async fn arrivals(&self, devices: &BTreeSet<DeviceId>) -> Result<u64, ClientError> {
        let registry = self.registry().await?;
        let draining = registry.standings.iter().filter(|standing| devices.contains(&standing.device));
        Ok(draining.map(|standing| standing.arrivals).sum())
    }

    /// Extents on these devices, as their servers say now, without those of servers that are gone; none where a server lives and does not
    /// say.
    async fn extents(&self, devices: &BTreeSet<DeviceId>) -> Result<Option<u64>, ClientError> {
        let mut extents = 0;
        for node in self.registry().await?.nodes.into_iter().filter(|node| node.alive) {
            if !node.record.devices.iter().any(|(device, _)| devices.contains(device)) {
                continue;
            }
            let status = match self.node_status(&node.record.address).await {
                Ok(status) => status,
                Err(error) => {
                    tracing::debug!(%error, "what is on its devices is unknown");
                    return Ok(None);
                }
            };
            let reports = status.devices.iter().filter(|report| devices.contains(&report.device));
            extents += reports.map(|report| report.extents).sum::<u64>();
        }
        Ok(Some(extents))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_that_fails_says_what_the_device_is_now() {
        let device = DeviceId(7);
        let refused = || ClientError::Refused(MetaFault::DeviceTook { device, arrivals: 1 });
        for error in [
            RemoveError::Draining { device, error: refused() },
            RemoveError::Unsettled { device, extents: Some(3) },
            RemoveError::Unsettled { device, extents: None },
        ] {
            let said = error.to_string();
            assert!(said.contains("stays draining") && said.contains("drain --cancel"), "{said}");
        }
        assert!(!RemoveError::from(refused()).to_string().contains("stays draining"));
    }
}
