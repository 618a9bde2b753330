//! `steadfast meta` and `steadfast node`.

use crate::exit::{INTERRUPTED, Interrupted};
use crate::{
    arguments::{Meta, Node},
    trace::TraceFile,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use steadfast_client::{Options, mend};
use steadfast_lab::{ADMIN, LISTENING, cluster::die_with_parent};
use steadfast_protocol::{NodeId, message::Role, serve::ReservePolicy};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

pub(crate) async fn meta(arguments: Meta) -> anyhow::Result<()> {
    die_with_parent()?;
    let mut options = steadfast_meta::MetaOptions::new(arguments.dir, arguments.listen.to_string());
    options.lease = Duration::from_secs(arguments.lease.into());
    options.admin = arguments.admin;
    options.net.tap = arguments.trace.map(|path| TraceFile::create(&path, Role::Meta)).transpose()?;
    let meta = steadfast_meta::Meta::start(&options).await?;
    if let Some(admin) = meta.admin() {
        say!("{ADMIN}{admin}")?;
    }
    say!("{LISTENING}{}", meta.address())?;
    stop_asked().await?;
    meta.stop().await;
    Ok(())
}

pub(crate) async fn node(arguments: Node) -> anyhow::Result<()> {
    die_with_parent()?;
    let meta = arguments.meta.clone();
    let mut options = steadfast_node::NodeOptions::new(arguments.dir, arguments.meta, arguments.listen);
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
        say!("{ADMIN}{admin}")?;
    }
    say!("{LISTENING}{}", node.address())?;
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

/// How long work may go on that was asked to stop: what computes without a pause does not hear of it.
const STOPS_WITHIN: Duration = Duration::from_secs(3);

/// Does work that leaves things behind when it is killed (servers, scratch directories): told to stop it is dropped, and they with it.
///
/// # Errors
/// That of the work; [`Interrupted`] where it was told to stop.
pub(crate) async fn until_stopped(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let (stop, heard) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let watch = {
        let (stop, heard) = (stop.clone(), heard.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        move || {
            if runtime.block_on(stop_asked()).is_ok() {
                stop.notify_one();
                std::thread::sleep(STOPS_WITHIN);
                if !heard.load(Ordering::Relaxed) {
                    std::process::exit(INTERRUPTED.into());
                }
            }
        }
    };
    // On a thread of its own: experiments compute on this one for minutes.
    std::thread::spawn(watch);
    tokio::select! {
        biased;
        () = stop.notified() => {
            heard.store(true, Ordering::Relaxed);
            Err(Interrupted.into())
        }
        done = work => done,
    }
}

/// Waits for a person's or a supervisor's wish to stop.
pub(crate) async fn stop_asked() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
