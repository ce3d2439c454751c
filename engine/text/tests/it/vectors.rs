//! Tokenizers built from GGUF metadata give the tokens that the vectors of llama.cpp state.

use std::path::Path;

use crate::common::{assets, vocab};
use kvasir_text::{DetokenizerOptions, Text, TextAssets, TextError};

/// What stands between two texts in an `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// A vocabulary's texts with their expected ids.
fn vectors(path: &Path) -> Vec<(String, Vec<u32>)> {
    let read = |extension: &str| {
        let path = format!("{}.{extension}", path.display());
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let (input, output) = (read("inp"), read("out"));
    let ids = output
        .lines()
        .map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect());
    input.split(SEPARATOR).map(str::to_owned).zip(ids).collect()
}

fn check(name: &str) {
    let path = assets().join(format!("ggml-vocab-{name}.gguf"));
    let text = Text::load(&TextAssets::from_gguf(vocab(&path)).unwrap()).unwrap();
    let vectors = vectors(&path);
    assert!(vectors.len() > 30, "only {} vectors", vectors.len());
    for (input, expected) in &vectors {
        assert_eq!(&text.encode(input, false).unwrap(), expected, "{name}: {input:?}");
        assert_eq!(
            &text.encode_plain(input).unwrap(),
            expected,
            "{name}, plain: {input:?}"
        );
        assert_eq!(
            &text.decode(expected, false).unwrap(),
            input,
            "{name}: decoding of {expected:?}"
        );
        let mut detokenizer = text.detokenizer(DetokenizerOptions::default(), &[]);
        let mut streamed = String::new();
        for token in expected {
            streamed.push_str(detokenizer.push(*token));
        }
        streamed.push_str(&detokenizer.finish());
        assert_eq!(&streamed, input, "{name}: streaming of {expected:?}");
    }
}

macro_rules! vector_tests {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            check($name);
        })*
    };
}

vector_tests! {
    command_r_gives_the_tokens_of_the_vectors: "command-r",
    deepseek_coder_gives_the_tokens_of_the_vectors: "deepseek-coder",
    deepseek_llm_gives_the_tokens_of_the_vectors: "deepseek-llm",
    falcon_gives_the_tokens_of_the_vectors: "falcon",
    gpt_2_gives_the_tokens_of_the_vectors: "gpt-2",
    llama_bpe_gives_the_tokens_of_the_vectors: "llama-bpe",
    llama_spm_gives_the_tokens_of_the_vectors: "llama-spm",
    mpt_gives_the_tokens_of_the_vectors: "mpt",
    phi_3_gives_the_tokens_of_the_vectors: "phi-3",
    qwen2_gives_the_tokens_of_the_vectors: "qwen2",
    qwen35_gives_the_tokens_of_the_vectors: "qwen35",
    refact_gives_the_tokens_of_the_vectors: "refact",
    starcoder_gives_the_tokens_of_the_vectors: "starcoder",
}

#[test]
fn beginning_of_a_sequence_is_added_on_demand() {
    for (name, bos) in [("llama-bpe", 128_000), ("llama-spm", 1)] {
        let path = assets().join(format!("ggml-vocab-{name}.gguf"));
        let text = Text::load(&TextAssets::from_gguf(vocab(&path)).unwrap()).unwrap();
        let plain = text.encode("Hello", false).unwrap();
        assert_eq!(
            text.encode("Hello", true).unwrap(),
            [vec![bos], plain].concat(),
            "{name}"
        );
        assert_eq!(text.bos_token_id(), Some(bos), "{name}");
    }
}

#[test]
fn vocabulary_without_a_pre_tokenizer_is_refused() {
    let error = TextAssets::from_gguf(vocab(&assets().join("ggml-vocab-gpt-neox.gguf"))).unwrap_err();
    assert!(matches!(error, TextError::UnknownPreTokenizer { .. }), "{error}");
}

#[test]
fn vocabulary_of_another_kind_is_refused() {
    let error = TextAssets::from_gguf(vocab(&assets().join("ggml-vocab-bert-bge.gguf"))).unwrap_err();
    assert!(matches!(error, TextError::UnsupportedGgufModel { .. }), "{error}");
}
