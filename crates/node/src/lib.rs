//! The storage server: devices, their I/O lanes and the serving cores.
