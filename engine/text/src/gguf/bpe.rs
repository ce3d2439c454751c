//! Byte-level BPE (`tokenizer.ggml.model` = `gpt2`).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{GgufVocab, added_tokens, post_processor, pre};
use crate::error::TextError;

pub(super) fn tokenizer(vocab: &GgufVocab) -> Result<Value, TextError> {
    let pre = pre::find(vocab.pre.as_deref())?;
    let merges = vocab
        .merges
        .as_ref()
        .ok_or_else(|| invalid("it has no `merges`"))?;
    let spellings: BTreeSet<&str> = vocab.tokens.iter().map(String::as_str).collect();
    let mut ids = Map::new();
    for (id, token) in vocab.tokens.iter().enumerate() {
        // Unused padding entries may repeat; the first one is the token.
        ids.entry(token.clone()).or_insert(json!(id));
    }
    let merges = merges
        .iter()
        .map(|merge| {
            // A spelling may begin with a space in vocabularies without byte encoding.
            let at = merge
                .char_indices()
                .skip(1)
                .find(|(_, character)| *character == ' ')
                .map(|(at, _)| at);
            let (left, right) = at.map(|at| (&merge[..at], &merge[at + 1..])).unwrap_or_default();
            let all_known = !left.is_empty()
                && [left, right, &format!("{left}{right}")]
                    .iter()
                    .all(|spelling| spellings.contains(*spelling));
            if all_known {
                Ok(json!([left, right]))
            } else {
                Err(invalid(&format!("merge {merge:?} isn't made of its tokens")))
            }
        })
        .collect::<Result<Vec<Value>, TextError>>()?;
    let add_bos = vocab.add_bos.unwrap_or(pre.adds_bos);
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocab),
        "normalizer": null,
        "pre_tokenizer": pre.pre_tokenizer(),
        "post_processor": post_processor(vocab, add_bos, vocab.add_eos.unwrap_or(false)),
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": pre.ignores_merges, "vocab": ids, "merges": merges,
        },
    }))
}

fn invalid(reason: &str) -> TextError {
    TextError::InvalidGgufVocab {
        reason: reason.to_owned(),
    }
}
