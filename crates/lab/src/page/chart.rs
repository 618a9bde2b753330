//! One chart: a line with dots for each series of ours, crosses for the paper's points.

use super::html::number;
use anyhow::Result;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

/// Width and height, pixels.
const SIZE: (u32, u32) = (960, 430);
/// Width of what explains the colours, at least; and of a letter there.
const LEGEND_WIDTH: u32 = 250;
const LETTER_WIDTH: u32 = 7;
/// Room between two labels of the horizontal axis, as a share of it.
const LABEL_ROOM: f64 = 0.07;
const INK: RGBColor = RGBColor(40, 40, 40);
const PALE: RGBColor = RGBColor(228, 228, 228);

/// Colours of lines, dark to light: they can be told apart without their hue.
pub(super) const COLOURS: [RGBColor; 6] = [
    RGBColor(20, 20, 20),
    RGBColor(0, 60, 140),
    RGBColor(178, 40, 50),
    RGBColor(0, 138, 100),
    RGBColor(80, 170, 225),
    RGBColor(230, 190, 60),
];

/// The schemes in the order of [`COLOURS`], and how the paper calls them.
const SCHEMES: [(&str, &str); 6] = [
    ("any-k-ideal", "any-K ideal"),
    ("rateless-b", "rateless-b (ours)"),
    ("rateless-lt", "rateless-lt (RobuSTore)"),
    ("replicated-adaptive", "replicated-adaptive (RRAID-A)"),
    ("replicated-speculative", "replicated-speculative (RRAID-S)"),
    ("stripe", "stripe (RAID-0)"),
];

/// One line.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// What its cases have in common, for instance `scheme=stripe`.
    pub(super) name: String,
    /// Ours.
    pub(super) points: Vec<(f64, f64)>,
    /// The paper's.
    pub(super) paper: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub(super) struct Chart<'t> {
    pub(super) title: String,
    pub(super) x: &'t str,
    pub(super) y: String,
    pub(super) log_x: bool,
    pub(super) log_y: bool,
    pub(super) series: Vec<Series>,
}

/// A range of values on a line from 0 to 1. On a logarithmic axis the bounds are powers of ten.
struct Axis {
    log: bool,
    low: f64,
    high: f64,
}

impl Axis {
    /// Where a value is; none of what has no place on a logarithmic axis.
    fn at(&self, value: f64) -> Option<f64> {
        if self.log && value <= 0.0 {
            return None;
        }
        let value = if self.log { value.log10() } else { value };
        Some((value - self.low) / (self.high - self.low))
    }

    fn value(&self, at: f64) -> f64 {
        let value = self.low + at * (self.high - self.low);
        if self.log { 10f64.powf(value) } else { value }
    }

    /// Around these values; a logarithmic one only where all but zeros can be on it.
    fn around(values: &[f64], log: bool, from_zero: bool) -> Axis {
        let log = log && values.iter().all(|value| *value >= 0.0) && values.iter().any(|value| *value > 0.0);
        let shown = values.iter().copied().filter(|value| !log || *value > 0.0);
        let (mut low, mut high) = shown
            .map(|value| if log { value.log10() } else { value })
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if !low.is_finite() || !high.is_finite() {
            (low, high) = (0.0, 1.0);
        }
        if log {
            let margin = (0.04 * (high - low)).max(0.02);
            return Axis { log, low: low - margin, high: high + margin };
        }
        if from_zero {
            low = low.min(0.0);
        }
        // All values equal: something must lie around them.
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let low = if low == 0.0 && from_zero { 0.0 } else { low - 0.04 * span };
        Axis { log, low, high: high + 0.06 * span }
    }

    /// Values for labels: these where they have room, or round ones.
    fn among(&self, values: &[f64]) -> Vec<f64> {
        let mut sorted: Vec<f64> = values.iter().filter_map(|value| self.at(*value)).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let mut kept: Vec<f64> = Vec::new();
        for at in sorted {
            if kept.last().is_none_or(|last| at - last >= LABEL_ROOM) {
                kept.push(at);
            }
        }
        kept
    }

    fn round(&self) -> Vec<f64> {
        let mut values = Vec::new();
        if self.log {
            let (from, to) = (self.low.floor() as i32, self.high.ceil() as i32);
            // Powers of ten alone where there are many, and not all of very many.
            let many = to - from > 3;
            for power in (from..=to).step_by(1 + (to - from) as usize / 12) {
                for step in if many { &[1.0][..] } else { &[1.0, 2.0, 5.0][..] } {
                    values.push(step * 10f64.powi(power));
                }
            }
        } else {
            let rough = (self.high - self.low) / 6.0;
            let power = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
            let step = step.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
            let first = (self.low / step).ceil();
            values.extend((0..8).map(|n| (first + f64::from(n)) * step));
        }
        let places = values.into_iter().filter_map(|value| self.at(value));
        places.filter(|at| (-1e-9..=1.0 + 1e-9).contains(at)).collect()
    }
}

impl Chart<'_> {
    /// The chart as an element of a page.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub(super) fn svg(&self) -> Result<String> {
        let points = || self.series.iter().flat_map(|series| series.points.iter().chain(&series.paper));
        let (xs, ys): (Vec<f64>, Vec<f64>) = points().copied().unzip();
        let (x, y) = (Axis::around(&xs, self.log_x, false), Axis::around(&ys, self.log_y, true));
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            root.fill(&WHITE)?;
            let letters = self.series.iter().map(|series| explained(&series.name).chars().count()).max();
            let legend_width = LEGEND_WIDTH.max(46 + LETTER_WIDTH * letters.unwrap_or(0) as u32);
            let (panel, legend) = root.split_horizontally(SIZE.0.saturating_sub(legend_width));
            let mut chart = ChartBuilder::on(&panel)
                .caption(&self.title, ("sans-serif", 18).into_font().color(&INK))
                .margin(10)
                .margin_right(20)
                .x_label_area_size(46)
                .y_label_area_size(70)
                .build_cartesian_2d(Ticks(x.among(&xs)), Ticks(y.round()))?;
            chart
                .configure_mesh()
                .x_desc(self.x)
                .y_desc(&self.y)
                .axis_desc_style(("sans-serif", 15).into_font().color(&INK))
                .label_style(("sans-serif", 13).into_font().color(&INK))
                .axis_style(INK)
                .bold_line_style(PALE)
                .light_line_style(TRANSPARENT)
                .x_label_formatter(&|at| label(x.value(*at)))
                .y_label_formatter(&|at| label(y.value(*at)))
                .draw()?;
            let place = |point: &(f64, f64)| Some((x.at(point.0)?, y.at(point.1)?));
            for (number, series) in self.series.iter().enumerate() {
                let colour = colour(number, &series.name);
                let line: Vec<(f64, f64)> = series.points.iter().filter_map(place).collect();
                if dashed(number, &series.name) {
                    let style = colour.stroke_width(2);
                    chart.draw_series(DashedLineSeries::new(line.iter().copied(), 8, 5, style))?;
                } else {
                    chart.draw_series(LineSeries::new(line.iter().copied(), colour.stroke_width(2)))?;
                    chart.draw_series(line.iter().map(|at| Circle::new(*at, 3, colour.filled())))?;
                }
            }
            // Over all lines, on white, so that none hides one.
            for (number, series) in self.series.iter().enumerate() {
                let colour = colour(number, &series.name);
                for at in series.paper.iter().filter_map(place) {
                    chart.draw_series([Cross::new(at, 8, WHITE.stroke_width(6))])?;
                    chart.draw_series([Cross::new(at, 7, colour.stroke_width(3))])?;
                }
            }
            let font = ("sans-serif", 13).into_font().color(&INK);
            for (number, series) in self.series.iter().enumerate() {
                let (colour, height) = (colour(number, &series.name), 52 + 24 * number as i32);
                let parts: &[(i32, i32)] =
                    if dashed(number, &series.name) { &[(2, 10), (14, 22), (26, 30)] } else { &[(4, 28)] };
                for (from, to) in parts {
                    let line = vec![(*from, height), (*to, height)];
                    legend.draw(&PathElement::new(line, colour.stroke_width(3)))?;
                }
                if !dashed(number, &series.name) {
                    legend.draw(&Circle::new((16, height), 3, colour.filled()))?;
                }
                legend.draw(&Text::new(explained(&series.name), (36, height - 7), font.clone()))?;
            }
            if self.series.iter().any(|series| !series.paper.is_empty()) {
                let height = 52 + 24 * self.series.len() as i32;
                legend.draw(&Cross::new((16, height), 7, INK.stroke_width(3)))?;
                legend.draw(&Text::new("the paper's text", (36, height - 7), font))?;
            }
            root.present()?;
        }
        // A page's own elements need no name of their language, and no other address belongs on it.
        let text = text.replace(" xmlns=\"http://www.w3.org/2000/svg\"", " role=\"img\"");
        Ok(text.replace("xmlns=\"http://www.w3.org/2000/svg\"", ""))
    }
}

/// From 0 to 1, with lines and labels at these places.
struct Ticks(Vec<f64>);

impl Ranged for Ticks {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, at: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (at * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.0.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        0.0..1.0
    }
}

/// As few digits as say it.
fn label(value: f64) -> String {
    let text = number(value);
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Where a series is of a known scheme, its place among them.
fn scheme(series: &str) -> Option<usize> {
    let scheme = series.split(' ').next()?.strip_prefix("scheme=")?;
    SCHEMES.iter().position(|(name, _)| *name == scheme || *name == format!("{scheme}-adaptive"))
}

/// Formulas, what a changed assumption makes of a scheme, and lines for which no colour is left.
fn dashed(number: usize, series: &str) -> bool {
    match scheme(series) {
        Some(_) => series.contains("source=formula") || series.contains("variant="),
        None => number >= COLOURS.len(),
    }
}

fn colour(number: usize, series: &str) -> RGBColor {
    let number = match scheme(series) {
        // A third line of one scheme takes a colour that none has.
        Some(known) if series.contains("variant=") => known + 2,
        Some(known) => known,
        None => number,
    };
    COLOURS[number % COLOURS.len()]
}

fn explained(series: &str) -> String {
    match scheme(series) {
        Some(known) if !series.contains(' ') => SCHEMES[known].1.to_owned(),
        _ if series.is_empty() => "as modelled".to_owned(),
        _ => series.replace("scheme=", "").replace("source=", "").replace("variant=", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_differ_in_lightness_and_stand_out_from_white() {
        // CIE 1976 lightness of sRGB.
        let lightness = |colour: &RGBColor| {
            let linear = |part: u8| {
                let share = f64::from(part) / 255.0;
                if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
            };
            let y = 0.2126 * linear(colour.0) + 0.7152 * linear(colour.1) + 0.0722 * linear(colour.2);
            116.0 * y.cbrt() - 16.0
        };
        let all: Vec<f64> = COLOURS.iter().map(lightness).collect();
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] > 9.0), "{all:?}");
        assert!(all[5] < 85.0, "{all:?}");
    }

    #[test]
    fn a_dozen_lines_can_be_told_apart_and_their_names_are_whole() {
        let name = |number: usize| format!("rule=adaptive speeds=unknown objects=same number={number}");
        let looks: Vec<_> = (0..12).map(|n| (colour(n, &name(n)), dashed(n, &name(n)))).collect();
        assert!((0..12).all(|n| !looks[..n].contains(&looks[n])), "{looks:?}");
        let points = vec![(1.0, 1.0), (2.0, 2.0)];
        let series = |n| Series { name: name(n), points: points.clone(), paper: vec![] };
        let (title, x, y, log_x, log_y) = (String::new(), "x", String::new(), false, false);
        let svg = Chart { title, x, y, log_x, log_y, series: (0..12).map(series).collect() }.svg().unwrap();
        // Where the last name begins, and that all its letters have room before the right edge.
        let text = svg.split("<text ").find(|text| text.contains("number=11")).unwrap();
        let begins: u32 = text.split("x=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        assert!(begins + LETTER_WIDTH * name(11).len() as u32 <= SIZE.0, "{begins}");
    }

    #[test]
    fn values_without_a_place_do_not_break_a_chart() {
        for values in [vec![], vec![0.0], vec![5.0], vec![0.0, -1.0], vec![1e300, 1.0], vec![1e-300]] {
            for (log_x, log_y) in [(false, false), (true, true)] {
                let series = Series {
                    name: "scheme=stripe".to_owned(),
                    points: values.iter().map(|value| (*value, *value)).collect(),
                    paper: vec![],
                };
                let (title, x, y) = ("<script>".to_owned(), "x & y", "z".to_owned());
                let svg = Chart { title, x, y, log_x, log_y, series: vec![series] }.svg().unwrap();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                assert!(!svg.contains("NaN") && !svg.contains("<script>") && !svg.contains("http"), "{svg}");
            }
        }
    }

    #[test]
    fn labels_are_round_values() {
        let axis = Axis::around(&[0.0, 459.0], false, true);
        let values: Vec<String> = axis.round().into_iter().map(|at| label(axis.value(at))).collect();
        assert_eq!(values, ["0", "100", "200", "300", "400"]);
        let axis = Axis::around(&[0.13, 7.3], true, true);
        let values: Vec<String> = axis.round().into_iter().map(|at| label(axis.value(at))).collect();
        assert_eq!(values, ["0.2", "0.5", "1", "2", "5"]);
    }
}
