//! How reads of the medium go: a device that takes what is written and gives nothing back is as failed as one that takes nothing.
//!
//! One bad place fails again and again while everything else is read: it counts once in a row.

use super::{OpError, OpOutput};
use crate::{
    device::{LogError, ReadError, UpdateError},
    media::MediumError,
};

/// Reads of a device since its lane began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads {
    /// Reads that the medium failed.
    pub failed: u64,
    /// Those at different places since a read last succeeded.
    pub failed_in_a_row: u32,
    /// The last such failure; absent after a read that succeeded.
    pub error: Option<MediumError>,
}

impl Reads {
    /// Takes what became of an operation.
    pub(super) fn note(&mut self, result: &Result<OpOutput, OpError>) {
        match result {
            Ok(
                OpOutput::Slice { .. }
                | OpOutput::Chunk { .. }
                | OpOutput::LogRecord(_)
                | OpOutput::LogRecords(_),
            ) => {
                self.failed_in_a_row = 0;
                self.error = None;
            }
            Ok(_) => {}
            Err(error) => {
                let Some(error) = of_medium(error) else { return };
                self.failed += 1;
                if self.error.as_ref() != Some(error) {
                    self.failed_in_a_row += 1;
                    self.error = Some(error.clone());
                }
            }
        }
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
