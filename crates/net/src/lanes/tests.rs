use super::*;

fn data(stream: u64, priority: Priority, mark: u8) -> OutFrame {
    let header = Header { priority, ..Header::new(FrameKind::Data, stream) };
    OutFrame::new(header, vec![mark], Bytes::from_static(&[0; 1000]))
}

fn order(lanes: &mut Lanes) -> Vec<(FrameKind, u64)> {
    std::iter::from_fn(|| lanes.pop()).map(|frame| (frame.header.kind, frame.header.stream)).collect()
}

#[test]
fn bulk_is_served_round_robin_and_keeps_the_order_of_each_stream() {
    let mut lanes = Lanes::default();
    for stream in [1, 3, 5] {
        for mark in 0..4 {
            lanes.push_bulk(data(stream, Priority::Foreground, mark));
        }
    }
    let mut got = Vec::new();
    while let Some(frame) = lanes.pop() {
        got.push((frame.body[0], frame.header.stream));
    }
    let expected: Vec<_> = (0..4).flat_map(|mark| [1, 3, 5].map(|stream| (mark, stream))).collect();
    assert_eq!(got, expected);
    assert!(lanes.is_empty() && lanes.bulk_bytes() == 0);
}

#[test]
fn control_goes_first_but_an_end_stays_behind_its_own_data() {
    let mut lanes = Lanes::default();
    lanes.push_bulk(data(1, Priority::Foreground, 0));
    lanes.push_last(OutFrame::bare(FrameKind::End, 1));
    lanes.push_last(OutFrame::bare(FrameKind::End, 3));
    lanes.push_control(OutFrame::bare(FrameKind::Ping, 0));
    use FrameKind::{Data, End, Ping};
    assert_eq!(order(&mut lanes), [(End, 3), (Ping, 0), (Data, 1), (End, 1)]);
}

#[test]
fn the_background_gets_one_frame_in_eight_and_all_when_alone() {
    let mut lanes = Lanes::default();
    for mark in 0..32 {
        lanes.push_bulk(data(1, Priority::Foreground, mark));
        lanes.push_bulk(data(2, Priority::Background, mark));
    }
    lanes.push_bulk(data(3, Priority::Control, 0));
    let streams: Vec<_> = order(&mut lanes).into_iter().map(|(_, stream)| stream).collect();
    assert_eq!(streams[0], 3);
    for round in streams[1..33].chunks(8) {
        assert_eq!(round.iter().filter(|&&stream| stream == 2).count(), 1);
    }
    assert_eq!(streams.len(), 65);
}

#[test]
fn a_purge_drops_data_keeps_the_end_and_spares_others() {
    let mut lanes = Lanes::default();
    for stream in [1, 3] {
        lanes.push_bulk(data(stream, Priority::Foreground, 0));
        lanes.push_bulk(data(stream, Priority::Foreground, 1));
    }
    lanes.push_last(OutFrame::bare(FrameKind::End, 1));
    lanes.push_credit(1, 5);
    assert_eq!(lanes.purge(1), 2000);
    assert_eq!(lanes.bulk_bytes(), 2 * 1001);
    assert_eq!(order(&mut lanes), [(FrameKind::End, 1), (FrameKind::Data, 3), (FrameKind::Data, 3)]);
    assert_eq!(lanes.purge(1), 0);
}

#[test]
fn grants_that_wait_travel_together() {
    let mut lanes = Lanes::default();
    lanes.push_credit(1, 5);
    lanes.push_credit(3, 1);
    lanes.push_credit(1, 6);
    let credits: Vec<_> =
        std::iter::from_fn(|| lanes.pop()).map(|frame| (frame.header.stream, frame.header.credit)).collect();
    assert_eq!(credits, [(1, 11), (3, 1)]);
}
