//! A device's errors as the protocol's faults.

use steadfast_disk::{
    OpError,
    device::{ChangeError, CreateError, LogError, ReadError, UpdateError, WriteError},
    media::MediumError,
};
use steadfast_protocol::{BlockIndex, DeviceId, SegmentId, message::NodeFault};

/// The fault that tells the asker what `error` means to it.
pub(crate) fn fault(device: DeviceId, error: OpError) -> NodeFault {
    let medium = |detail: String| NodeFault::Medium { device, detail };
    let unknown = |segment: SegmentId| NodeFault::UnknownSegment { device, segment };
    match error {
        OpError::Cancelled | OpError::Closed => medium(error.to_string()),
        OpError::Create(error) => match error {
            CreateError::StaleEpoch { held, given, .. } => {
                NodeFault::StaleEpoch { given: given.0, current: held.0 }
            }
            CreateError::Full { .. } | CreateError::Medium(MediumError::Full) => NodeFault::Full(device),
            CreateError::Exists { .. }
            | CreateError::BlockSize { .. }
            | CreateError::Updates { .. }
            | CreateError::JournalTooSmall { .. } => NodeFault::Invalid(error.to_string()),
            CreateError::Device(_) | CreateError::Medium(_) => medium(error.to_string()),
        },
        OpError::Write(error) => match error {
            WriteError::NoExtent { segment } => unknown(segment),
            WriteError::StaleEpoch { held, given, .. } => {
                NodeFault::StaleEpoch { given: given.0, current: held.0 }
            }
            WriteError::Full { .. } | WriteError::Medium(MediumError::Full) => NodeFault::Full(device),
            WriteError::Sealed { .. }
            | WriteError::Exists { .. }
            | WriteError::Length { .. }
            | WriteError::Mismatch(_) => NodeFault::Invalid(error.to_string()),
            WriteError::Device(_) | WriteError::Medium(_) => medium(error.to_string()),
        },
        OpError::Read(error) => match error {
            ReadError::NoExtent { segment } => unknown(segment),
            ReadError::NoBlock { .. } | ReadError::OutOfRange { .. } | ReadError::Corrupt { .. } => {
                NodeFault::Invalid(error.to_string())
            }
            ReadError::Medium(_) => medium(error.to_string()),
        },
        OpError::Change(error) => match error {
            ChangeError::NoExtent { segment } => unknown(segment),
            ChangeError::StaleEpoch { held, given, .. } => {
                NodeFault::StaleEpoch { given: given.0, current: held.0 }
            }
            ChangeError::IndexFull => NodeFault::Invalid(error.to_string()),
            ChangeError::Device(_) => medium(error.to_string()),
        },
        OpError::Update(error) => match error {
            UpdateError::NoExtent { segment } => unknown(segment),
            UpdateError::StaleEpoch { held, given, .. } => {
                NodeFault::StaleEpoch { given: given.0, current: held.0 }
            }
            UpdateError::Device(_) => medium(error.to_string()),
            UpdateError::Read(error) => fault(device, error.into()),
            UpdateError::Log(LogError::Full { .. } | LogError::Medium(MediumError::Full)) => {
                NodeFault::Full(device)
            }
            UpdateError::Log(LogError::Device(_) | LogError::Medium(_)) => medium(error.to_string()),
            _ => NodeFault::Invalid(error.to_string()),
        },
    }
}

/// The same for the write of block `index`: a wrong checksum means that it arrived damaged.
pub(crate) fn write_fault(device: DeviceId, index: BlockIndex, error: OpError) -> NodeFault {
    match error {
        OpError::Write(WriteError::Mismatch(_)) => NodeFault::Damaged { index },
        other => fault(device, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever is told so looks for another device, and does not take this one for broken.
    #[test]
    fn a_medium_without_space_is_full_whatever_was_asked_of_it() {
        let device = DeviceId(1);
        let full = || MediumError::Full;
        for error in [
            OpError::from(CreateError::Medium(full())),
            WriteError::Medium(full()).into(),
            UpdateError::from(LogError::Medium(full())).into(),
        ] {
            assert_eq!(fault(device, error), NodeFault::Full(device));
        }
    }
}
