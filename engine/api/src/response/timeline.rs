//! When things happened to a sequence, for requests that set `return_timeline`.

use serde::Serialize;

/// One sequence's life in the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The engine's name of the request, which its log, its steps and its KV events carry too.
    pub request_id: String,
    /// What happened, in order.
    pub entries: Vec<TimelineEntry>,
    /// Entries that were left out before the last one, because the list is bounded.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_entries_left_out: u32,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineEntry {
    /// `queued`, `scheduled`, `chunk`, `first_token`, `preempted`, `resumed` or `finished`.
    pub event: &'static str,
    /// Microseconds since the engine received the request.
    pub at_us: u64,
    /// Of a chunk, the step that computed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Of `scheduled` and `resumed`: tokens read from the prefix cache; of a chunk: its length; of `finished`: output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}
