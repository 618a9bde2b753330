//! The originals that are still to arrive, as cores are told of them.

use crate::{Maker, Originals};
use std::sync::Arc;

/// How many of a maker's originals are there, as more come.
#[derive(Default)]
pub struct Arrivals {
    /// None where no more will come.
    originals: Option<Arc<Originals>>,
    /// Of which the core was told.
    told: u32,
}

impl Arrivals {
    /// Of what `maker` makes its blocks from.
    pub fn of(maker: &Maker) -> Self {
        Self { originals: maker.arriving(), told: 0 }
    }

    /// How many are there; none where no more will come.
    pub fn now(&mut self) -> Option<u32> {
        let originals = self.originals.as_ref()?;
        self.told = originals.arrived(self.told);
        if self.told == originals.count() {
            self.originals = None;
            return None;
        }
        Some(self.told)
    }

    /// Waits for more, or where `all_of_them` for the last; says how many there are.
    pub async fn more(&mut self, all_of_them: bool) -> u32 {
        let Some(originals) = &self.originals else { return core::future::pending().await };
        let all = originals.count();
        if originals.wait_for(if all_of_them { all } else { self.told + 1 }).await {
            return self.now().unwrap_or(all);
        }
        // The source failed, and says so to whoever reads it. Until then: what cannot be had is waited for in vain.
        self.originals = None;
        all
    }
}
