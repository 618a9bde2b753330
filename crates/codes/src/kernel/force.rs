//! One tier for the whole process, in place of the widest: for tests and benches of what a lesser processor would run.

use super::Tier;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The forced tier's place among all, from 1; 0 when none is. Relaxed: it guards nothing, every tier computes the same.
static FORCED: AtomicUsize = AtomicUsize::new(0);

/// A tier that cannot be forced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// No tier has that name.
    #[error("no instruction set is named `{name}`; this processor has {}", names())]
    Unknown {
        /// What was written.
        name: String,
    },
    /// This processor has not its instructions.
    #[error("this processor has no `{}`; it has {}", tier.name(), names())]
    Unsupported {
        /// What was asked for.
        tier: Tier,
    },
}

impl Tier {
    /// The name in commands and reports, for instance `avx2-gfni`.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Portable => "portable",
            Tier::Ssse3 => "ssse3",
            Tier::Avx2 => "avx2",
            Tier::Avx2Gfni => "avx2-gfni",
            Tier::Avx512 => "avx512",
            Tier::Avx512Gfni => "avx512-gfni",
        }
    }

    /// Makes this tier what [`Tier::detect`] gives from now on, in every thread, until another is forced. Calls that are
    /// given a tier heed that one.
    ///
    /// # Errors
    /// [`TierError::Unsupported`] where this processor has not the instructions; nothing changes then.
    pub fn force(self) -> Result<(), TierError> {
        if !self.is_supported() {
            return Err(TierError::Unsupported { tier: self });
        }
        FORCED.store(self as usize + 1, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    pub(super) fn forced() -> Option<Tier> {
        FORCED.load(Ordering::Relaxed).checked_sub(1).map(|place| Tier::ALL[place])
    }
}

impl FromStr for Tier {
    type Err = TierError;

    fn from_str(name: &str) -> Result<Self, TierError> {
        let known = Tier::ALL.into_iter().find(|tier| tier.name() == name);
        known.ok_or_else(|| TierError::Unknown { name: name.to_owned() })
    }
}

fn names() -> String {
    Tier::available().iter().map(|tier| tier.name()).collect::<Vec<_>>().join(", ")
}
