//! How reads of the medium go: a device that takes what is written and gives nothing back is as failed as one that takes nothing.
//!
//! One bad place fails again and again while everything else is read: it counts once in a row. Whether a row goes on the lane finds out by
//! itself, at places all over the data, and passes by what the system keeps of the medium in memory: an access that finds some places bad
//! asks the device for nothing more, of a device that gives nothing nobody asks for anything, and what others are given meanwhile may
//! come from that memory, which a dead disk does not empty.

use super::{OpError, OpOutput};
use crate::{
    device::{LogError, ReadError, UpdateError},
    media::MediumError,
};
use std::collections::BTreeSet;

/// Different places that could not be read, while the lane found none that could, which say that the device gives nothing back. Picked by
/// eye: more than lie in one damaged spot, fewer than one access of a large object asks a device for.
const NOTHING_FROM: usize = 8;
/// Places remembered of one row: more say no more.
const PLACES_MAX: usize = 64;

/// Reads of a device since its lane began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads {
    /// Reads that the medium failed.
    pub failed: u64,
    /// The last such failure; absent once the lane found a place that can be read.
    pub error: Option<MediumError>,
    /// Where reads failed since.
    places: BTreeSet<u64>,
    /// How often the lane looked since.
    looks: u64,
}

impl Reads {
    /// Different places where reads failed since the lane last found one that can be read.
    pub fn failed_in_a_row(&self) -> u32 {
        u32::try_from(self.places.len()).expect("few are remembered")
    }

    /// Whether they are so many that the device is taken to give nothing back.
    pub fn give_nothing(&self) -> bool {
        self.places.len() >= NOTHING_FROM
    }

    /// Takes what became of an operation.
    pub(super) fn note(&mut self, result: &Result<OpOutput, OpError>) {
        if let Some(error) = result.as_ref().err().and_then(of_medium) {
            self.failed += 1;
            self.failed_at(error.clone());
        }
    }

    /// Whether the lane is to look if the medium gives anything.
    pub(super) fn has_to_look(&self) -> bool {
        !self.places.is_empty()
    }

    /// Where; `place_of` tells where a part of the data lies, by its number of so many.
    pub(super) fn place_to_look(&mut self, place_of: impl FnOnce(u64, u64) -> Option<u64>) -> Option<u64> {
        const PARTS: u64 = NOTHING_FROM as u64;
        let part = self.looks % PARTS;
        self.looks += 1;
        // Its data may be gone meanwhile.
        place_of(part, PARTS).or(match self.error {
            Some(MediumError::Io { offset, .. }) => Some(offset),
            _ => None,
        })
    }

    /// The lane looked.
    pub(super) fn looked(&mut self, result: Result<(), MediumError>) {
        match result {
            Ok(()) => *self = Reads { failed: self.failed, ..Reads::default() },
            Err(error) => self.failed_at(error),
        }
    }

    fn failed_at(&mut self, error: MediumError) {
        let place = if let MediumError::Io { offset, .. } = error { offset } else { u64::MAX };
        if self.places.len() < PLACES_MAX {
            self.places.insert(place);
        }
        self.error = Some(error);
    }
}

/// The medium's error in reading, where it is one.
fn of_medium(error: &OpError) -> Option<&MediumError> {
    match error {
        OpError::Read(ReadError::Medium(error))
        | OpError::Update(
            UpdateError::Read(ReadError::Medium(error)) | UpdateError::Log(LogError::Medium(error)),
        ) => Some(error),
        _ => None,
    }
}
