//! What a command does that is told to stop (SIGINT, SIGTERM, and SIGHUP: its terminal is gone).

use crate::{
    exit::{INTERRUPTED, Interrupted},
    figures,
};
use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};

/// How long work may go on that was asked to stop: what computes without a pause does not hear of it.
const STOPS_WITHIN: Duration = Duration::from_secs(3);
/// How long what was measured may take to print then: a pipe may be full and a terminal paused.
const PRINTS_WITHIN: Duration = Duration::from_secs(1);

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
        // Before there is work: a signal that came earlier would kill, and what the work made by then would stay.
        let signals = {
            let _entered = runtime.enter();
            Signals::heard()
        };
        move || {
            if let Ok(signals) = signals {
                runtime.block_on(signals.any());
                stop.notify_one();
                std::thread::sleep(STOPS_WITHIN);
                if !heard.load(Ordering::Relaxed) {
                    steadfast_lab::remove_scratch();
                    figures::print_within(PRINTS_WITHIN);
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
            figures::print_within(PRINTS_WITHIN);
            return Err(Interrupted.into());
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
    Signals::heard()?.any().await;
    Ok(())
}

/// The signals that stop a program, from when this is made on.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Whoever started it under `nohup` wants it to outlive its terminal.
    hangup: Option<Signal>,
}

impl Signals {
    fn heard() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: if *HANGUP_IGNORED { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    async fn any(mut self) {
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = hung_up => {}
        }
    }
}

/// Whether SIGHUP was ignored when this was first asked: from then on we hear it ourselves.
static HANGUP_IGNORED: LazyLock<bool> = LazyLock::new(|| {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores(&status, 1)
});

/// Whether a process of that `/proc/PID/status` ignores a signal.
fn ignores(status: &str, signal: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_ignored_is_one_of_the_mask() {
        let status = |mask: &str| format!("Name:\tsteadfast\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(ignores(&status("0000000000000001"), 1) && ignores(&status("0000000000001001"), 1));
        assert!(!ignores(&status("0000000000001000"), 1) && !ignores("", 1));
    }
}
