//! Real processes on real disks: every test runs the program itself as servers and, mostly, as client.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod amended;
mod bad_input;
mod bench;
mod by_hand;
mod changing;
mod common;
mod configuration;
mod crashes;
mod degraded;
mod devices;
mod failures;
mod files;
mod holes;
mod in_place;
mod ingest;
mod late;
mod leaving;
mod load;
mod objects;
mod output;
mod parity;
mod parity_damage;
mod quality;
mod ranges;
mod raw;
mod recorded;
mod replay;
mod requests;
mod reserves;
mod rotational;
mod show;
mod sizes;
mod trace;
mod update_and_tune;
mod watch;
