//! Second: do the limits of a step keep requests waiting that there is memory for?

use super::super::finding::{Finding, Measure, Place, Threshold, Unit, Verdict};
use super::super::snapshot::Window;
use super::{budget_fill, is_at_cap, mean_prompt};

/// Mean fill of the budget from which most steps are cut by it.
const FULL_BUDGET: f64 = 0.8;

/// Budgets above this are large enough for a device to compute at its full speed; where they are full, it is the device that is busy. Below it a step reads
/// all weights for few tokens.
const SMALL_BUDGET: f64 = 512.0;

/// Looks at token budget, sequence cap and the length of prompts.
pub(crate) fn limits(window: &Window<'_>) -> Finding {
    let (verdict, explanation, advice) = judge(window);
    let prompt = window.added(|look| &look.prompt_tokens);
    let long = prompt
        .and_then(|added| added.quantile(0.9))
        .or_else(|| window.after.prompt_tokens.as_ref()?.quantile(0.9));
    Finding {
        place: Place::Limits,
        verdict,
        measured: vec![
            Measure::new("running", window.low(|look| look.running), Unit::Count),
            Measure::new("sequence cap", window.after.max_num_seqs, Unit::Count),
            Measure::new("waiting", window.low(|look| look.waiting), Unit::Count),
            Measure::new("budget", window.after.max_num_batched_tokens, Unit::Tokens),
            Measure::new("filled", budget_fill(window), Unit::Share).with(Threshold::AtLeast(FULL_BUDGET)),
            Measure::new("mean prompt", mean_prompt(window), Unit::Tokens),
            Measure::new("9 of 10 prompts within", long, Unit::Tokens),
        ],
        explanation,
        advice,
    }
}

fn judge(window: &Window<'_>) -> (Verdict, String, String) {
    let is_queueing = window.is_queueing();
    if is_queueing && is_at_cap(window) == Some(true) {
        let cap = window.after.max_num_seqs.unwrap_or(0.0);
        let waiting = window.low(|look| look.waiting).unwrap_or(0.0);
        let explanation = format!(
            "{waiting:.0} requests wait because {cap:.0} run and no more may, although there is memory for more."
        );
        let advice = "Raise --max-num-seqs (and --max-num-active-seqs, if it is set).";
        return (Verdict::Holds, explanation, advice.to_owned());
    }
    if let Some((budget, prompt)) = small_budget(window) {
        let explanation = format!(
            "Steps are full at {budget:.0} tokens, and a prompt of {prompt:.0} tokens takes {:.0} of them: each reads all weights for \
             a small piece.",
            (prompt / budget).ceil()
        );
        let advice = format!(
            "Raise --max-num-batched-tokens, for example to {:.0}.",
            4.0 * SMALL_BUDGET
        );
        return (Verdict::Holds, explanation, advice);
    }
    let is_known = window.after.max_num_seqs.is_some() && window.after.max_num_batched_tokens.is_some();
    if !is_known && is_queueing {
        let explanation = "Requests wait, and the server doesn't tell its limits: a step may take too few sequences or tokens.";
        let advice = "Compare the running requests with --max-num-seqs, and the tokens of a step with --max-num-batched-tokens.";
        return (Verdict::Suspected, explanation.to_owned(), advice.to_owned());
    }
    if !is_known {
        let explanation = "The server doesn't tell its limits, and nobody waits for them.";
        return (Verdict::Unknown, explanation.to_owned(), String::new());
    }
    let explanation = "No limit keeps anybody waiting.";
    (Verdict::Fine, explanation.to_owned(), String::new())
}

/// The budget and the mean prompt, if a small budget cuts prompts in pieces and most steps are full.
fn small_budget(window: &Window<'_>) -> Option<(f64, f64)> {
    let budget = window.after.max_num_batched_tokens?;
    let prompt = mean_prompt(window)?;
    let is_full = budget_fill(window)? >= FULL_BUDGET;
    (is_full && budget <= SMALL_BUDGET && prompt > budget).then_some((budget, prompt))
}
