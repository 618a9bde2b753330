//! The disk model beside the dissertation: Table 6-1, what explains its cells, Figure 6-5's text, and how many
//! modelled requests a processor second holds.
//!
//! `cargo run --release -p steadfast-disk --example disk_model`

use std::{fs, time::Duration};

use steadfast_disk::model::{
    DriveSpec, Policy,
    background::REGION_BYTES,
    measure::{
        BLOCKING_FACTORS, FIGURE_6_5, FIGURE_6_5_BUSY, TABLE_6_1, TABLE_6_1_MEAN, Variant, bandwidth,
        drawn_background_bandwidth, layout_bandwidth, shared_bandwidth,
    },
};

fn main() {
    println!("Table 6-1, MB/s: model (ratio to the paper)");
    println!("{:28}{}", "sectors", BLOCKING_FACTORS.map(|bf| format!("{bf:>15}")).concat());
    let mut total = 0.0;
    for (row, p) in [(0, 0.0), (1, 1.0)] {
        println!("p={p} {:24}{}", "paper", TABLE_6_1[row].map(|v| format!("{v:>15.2}")).concat());
        let variants = [
            Variant::Queued,
            Variant::Plain,
            Variant::Confined(0.13),
            Variant::Confined(0.53),
            Variant::NoReadAhead,
            Variant::NoOverhead,
        ];
        for variant in variants {
            let mut line = format!("p={p} {:24}", format!("{variant:?}"));
            for (bf, paper) in BLOCKING_FACTORS.into_iter().zip(TABLE_6_1[row]) {
                let ours = layout_bandwidth(variant, bf, p, 0..30);
                total += if variant == Variant::Queued { ours / 16.0 } else { 0.0 };
                line += &format!("{ours:>8.2} ({:.2})", ours / paper);
            }
            println!("{line}");
        }
    }
    println!("mean of the sixteen, Queued: {total:.2}, paper {TABLE_6_1_MEAN}");

    println!("\nFigure 6-5: interval, foreground MB/s, background's share of the time");
    for interval in [6, 10, 20, 50, 100, 200] {
        let point = shared_bandwidth(interval * 1_000_000, REGION_BYTES, 0..60);
        println!("{interval:4} ms {:6.1} {:6.3}", point.foreground_mb_per_s, point.background_share);
    }
    println!("paper:   6 ms {} {FIGURE_6_5_BUSY}; 200 ms {}", FIGURE_6_5[0], FIGURE_6_5[1]);
    println!("mean over 6 to 200 ms: {:.1}, paper {}", drawn_background_bandwidth(0..600), FIGURE_6_5[2]);

    println!("\nmodelled requests per processor second");
    for text in [
        "ata7200:bf=8:p=0",
        "ata7200:bf=8:p=0:policy=sptf",
        "ata7200:bf=16:p=0:policy=sptf",
        "ata7200:bf=8:p=1",
        "ata7200:bf=8:p=1:policy=sptf",
        "ata7200:bf=1024:p=0",
        "ata7200:bf=1024:p=1",
        "ata7200:bf=1024:p=1:background=6ms",
    ] {
        let Ok(spec) = text.parse::<DriveSpec>() else { continue };
        println!("{text:40} {:6.1} million", rate(spec));
    }
    println!("{:40} {:6.1} million", "1024 drawn layouts of 16 MiB each", best_of_three(drawn_rate));
}

/// Others use the processor too.
fn best_of_three(rate: impl Fn() -> f64) -> f64 {
    (0..3).map(|_| rate()).fold(0.0, f64::max)
}

fn rate(spec: DriveSpec) -> f64 {
    best_of_three(|| {
        let mut drive = spec.drive();
        let before = processor_time();
        bandwidth(&mut drive, 1_000_000 * u64::from(spec.blocking_factor) * 512);
        let work = drive.work();
        let requests = work.foreground_requests + work.background_requests;
        requests as f64 / (processor_time() - before).as_secs_f64() / 1e6
    })
}

/// As `lab run robustore/disks` uses them: many layouts, each for a short while, by blocks.
fn drawn_rate() -> f64 {
    let before = processor_time();
    let requests: u64 = (0..1024)
        .map(|seed| {
            let spec = DriveSpec::draw_layout(seed);
            assert_eq!(spec.policy, Policy::Sptf);
            let mut drive = spec.drive();
            bandwidth(&mut drive, 16 << 20);
            drive.work().foreground_requests
        })
        .sum();
    requests as f64 / (processor_time() - before).as_secs_f64() / 1e6
}

/// Processor time of this thread, in the kernel's nanoseconds.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}
