//! A server's admin port: `/metrics` for Prometheus and `/healthz`, over HTTP.
//!
//! | file | what lives there |
//! |---|---|
//! | [`page`] | a snapshot of a server's metrics, and its text |
//! | [`histogram`] | durations counted in buckets without a lock |
//! | [`server`] | the port: few connections, short ones, of bounded size |
//!
//! A server gives a [`Visible`]: its metrics as one [`Page`] and its health, both taken at the moment of the request,
//! so that nothing is counted twice and nothing is kept for those who never ask.
//!
//! Left out: pushing metrics anywhere, and anything that changes the server.

pub mod histogram;
pub mod page;
pub mod server;

pub use histogram::Histogram;
pub use page::{Family, Format, Page};
pub use server::{Admin, Visible};
