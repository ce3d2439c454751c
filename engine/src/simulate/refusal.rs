//! Refusals of the simulator, in the words of its command.

use crate::exit::Failure;

/// What the simulator calls something, and the flag that sets it.
const FLAGS: &[(&str, &str)] = &[
    ("max_num_batched_tokens", "--max-num-batched-tokens"),
    ("max_num_active_seqs", "--max-num-active-seqs"),
    ("max_num_seqs", "--max-num-seqs"),
    ("max_model_len", "--max-model-len"),
    ("block_size", "--block-size"),
    ("num_blocks", "--num-gpu-blocks-override"),
    ("long_prefill_token_threshold", "--long-prefill-token-threshold"),
    ("max_num_queued_reqs", "--max-num-queued-reqs"),
    ("max_num_queued_tokens", "--max-num-queued-tokens"),
    (
        "seat_preemption needs the priority order",
        "--seat-preemption needs --scheduling-policy priority",
    ),
    ("the model's length in tokens", "--max-model-len"),
    ("the number of engines", "--engines"),
    ("the number of requests", "--num-requests"),
    ("the duration in seconds", "--duration"),
    ("the warm-up in seconds", "--warmup"),
    ("the request rate per second", "--request-rate"),
    ("the burstiness", "--burstiness"),
    ("the number of clients", "--clients"),
    ("the pause of a client", "--client-pause"),
    ("the ramp in seconds", "--ramp"),
    (
        "the number of shared prefixes",
        "the first number of --shared-prefix",
    ),
    ("the pause between turns", "--turn-pause"),
    ("the number of tenants", "the number of --tenant"),
    ("a tenant's share", "a share in --tenant"),
    ("a tenant's weight", "a weight in --tenant"),
    ("the timeout in seconds", "--request-timeout"),
    ("the speed-up", "--speed-up"),
    ("the block size of the trace", "--trace-block-size"),
    ("the objective", "the --goodput objective"),
    ("prompt is", "--prompt-len is"),
    ("prompt ranges", "--prompt-len ranges"),
    ("the sigma of prompt", "the sigma of --prompt-len"),
    ("output is", "--output-len is"),
    ("output ranges", "--output-len ranges"),
    ("the sigma of output", "the sigma of --output-len"),
    ("conversation, in turns,", "--turns"),
];

/// What can't be simulated is the fault of an argument, and named by its flag.
pub(super) fn usage(error: &dyn std::error::Error) -> Failure {
    Failure::Usage(with_flags(&error.to_string()))
}

/// The names of values, where they stand as words of their own, replaced by their flags. Each place is looked at once.
fn with_flags(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let follows_word = out.ends_with(|before: char| before.is_alphanumeric() || "-_".contains(before));
        let found = FLAGS.iter().find_map(|(name, flag)| {
            let behind = rest.strip_prefix(name)?;
            let ends = !behind.starts_with(|c: char| c.is_alphanumeric() || "-_".contains(c));
            ends.then_some((*flag, behind))
        });
        if let Some((flag, behind)) = found.filter(|_| !follows_word) {
            out.push_str(flag);
            rest = behind;
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_called_by_their_flags() {
        for (text, expected) in [
            (
                "max_num_seqs is 9, which is above max_num_batched_tokens 8; lower max_num_seqs or raise max_num_batched_tokens",
                "--max-num-seqs is 9, which is above --max-num-batched-tokens 8; lower --max-num-seqs or raise --max-num-batched-tokens",
            ),
            ("the ramp in seconds is -1", "--ramp is -1"),
            ("lower --max-num-seqs", "lower --max-num-seqs"),
            (
                "\u{e9}num_blocks and num_blocks_x",
                "\u{e9}num_blocks and num_blocks_x",
            ),
            ("", ""),
        ] {
            assert_eq!(with_flags(text), expected);
        }
    }
}
