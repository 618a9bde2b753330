use super::*;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use steadfast_protocol::message::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// Repeatable: the seed is printed and taken from `STEADFAST_SEED`.
fn runner(cases: u32) -> TestRunner {
    let seed: u64 =
        std::env::var("STEADFAST_SEED").map_or(1, |text| text.parse().expect("STEADFAST_SEED is a u64"));
    println!("STEADFAST_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn frame(kind: FrameKind, stream: u64, body: &[u8], payload: &[u8]) -> Frame {
    let header = Header {
        body_bytes: u32::try_from(body.len()).unwrap(),
        payload_bytes: u32::try_from(payload.len()).unwrap(),
        ..Header::new(kind, stream)
    };
    Frame { header, body: body.to_vec(), payload: BytesMut::from(payload) }
}

fn bytes_of(frames: &[Frame]) -> Vec<u8> {
    let one = |frame: &Frame| [&frame.header.to_bytes(&frame.body)[..], &frame.body, &frame.payload].concat();
    frames.iter().flat_map(one).collect()
}

/// All frames of pieces fed one by one, and the error that ended it.
fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Frame>, Result<(), ParseError>) {
    let mut parser = Parser::default();
    let mut frames = Vec::new();
    for mut piece in pieces {
        loop {
            match parser.feed(&mut piece) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(parser.feed(&mut &b"more"[..]), Err(error.clone()), "an error stays");
                    return (frames, Err(error));
                }
            }
        }
        assert!(piece.is_empty());
    }
    (frames, parser.finish())
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
    prop_oneof![
        (1..9_u64, bytes(300), bytes(5_000)).prop_map(|(stream, body, payload)| frame(
            FrameKind::Data,
            stream,
            &body,
            &payload
        )),
        (1..9_u64, bytes(300)).prop_map(|(stream, body)| frame(FrameKind::Open, stream, &body, &[])),
        (1..9_u64, bytes(300)).prop_map(|(stream, body)| frame(FrameKind::End, stream, &body, &[])),
        (1..9_u64).prop_map(|stream| frame(FrameKind::Cancel, stream, &[], &[])),
        Just(frame(FrameKind::Ping, 0, &[], &[])),
    ]
}

fn sample() -> Vec<Frame> {
    vec![
        frame(FrameKind::Hello, 0, b"hello", &[]),
        frame(FrameKind::Open, 1, b"request", &[]),
        frame(FrameKind::Data, 1, b"slice", &[7; 100]),
        frame(FrameKind::End, 1, b"answer", &[]),
    ]
}

#[test]
fn frames_come_back_however_the_bytes_are_cut() {
    let strategy = (prop::collection::vec(any_frame(), 0..12), prop::collection::vec(1..700_usize, 1..50));
    let outcome = runner(256).run(&strategy, |(rest, cuts)| {
        let mut frames = vec![frame(FrameKind::Hello, 0, b"hello", &[])];
        frames.extend(rest);
        let bytes = bytes_of(&frames);
        let mut left = &bytes[..];
        let mut cuts = cuts.iter().cycle();
        let pieces = std::iter::from_fn(|| {
            (!left.is_empty()).then(|| take(&mut left, *cuts.next().expect("a cycle never ends")))
        });
        prop_assert_eq!(parse(pieces), (frames, Ok(())));
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn random_bytes_never_panic_and_are_refused_at_the_first_header() {
    let outcome = runner(512).run(&prop::collection::vec(any::<u8>(), 0..400), |bytes| {
        let (frames, end) = parse([&bytes[..]]);
        prop_assert!(frames.is_empty());
        prop_assert_eq!(end.is_ok(), bytes.is_empty());
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn damaged_frames_never_panic_and_never_pass_as_others() {
    let good = sample();
    let bytes = bytes_of(&good);
    let strategy = prop::collection::vec((0..bytes.len(), 1..=255_u8), 1..4);
    let outcome = runner(2_000).run(&strategy, |flips| {
        let mut damaged = bytes.clone();
        for (at, mask) in flips {
            damaged[at] ^= mask;
        }
        let (frames, _) = parse([&damaged[..]]);
        for (got, sent) in frames.iter().zip(&good) {
            // Payloads carry their own checksums; header and body are covered here.
            prop_assert_eq!((got.header, &got.body), (sent.header, &sent.body));
        }
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn a_cut_at_every_byte_is_seen() {
    let frames = sample();
    let bytes = bytes_of(&frames);
    let mut ends = vec![0];
    for frame in &frames {
        ends.push(ends[ends.len() - 1] + bytes_of(std::slice::from_ref(frame)).len());
    }
    for cut in 0..=bytes.len() {
        let (parsed, end) = parse([&bytes[..cut]]);
        let whole = ends.iter().filter(|&&end| end <= cut).count() - 1;
        assert_eq!(parsed, frames[..whole], "cut at {cut}");
        let have = cut - ends[whole];
        let expected = if have == 0 { Ok(()) } else { Err(ParseError::Truncated { have }) };
        assert_eq!(end, expected, "cut at {cut}");
    }
}

#[test]
fn order_and_shape_are_checked_before_the_body_comes() {
    let hello = frame(FrameKind::Hello, 0, b"hello", &[]);
    let refused = |frames: &[Frame], last: &Frame| {
        let head = last.header.to_bytes(&last.body);
        let before = bytes_of(frames);
        parse([&before[..], &head[..]]).1.unwrap_err()
    };
    let open = frame(FrameKind::Open, 1, b"request", &[]);
    assert_eq!(refused(&[], &open), ParseError::Order { kind: FrameKind::Open, first: true });
    assert_eq!(
        refused(std::slice::from_ref(&hello), &hello),
        ParseError::Order { kind: FrameKind::Hello, first: false }
    );
    let shapes = [
        frame(FrameKind::Ping, 0, b"x", &[]),
        frame(FrameKind::Ping, 1, &[], &[]),
        frame(FrameKind::Cancel, 0, &[], &[]),
        frame(FrameKind::Cancel, 1, b"x", &[]),
        frame(FrameKind::Credit, 1, &[], b"x"),
        frame(FrameKind::Data, 0, b"x", &[]),
        frame(FrameKind::End, 1, b"x", b"x"),
    ];
    for shape in shapes {
        assert!(
            matches!(refused(std::slice::from_ref(&hello), &shape), ParseError::Shape { .. }),
            "{shape:?}"
        );
    }
    let long = frame(FrameKind::Hello, 0, &[0; HELLO_BODY_BYTES_MAX as usize + 1], &[]);
    assert!(matches!(refused(&[], &long), ParseError::Shape { .. }));
}

#[test]
fn lengths_above_the_limits_are_refused_before_memory_is_taken() {
    let mut bytes = frame(FrameKind::Hello, 0, &[], &[]).header.to_bytes(&[]);
    bytes[32..36].copy_from_slice(&(BODY_BYTES_MAX + 1).to_le_bytes());
    let mut parser = HeadParser::default();
    let error = parser.feed(&mut &bytes[..]).unwrap_err();
    assert!(matches!(error, ParseError::Header(HeaderError::TooLong { .. })));
    assert_eq!(parser.body.capacity(), 0);
    bytes[32..36].copy_from_slice(&0_u32.to_le_bytes());
    bytes[36..40].copy_from_slice(&(PAYLOAD_BYTES_MAX + 1).to_le_bytes());
    let error = HeadParser::default().feed(&mut &bytes[..]).unwrap_err();
    assert!(matches!(error, ParseError::Header(HeaderError::TooLong { .. })));
}
