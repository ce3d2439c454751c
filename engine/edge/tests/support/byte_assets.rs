//! A model's files whose tokens are bytes.

use std::collections::BTreeMap;

use serde_json::json;

pub const IM_START: u32 = 256;
pub const IM_END: u32 = 257;

/// A byte-level tokenizer without merges, in which the id of a byte is its value, two special tokens, and a chat template.
pub fn files(template: &str) -> BTreeMap<String, Vec<u8>> {
    // Bytes that can't be printed are written as the characters from 256 on.
    let is_printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut beyond = 255;
    let mut vocab = serde_json::Map::new();
    for byte in 0..256_u32 {
        if !is_printable(byte) {
            beyond += 1;
        }
        let character = if is_printable(byte) { byte } else { beyond };
        vocab.insert(char::from_u32(character).unwrap().to_string(), json!(byte));
    }
    vocab.insert("<|im_start|>".to_owned(), json!(IM_START));
    vocab.insert("<|im_end|>".to_owned(), json!(IM_END));
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [special(IM_START, "<|im_start|>"), special(IM_END, "<|im_end|>")],
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []},
    });
    let config = json!({"eos_token": "<|im_end|>", "chat_template": template});
    BTreeMap::from([
        ("tokenizer.json".to_owned(), tokenizer.to_string().into_bytes()),
        (
            "tokenizer_config.json".to_owned(),
            config.to_string().into_bytes(),
        ),
    ])
}
