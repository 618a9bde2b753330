//! Blocks of a segment on their way to devices and from them: what clients and the nodes that write for them share.
//!
//! | room | what lives there |
//! |---|---|
//! | `originals`, `arrivals` | the K original blocks of a segment while they arrive, and who is told of it |
//! | `maker` | the blocks that are asked for, encoded off the runtime's thread |
//! | `streams` | one stream to each device, as tasks of their own |
//! | `writer` | the driver of the write cores |

mod arrivals;
mod maker;
mod originals;
mod streams;
mod writer;

pub use arrivals::Arrivals;
pub use maker::Maker;
pub use originals::{Arriving, Originals};
pub use streams::{Event, Streams};
pub use writer::{Route, SegmentWriter};
