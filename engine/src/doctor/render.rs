//! A diagnosis for people.

use std::fmt::Write;

use super::finding::{Diagnosis, Finding, Measure, State, Threshold, Unit, Verdict};

/// Columns of running text.
const WIDTH: usize = 100;

/// The diagnosis as text; `heading` says of what.
pub(crate) fn render(heading: &str, diagnosis: &Diagnosis, has_colours: bool) -> String {
    let mut text = format!("{heading}\n");
    let times: Vec<String> = diagnosis.times.iter().map(show).collect();
    if !times.is_empty() {
        push_wrapped(&mut text, &times.join(", "), "");
    }
    text.push('\n');
    for (index, finding) in diagnosis.findings.iter().enumerate() {
        push_finding(&mut text, index + 1, finding, has_colours);
    }
    text.push('\n');
    let (name, style) = match &diagnosis.state {
        State::Unhealthy(_) => ("Unhealthy", RED),
        State::Idle => ("Idle", GREEN),
        State::Healthy => ("Healthy", GREEN),
        State::HeldBack(_) => ("Bottleneck", RED),
        State::Computing => ("Computing", YELLOW),
    };
    let start = format!("{name}. {}", diagnosis.summary);
    let mut summary = String::new();
    push_wrapped(&mut summary, &start, "");
    text.push_str(&summary.replacen(name, &painted(name, style, has_colours), 1));
    text
}

const RED: &str = "1;31";
const YELLOW: &str = "1;33";
const GREEN: &str = "32";
const DIM: &str = "2";

fn painted(text: &str, style: &str, has_colours: bool) -> String {
    if has_colours {
        format!("\u{1b}[{style}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

fn push_finding(text: &mut String, number: usize, finding: &Finding, has_colours: bool) {
    let (verdict, style) = match finding.verdict {
        Verdict::Fine => ("fine", GREEN),
        Verdict::Holds => ("HOLDS", RED),
        Verdict::Suspected => ("suspected", YELLOW),
        Verdict::Unknown => ("unknown", DIM),
    };
    let verdict = painted(&format!("{verdict:<9}"), style, has_colours);
    let title = finding.place.title();
    let line = format!("{number}. {title:<18} {verdict} ");
    text.push_str(&line);
    let measured: Vec<String> = finding.measured.iter().map(show).collect();
    let indent = " ".repeat("1. ".len() + 18 + 1 + 9 + 1);
    let mut wrapped = String::new();
    push_wrapped(&mut wrapped, &measured.join(", "), &indent);
    text.push_str(wrapped.trim_start());
    push_wrapped(
        text,
        &format!("{} {}", finding.explanation, finding.advice),
        "   ",
    );
}

/// Words in lines of at most [`WIDTH`] characters, as far as words are shorter.
fn push_wrapped(text: &mut String, words: &str, indent: &str) {
    let mut line = String::new();
    for word in words.split_whitespace() {
        let length = indent.len() + line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && length > WIDTH {
            push_line(text, indent, &line);
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    push_line(text, indent, &line);
}

fn push_line(text: &mut String, indent: &str, line: &str) {
    // Writing to a string doesn't fail.
    writeln!(text, "{indent}{line}").ok();
}

/// `usage 97 % (holds from 90 %)`.
fn show(measure: &Measure) -> String {
    let Some(value) = measure.value else {
        return format!("{} unknown", measure.name);
    };
    let shown = quantity(value, measure.unit);
    let bound = match measure.threshold {
        None => String::new(),
        Some(Threshold::AtLeast(bound)) => format!(" (limit {})", quantity(bound, measure.unit)),
        Some(Threshold::AtMost(bound)) => format!(" (wanted above {})", quantity(bound, measure.unit)),
    };
    format!("{} {shown}{bound}", measure.name)
}

fn quantity(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Share => format!("{:.0} %", 100.0 * value),
        Unit::Count => format!("{value:.0}"),
        Unit::PerSecond => format!("{value:.1}/s"),
        Unit::Tokens => format!("{value:.0} tokens"),
        Unit::Seconds if value < 0.001 => format!("{:.0} us", 1e6 * value),
        Unit::Seconds if value < 1.0 => format!("{:.1} ms", 1e3 * value),
        Unit::Seconds => format!("{value:.1} s"),
    }
}
