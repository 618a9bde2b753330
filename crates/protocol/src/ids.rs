//! Names that the cluster uses beyond a single device.

use serde::{Deserialize, Serialize};
use steadfast_disk::id;

id!(
    /// One storage server process; chosen when its first device is formatted and kept for good.
    NodeId(u128), "storage server id", 32, "{:032x}"
);
id!(
    /// A put that has begun and not committed. Its segments are reclaimed when its lease ends.
    IntentId(u64), "put id", 16, "{:016x}"
);
id!(
    /// Bandwidth that a client asked a device to keep for one access; drawn at random by the client, so that a lost answer can
    /// be asked again.
    ReservationId(u128), "reservation id", 32, "{:032x}"
);

/// Names one mutating request for good, so that a lost answer can be asked again: who asked, and its count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// Drawn at random by each client process when it starts.
    pub client: u128,
    /// Counts that client's mutating requests.
    pub count: u64,
}
