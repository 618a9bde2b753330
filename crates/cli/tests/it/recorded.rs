//! `steadfast replay`: tiny traces in each form, made of a real cluster's objects.

use crate::common::{Bed, block_on, once_of, shape};
use flate2::{Compression, write::GzEncoder};
use serde_json::Value;
use std::{fs, io::Write, time::Instant};

const MIB: u64 = 1 << 20;

/// A search engine's trace: 60 requests, every third reads; 16 of 20 places are written again.
fn web_search() -> String {
    let line = |number: u64| {
        let (at, sector) = (number * 5_000_000, number % 20 * 4104);
        format!("{at} 0 {sector} 16 {}\n", u64::from(number.is_multiple_of(3)))
    };
    (0..60).map(line).collect()
}

fn replay(bed: &Bed, arguments: &[&str]) -> Value {
    let mut all = vec!["replay"];
    all.extend(arguments);
    all.push("--json");
    let said = bed.settled(&all);
    assert_eq!(said.lines().count(), 1, "{said}");
    serde_json::from_str(&said).unwrap()
}

#[test]
fn a_trace_is_replayed_into_one_object() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=4MiB");
    let trace = bed.dir.path().join("trace");
    fs::write(&trace, web_search()).unwrap();
    let trace = trace.to_str().unwrap();
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("{name} of {of}"));

    let mut said = Value::Null;
    // Stored first, and then changed in place; what a server that is held up does not take so is stored anew.
    once_of("nearly all is written in place", || {
        bed.run(&["rm", "data/replay"]);
        said = replay(&bed, &[trace, "data", "--depth", "4"]);
        let (anew, lookups) = (number(&said, "segments_anew"), number(&said, "lookups"));
        let most = number(&said, "in_place_bytes") >= 32 * 8192;
        said["stored"] == true && most && anew <= 4 && lookups <= anew + 1
    });
    // 20 places, each 2 MB from the next and so in a region of its own.
    assert_eq!(number(&said, "object_bytes"), 20 * MIB);
    assert_eq!((number(&said, "requests"), number(&said, "reads"), number(&said, "writes")), (60, 20, 40));
    assert_eq!((number(&said, "read_bytes"), number(&said, "written_bytes")), (20 * 8192, 40 * 8192));
    // What two wrote to one place before either was stored is stored once.
    assert!((20 * 8192..=40 * 8192).contains(&number(&said, "in_place_bytes")), "{said}");
    assert_eq!(number(&said, "syncs"), 41);
    for latency in ["read_latency", "write_latency"] {
        let of = |name: &str| said[latency][name].as_f64().unwrap();
        assert!(0.0 < of("p50_ms") && of("p50_ms") <= of("p95_ms") && of("p99_ms") <= of("max_ms"), "{said}");
    }
    assert!(said["requests_per_s"].as_f64().unwrap() > 0.0);

    // The same object again, fewer requests, few syncs: packed, and for people.
    let packed = bed.dir.path().join("trace.gz");
    let mut encoder = GzEncoder::new(fs::File::create(&packed).unwrap(), Compression::fast());
    encoder.write_all(web_search().as_bytes()).unwrap();
    encoder.finish().unwrap();
    let packed = packed.to_str().unwrap();
    let shown = bed.settled(&["replay", packed, "data", "--limit", "30", "--sync", "8", "--depth", "1"]);
    for words in [
        "data/replay, 20.0 MiB\n",
        "requests   30 in",
        // Some of what was written just before.
        "reads      10, 80.0 KiB (",
        " from memory): p50",
        "writes     20, ",
        "3 syncs",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // Folded into a smaller object of another name, stored at the end.
    let folded =
        replay(&bed, &[packed, "data", "--key", "small", "--size", "3MiB", "--sync", "end", "--depth", "60"]);
    assert_eq!((number(&folded, "object_bytes"), number(&folded, "folded_regions")), (3 * MIB, 17));
    assert_eq!(number(&folded, "syncs"), 1);
    assert!(number(&folded, "in_place_bytes") <= 20 * 8192, "{folded}");
    // In the trace's own time: 60 requests, one every 5 ms.
    let begun = Instant::now();
    let paced = replay(&bed, &[packed, "data", "--paced"]);
    assert!(paced["seconds"].as_f64().unwrap() >= 0.29 && begun.elapsed().as_millis() >= 290, "{paced}");

    // What was written is whole, and survives two servers.
    let size = block_on(async {
        let client = bed.client().await;
        client.get("data", "replay", None, std::io::sink()).await.unwrap().size
    });
    assert_eq!(size, 20 * MIB);
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=4MiB");
    bed.ok(&["bucket", "create", "other", "--policy", "rateless"]);
    let trace = bed.dir.path().join("trace");
    let path = trace.to_str().unwrap();
    fs::write(&trace, web_search()).unwrap();
    let said = bed.fails(2, &["replay", path, "other"]);
    assert!(said.contains("`rateless") && said.contains("policy `parity`"), "{said}");
    assert!(!bed.ok(&["ls", "other"]).contains("replay"), "nothing was stored first");
    bed.fails(3, &["replay", path, "nowhere"]);
    bed.put(&bed.file("small", 5 << 20, 1), "replay");
    let said = bed.fails(2, &["replay", path, "data"]);
    assert!(said.contains("`--size 5242880`"), "{said}");
    bed.settled(&["replay", path, "data", "--size", "5242880", "--sync", "end"]);
    for (arguments, words) in
        [(["--sync", "never"], "`end`"), (["--depth", "0"], "--depth"), (["--size", "1kB"], "1 MiB")]
    {
        let mut all = vec!["replay", path, "data"];
        all.extend(arguments);
        let said = bed.fails(2, &all);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    fs::write(&trace, "version,time,op,size,lbn\n1,1,2a,512,0\n").unwrap();
    let said = bed.fails(2, &["replay", path, "data", "--paced"]);
    assert!(said.contains("`--paced`"), "{said}");
    bed.settled(&["replay", path, "data"]);
    fs::write(&trace, "what is this\n").unwrap();
    assert!(bed.fails(1, &["replay", path, "data"]).contains("cannot replay"));
    bed.fails(1, &["replay", "/nowhere/at/all", "data"]);
}
