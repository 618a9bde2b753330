//! `lab report`: what `lab run --json` printed, as one page that needs nothing else: no network, no script, no file beside
//! it.
//!
//! | room | what lives there |
//! |---|---|
//! | [`records`] | the lines read, and what is wrong with one |
//! | [`section`] | an experiment: its charts, tables and notes |
//! | [`chart`] | one chart, by `plotters` |
//! | [`html`] | text that cannot be taken for markup |

mod chart;
mod html;
mod records;
mod section;

pub use records::{Results, read};

use crate::robustore;
use anyhow::Result;
use html::escape;

/// A page, and what is not on it.
#[derive(Clone, Debug)]
pub struct Page {
    /// The document.
    pub html: String,
    /// Experiments of the dissertation's evaluation that the results have nothing of.
    pub missing: Vec<&'static str>,
}

const STYLE: &str = "\
:root{color-scheme:light}\
body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:1000px;margin:2em auto;padding:0 1em}\
h2{margin-top:2.5em;border-top:1px solid #ccc;padding-top:.6em}\
svg{max-width:100%;height:auto}\
figure{margin:1.5em 0}\
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}\
th,td{padding:.15em .8em;border-bottom:1px solid #ddd;text-align:left}\
td.n,th.n{text-align:right}\
td.outside{font-weight:600;color:#a11}\
summary{cursor:pointer}\
.missing{border-left:4px solid #a11;padding-left:1em}\
code{background:#f3f3f3;padding:.1em .3em}\
p{max-width:46em}";

/// The page of these results.
///
/// # Errors
/// When a chart cannot be drawn.
pub fn render(results: &Results) -> Result<Page> {
    let missing: Vec<&'static str> =
        robustore::list().map(|(name, _)| name).filter(|name| !results.has(name)).collect();
    let mut sections = Vec::new();
    for experiment in ordered(results) {
        sections.push(section::Section::new(experiment, results)?);
    }
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Steadfast: experiments</title><style>{STYLE}</style></head><body>\n\
         <h1>Experiments</h1>\n"
    );
    if !missing.is_empty() {
        html += "<div class=\"missing\"><p>Missing, because the results have nothing of them:</p><ul>";
        for name in &missing {
            html += &format!("<li><code>{}</code></li>", escape(name));
        }
        html += "</ul></div>\n";
    }
    html += "<p>Lines and dots are ours; crosses in the same colours are the paper's figures as its text has them. A \
             bandwidth counts as reproduced within 20 % (RRAID-S 25 %, parts of a disk 15 %), a standard deviation of \
             latency within a factor of two.</p>\n";
    html += "<table><tr><th>experiment</th><th>shows</th><th>figures</th><th class=\"n\">within</th>\
             <th class=\"n\">outside</th></tr>\n";
    for section in &sections {
        html += &format!(
            "<tr><td><a href=\"#{}\">{}</a></td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
            section.anchor,
            escape(&section.name),
            escape(&section.shows),
            escape(&section.figures),
            section.within,
            section.outside
        );
    }
    html += "</table>\n";
    for section in sections {
        html += &section.html;
    }
    html += "</body></html>\n";
    Ok(Page { html, missing })
}

/// The experiments there are results of: the dissertation's in its order, then others as they came.
fn ordered(results: &Results) -> Vec<&str> {
    let known: Vec<&str> = robustore::list().map(|(name, _)| name).collect();
    let mut names = results.experiments();
    names.sort_by_key(|name| known.iter().position(|known| known == name).unwrap_or(known.len()));
    names
}

#[cfg(test)]
mod tests;
