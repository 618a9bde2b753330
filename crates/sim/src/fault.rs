//! What goes wrong, and how it is undone.

use crate::network::HostId;
use steadfast_protocol::{BlockIndex, DeviceId, SegmentId};

/// One fault, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A storage server's process ends: its connections are reset, what its devices hold stays.
    Crash {
        /// Its number.
        node: u32,
    },
    /// It serves again.
    Restart {
        /// Its number.
        node: u32,
    },
    /// The metadata server's process ends: its connections are reset, what was committed stays.
    CrashMeta,
    /// It serves again.
    RestartMeta,
    /// A device starts nothing and ends nothing.
    Stall {
        /// The device.
        device: DeviceId,
    },
    /// It goes on where it stood.
    Resume {
        /// The device.
        device: DeviceId,
    },
    /// Each operation takes `factor` times as long from the next one on; 1.0 ends it.
    Slow {
        /// The device.
        device: DeviceId,
        /// How many times; positive.
        factor: f64,
    },
    /// A block's bytes on the medium are wrong from now on.
    Corrupt {
        /// The device.
        device: DeviceId,
        /// The segment.
        segment: SegmentId,
        /// The block.
        index: BlockIndex,
    },
    /// Nothing comes through between two hosts.
    Cut {
        /// One.
        one: HostId,
        /// The other.
        other: HostId,
    },
    /// It does again; what was sent meanwhile is lost, and so are the streams that were open.
    Mend {
        /// One.
        one: HostId,
        /// The other.
        other: HostId,
    },
}
