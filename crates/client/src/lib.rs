//! The native client library: put, get, list, remove over any cluster.
