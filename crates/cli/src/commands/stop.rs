//! What a command does that is told to stop (SIGINT, SIGTERM).

use crate::{
    exit::{INTERRUPTED, Interrupted},
    figures,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

/// How long work may go on that was asked to stop: what computes without a pause does not hear of it.
const STOPS_WITHIN: Duration = Duration::from_secs(3);

/// Does work that leaves things behind when it is killed (servers, scratch directories): told to stop it is dropped, and they with it.
/// What it has measured is printed before it is told why it ended.
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
                    steadfast_lab::remove_scratch();
                    // Nobody is left to be told that it cannot be written.
                    let _ = figures::print();
                    std::process::exit(INTERRUPTED.into());
                }
            }
        }
    };
    // On a thread of its own: experiments compute on this one for minutes.
    std::thread::spawn(watch);
    let done = tokio::select! {
        biased;
        () = stop.notified() => {
            heard.store(true, Ordering::Relaxed);
            Err(Interrupted.into())
        }
        done = work => done,
    };
    if done.is_err() {
        // The first error is the one to tell.
        let _ = figures::print();
    }
    done
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
