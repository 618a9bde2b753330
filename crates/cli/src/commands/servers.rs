//! `steadfast meta` and `steadfast node`.

use super::stop::stop_asked;
use crate::{
    arguments::{Meta, Node},
    exit::check_thick,
    trace::TraceFile,
};
use std::time::Duration;
use steadfast_client::{Options, mend};
use steadfast_lab::{ADMIN, LISTENING, cluster::die_with_parent};
use steadfast_protocol::{NodeId, message::Role, serve::ReservePolicy};

pub(crate) async fn meta(arguments: Meta) -> anyhow::Result<()> {
    die_with_parent()?;
    let mut options = steadfast_meta::MetaOptions::new(arguments.dir, arguments.listen.to_string());
    options.lease = Duration::from_secs(arguments.lease.into());
    options.restored = arguments.restored;
    options.admin = arguments.admin;
    options.net.tap = arguments.trace.map(|path| TraceFile::create(&path, Role::Meta)).transpose()?;
    let meta = steadfast_meta::Meta::start(&options).await?;
    if let Some(admin) = meta.admin() {
        announce!("{ADMIN}{admin}");
    }
    announce!("{LISTENING}{}", meta.address());
    stop_asked().await?;
    meta.stop().await;
    Ok(())
}

pub(crate) async fn node(arguments: Node) -> anyhow::Result<()> {
    die_with_parent()?;
    check_thick(arguments.thick, arguments.capacity)?;
    let meta = arguments.meta.clone();
    let mut options = steadfast_node::NodeOptions::new(arguments.dir, arguments.meta, arguments.listen);
    options.rename = arguments.rename;
    options.advertise = arguments.advertise;
    options.admin = arguments.admin;
    options.site = arguments.site;
    options.emulate = arguments.emulate;
    options.capacity_bytes = arguments.capacity;
    options.thick = arguments.thick;
    options.admission = arguments.admission;
    // A storage server's identity is in its directories: any says what it serves.
    options.net.tap =
        arguments.trace.map(|path| TraceFile::create(&path, Role::Node(NodeId(0)))).transpose()?;
    options.sweep.interval = Duration::from_secs(arguments.sweep.into());
    options.sweep.age_min = options.sweep.age_min.min(options.sweep.interval);
    match Duration::from_secs(arguments.reserve_period.into()) {
        Duration::ZERO => options.reserve.policy = ReservePolicy::Fixed,
        period => options.reserve.period = period,
    }
    let mut node = steadfast_node::Node::start(options).await?;
    if let Some(admin) = node.admin() {
        announce!("{ADMIN}{admin}");
    }
    announce!("{LISTENING}{}", node.address());
    let own = node.id();
    let mending = async {
        match Duration::from_secs(arguments.repair_period.into()) {
            Duration::ZERO => std::future::pending().await,
            every => mend(&meta, own, every, Options::default()).await,
        }
    };
    let outcome = tokio::select! {
        asked = stop_asked() => asked,
        error = node.failed() => Err(error.into()),
        never = mending => match never {},
    };
    node.stop().await;
    outcome
}
