//! Flags that people know from vLLM and llama.cpp and that have another name here, or no meaning.

use clap::error::{ContextKind, ContextValue};

const HINTS: &[(&str, &str)] = &[
    ("--model", "give the model as an argument: `kvasir serve MODEL`"),
    ("-m", "give the model as an argument: `kvasir serve MODEL`"),
    (
        "-hf",
        "give the repository as an argument: `kvasir serve OWNER/NAME`",
    ),
    ("-c", "the context length is --max-model-len"),
    ("--ctx-size", "the context length is --max-model-len"),
    ("-t", "the number of threads is --threads"),
    ("-np", "the number of parallel sequences is --max-num-seqs"),
    ("--parallel", "the number of parallel sequences is --max-num-seqs"),
    ("-b", "the token budget of a step is --max-num-batched-tokens"),
    (
        "--batch-size",
        "the token budget of a step is --max-num-batched-tokens",
    ),
    ("--alias", "the name that clients ask for is --served-model-name"),
    ("--chat-template-file", "a chat template is --chat-template FILE"),
    (
        "--tensor-parallel-size",
        "Kvasir computes on one machine's CPU so far",
    ),
    ("-tp", "Kvasir computes on one machine's CPU so far"),
    (
        "--pipeline-parallel-size",
        "Kvasir computes on one machine's CPU so far",
    ),
    (
        "--data-parallel-size",
        "Kvasir computes on one machine's CPU so far",
    ),
    ("-ngl", "Kvasir computes on the CPU so far"),
    ("--n-gpu-layers", "Kvasir computes on the CPU so far"),
    (
        "--enable-chunked-prefill",
        "prompts are always computed in chunks; nothing needs to be said",
    ),
    (
        "--disable-log-requests",
        "requests aren't logged; nothing needs to be said",
    ),
    (
        "--enforce-eager",
        "there are no graphs to turn off; nothing needs to be said",
    ),
    (
        "--trust-remote-code",
        "Kvasir never runs code that comes with a model",
    ),
];

/// What to use instead of the unknown flag of an error.
pub(crate) fn hint(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = argument.split(['=', ' ']).next()?;
    HINTS
        .iter()
        .find(|(flag, _)| *flag == name)
        .map(|(_, hint)| *hint)
}
