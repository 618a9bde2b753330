//! The framed protocol on TCP: connections, streams, credit, cancel, and a link that can delay and limit.
