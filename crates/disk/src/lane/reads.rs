//! How reads of the medium go: a device that takes what is written and gives nothing back is as failed as one that takes nothing.
//!
//! One bad place fails again and again while everything else is read: it counts once in a row. Whether a row goes on the lane finds out by
//! itself when it has nothing else to do, at places all over the data: an access that finds one place bad asks the device for nothing
//! more. When a row is long it reads the last place again, since nobody may ask the device for anything any more.

use super::{OpError, OpOutput};
use crate::{
    device::{LogError, ReadError, UpdateError},
    media::MediumError,
};
use std::collections::BTreeSet;

/// Different places that could not be read, with none that could between them, which say that the device gives nothing back. Picked by
/// eye: more than lie in one damaged spot, fewer than one access of a large object asks a device for.
const NOTHING_FROM: usize = 8;
/// Places remembered of one row: more say no more.
const PLACES_MAX: usize = 64;

/// Reads of a device since its lane began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads {
    /// Reads that the medium failed.
    pub failed: u64,
    /// The last such failure; absent after a read that succeeded.
    pub error: Option<MediumError>,
    /// Where reads failed since one last succeeded.
    places: BTreeSet<u64>,
    /// How often the lane looked elsewhere since.
    looks: u64,
}

impl Reads {
    /// Different places where reads failed since one last succeeded.
    pub fn failed_in_a_row(&self) -> u32 {
        u32::try_from(self.places.len()).expect("few are remembered")
    }

    /// Whether they are so many that the device is taken to give nothing back.
    pub fn give_nothing(&self) -> bool {
        self.places.len() >= NOTHING_FROM
    }

    /// Takes what became of an operation; `from_medium`: it read anything there. What is in memory says nothing.
    pub(super) fn note(&mut self, result: &Result<OpOutput, OpError>, from_medium: bool) {
        match result {
            Ok(_) if from_medium => self.succeeded(),
            Ok(_) => {}
            Err(error) => of_medium(error).into_iter().for_each(|error| self.failed_by(error)),
        }
    }

    /// Whether the lane is to look if the medium gives anything.
    pub(super) fn has_to_look(&self) -> bool {
        self.give_nothing() || !self.places.is_empty() && self.looks < NOTHING_FROM as u64
    }

    /// Where; `place_of` tells where a part of the data lies, by its number of so many.
    pub(super) fn place_to_look(&mut self, place_of: impl FnOnce(u64, u64) -> Option<u64>) -> Option<u64> {
        if self.give_nothing() {
            return match self.error {
                Some(MediumError::Io { offset, .. }) => Some(offset),
                _ => None,
            };
        }
        self.looks += 1;
        place_of(self.looks - 1, NOTHING_FROM as u64)
    }

    /// The lane looked.
    pub(super) fn looked(&mut self, result: Result<(), MediumError>) {
        match result {
            Ok(()) => self.succeeded(),
            Err(error) => self.failed_at(error),
        }
    }

    /// A read of the medium succeeded.
    fn succeeded(&mut self) {
        self.places.clear();
        self.looks = 0;
        self.error = None;
    }

    /// A read of the medium failed that somebody asked for.
    fn failed_by(&mut self, error: &MediumError) {
        self.failed += 1;
        self.failed_at(error.clone());
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
