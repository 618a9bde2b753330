//! What kept buffers cost the process, in a process of its own.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use bytes::BytesMut;
use std::{
    fs, thread,
    time::{Duration, Instant},
};
use steadfast_net::{Batch, keep_buffers, payload_buffer, release_buffers};

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn filled(count: usize, len: usize) -> Vec<BytesMut> {
    let fill = |_| {
        let mut buffer = payload_buffer(len);
        buffer.resize(len, 1);
        buffer
    };
    (0..count).map(fill).collect()
}

/// Segments of several block sizes, one after the other, take no more than the largest of them, are kept, and are
/// given back when they are released.
#[test]
fn segments_take_their_size_and_are_given_back() {
    const SEGMENT: usize = 64 << 20;
    const SLACK: usize = 12 << 20;
    let before = resident();
    little_is_touched_ahead(SEGMENT);
    blocks_made_at_once_take_their_size_and_are_given_back(SEGMENT, SLACK);
    for len in [64 << 10, 256 << 10, 1 << 20] {
        keep_buffers(SEGMENT);
        for _ in 0..3 {
            let segment = filled(SEGMENT / len, len);
            let taken = resident() - before;
            assert!((SEGMENT..SEGMENT + SLACK).contains(&taken), "{len}: {taken}");
            drop(segment);
            assert!(resident() - before >= SEGMENT, "{len}: kept for the next");
        }
        release_buffers();
        let left = resident().saturating_sub(before);
        assert!(left < SLACK, "{len}: {left} bytes left");
    }
}

/// Before anything is taken: what the first buffers will be in.
fn little_is_touched_ahead(segment: usize) {
    const AHEAD: usize = 2 * (2 << 20);
    let before = resident();
    let ahead = || resident().saturating_sub(before);
    keep_buffers(segment);
    let patience = Instant::now() + Duration::from_secs(20);
    while ahead() < AHEAD {
        assert!(Instant::now() < patience, "{} bytes are ahead", ahead());
        thread::sleep(Duration::from_millis(1));
    }
    // Nobody takes any: it stays at that.
    thread::sleep(Duration::from_millis(100));
    assert!(ahead() < 2 * AHEAD, "{} bytes are ahead", ahead());
    release_buffers();
    assert!(ahead() < AHEAD, "{} bytes are left", ahead());
}

fn blocks_made_at_once_take_their_size_and_are_given_back(segment: usize, slack: usize) {
    const LEN: usize = 256 << 10;
    let before = resident();
    keep_buffers(segment);
    for round in 0..3 {
        let mut batch = Batch::new(segment / LEN, LEN);
        // As the last ones left it, but for what is ahead beside it.
        let left = |block: &&&mut [u8]| block.iter().all(|&byte| byte == round);
        assert!(batch.blocks().iter().filter(left).count() >= (segment - slack) / LEN);
        batch.blocks().into_iter().for_each(|block| block.fill(round + 1));
        let blocks = batch.freeze();
        let taken = resident() - before;
        assert!((segment..segment + slack).contains(&taken), "{round}: {taken}");
        drop(blocks);
        assert!(resident() - before >= segment, "kept for the next");
    }
    release_buffers();
    let left = resident().saturating_sub(before);
    assert!(left < slack, "{left} bytes left");
}
