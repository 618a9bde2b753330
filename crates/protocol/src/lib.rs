//! Protocol and policy cores: plain state machines without I/O, clock, threads or randomness of their own.
//!
//! A core takes events (a block arrived, a request failed, a timer fired; time is an argument) and gives
//! actions (send this, cancel that, wake me at t). Two drivers run the same cores: the real one over TCP and
//! disks, and the simulated one. The contract of every core is the same three steps:
//!
//! 1. `handle(now, input)` tells it what happened; time never goes backwards;
//! 2. `poll()` is called until it gives `None`: each `Some` is one action to carry out, in this order;
//! 3. `wake_at()` says when to call `handle` with a tick, should nothing else happen before.
//!
//! | room | what lives there |
//! |---|---|
//! | [`message`] | what goes over the wire: frame header, requests, answers, errors |
//! | [`policy`], [`layout`] | how a bucket's data is protected; who holds what of a segment |
//! | [`durability`] | the one function that decides whether what is confirmed may be acknowledged |
//! | [`plan`], [`read`], [`write`](mod@write) | cores that ask: which devices, how blocks are fetched and stored |
//! | [`chunks`] | chunks that change in place, asked one by one: an end to their updates, rows of them at one state |
//! | [`question`] | when the metadata server is asked again |
//! | [`drain`] | emptying devices, object by object |
//! | [`serve`] | cores that serve: one stream of blocks under credit and cancel |
//! | [`straggler`] | which devices are far slower than their peers, for whoever watches |
//! | [`words`] | numbers with their words, for errors |
//! | [`trace`] | one message as it was sent, for the simulator and real servers alike |
//! | [`meta`] | cores that govern: namespace, versions, intents, leases, device registry |

pub mod chunks;
pub mod drain;
pub mod durability;
pub mod layout;
pub mod message;
pub mod meta;
pub mod plan;
pub mod policy;
pub mod question;
pub mod ranges;
pub mod read;
pub mod serve;
pub mod straggler;
pub mod time;
pub mod trace;
pub mod window;
pub mod words;
pub mod write;

pub use ranges::IndexRanges;
pub use steadfast_disk::{BlockIndex, ClusterId, DeviceId, Epoch, SegmentId, Version};
pub use time::Time;

mod ids;

pub use ids::{IntentId, NodeId, RequestId, ReservationId};
