//! SentencePiece BPE (`tokenizer.ggml.model` = `llama`).
//!
//! SentencePiece merges, again and again, the two neighbours whose joint spelling has the best score. `tokenizers` merges
//! the pair with the lowest rank. So every way to split a token into two tokens becomes a merge, ranked by the
//! token's score (the conversion of transformers).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{GgufVocab, added_tokens, kind, post_processor, token_type};
use crate::error::TextError;

/// What stands for a space in a spelling.
const SPACE: &str = "\u{2581}";

pub(super) fn tokenizer(vocab: &GgufVocab) -> Result<Value, TextError> {
    let scores = vocab.scores.as_ref().ok_or_else(|| TextError::InvalidGgufVocab {
        reason: "it has no `scores`, which SentencePiece needs".to_owned(),
    })?;
    let mut ids = Map::new();
    for (id, token) in vocab.tokens.iter().enumerate() {
        ids.entry(token.clone()).or_insert(json!(id));
    }
    let add_space = vocab.add_space_prefix.unwrap_or(true);
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders = vec![
        replace(SPACE, " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if add_space {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unk = vocab.unk.and_then(|id| vocab.tokens.get(id as usize));
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocab),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": post_processor(vocab, vocab.add_bos.unwrap_or(true), vocab.add_eos.unwrap_or(false)),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false, "vocab": ids, "merges": merges(vocab, scores),
        },
    }))
}

/// A way to make a token of two others.
struct Merge<'v> {
    left: &'v str,
    right: &'v str,
    score: f32,
}

fn merges(vocab: &GgufVocab, scores: &[f32]) -> Vec<Value> {
    // Only text merges: a control token must not come out of ordinary text.
    let mergeable: BTreeMap<&str, usize> = vocab
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| matches!(kind(vocab, *id), token_type::NORMAL | token_type::USER_DEFINED))
        .map(|(id, token)| (token.as_str(), id))
        .collect();
    let mut merges: Vec<Merge> = Vec::new();
    for (token, id) in &mergeable {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if mergeable.contains_key(left) && mergeable.contains_key(right) {
                merges.push(Merge {
                    left,
                    right,
                    score: scores.get(*id).copied().unwrap_or(f32::MIN),
                });
            }
        }
    }
    // Equal scores: longer parts first, as transformers orders them; the last criterion makes the order total.
    let lengths = |merge: &Merge| (merge.left.chars().count(), merge.right.chars().count());
    merges.sort_by(|a, b| {
        b.score
            .total_cmp(&a.score)
            .then_with(|| lengths(b).cmp(&lengths(a)))
            .then_with(|| {
                (mergeable[a.left], mergeable[a.right]).cmp(&(mergeable[b.left], mergeable[b.right]))
            })
    });
    merges
        .into_iter()
        .map(|merge| json!([merge.left, merge.right]))
        .collect()
}
