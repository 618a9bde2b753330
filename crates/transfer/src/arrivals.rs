//! The originals that are still to arrive, as cores are told of them.

use crate::Maker;
use tokio::sync::watch;

/// How many of a maker's originals are there, as more come.
pub struct Arrivals {
    all: u32,
    arrived: Option<watch::Receiver<u32>>,
}

impl Arrivals {
    /// Of what `maker` makes its blocks from.
    pub fn of(maker: &Maker) -> Self {
        Self { all: maker.geometry.originals, arrived: maker.arrivals() }
    }

    /// How many are there; none where no more will come.
    pub fn now(&mut self) -> Option<u32> {
        let originals = *self.arrived.as_mut()?.borrow_and_update();
        if originals == self.all {
            self.arrived = None;
            return None;
        }
        Some(originals)
    }

    /// Waits for more; says how many there are.
    pub async fn more(&mut self) -> u32 {
        let Some(arrived) = &mut self.arrived else { return core::future::pending().await };
        if arrived.changed().await.is_ok() {
            return self.now().unwrap_or(self.all);
        }
        // The source failed, and says so to whoever reads it. Until then: what cannot be had is waited for in vain.
        self.arrived = None;
        self.all
    }
}
