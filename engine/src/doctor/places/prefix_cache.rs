//! Fifth: is work done again that the prefix cache could have kept? Prompts that share no beginning gain nothing from it, however large it is.

use super::super::finding::{Finding, Measure, Place, Threshold, Unit, Verdict};
use super::super::snapshot::Window;

/// Hit rate up to which the cache is as good as none.
const LOW_HIT_RATE: f64 = 0.1;

/// Share of prompts in what is computed from which a cache could matter.
const PROMPT_SHARE: f64 = 0.8;

/// A first token that takes this long is worth a thought even if nobody waits in the queue.
const SLOW_FIRST_TOKEN_SECONDS: f64 = 1.0;

/// Looks at the hit rate, where prompts are most of the work.
pub(crate) fn prefix_cache(window: &Window<'_>) -> Finding {
    let queries = window.growth(|look| look.prefix_queries);
    let hits = window.growth(|look| look.prefix_hits);
    let hit_rate = queries
        .zip(hits)
        .and_then(|(queries, hits)| (queries > 0.0).then(|| hits / queries));
    let prompt_share = prompt_share(window, hits.unwrap_or(0.0));
    let is_slow = window
        .added(|look| &look.first_token_seconds)
        .and_then(|added| added.mean())
        .is_some_and(|seconds| seconds >= SLOW_FIRST_TOKEN_SECONDS);
    let matters =
        (window.is_queueing() || is_slow) && prompt_share.is_some_and(|share| share >= PROMPT_SHARE);
    let is_off = window.after.prefix_caching == Some(false)
        || (queries == Some(0.0) && prompt_share.is_some_and(|share| share > 0.0));
    let (verdict, explanation, advice) = if matters && is_off {
        (
            Verdict::Holds,
            "Most of what is computed are prompts, and nothing of them is kept: the prefix cache is off.",
            "Turn it on with --enable-prefix-caching, if prompts have beginnings in common.",
        )
    } else if matters && hit_rate.is_some_and(|rate| rate <= LOW_HIT_RATE) {
        (
            Verdict::Holds,
            "Most of what is computed are prompts, and nearly nothing of them is found in the prefix cache: their beginnings differ, or are gone before they \
             come again.",
            "Put what prompts have in common first and what differs last; send requests of one conversation to one replica. A larger cache \
             doesn't help prompts that share no beginning.",
        )
    } else if queries.is_none() {
        (
            Verdict::Unknown,
            "The server has no figures of a prefix cache.",
            "",
        )
    } else if hit_rate.is_none() {
        (Verdict::Fine, "No prompt began between the two looks.", "")
    } else {
        (
            Verdict::Fine,
            "Prompts are found in the cache, or are not what takes the time.",
            "",
        )
    };
    Finding {
        place: Place::PrefixCache,
        verdict,
        measured: vec![
            Measure::new("hit rate", hit_rate, Unit::Share).with(Threshold::AtMost(LOW_HIT_RATE)),
            Measure::new("prompts in what is computed", prompt_share, Unit::Share)
                .with(Threshold::AtLeast(PROMPT_SHARE)),
        ],
        explanation: explanation.to_owned(),
        advice: advice.to_owned(),
    }
}

/// The share of prompt tokens in the tokens computed between the looks.
fn prompt_share(window: &Window<'_>, hits: f64) -> Option<f64> {
    let prompts = (window.growth(|look| look.prompt_tokens_total)? - hits).max(0.0);
    let all = prompts + window.growth(|look| look.generation_tokens)?;
    (all > 0.0).then(|| prompts / all)
}
