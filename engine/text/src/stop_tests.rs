//! Stop strings over every way of cutting, against a slow search in the whole text.

use proptest::prelude::*;

use super::*;

fn strings(stops: &[&str]) -> Vec<String> {
    stops.iter().map(|stop| (*stop).to_owned()).collect()
}

/// The whole text searched at once: the reference for every cut.
fn reference(text: &str, stops: &[String], include: bool) -> (String, Option<usize>) {
    let first = stops
        .iter()
        .enumerate()
        .filter(|(_, stop)| !stop.is_empty())
        .filter_map(|(index, stop)| text.find(stop.as_str()).map(|at| (at + stop.len(), index, at)))
        .min_by_key(|&(end, index, _)| (end, index));
    match first {
        Some((end, index, at)) => (text[..if include { end } else { at }].to_owned(), Some(index)),
        None => (text.to_owned(), None),
    }
}

fn stream(pieces: &[&str], stops: &[String], include: bool) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(stops, include);
    let mut out = String::new();
    for piece in pieces {
        out.push_str(&matcher.push(piece).emit);
    }
    out.push_str(&matcher.finish());
    (out, matcher.matched())
}

/// Cuts `text` before every character whose bit in `mask` is set.
fn cut(text: &str, mask: u64) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (number, (at, _)) in text.char_indices().enumerate() {
        if at > start && mask >> (number % 64) & 1 == 1 {
            pieces.push(&text[start..at]);
            start = at;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

#[test]
fn stop_across_two_pieces_is_held_back_and_cut() {
    // C36: vllm#2577, the stop spans tokens.
    let stops = strings(&["\n\nHuman"]);
    let mut matcher = StopMatcher::new(&stops, false);
    assert_eq!(
        matcher.push("Answer.\n"),
        StopStep {
            emit: "Answer.".into(),
            matched: None
        }
    );
    assert_eq!(matcher.push("\nHum"), StopStep::default());
    assert_eq!(
        matcher.push("an: more"),
        StopStep {
            emit: String::new(),
            matched: Some(0)
        }
    );
    assert_eq!(
        matcher.push("later"),
        StopStep {
            emit: String::new(),
            matched: Some(0)
        }
    );
    assert_eq!(matcher.finish(), "");
}

#[test]
fn only_a_possible_beginning_of_a_stop_is_held_back() {
    let mut matcher = StopMatcher::new(&strings(&["<a very long stop string>"]), false);
    assert_eq!(matcher.push("no such thing here").emit, "no such thing here");
    assert_eq!(matcher.push("but <a ve").emit, "but ");
    assert_eq!(matcher.push("st").emit, "<a vest");
}

#[test]
fn stop_that_completes_first_wins_and_list_order_breaks_ties() {
    assert_eq!(
        stream(&["xabcx"], &strings(&["abc", "bc", "c"]), false),
        ("x".into(), Some(0))
    );
    assert_eq!(
        stream(&["xabcx"], &strings(&["c", "abc"]), false),
        ("xab".into(), Some(0))
    );
    assert_eq!(
        stream(&["xabcdx"], &strings(&["abcd", "bc"]), false),
        ("xa".into(), Some(1))
    );
}

#[test]
fn included_stop_is_emitted_and_nothing_is_held_back() {
    let mut matcher = StopMatcher::new(&strings(&["END"]), true);
    assert_eq!(matcher.push("the E").emit, "the E");
    assert_eq!(
        matcher.push("ND of"),
        StopStep {
            emit: "ND".into(),
            matched: Some(0)
        }
    );
}

#[test]
fn empty_stop_never_matches() {
    assert_eq!(stream(&["a", "b"], &strings(&[""]), false), ("ab".into(), None));
}

#[test]
fn every_cut_of_awkward_texts_equals_the_search_in_the_whole_text() {
    let texts = ["aabaabaaab", "ababacababad", "éée✿é✿✿RES✿", "\n\nHu\n\nHuman\n"];
    let stop_lists: [&[&str]; 5] = [
        &["aabaaab"],
        &["abab", "abad"],
        &["✿RES✿", "é✿✿R"],
        &["\n\nHuman"],
        &["b", "aab", "zz"],
    ];
    for text in texts {
        for stops in stop_lists {
            let stops = strings(stops);
            for include in [false, true] {
                for mask in 0..1 << text.chars().count() {
                    assert_eq!(
                        stream(&cut(text, mask), &stops, include),
                        reference(text, &stops, include),
                        "text {text:?}, stops {stops:?}, include {include}, mask {mask:b}"
                    );
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_cut_equals_the_search_in_the_whole_text(
        text in "[ab✿\n]{0,40}",
        stops in prop::collection::vec("[ab✿\n]{0,5}", 0..4),
        include: bool,
        mask: u64,
    ) {
        prop_assert_eq!(stream(&cut(&text, mask), &stops, include), reference(&text, &stops, include));
    }

    #[test]
    fn held_back_text_is_always_the_beginning_of_a_stop(
        text in "[abc]{0,30}",
        stops in prop::collection::vec("[abc]{1,5}", 1..4),
    ) {
        let mut matcher = StopMatcher::new(&stops, false);
        for piece in cut(&text, u64::MAX) {
            if matcher.push(piece).matched.is_some() {
                break;
            }
            let held = &matcher.held;
            prop_assert!(stops.iter().any(|stop| stop.starts_with(held.as_str()) && stop != held));
        }
    }
}
