//! Puts what several registries have written into one text.

use std::collections::BTreeMap;

/// What begins a family.
const HELP: &str = "# HELP ";

/// A family's lines: those that describe it, and its series.
#[derive(Default)]
struct Family<'a> {
    head: Vec<&'a str>,
    series: Vec<&'a str>,
}

/// One exposition of several, in Prometheus' text format. Families of one name become one, described as the first text does: readers of the
/// format refuse a name that is described twice.
pub fn one_exposition(texts: &[String]) -> String {
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for text in texts {
        let (mut place, mut is_known) = (None, false);
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(described) = line.strip_prefix(HELP) {
                let name = described.split(' ').next().unwrap_or_default();
                is_known = places.contains_key(name);
                place = Some(*places.entry(name).or_insert_with(|| {
                    families.push(Family::default());
                    families.len() - 1
                }));
            }
            let Some(family) = place.and_then(|place| families.get_mut(place)) else {
                continue;
            };
            match line.starts_with("# ") {
                false => family.series.push(line),
                true if !is_known => family.head.push(line),
                true => {}
            }
        }
    }
    let mut whole = String::with_capacity(texts.iter().map(String::len).sum());
    for line in families
        .iter()
        .flat_map(|family| family.head.iter().chain(&family.series))
    {
        whole.push_str(line);
        whole.push('\n');
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_several_texts_have_is_described_once_with_all_series() {
        let one =
            "# HELP a First.\n# TYPE a gauge\na 1\n# HELP b Second.\n# TYPE b counter\nb_total{x=\"1\"} 2\n";
        let two = "# HELP c Third.\n# TYPE c gauge\nc 3\n# HELP a Another text.\n# TYPE a gauge\na{m=\"# HELP\"} 4\n# EOF\n";
        let whole = one_exposition(&[one.to_owned(), two.to_owned()]);
        assert_eq!(
            whole,
            "# HELP a First.\n# TYPE a gauge\na 1\na{m=\"# HELP\"} 4\n# HELP b Second.\n# TYPE b counter\nb_total{x=\"1\"} 2\n\
             # HELP c Third.\n# TYPE c gauge\nc 3\n"
        );
    }

    #[test]
    fn one_text_stays_what_it_is() {
        let text = "# HELP a First.\n# TYPE a gauge\na{x=\"y\"} 1\na{x=\"z\"} 1\n".to_owned();
        assert_eq!(one_exposition(std::slice::from_ref(&text)), text);
        assert_eq!(one_exposition(&[]), "");
    }
}
