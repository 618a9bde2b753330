//! An experiment on the page: charts, a table under each, where and why we differ, seed and command.

use super::{
    chart::{Chart, Series},
    html::{escape, number},
    records::{Line, Results},
};
use crate::{
    codes, io, overruns,
    report::Report,
    robustore::{
        self, fig4_1, parameters, table6_1,
        verdict::{Figure, Verdict},
    },
};
use anyhow::Result;
use std::collections::BTreeSet;
use steadfast_protocol::words::counted;

/// Metrics that have charts, and what they are.
const CHARTS: [(&str, &str); 6] = [
    ("bandwidth", "bandwidth"),
    ("latency_sd", "standard deviation of latency"),
    ("io_overhead", "I/O overhead"),
    ("share_of_ideal", "share of the any-K ideal's bandwidth"),
    ("background_share", "share of the disk's time that the background takes"),
    ("probability", "probability of reassembly"),
];

/// Metrics that say how much was run.
const DRAWS: [&str; 2] = ["accesses", "draws"];

/// An experiment.
pub(super) struct Section {
    pub(super) name: String,
    pub(super) anchor: String,
    pub(super) shows: String,
    pub(super) figures: String,
    /// Figures of the paper within their bounds, and not.
    pub(super) within: usize,
    pub(super) outside: usize,
    pub(super) html: String,
}

impl Section {
    /// # Errors
    /// When a chart cannot be drawn.
    pub(super) fn new(name: &str, results: &Results) -> Result<Section> {
        let about = robustore::about(name).transpose()?;
        let shows = match &about {
            Some(about) => about.shows.clone(),
            None => crate::list()
                .into_iter()
                .find_map(|(known, shows)| (known == name).then_some(shows))
                .unwrap_or_default(),
        };
        let lines: Vec<&Line> = results.of(name).collect();
        let judge = Judge::new(&lines);
        let verdicts = lines.iter().filter_map(|line| judge.verdict(line));
        let count = |wanted| verdicts.clone().filter(|verdict| *verdict == wanted).count();
        let mut section = Section {
            anchor: name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect(),
            figures: about.as_ref().map(|about| about.figures.clone()).unwrap_or_default(),
            within: count(Verdict::Within),
            outside: count(Verdict::Outside),
            html: String::new(),
            name: name.to_owned(),
            shows,
        };
        let notes = about.as_ref().map(|about| about.notes.clone()).unwrap_or_default();
        let log = about.map(|about| about.log).unwrap_or_default();
        section.html += &format!("<h2 id=\"{}\">{}</h2>\n", section.anchor, escape(name));
        section.html += &format!("<p>{}", escape(&section.shows));
        if !section.figures.is_empty() && !section.figures.starts_with(robustore::settings::NO_FIGURE) {
            section.html += &format!(" (dissertation: {})", escape(&section.figures));
        }
        section.html += &format!(".</p>\n<p>{}</p>\n", command(name, &lines));
        section.not_run(&lines);
        section.note(notes.get("all"));
        if name == codes::overhead::NAME {
            section.trade(&lines);
        }
        let mut shown = BTreeSet::from(DRAWS);
        for (metric, title) in CHARTS {
            for (part, chosen) in panels(name, metric) {
                let of_panel: Vec<&Line> = lines
                    .iter()
                    .copied()
                    .filter(|line| line.metric == metric && chosen(&line.case))
                    .collect();
                let Some((x, mut series)) = series(&of_panel) else { continue };
                if name == fig4_1::NAME {
                    halves(&mut series, &lines)?;
                }
                let title = format!("{title}{part}");
                let unit = of_panel.first().map_or("", |line| line.unit.as_str());
                let logarithmic = |axis: &str| log.iter().any(|log| log == axis);
                let chart = Chart {
                    title: title.clone(),
                    x,
                    y: unit.to_owned(),
                    log_x: logarithmic("x"),
                    log_y: logarithmic(metric),
                    series,
                };
                section.html += &format!(
                    "<figure data-chart=\"{} {}\">\n{}\n",
                    escape(name),
                    escape(metric),
                    chart.svg()?
                );
                section.html += &format!(
                    "<figcaption>{}, {}: {}.</figcaption></figure>\n",
                    escape(name),
                    escape(&title),
                    escape(unit)
                );
                section.table(&title, &of_panel, &judge);
                section.note(notes.get(metric));
                shown.insert(metric);
            }
        }
        let rest: Vec<&Line> =
            lines.into_iter().filter(|line| !shown.contains(line.metric.as_str())).collect();
        if !rest.is_empty() {
            section.table("everything else", &rest, &judge);
        }
        Ok(section)
    }

    fn note(&mut self, note: Option<&String>) {
        if let Some(note) = note {
            self.html += &format!("<p class=\"note\">{}</p>\n", escape(note));
        }
    }

    /// The points of the experiment that nothing was run of.
    fn not_run(&mut self, lines: &[&Line]) {
        let Some(Ok(experiment)) = parameters::find(&self.name) else { return };
        let run: BTreeSet<&str> = lines.iter().filter_map(|line| line.case.split(' ').next()).collect();
        let left: Vec<String> = experiment
            .points
            .iter()
            .filter(|(label, _)| !run.contains(label.as_str()))
            .map(|(label, _)| format!("<code>{}</code>", escape(label)))
            .collect();
        if !left.is_empty() {
            self.html += &format!("<p class=\"missing\">Points missing: {}.</p>\n", left.join(", "));
        }
    }

    /// The picture of `codes/overhead`, where what was run is enough for it.
    fn trade(&mut self, lines: &[&Line]) {
        let mut report = Report::new(0);
        for line in lines {
            report.add(codes::overhead::NAME, &line.case, line.metric.clone(), line.value, "");
        }
        if let Ok(picture) = codes::plot::svg(&report) {
            let picture = picture.replace("xmlns=\"http://www.w3.org/2000/svg\"", "role=\"img\"");
            self.html += &format!(
                "<figure data-chart=\"{}\">\n{picture}\n<figcaption>{}, overhead against the work of decoding and the cost of an \
                 update.</figcaption></figure>\n",
                codes::overhead::NAME,
                codes::overhead::NAME
            );
        }
    }

    /// Cases that the paper has a figure for, and behind them, to be opened, all.
    fn table(&mut self, title: &str, lines: &[&Line], judge: &Judge) {
        let (compared, other): (Vec<&Line>, Vec<&Line>) =
            lines.iter().copied().partition(|line| line.paper.is_some());
        if !compared.is_empty() {
            self.html += &rows(&compared, judge);
        }
        if !other.is_empty() {
            self.html += &format!(
                "<details><summary>{}: {}</summary>\n{}</details>\n",
                escape(title),
                counted(other.len(), if compared.is_empty() { "case" } else { "other case" }),
                rows(&other, judge)
            );
        }
    }
}

/// What of an experiment counts.
struct Judge {
    /// Cases in which so many of the emulated disks' operations were late that their figures are the machine's.
    void: BTreeSet<String>,
}

impl Judge {
    fn new(lines: &[&Line]) -> Self {
        let late = lines.iter().filter(|line| line.metric == "overruns");
        let void = late.filter(|line| line.value.is_some_and(|share| share > overruns::MAX));
        Self { void: void.map(|line| line.case.clone()).collect() }
    }

    fn verdict(&self, line: &Line) -> Option<Verdict> {
        let verdict = Verdict::of(&figure(line))?;
        Some(if self.void.contains(&line.case) { Verdict::Void } else { verdict })
    }
}

fn rows(lines: &[&Line], judge: &Judge) -> String {
    let mut html =
        "<table><tr><th>case</th><th>metric</th><th class=\"n\">ours</th><th class=\"n\">paper</th>\
                    <th class=\"n\">ratio</th><th>verdict</th></tr>\n"
            .to_owned();
    for line in lines {
        let figure = figure(line);
        let verdict = judge.verdict(line);
        let text = |value: Option<f64>| value.map(number).unwrap_or_default();
        html += &format!(
            "<tr><td>{}</td><td>{}, {}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td{}>{}</td></tr>\n",
            escape(&line.case),
            escape(&line.metric),
            escape(&line.unit),
            text(line.value),
            text(line.paper),
            figure.ratio().map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            if verdict == Some(Verdict::Outside) { " class=\"outside\"" } else { "" },
            verdict.map_or("", Verdict::text)
        );
    }
    html + "</table>\n"
}

fn figure(line: &Line) -> Figure<'_> {
    Figure {
        experiment: &line.experiment,
        case: &line.case,
        metric: &line.metric,
        ours: line.value,
        paper: line.paper,
    }
}

/// Seed and command of the run.
fn command(name: &str, lines: &[&Line]) -> String {
    let seeds: BTreeSet<u64> = lines.iter().map(|line| line.seed).collect();
    let draws = lines.iter().filter(|line| DRAWS.contains(&line.metric.as_str()));
    let draws: BTreeSet<u64> = draws.filter_map(|line| line.value).map(|value| value as u64).collect();
    // Runs of several numbers are several commands; their seeds are all that is known for sure.
    let draws = match draws.first() {
        Some(number) if draws.len() == 1 => format!(" --draws {number}"),
        _ => String::new(),
    };
    let runs: Vec<String> = match name {
        // One run prints them under three names.
        "demo" | "demo-degraded" | "demo-write" => vec!["demo --json".to_owned()],
        steadfast_bench::codes::EXPERIMENT => vec!["bench codes --json".to_owned()],
        io::EXPERIMENT => io::policies(lines.iter().map(|line| line.case.as_str()))
            .map(|policy| format!("bench io --policy {policy} --json"))
            .collect(),
        _ => vec![format!("lab run {} --json", escape(name))],
    };
    // Only those that are run by `lab run` take a number.
    let draws = if runs.iter().all(|run| run.starts_with("lab run")) { draws } else { String::new() };
    let commands = seeds.iter().flat_map(|seed| {
        let draws = &draws;
        runs.iter().map(move |run| format!("seed {seed}: <code>steadfast {run} --seed {seed}{draws}</code>"))
    });
    commands.collect::<Vec<String>>().join("<br>")
}

/// What a chart's title ends with, and which cases are on it.
type Panel = (&'static str, fn(&str) -> bool);

/// The charts of a metric.
fn panels(experiment: &str, metric: &str) -> Vec<Panel> {
    if (experiment, metric) == (table6_1::NAME, "bandwidth") {
        return vec![
            (", as modelled", |case| !case.contains("variant=")),
            (", random requests, by assumption", |case| case.contains("sequential=0")),
            (", sequential requests, by assumption", |case| case.contains("sequential=1")),
        ];
    }
    vec![("", |_| true)]
}

/// What varies, and a line for each scheme: cases are `VARIES=NUMBER REST`.
fn series<'a>(lines: &[&'a Line]) -> Option<(&'a str, Vec<Series>)> {
    let mut varies = None;
    let mut all: Vec<Series> = Vec::new();
    for line in lines {
        let (first, rest) = line.case.split_once(' ').unwrap_or((&line.case, ""));
        let Some((name, at)) = first.split_once('=') else { continue };
        let Some(at) = at.parse::<f64>().ok().filter(|at| at.is_finite()) else { continue };
        // The first decides.
        if *varies.get_or_insert(name) != name {
            continue;
        }
        let place = all.iter().position(|series| series.name == rest).unwrap_or_else(|| {
            all.push(Series { name: rest.to_owned(), points: Vec::new(), paper: Vec::new() });
            all.len() - 1
        });
        all[place].points.extend(line.value.map(|value| (at, value)));
        all[place].paper.extend(line.paper.map(|value| (at, value)));
    }
    for series in &mut all {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Every assumption has the same cell beside it: one cross is enough.
        if series.name.contains("variant=") {
            series.paper.clear();
        }
    }
    Some((varies?, all))
}

/// How many blocks the text of Figure 4-1 says are needed, at a probability of one half: it names none.
fn halves(series: &mut [Series], lines: &[&Line]) -> Result<()> {
    let k = f64::from(fig4_1::originals()?);
    for line in lines.iter().filter(|line| line.case.ends_with("source=measured")) {
        if let Some(series) = series.iter_mut().find(|series| series.name == line.case) {
            series.paper.extend(line.paper.map(|multiple| (multiple * k, 0.5)));
        }
    }
    Ok(())
}
