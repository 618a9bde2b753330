//! `steadfast top`: a cluster as it works.

mod frame;
mod screen;

use super::{connect, print_json, stop::stop_asked};
use crate::{
    arguments::{Cluster, Output},
    exit::UNSAID,
};
use anyhow::Context;
use clap::Args;
use frame::Frame;
use screen::Screen;
use std::{
    collections::BTreeSet,
    io::{self, IsTerminal, Write},
    pin::Pin,
    time::{Duration, Instant},
};
use steadfast_client::{Client, Degraded};
use steadfast_protocol::{DeviceId, message::Registry};

/// Columns of a frame that goes to no terminal.
const PLAIN_COLUMNS: usize = 80;
/// How often the keyboard is looked at.
const KEYS_EVERY: Duration = Duration::from_millis(100);

/// Watch devices at work: speed, queue, service time, stragglers, waste
///
/// READ and WRITE are what a device's medium moves now, in MB/s; SPEED its measured reading and writing speed while
/// busy. A device that is four times slower than the median of its peers, by speed and by the time of an operation where both
/// are known, is marked as slow. Waste is what was read from media, and what was sent, beyond what readers used, as the readers
/// themselves reported since the metadata server started; `unsent` is what cancels dropped before it was sent. Extras are
/// blocks asked for in the place of others that were late, and won where they came first. `kept` is bandwidth reserved
/// for accesses (read/write), and what became of wishes for it since the servers started. A device that is being emptied is shown as
/// `drain 43%`, one whose disk is lost and that is being repaired as `lost 43%`. Degraded are segments written with fewer parity
/// chunks than their bucket's code, and not completed yet.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Print one frame and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Seconds between frames, and over which rates are taken
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) interval: u32,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A registry, what is degraded, and when that was had.
struct Sample {
    at: Instant,
    registry: Registry,
    degraded: Degraded,
}

impl Sample {
    async fn take(client: &Client) -> anyhow::Result<Self> {
        let (registry, degraded) = tokio::try_join!(client.registry(), client.degraded())?;
        Ok(Self { at: Instant::now(), registry, degraded })
    }

    /// What is to be seen of it; rates are taken since `before`.
    fn frame(&self, before: Option<&Self>) -> Frame {
        let before = before.map(|before| (&before.registry, self.at - before.at));
        let mut frame = Frame::of(&self.registry, before);
        frame.note_degraded(&self.degraded);
        frame
    }

    fn devices(&self) -> BTreeSet<DeviceId> {
        let records = self.registry.nodes.iter().map(|node| &node.record);
        records.flat_map(|record| record.devices.iter().map(|&(device, _)| device)).collect()
    }
}

pub(crate) async fn run(arguments: Top) -> anyhow::Result<()> {
    let client = connect(&arguments.cluster).await?;
    let every = Duration::from_secs(arguments.interval.into());
    let live = io::stdout().is_terminal() && !arguments.once && !arguments.output.json;
    let mut stop = std::pin::pin!(stop_asked());
    let mut screen = if live { Some(Screen::open()?) } else { None };
    let first = until_left(screen.as_ref(), stop.as_mut(), Sample::take(&client)).await?;
    let Some(first) = first else { return Ok(()) };
    let mut before = first?;
    let mut seen = before.devices();
    if let Some(screen) = &mut screen {
        screen.draw(&before.frame(None))?;
    }
    loop {
        let waited = until_left(screen.as_ref(), stop.as_mut(), tokio::time::sleep(every)).await?;
        let Some(()) = waited else { return Ok(()) };
        let taken = until_left(screen.as_ref(), stop.as_mut(), Sample::take(&client)).await?;
        let Some(taken) = taken else { return Ok(()) };
        // A metadata server that is gone for a moment ends no watching: the frame says so and the next one may have it.
        let now = match taken {
            Ok(now) => now,
            Err(error) => match &mut screen {
                Some(screen) => {
                    screen.say(&crate::exit::said(&error))?;
                    continue;
                }
                None => return Err(error),
            },
        };
        let mut frame = now.frame(Some(&before));
        seen.extend(now.devices());
        frame.note_removed(&seen);
        before = now;
        match &mut screen {
            Some(screen) => screen.draw(&frame)?,
            None if arguments.output.json => print_json(&frame)?,
            None => {
                let lines = frame.lines(PLAIN_COLUMNS, usize::MAX);
                let text: String = lines.iter().map(|line| format!("{}\n", line.text)).collect();
                let end = if arguments.once { "" } else { "\n" };
                write!(io::stdout().lock(), "{text}{end}").context(UNSAID)?;
            }
        }
        if arguments.once {
            return Ok(());
        }
    }
}

/// Does something unless the person at the screen, or who stops programs, wants no more: none then.
async fn until_left<T>(
    screen: Option<&Screen>,
    stop: Pin<&mut impl Future<Output = anyhow::Result<()>>>,
    work: impl Future<Output = T>,
) -> anyhow::Result<Option<T>> {
    let left = async {
        let Some(screen) = screen else { return std::future::pending().await };
        loop {
            match screen.wants_no_more() {
                Ok(false) => tokio::time::sleep(KEYS_EVERY).await,
                Ok(true) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    };
    tokio::select! {
        biased;
        left = left => left.map(|()| None),
        stopped = stop => stopped.map(|()| None),
        done = work => Ok(Some(done)),
    }
}
