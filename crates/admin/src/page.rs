//! A snapshot of a server's metrics, and its text.
//!
//! Names and units follow Prometheus: `steadfast_` in front, base units (bytes, seconds, ratios) last, counters end in
//! `_total`. `prometheus-client` does the encoding, escapes included, in both formats that scrapers ask for; they
//! differ in where a counter's `_total` stands in HELP and TYPE, and in the end mark.

use crate::Histogram;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::{MetricType, exemplar::Exemplar},
    registry::Registry,
};
use std::{collections::HashMap, fmt};

/// In front of every name.
const PREFIX: &str = "steadfast";

/// Which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format 0.0.4: what whoever does not say gets.
    Prometheus,
    /// OpenMetrics 1.0, for those who accept it.
    OpenMetrics,
}

impl Format {
    /// The best format for an `Accept` header.
    pub fn accepted(accept: Option<&str>) -> Self {
        if accept.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// What the answer's `Content-Type` says.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A server's metrics at one moment.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<Family>,
}

/// One metric with a sample for each set of labels.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    samples: Vec<(Vec<(&'static str, String)>, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug)]
enum Value {
    Whole(i64),
    Real(f64),
    Histogram(crate::histogram::Snapshot),
}

impl Page {
    /// A page without metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// A count that only grows while the server runs. `name` is without `steadfast_` and without `_total`.
    ///
    /// # Panics
    /// When the name or the help are not what the format allows: they are the program's own.
    pub fn counter(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(name, help, Kind::Counter)
    }

    /// A value that goes up and down.
    ///
    /// # Panics
    /// As [`Page::counter`].
    pub fn gauge(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(name, help, Kind::Gauge)
    }

    /// Durations in buckets.
    ///
    /// # Panics
    /// As [`Page::counter`].
    pub fn histogram(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(name, help, Kind::Histogram)
    }

    fn family(&mut self, name: &'static str, help: &'static str, kind: Kind) -> &mut Family {
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "a metric named {name}");
        assert!(!name.ends_with("_total"), "{name}: the suffix comes by itself");
        assert!(!help.contains(['\n', '\\', '"']), "{name}: help that would need escapes");
        assert!(self.families.iter().all(|family| family.name != name), "{name} twice on a page");
        self.families.push(Family { name, help, kind, samples: Vec::new() });
        self.families.last_mut().expect("just pushed")
    }

    /// The page as text.
    pub fn text(self, format: Format) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Rendering { page: self, format }));
        let mut text = String::new();
        let written = match format {
            Format::Prometheus => text::encode_registry(&mut text, &registry),
            Format::OpenMetrics => text::encode(&mut text, &registry),
        };
        written.expect("a string takes all text");
        text
    }
}

impl Family {
    /// Adds a sample of a whole number. What no 64-bit counter of bytes reaches is shown as the largest.
    pub fn whole(&mut self, labels: &[(&'static str, &str)], value: u64) -> &mut Self {
        self.sample(labels, Value::Whole(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    /// Adds a sample of any number.
    pub fn real(&mut self, labels: &[(&'static str, &str)], value: f64) -> &mut Self {
        self.sample(labels, Value::Real(value))
    }

    /// Adds a histogram as it is now.
    pub fn durations(&mut self, labels: &[(&'static str, &str)], histogram: &Histogram) -> &mut Self {
        self.sample(labels, Value::Histogram(histogram.snapshot()))
    }

    fn sample(&mut self, labels: &[(&'static str, &str)], value: Value) -> &mut Self {
        assert_eq!(
            matches!(value, Value::Histogram(_)),
            self.kind == Kind::Histogram,
            "{}: a sample of another kind",
            self.name
        );
        let labels = labels.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        self.samples.push((labels, value));
        self
    }
}

#[derive(Debug)]
struct Rendering {
    page: Page,
    format: Format,
}

impl Collector for Rendering {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.page.families {
            let (kind, suffixed) = match family.kind {
                // Here the older format's suffix is part of the name; in the newer one the encoder adds it.
                Kind::Counter if self.format == Format::Prometheus => (MetricType::Counter, true),
                Kind::Counter => (MetricType::Counter, false),
                Kind::Gauge => (MetricType::Gauge, true),
                Kind::Histogram => (MetricType::Histogram, true),
            };
            let name = match (family.kind, self.format) {
                (Kind::Counter, Format::Prometheus) => format!("{}_total", family.name),
                _ => family.name.to_owned(),
            };
            let mut metric = encoder.encode_descriptor(&name, family.help, None, kind)?;
            for (labels, value) in &family.samples {
                if labels.is_empty() {
                    write(&mut metric, value, suffixed)?;
                } else {
                    write(&mut metric.encode_family(&labels.as_slice())?, value, suffixed)?;
                }
            }
        }
        Ok(())
    }
}

/// Writes one sample; `plain`: under the metric's own name, without a counter's suffix.
fn write(metric: &mut MetricEncoder<'_>, value: &Value, plain: bool) -> fmt::Result {
    const NONE: Option<&Exemplar<NoLabelSet, f64>> = None;
    match value {
        Value::Whole(value) if plain => metric.encode_gauge(value),
        Value::Real(value) if plain => metric.encode_gauge(value),
        Value::Whole(value) => metric.encode_counter(&value.unsigned_abs(), NONE),
        Value::Real(value) => metric.encode_counter(value, NONE),
        Value::Histogram(of) => {
            let exemplars: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;
            metric.encode_histogram(of.sum_seconds, of.count, &of.buckets, exemplars)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn page() -> Page {
        let mut page = Page::new();
        page.counter("read_bytes", "Bytes read").whole(&[("device", "a\"b\\c\nd")], 7);
        page.gauge("open_streams", "Streams open now").whole(&[], 3);
        let histogram = Histogram::default();
        histogram.observe(Duration::from_micros(150));
        page.histogram("request_seconds", "Time of requests").durations(&[("kind", "put")], &histogram);
        page
    }

    #[test]
    fn the_text_format_of_prometheus() {
        let text = page().text(Format::Prometheus);
        for line in [
            "# HELP steadfast_read_bytes_total Bytes read",
            "# TYPE steadfast_read_bytes_total counter",
            r#"steadfast_read_bytes_total{device="a\"b\\c\nd"} 7"#,
            "# TYPE steadfast_open_streams gauge",
            "steadfast_open_streams 3",
            "# TYPE steadfast_request_seconds histogram",
            r#"steadfast_request_seconds_bucket{le="0.0001",kind="put"} 0"#,
            r#"steadfast_request_seconds_bucket{le="+Inf",kind="put"} 1"#,
            r#"steadfast_request_seconds_count{kind="put"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("EOF"), "{text}");
    }

    #[test]
    fn open_metrics_for_those_who_accept_it() {
        let text =
            page().text(Format::accepted(Some("application/openmetrics-text;version=1.0.0,*/*;q=0.1")));
        for line in [
            "# TYPE steadfast_read_bytes counter",
            r#"steadfast_read_bytes_total{device="a\"b\\c\nd"} 7"#,
            "steadfast_open_streams 3",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(Format::accepted(Some("*/*")), Format::Prometheus);
    }
}
