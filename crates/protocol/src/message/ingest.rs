//! A segment handed to one node, its *primary*, which encodes and distributes it (CodFS §3.3, §5.3: offloading).

use crate::{DeviceId, IndexRanges, IntentId, SegmentId, Version};
use serde::{Deserialize, Serialize};

/// Opens the handing over of a new segment of chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngestOpen {
    /// The segment.
    pub segment: SegmentId,
    /// Its version, part of every checksum.
    pub version: Version,
    /// The put or change it belongs to.
    pub intent: IntentId,
    /// Bytes of the segment; what comes are its original blocks, the last ones padded with zeros.
    pub length: u64,
    /// The bucket's policy, in its text form: it is checked where it is read.
    pub policy: String,
    /// Draws what the code and the durability rule draw.
    pub seed: u64,
    /// Failure domains, numbered from 0, over `devices` and `spares` together.
    pub domains: u32,
    /// The devices of the chunks, in the chunks' order.
    pub devices: Vec<Place>,
    /// Devices to turn to when one of the others fails, best first.
    pub spares: Vec<Place>,
    /// How long to wait without any confirmation, or any byte from the opener.
    pub patience_ms: u32,
}

/// A device and its failure domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The device.
    pub device: DeviceId,
    /// The domain.
    pub domain: u32,
}

/// A segment that its primary has stored, as the bucket's policy promises.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ingested {
    /// Where the chunks are, in their order.
    pub holders: Vec<(DeviceId, IndexRanges)>,
    /// Devices that hold nothing of the layout and may hold something else: it is to be deleted.
    pub abandoned: Vec<DeviceId>,
    /// Blocks sent to devices in all.
    pub pushed_blocks: u32,
}
