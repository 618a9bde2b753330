//! Small samples of each form, everything that can be wrong with one, and the real traces where they are.

use super::*;
use flate2::{Compression, write::GzEncoder};
use std::{collections::BTreeSet, io::Write, path::PathBuf};

const CLOUD: &str = "version,time,op,size,lbn\n1,5633898,2a,512,42932745\n1,5633898,28,6656,40409911\n";
const STATION: &str = "time_s,dev,lbn_sector,size_bytes,op,sync,start_ms_after_enqueue,stop_ms_after_enqueue,queue_len\n\
     0.000000,1,1056,4096,R,S,0.174,19.687,1\n0.022479,0,1040,8192,W,A,0.076,10.038,1\n";
const SEARCH: &str = "11413000 0 657728 16 1\n11565000 2 31244784 64 0";

fn of(text: impl Into<Vec<u8>>) -> Result<Trace, TraceError> {
    Trace::new(std::io::Cursor::new(text.into()))
}

fn all(text: impl Into<Vec<u8>>) -> Result<Vec<TraceRequest>, TraceError> {
    of(text)?.collect()
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn request(at: Option<u64>, device: u32, offset_bytes: u64, bytes: u32, write: bool) -> TraceRequest {
    TraceRequest { at: at.map(Duration::from_nanos), device, offset_bytes, bytes, write }
}

#[test]
fn each_form_is_told_by_its_content_plain_or_packed() {
    let cases = [
        (
            CLOUD,
            Form::CloudPhysics,
            [request(None, 0, 42_932_745 * 512, 512, true), request(None, 0, 40_409_911 * 512, 6656, false)],
        ),
        (
            STATION,
            Form::Workstation,
            [
                request(Some(0), 1, 1056 * 512, 4096, false),
                request(Some(22_479_000), 0, 1040 * 512, 8192, true),
            ],
        ),
        (
            SEARCH,
            Form::WebSearch,
            [
                request(Some(11_413_000), 0, 657_728 * 512, 8192, false),
                request(Some(11_565_000), 2, 31_244_784 * 512, 32768, true),
            ],
        ),
    ];
    for (text, form, requests) in cases {
        assert_eq!(of(text).unwrap().form(), form);
        assert_eq!(all(text).unwrap(), requests);
        assert_eq!(all(packed(text)).unwrap(), requests);
        assert_eq!(all(text.replace('\n', "\r\n")).unwrap(), requests);
        // Two members, as files that were put together have them.
        let (one, two) = text.split_at(text.len() / 2);
        assert_eq!(all([packed(one), packed(two)].concat()).unwrap(), requests);
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let wrong = |text: String| all(text).unwrap_err().to_string();
    let cloud = |line: &str| wrong(format!("{CLOUD}{line}\n"));
    assert_eq!(cloud("1,2,2a,512"), "line 4 has 4 columns instead of 5");
    assert_eq!(cloud(""), "line 4 has 1 columns instead of 5");
    assert_eq!(cloud("1,2,35,512,7"), "line 4, column 3: `35` is not 28 (read) or 2a (write)");
    assert_eq!(cloud("1,2,2a,0,7"), "line 4, column 4: `0` is not a length of 1 byte to 4 GiB");
    assert_eq!(
        cloud("1,2,2a,4294967296,7"),
        "line 4, column 4: `4294967296` is not a length of 1 byte to 4 GiB"
    );
    assert_eq!(cloud("1,2,2a,512,-7"), "line 4, column 5: `-7` is not a sector");
    assert!(cloud("1,2,2a,512,36028797018963968").contains("ends below 2^64"));
    assert!(cloud("1,2,2a,513,36028797018963967").contains("a length"), "it would end past 2^64");
    let station = |line: &str| wrong(format!("{STATION}{line},S,0,0,1"));
    assert_eq!(station("0.03,0,1,512,X"), "line 4, column 5: `X` is not R or W");
    assert_eq!(station("0.03,disk,1,512,R"), "line 4, column 2: `disk` is not the number of a device");
    for time in ["", ".5", "1.", "-1", "1e3", "1.0000000001", "4294967296", "18446744073709551615"] {
        assert!(station(&format!("{time},0,1,512,R")).contains("column 1"), "{time}");
    }
    assert_eq!(station("0.01,0,1,512,R"), "line 4: the request at 10ms comes after one at 22.479ms");
    let search = |line: &str| wrong(format!("{SEARCH}\n{line}"));
    assert_eq!(search("12000000 0 1 16 2"), "line 3, column 5: `2` is not 0 (write) or 1 (read)");
    assert_eq!(search("12000000 0 1  16 1"), "line 3 has 6 columns instead of 5");
    // After an error nothing more is given.
    let mut trace = of(format!("{SEARCH}\nnothing\n{SEARCH}")).unwrap();
    assert_eq!(trace.by_ref().take(3).filter(Result::is_err).count(), 1);
    assert!(trace.next().is_none());
}

#[test]
fn what_is_no_trace_is_refused() {
    for empty in [Vec::new(), packed("")] {
        assert!(matches!(all(empty), Err(TraceError::Empty)));
    }
    assert!(matches!(all("a,b,c\n1,2,3\n"), Err(TraceError::Unknown { text }) if text == "a,b,c"));
    assert!(matches!(all("\n"), Err(TraceError::Unknown { .. })));
    assert!(matches!(all([0xff, 0xfe, 0xfd]), Err(TraceError::Text { line: 1 })));
    assert!(matches!(all(vec![b'1'; 1 << 20]), Err(TraceError::Text { line: 1 })));
    let long = format!("{CLOUD}{}", "1".repeat(1025));
    assert!(matches!(all(long), Err(TraceError::Text { line: 4 })));
    assert!(matches!(Trace::open(Path::new("no such file")), Err(TraceError::Read { line: 0, .. })));
}

#[test]
fn a_truncated_file_is_an_error_and_not_an_end() {
    let text = format!("{CLOUD}{}", "1,5633898,2a,512,42932745\n".repeat(1000));
    let whole = packed(&text);
    for end in [11, whole.len() / 2, whole.len() - 1] {
        let error = all(&whole[..end]).unwrap_err();
        assert!(matches!(error, TraceError::Read { .. }), "{end}: {error}");
    }
    let mut damaged = whole;
    let middle = damaged.len() - 6;
    damaged[middle] ^= 1;
    assert!(
        matches!(all(damaged), Err(TraceError::Read { line, .. }) if line > 0),
        "its checksum does not match"
    );
}

#[test]
fn updates_are_writes_to_what_was_accessed_in_any_way() {
    let mut summary = TraceSummary::default();
    let mut add = |device, block: u64, blocks: u32, write| {
        summary.add(&request(None, device, block * BLOCK_BYTES, blocks * BLOCK_BYTES as u32, write));
    };
    add(0, 10, 4, false);
    add(0, 10, 1, true); // read before
    add(0, 13, 2, true); // one block of the two was
    add(1, 10, 1, true); // another device
    add(0, 100, 60, true); // across the map's entries, all new
    add(0, 126, 4, true); // updates, across them
    add(0, 126, 4, true); // again: blocks count once
    assert_eq!((summary.requests, summary.writes, summary.updates), (7, 6, 4));
    assert_eq!((summary.blocks, summary.updated_blocks), (4 + 1 + 1 + 60, 1 + 1 + 4));
    assert_eq!(summary.update_bytes, (1 + 2 + 4 + 4) * BLOCK_BYTES);
    assert_eq!(summary.updates_share(), Some(4.0 / 6.0));
    // Parts of blocks count as the blocks.
    let mut summary = TraceSummary::default();
    assert_eq!(
        (summary.updates_share(), summary.updated_share(), summary.update_bytes_mean()),
        (None, None, None)
    );
    summary.add(&request(None, 0, 4095, 2, true));
    summary.add(&request(None, 0, 8191, 1, true));
    assert_eq!((summary.blocks, summary.updates, summary.updated_share()), (2, 1, Some(0.5)));
    assert_eq!(summary.update_bytes_mean(), Some(1.0));
}

#[test]
fn regions_lie_in_the_order_of_their_first_touch() {
    let mut map = CompactingMap::new(u64::MAX);
    let mut at = |device, offset: u64, bytes| map.pieces(&request(None, device, offset, bytes, true));
    let piece = |offset_bytes, bytes| FilePiece { offset_bytes, bytes };
    assert_eq!(at(0, 70 * REGION_BYTES + 5, 10), [piece(5, 10)]);
    assert_eq!(at(1, 70 * REGION_BYTES + 5, 10), [piece(REGION_BYTES + 5, 10)]);
    // Back to the first: the same place, the offset within kept.
    assert_eq!(at(0, 70 * REGION_BYTES + 4096, 512), [piece(4096, 512)]);
    // Into a new region: apart, because another device's lies behind the first.
    assert_eq!(
        at(0, 71 * REGION_BYTES - 512, 1024),
        [piece(REGION_BYTES - 512, 512), piece(2 * REGION_BYTES, 512)]
    );
    // Into a new one behind the last: one piece.
    assert_eq!(at(0, 72 * REGION_BYTES - 512, 1024), [piece(3 * REGION_BYTES - 512, 1024)]);
    assert_eq!((map.regions(), map.file_bytes()), (4, 4 * REGION_BYTES));
}

#[test]
fn a_file_that_is_full_is_folded() {
    let mut map = CompactingMap::new(2 * REGION_BYTES);
    let places: Vec<u64> = [5, 9, 7, 5, 3]
        .map(|region| map.pieces(&request(None, 0, region * REGION_BYTES, 1, true))[0].offset_bytes)
        .into();
    assert_eq!(places, [0, 1, 0, 0, 1].map(|place| place * REGION_BYTES));
    assert_eq!((map.regions(), map.file_bytes()), (4, 2 * REGION_BYTES));
    // Never none at all.
    assert_eq!(CompactingMap::new(0).pieces(&request(None, 0, 0, 1, true)).len(), 1);
}

/// The published traces, where the checkout has them beside it.
fn real(name: &str) -> Option<PathBuf> {
    let shared = ["../../../shared", "../../../../shared"].map(Path::new);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = shared
        .iter()
        .map(|shared| here.join(shared).join("data/traces").join(name))
        .find(|path| path.exists());
    if found.is_none() {
        println!("skipped: {name} is not beside this checkout");
    }
    found
}

/// Counts taken with another program from the same files, by the same definitions.
#[test]
fn real_traces_are_read_to_their_end() {
    let counts = [
        ("cloudPhysicsIO.csv.gz", Form::CloudPhysics, 113_872, 66_898, 269_210, 0.957_786, 0.676_866),
        ("hplajw_1week_1992.csv.gz", Form::Workstation, 44_519, 31_479, 7_992, 0.961_879, 0.299_049),
        ("websearch-60s.trace.gz", Form::WebSearch, 24_783, 4, 93_029, 0.5, 0.000_043),
    ];
    for (name, form, requests, writes, blocks, updates_share, updated_share) in counts {
        let Some(path) = real(name) else { continue };
        let mut summary = TraceSummary::default();
        let mut map = CompactingMap::new(u64::MAX);
        let mut covered = BTreeSet::new();
        let trace = Trace::open(&path).unwrap();
        assert_eq!(trace.form(), form);
        for request in trace {
            let request = request.unwrap();
            assert_eq!(request.at.is_none(), form == Form::CloudPhysics);
            summary.add(&request);
            let pieces = map.pieces(&request);
            assert_eq!(
                pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>(),
                u64::from(request.bytes)
            );
            for piece in pieces {
                let end = piece.offset_bytes + u64::from(piece.bytes);
                covered.extend(piece.offset_bytes / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES));
            }
        }
        assert_eq!((summary.requests, summary.writes, summary.blocks), (requests, writes, blocks), "{name}");
        assert!((summary.updates_share().unwrap() - updates_share).abs() < 1e-6, "{name}");
        assert!((summary.updated_share().unwrap() - updated_share).abs() < 1e-6, "{name}");
        // The map loses no block and joins none.
        assert_eq!(covered.len() as u64, blocks, "{name}");
        assert!(covered.last().unwrap() * BLOCK_BYTES < map.file_bytes());
        println!("{name}: {} of {} MiB used", (blocks * BLOCK_BYTES) >> 20, map.file_bytes() >> 20);
    }
}
