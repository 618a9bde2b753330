//! The trade that every code makes, as one picture: reception overhead against the cost of decoding, and against the
//! cost of an update, with the limit of any linear code (findings §1).

use super::overhead::NAME;
use crate::report::Report;
use anyhow::{Result, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Width and height of the picture, pixels.
const SIZE: (u32, u32) = (1180, 640);
/// Height of the part below the panels that explains the marks.
const LEGEND_HEIGHT: u32 = 96;
/// Overheads shown, % of K, on a logarithmic scale: from the least that is worth a difference to the paper's most.
const PERCENT: (f64, f64) = (0.05, 300.0);
const K: u32 = 1024;
/// Costs that are shown: an axis that ends nowhere near would be drawn for ever.
const SHOWN_MAX: f64 = 1e9;
/// Colours that differ in lightness as well as in hue (Okabe and Ito's palette, whose yellow does not show on white: a dark red instead).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(230, 159, 0),
    RGBColor(110, 20, 60),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(90, 90, 90),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const PALE: RGBColor = RGBColor(225, 225, 225);
/// Radius of a mark, pixels.
const MARK: i32 = 6;

/// One code and arrival.
struct Point {
    code: String,
    disks: bool,
    percent: f64,
    xors: f64,
    update: f64,
}

/// What is plotted of `report`: every code of K = 1024 whose cost was counted.
fn points(report: &Report) -> Vec<Point> {
    let means = report.records.iter().filter(|record| record.metric == "mean");
    means
        .filter_map(|record| {
            let (code, arrival) =
                record.case.strip_prefix("overhead ")?.split_once(&format!(" K={K} arrival="))?;
            Some(Point {
                code: code.to_owned(),
                disks: arrival == "disks",
                percent: 100.0 * record.value?,
                xors: report.value(NAME, &record.case, "xors")?,
                update: report.value(NAME, &record.case, "update")?,
            })
        })
        // They may come from a file that anybody wrote.
        .filter(|point| point.xors < SHOWN_MAX && point.update < SHOWN_MAX)
        .collect()
}

/// The least overhead, % of K, of any linear code whose originals are each in `update` of N = 4 K blocks.
fn limit(update: f64) -> f64 {
    100.0 * (4.0 * (1.0 - (0.56 / f64::from(K)).powf(1.0 / update)) - 1.0)
}

/// The picture of a report of `codes/overhead`, an SVG document of its own.
///
/// # Errors
/// When the report has no costs to plot.
pub fn svg(report: &Report) -> Result<String> {
    let points = points(report);
    ensure!(!points.is_empty(), "the cases that were run have no costs to plot: they are those of K = {K}");
    let mut codes: Vec<&str> = Vec::new();
    for point in &points {
        if !codes.contains(&point.code.as_str()) {
            codes.push(&point.code);
        }
    }
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (panels, legend) = root.split_vertically(SIZE.1 - LEGEND_HEIGHT);
        let sides = panels.split_evenly((1, 2));
        let title = format!("Overhead against the work of decoding (K = {K}, N = 4 K)");
        let decode =
            Panel { title: &title, axis: "blocks read a source block, decoding", end: 20.0, limit: false };
        decode.draw(&sides[0], &codes, &points, |point| point.xors)?;
        let title = format!("Overhead against the cost of an update (K = {K}, N = 4 K)");
        let update =
            Panel { title: &title, axis: "stored blocks that an update touches", end: 90.0, limit: true };
        update.draw(&sides[1], &codes, &points, |point| point.update)?;
        explain(&legend, &codes)?;
        root.present()?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

struct Panel<'t> {
    title: &'t str,
    axis: &'t str,
    /// Where its horizontal axis ends, unless a point lies beyond.
    end: f64,
    limit: bool,
}

impl Panel<'_> {
    fn draw(
        &self,
        area: &Area<'_>,
        codes: &[&str],
        points: &[Point],
        x: impl Fn(&Point) -> f64,
    ) -> Result<()> {
        let end = points.iter().map(|point| 1.05 * x(point)).fold(self.end, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 19).into_font().color(&INK))
            .margin(14)
            .margin_right(24)
            .x_label_area_size(52)
            .y_label_area_size(74)
            .build_cartesian_2d(0.0..end, (PERCENT.0..PERCENT.1).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.axis)
            .y_desc("reception overhead, % of K")
            .axis_desc_style(("sans-serif", 16).into_font().color(&INK))
            .label_style(("sans-serif", 14).into_font().color(&INK))
            .axis_style(INK)
            .bold_line_style(PALE)
            .light_line_style(TRANSPARENT)
            .y_label_formatter(&|percent| format!("{percent}"))
            .x_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;
        if self.limit {
            let curve = (200..=9000)
                .map(|hundredth| f64::from(hundredth) / 100.0)
                .map(|update| (update, limit(update)));
            let shown = curve.filter(|(_, percent)| (PERCENT.0..PERCENT.1).contains(percent));
            chart.draw_series(LineSeries::new(shown, INK.stroke_width(2)))?;
        }
        for point in points {
            let colour = colour(codes, &point.code);
            let at = (x(point), point.percent.clamp(PERCENT.0, PERCENT.1));
            if point.disks {
                chart.draw_series([Circle::new(at, MARK, colour.stroke_width(2))])?;
            } else {
                chart.draw_series([Circle::new(at, MARK, colour.filled())])?;
            }
        }
        Ok(())
    }
}

fn colour(codes: &[&str], code: &str) -> RGBColor {
    COLOURS[codes.iter().position(|known| *known == code).unwrap_or(0) % COLOURS.len()]
}

/// What the marks mean: a colour a code, filled or hollow by arrival, a line for the limit.
fn explain(area: &Area<'_>, codes: &[&str]) -> Result<()> {
    let font = |text: &str, at: (i32, i32)| {
        Text::new(text.to_owned(), at, ("sans-serif", 15).into_font().color(&INK))
    };
    let left = 60;
    let column = (SIZE.0 as i32 - 2 * left) / codes.len().max(1) as i32;
    for (place, code) in codes.iter().enumerate() {
        let at = (left + place as i32 * column, 16);
        area.draw(&Rectangle::new([(at.0, at.1 - 7), (at.0 + 14, at.1 + 7)], colour(codes, code).filled()))?;
        area.draw(&font(
            &code.replace("lt ", "LT ").replace("delta=", "δ=").replace("mix-", "mix "),
            (at.0 + 22, at.1 - 7),
        ))?;
    }
    area.draw(&Circle::new((left + 7, 50), MARK, INK.filled()))?;
    area.draw(&font("random arrival", (left + 22, 43)))?;
    area.draw(&Circle::new((left + 190, 50), MARK, INK.stroke_width(2)))?;
    area.draw(&font("64 unequal disks, originals first", (left + 205, 43)))?;
    area.draw(&PathElement::new(vec![(left + 470, 50), (left + 500, 50)], INK.stroke_width(2)))?;
    area.draw(&font(
        "limit of any linear code, random arrival: 4 (1 - (0.56/K)^(1/u)) - 1, u blocks an update",
        (left + 510, 43),
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::overhead::run;
    use super::*;
    use crate::Options;

    #[tokio::test]
    async fn two_panels_with_every_code_and_nothing_from_elsewhere() {
        let options =
            Options { draws: Some(2), case: Some("K=1024 arrival=".to_owned()), ..Options::default() };
        let picture = svg(&run(&options, Report::new(1), &mut |_| {}).await.unwrap()).unwrap();
        for text in [
            "mix a",
            "mix b",
            "mix c",
            "LT C=1 δ=0.1",
            "LT C=1.1 δ=0.5",
            "stored blocks that an update touches",
            "random arrival",
        ] {
            assert!(picture.contains(text), "{text}");
        }
        // Eight codes by two arrivals in two panels, and two in the legend.
        assert_eq!(picture.matches("<circle").count(), 8 * 2 * 2 + 2);
        for (place, colour) in COLOURS.iter().enumerate() {
            assert!(!COLOURS[..place].contains(colour), "a colour for each code: {colour:?}");
        }
        assert!(!picture.contains("href") && picture.starts_with("<svg"));
        let none =
            Options { draws: Some(2), case: Some("overhead mix-b K=16".to_owned()), ..Options::default() };
        assert!(svg(&run(&none, Report::new(1), &mut |_| {}).await.unwrap()).is_err());
    }

    #[test]
    fn the_limit_is_that_of_the_findings() {
        // "u = 20 means 20 to 25 %".
        assert!((20.0..27.0).contains(&limit(20.0)), "{}", limit(20.0));
        assert!(limit(27.0) < 0.0);
    }
}
