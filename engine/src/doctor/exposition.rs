//! The text that `/metrics` answers: Prometheus' text format, and OpenMetrics as far as it looks the same.
//!
//! Bounded: a text with more than [`MAX_SAMPLES`] is refused, as is one that was cut off, since a part of the figures would give a wrong diagnosis.
//! Lines that break the format are passed over. Only figures that the doctor can read are kept.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>, "Text-based format".

use std::collections::BTreeMap;

/// Samples that are read; a server with eight engines has some 5,000.
pub(crate) const MAX_SAMPLES: usize = 100_000;

/// Labels of one sample that are kept.
const MAX_LABELS: usize = 64;

/// Beginnings of the names that are kept.
const PREFIXES: [&str; 3] = ["vllm:", "kvasir_", "process_"];

/// What a scrape gave, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples {
    by_name: BTreeMap<String, Vec<Sample>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    labels: Vec<(String, String)>,
    value: f64,
}

/// A histogram over all label sets, since the server started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// Of all values.
    pub(crate) sum: f64,
    /// How many values.
    pub(crate) count: f64,
    /// Upper bound and how many values are at most that, ascending.
    pub(crate) buckets: Vec<(f64, f64)>,
}

/// Why a scrape isn't taken for the whole of a server's figures.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Partial {
    /// There is more.
    #[error(
        "there are more than {MAX_SAMPLES} samples; look at one server of several, not at what collects their figures"
    )]
    TooMany,
    /// The format ends every line.
    #[error("the text breaks off in its last line; take it again")]
    CutOff,
}

/// Reads a scrape.
///
/// # Errors
/// If it can't be all of one server's figures.
pub(crate) fn parse(text: &str) -> Result<Samples, Partial> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(Partial::CutOff);
    }
    let mut samples = Samples::default();
    let is_known = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let known = text
        .lines()
        .filter_map(parse_line)
        .filter(|(name, _)| is_known(name));
    for (count, (name, sample)) in known.enumerate() {
        if count == MAX_SAMPLES {
            return Err(Partial::TooMany);
        }
        samples.by_name.entry(name.to_owned()).or_default().push(sample);
    }
    Ok(samples)
}

impl Samples {
    /// Whether a figure's name begins so.
    pub(crate) fn has(&self, prefix: &str) -> bool {
        let mut from = self.by_name.range(prefix.to_owned()..);
        from.next().is_some_and(|(name, _)| name.starts_with(prefix))
    }

    /// A gauge's or counter's sum over all label sets. Counters are found with and without `_total`.
    pub(crate) fn sum(&self, name: &str) -> Option<f64> {
        let samples = self
            .by_name
            .get(&format!("{name}_total"))
            .or_else(|| self.by_name.get(name))?;
        Some(samples.iter().map(|sample| sample.value).sum())
    }

    /// A gauge's largest value.
    pub(crate) fn max(&self, name: &str) -> Option<f64> {
        let samples = self.by_name.get(name)?;
        samples.iter().map(|sample| sample.value).reduce(f64::max)
    }

    /// The value of a label, of the first label set that has it.
    pub(crate) fn label(&self, name: &str, key: &str) -> Option<&str> {
        self.by_name
            .get(name)?
            .iter()
            .find_map(|sample| sample.label(key))
    }

    /// A label's number, summed over all label sets that have one.
    pub(crate) fn label_sum(&self, name: &str, key: &str) -> Option<f64> {
        let labels = self.by_name.get(name)?.iter();
        let numbers = labels.filter_map(|sample| number(sample.label(key)?));
        numbers.reduce(|sum, number| sum + number)
    }

    /// A histogram over all label sets.
    pub(crate) fn histogram(&self, name: &str) -> Option<Histogram> {
        let total = |suffix: &str| {
            let samples = self.by_name.get(&format!("{name}{suffix}"))?;
            Some(samples.iter().map(|sample| sample.value).sum::<f64>())
        };
        let of_bucket = |bucket: &Sample| {
            let bound: f64 = bucket.label("le")?.parse().ok()?;
            (!bound.is_nan()).then_some((bound, bucket.value))
        };
        let buckets = self.by_name.get(&format!("{name}_bucket"));
        let buckets: Vec<(f64, f64)> = buckets.into_iter().flatten().filter_map(of_bucket).collect();
        Some(Histogram {
            sum: total("_sum")?,
            count: total("_count")?,
            buckets: summed(buckets),
        })
    }
}

/// Counts of equal bounds in one, ascending.
fn summed(mut buckets: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    buckets.dedup_by(|later, kept| {
        let is_same = later.0.total_cmp(&kept.0).is_eq();
        if is_same {
            kept.1 += later.1;
        }
        is_same
    });
    buckets
}

impl Histogram {
    /// What was added since `before`; none if the counts went back, as they do when a server starts anew.
    pub(crate) fn since(&self, before: &Self) -> Option<Self> {
        let (sum, count) = (self.sum - before.sum, self.count - before.count);
        if count < 0.0 || sum < 0.0 {
            return None;
        }
        let earlier = |bound: f64| {
            let buckets = &before.buckets;
            let same = buckets.binary_search_by(|(other, _)| other.total_cmp(&bound));
            same.map_or(0.0, |at| buckets[at].1)
        };
        let buckets = self.buckets.iter();
        Some(Self {
            sum,
            count,
            buckets: buckets
                .map(|&(bound, count)| (bound, count - earlier(bound)))
                .collect(),
        })
    }

    /// None if nothing was counted.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// The bound that this share of the values doesn't exceed; none if nothing was counted, or all that is known is that they exceed the largest bound.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        if self.count <= 0.0 {
            return None;
        }
        let reached = self
            .buckets
            .iter()
            .find(|(_, count)| *count >= share * self.count);
        reached.map(|(bound, _)| *bound).filter(|bound| bound.is_finite())
    }
}

impl Sample {
    fn label(&self, key: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(other, _)| other == key);
        found.map(|(_, value)| value.as_str())
    }
}

/// `name{key="value",...} value [timestamp]`; nothing for comments and all else.
fn parse_line(line: &str) -> Option<(&str, Sample)> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let name_len = line.find(|c: char| c == '{' || c.is_ascii_whitespace())?;
    let (name, rest) = line.split_at(name_len);
    let (labels, rest) = match rest.strip_prefix('{') {
        None => (Vec::new(), rest),
        Some(rest) => parse_labels(rest)?,
    };
    let value = number(rest.split_ascii_whitespace().next()?)?;
    (!name.is_empty()).then_some((name, Sample { labels, value }))
}

/// More than a server counts of anything in its life. Sums of as many samples as are read stay far from infinity.
const MAX_FIGURE: f64 = 1e30;

/// A number that can be reckoned with. NaN and infinities say nothing about a server, and all that is looked at counts or measures
/// something, so that what is below 0 says nothing either.
fn number(text: &str) -> Option<f64> {
    text.parse()
        .ok()
        .filter(|value: &f64| (0.0..=MAX_FIGURE).contains(value))
}

/// What follows the opening brace; gives the rest behind the closing one.
fn parse_labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, behind) = rest.split_once('=')?;
        let (value, behind) = parse_quoted(behind.trim_start())?;
        if labels.len() < MAX_LABELS {
            labels.push((key.trim().to_owned(), value));
        }
        rest = behind;
    }
}

/// A string in quotes, with `\\`, `\"` and `\n`.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('"')?;
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// Samples of a text without the end of its last line.
    fn samples(text: &str) -> Samples {
        parse(&format!("{text}\n")).unwrap()
    }

    #[test]
    fn samples_are_summed_over_their_label_sets() {
        let samples = samples(
            "# HELP vllm:num_requests_running Requests\n\
             # TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 3.0\n\
             vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 5 1700000000000\n\
             vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
             vllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
             vllm:prefix_cache_hits_total{engine=\"0\"} 7\n\
             other_figure 9\n",
        );
        assert_eq!(samples.sum("vllm:num_requests_running"), Some(8.0));
        assert_eq!(samples.max("vllm:kv_cache_usage_perc"), Some(0.75));
        assert_eq!(samples.sum("vllm:prefix_cache_hits"), Some(7.0));
        assert_eq!(samples.sum("other_figure"), None);
        assert!(samples.has("vllm:") && !samples.has("kvasir_"));
    }

    #[test]
    fn histograms_are_summed_by_their_bounds() {
        let samples = samples(
            "vllm:t_bucket{engine=\"0\",le=\"1.0\"} 1\nvllm:t_bucket{engine=\"0\",le=\"+Inf\"} 2\n\
             vllm:t_bucket{engine=\"1\",le=\"+Inf\"} 4\nvllm:t_bucket{engine=\"1\",le=\"1\"} 4\n\
             vllm:t_sum{engine=\"0\"} 8\nvllm:t_sum{engine=\"1\"} 1\n\
             vllm:t_count{engine=\"0\"} 2\nvllm:t_count{engine=\"1\"} 4\n",
        );
        let histogram = samples.histogram("vllm:t").unwrap();
        assert_eq!(histogram.buckets, [(1.0, 5.0), (f64::INFINITY, 6.0)]);
        assert_eq!(histogram.mean(), Some(1.5));
        assert_eq!(histogram.quantile(0.5), Some(1.0));
        assert_eq!(histogram.quantile(0.99), None);
        assert_eq!(samples.histogram("vllm:none"), None);
    }

    #[test]
    fn counts_that_went_back_give_no_difference() {
        let of = |count: f64| Histogram {
            sum: 2.0 * count,
            count,
            buckets: vec![(1.0, count)],
        };
        assert_eq!(of(5.0).since(&of(3.0)), Some(of(2.0)));
        assert_eq!(of(3.0).since(&of(5.0)), None);
    }

    #[test]
    fn labels_may_hold_anything_in_quotes() {
        let samples = samples(r#"kvasir_x{a="b,c}=\"d\" \\ \n",num="12",} 1"#);
        assert_eq!(samples.label("kvasir_x", "a"), Some("b,c}=\"d\" \\ \n"));
        assert_eq!(samples.label_sum("kvasir_x", "num"), Some(12.0));
        assert_eq!(samples.label_sum("kvasir_x", "a"), None);
    }

    #[test]
    fn lines_that_break_the_format_are_passed_over() {
        let text = "vllm:a{b=\"c 1\nvllm:a{b} 1\nvllm:a{ 1\nvllm:a\nvllm:a \nvllm:a NaN\nvllm:a +Inf\nvllm:a -1\nvllm:a 1e308\nvllm:a x\n{a=\"b\"} 1\n\u{0}\n\
             vllm:a{b=\"\\";
        assert_eq!(samples(text), Samples::default());
        assert_eq!(samples(&format!("{text}\nvllm:a 1")).sum("vllm:a"), Some(1.0));
    }

    #[test]
    fn no_cut_of_a_scrape_panics_and_what_is_kept_is_bounded() {
        let line = "vllm:é{key=\"wörld\\\\\",le=\"+Inf\"} 1.5e3 170\n";
        for end in 0..=line.len() {
            if line.is_char_boundary(end) {
                samples(&line[..end]);
                samples(&line[end..]);
            }
        }
        let many = "vllm:a 1\n".repeat(MAX_SAMPLES);
        assert_eq!(parse(&many).unwrap().sum("vllm:a"), Some(MAX_SAMPLES as f64));
        assert_eq!(parse(&(many + "vllm:a 1\n")), Err(Partial::TooMany));
        let labels: Vec<String> = (0..2 * MAX_LABELS).map(|i| format!("l{i}=\"{i}\"")).collect();
        let labels = labels.join(",");
        let wide = samples(&format!("vllm:a{{{labels}}} 1"));
        assert_eq!(wide.label("vllm:a", "l63"), Some("63"));
        assert_eq!(wide.label("vllm:a", "l64"), None);
    }

    #[test]
    fn a_text_that_breaks_off_is_not_taken_for_the_whole() {
        assert_eq!(parse("vllm:a 1\nvllm:b 12"), Err(Partial::CutOff));
        assert_eq!(parse(""), Ok(Samples::default()));
    }

    #[test]
    fn histograms_of_any_number_of_bounds_are_compared() {
        let text = |count: usize| {
            let mut text = format!("vllm:t_sum {count}\nvllm:t_count {count}\n");
            for bound in (0..45_000).rev() {
                writeln!(
                    text,
                    "vllm:t_bucket{{le=\"{bound}\"}} {count}\nvllm:t_bucket{{le=\"{bound}.0\"}} 1"
                )
                .unwrap();
            }
            parse(&text).unwrap().histogram("vllm:t").unwrap()
        };
        let added = text(7).since(&text(3)).unwrap();
        assert_eq!(added.buckets.len(), 45_000);
        assert_eq!(
            (added.buckets[9], added.buckets[44_999]),
            ((9.0, 4.0), (44_999.0, 4.0))
        );
    }
}
