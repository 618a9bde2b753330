//! Progress on a terminal: bytes, rate, time left. Silent where standard error is not a terminal or JSON is asked.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar for `total` bytes (a counter where the total is unknown).
pub(crate) fn bytes(total: Option<u64>, json: bool) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
    if json || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let template = if total.is_some() {
        "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left"
    } else {
        "{spinner} {bytes} {bytes_per_sec}"
    };
    bar.with_style(ProgressStyle::with_template(template).expect("a fixed template"))
}

/// A bar for `total` bytes with a count of something beside them, its message.
pub(crate) fn bytes_and_count(total: u64, json: bool) -> ProgressBar {
    let template = "{wide_bar} {bytes}/{total_bytes} {msg} {bytes_per_sec} {eta} left";
    bytes(Some(total), json).with_style(ProgressStyle::with_template(template).expect("a fixed template"))
}

/// A bar for `total` requests, with a message beside them.
pub(crate) fn count(total: u64, json: bool) -> ProgressBar {
    let template = "{wide_bar} {pos}/{len} requests {per_sec} {eta} left {msg}";
    bytes(Some(total), json).with_style(ProgressStyle::with_template(template).expect("a fixed template"))
}
