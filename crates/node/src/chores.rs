//! What a node does for each of its devices while nobody asks.
//!
//! | chore | what |
//! |---|---|
//! | [`sweep`] | frees what dead writers left, and what layouts do not list any more |
//! | [`updates::recover`] | levels updates that the device holds and nobody is about |
//! | [`updates::merge_left`] | merges logs that nobody looks after, while the device rests |
//! | [`reserves`] | gives reserved space back that the updates of its chunks do not need |

use crate::{
    NodeOptions, devices::ServedDevice, membership::Meta, reserves, service::Service, sweep, updates,
};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Begins them; they end with the device.
pub(crate) fn begin(
    tasks: &mut JoinSet<()>,
    service: &Arc<Service>,
    meta: &Arc<Meta>,
    device: &Arc<ServedDevice>,
    options: &NodeOptions,
) {
    let sweeping = {
        let (service, meta, device, options) = (service.clone(), meta.clone(), device.clone(), options.sweep);
        tasks.spawn(async move { sweep::run(&service, &device, &meta, options).await })
    };
    let levelling = tasks.spawn(updates::recover(service.updates.clone(), device.clone()));
    let merging = tasks.spawn(updates::merge_left(service.updates.clone(), device.clone()));
    let reserving = {
        let (service, device, options) = (service.clone(), device.clone(), options.reserve);
        tasks.spawn(async move { reserves::run(&service, &device, options).await })
    };
    service.devices.attended(device.id, vec![sweeping, levelling, merging, reserving]);
}
