use super::*;
use crate::{Options, report::Report};
use std::path::PathBuf;

fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let file = dir.path().join(name);
    std::fs::write(&file, text).unwrap();
    file
}

fn text(report: &Report) -> String {
    report.json_lines().map(|line| line + "\n").collect()
}

/// A run of the real thing, as small as can be.
fn small(name: &str, case: &str) -> String {
    let options = Options { draws: Some(2), case: Some(case.to_owned()), ..Options::default() };
    let report = match name {
        robustore::table6_1::NAME => robustore::table6_1::run(&options, Report::new(7), &mut |_| ()),
        robustore::fig6_5::NAME => robustore::fig6_5::run(&options, Report::new(7), &mut |_| ()),
        robustore::fig4_1::NAME => robustore::fig4_1::run(&options, Report::new(7), &mut |_| ()),
        _ => robustore::run(
            &robustore::parameters::find(name).unwrap().unwrap(),
            &options,
            Report::new(7),
            &mut |_| (),
        ),
    };
    text(&report.unwrap())
}

#[test]
fn a_page_has_every_chart_and_needs_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        file(&dir, "a", &(small("robustore/disks", "disks=2 ") + &small("robustore/table6-1", "sequential"))),
        file(
            &dir,
            "b",
            &(small("robustore/fig6-5", "interval_ms=6") + &small("robustore/fig4-1", "scheme=replicated")),
        ),
    ];
    let page = render(&read(&files).unwrap()).unwrap();
    let charts = [
        ("robustore/fig4-1 probability", 1),
        ("robustore/table6-1 bandwidth", 3),
        ("robustore/fig6-5 bandwidth", 1),
        ("robustore/fig6-5 background_share", 1),
        ("robustore/disks bandwidth", 1),
        ("robustore/disks latency_sd", 1),
        ("robustore/disks io_overhead", 1),
        ("robustore/disks share_of_ideal", 1),
    ];
    let all: usize = charts.iter().map(|(_, count)| count).sum();
    for (chart, count) in charts {
        let found = page.html.matches(&format!("<figure data-chart=\"{chart}\">")).count();
        assert_eq!(found, count, "{chart}");
    }
    assert_eq!(page.html.matches("<svg").count(), all);
    // Nothing from elsewhere: the only addresses are of the page's own sections.
    for foreign in ["http", "//www", "<script", "src=", "url(", "@import", "<link"] {
        assert!(!page.html.contains(foreign), "{foreign}");
    }
    for part in page.html.split("href=\"").skip(1) {
        let anchor = part.split('"').next().unwrap();
        let id = anchor.strip_prefix('#').expect("a place on this page");
        assert!(page.html.contains(&format!("id=\"{id}\"")), "{anchor}");
    }
    for words in [
        "steadfast lab run robustore/disks --json --seed 7 --draws 2",
        "Points missing: <code>disks=4</code>",
        "replicated-speculative (RRAID-S)",
        "blocking_factor=8 sequential=0",
        "The variants change one assumption each",
    ] {
        assert!(page.html.contains(words), "{words}");
    }
    let there = ["robustore/fig4-1", "robustore/table6-1", "robustore/fig6-5", "robustore/disks"];
    let missing: Vec<&str> =
        robustore::list().map(|(name, _)| name).filter(|name| !there.contains(name)).collect();
    assert_eq!(page.missing, missing);
    assert!(!missing.is_empty());
    for name in missing {
        assert!(page.html.contains(&format!("<li><code>{name}</code></li>")), "{name}");
    }
}

#[test]
fn what_the_paper_has_is_judged() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = Report::new(1);
    let mut add = |scheme: &str, metric: &'static str, value: f64, paper: f64| {
        let case = format!("disks=64 scheme={scheme}");
        report.add("robustore/disks", &case, metric, value, "MB/s").paper = Some(paper);
    };
    add("rateless-lt", "bandwidth", 300.0, 459.0);
    add("replicated-adaptive", "bandwidth", 230.0, 228.0);
    add("stripe", "latency_sd", 9.0, 1.9);
    let page = render(&read(&[file(&dir, "a", &text(&report))]).unwrap()).unwrap();
    let row = "<td class=\"n\">300</td><td class=\"n\">459</td><td class=\"n\">0.65</td><td class=\"outside\">outside</td>";
    assert!(page.html.contains(row), "{}", page.html);
    assert!(page.html.contains("<td class=\"n\">1.01</td><td>within</td>"));
    assert!(page.html.contains("<td>outside, not asked</td>"));
    // One within, one outside, in the summary.
    assert!(page.html.contains("<td>6-6 to 6-8</td><td class=\"n\">1</td><td class=\"n\">1</td>"));
}

#[test]
fn commands_are_those_that_print_such_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = Report::new(5);
    for (experiment, case) in [
        ("demo-degraded", "stripe"),
        ("demo-write", "rateless-b"),
        ("io", "put-256MiB"),
        ("io", "update-4KiB one-flush"),
        ("bench-codes", "xor d=2 1MiB memory"),
    ] {
        report.add(experiment, case, "accesses", 3.0, "accesses");
    }
    let page = render(&read(&[file(&dir, "a", &text(&report))]).unwrap()).unwrap();
    for command in [
        "demo --json",
        "bench io --policy rateless --json",
        "bench io --policy parity --json",
        "bench codes --json",
    ] {
        assert!(
            page.html.contains(&format!("<code>steadfast {command} --seed 5</code>")),
            "{command}: {}",
            page.html
        );
    }
    assert!(!page.html.contains("lab run"), "{}", page.html);
}

#[test]
fn what_a_busy_machine_measured_is_not_judged() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = Report::new(1);
    for (scheme, late) in [("stripe", 0.02), ("rateless-lt", 0.01)] {
        let case = format!("disks=64 scheme={scheme}");
        report.add("robustore/real-64", &case, "bandwidth", 459.0, "MB/s").paper = Some(459.0);
        report.add("robustore/real-64", &case, "overruns", late, "share of operations");
    }
    let page = render(&read(&[file(&dir, "a", &text(&report))]).unwrap()).unwrap();
    assert!(page.html.contains("<td>void: too busy a machine</td>"), "{}", page.html);
    assert!(
        page.html.contains("<td class=\"n\">1</td><td class=\"n\">0</td></tr>"),
        "one counts: {}",
        page.html
    );
}

#[test]
fn text_of_results_is_not_markup() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = Report::new(1);
    report.add("demo", "x=1 <script>alert(\"1\")</script>", "bandwidth", 1.0, "<b>");
    report.add("demo", "x=2 <script>alert(\"1\")</script>", "</style>", 1.0, "&");
    let page = render(&read(&[file(&dir, "a", &text(&report))]).unwrap()).unwrap();
    assert!(!page.html.contains("<script") && !page.html.contains("<b>"));
    assert_eq!(page.html.matches("</style>").count(), 1);
}

#[test]
fn what_is_no_record_is_named_by_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let good =
        r#"{"experiment":"demo","case":"a","metric":"m","value":1.0,"unit":"s","paper":null,"seed":1}"#;
    let says = |text: &str, words: &[&str]| {
        let file = file(&dir, "results.jsonl", text);
        let error = format!("{:#}", read(&[file]).unwrap_err());
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    says(&format!("{good}\n\nhello\n"), &["results.jsonl:3", "not a record"]);
    says(&good[..40], &["results.jsonl:1", "not a record"]);
    says("{\"experiment\":\"demo\"}\n", &["results.jsonl:1", "missing field"]);
    says(&good.replace("1.0", "\"fast\""), &["results.jsonl:1"]);
    says(&good.replace("1.0", "1e999"), &["results.jsonl:1"]);
    says(&format!("{good}\n{good}\n"), &["results.jsonl:2", "results.jsonl:1", "one run of each"]);
    let absent = dir.path().join("absent.jsonl");
    assert!(format!("{:#}", read(&[absent]).unwrap_err()).contains("absent.jsonl"));
    // Nothing at all is a page that says so.
    let empty = render(&read(&[file(&dir, "empty", "\n")]).unwrap()).unwrap();
    assert_eq!(empty.missing.len(), robustore::list().count());
}
