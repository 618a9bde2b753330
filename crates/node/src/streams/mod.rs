//! Drivers of the stream cores: they carry actions to lane and connection, and bring back what happened.

pub(crate) mod ingest;
pub(crate) mod read;
pub(crate) mod write;
