//! Input from people who mean no good: an error with a reason, never a panic, a hang or a wrong default.

use std::collections::BTreeMap;

use kvasir_text::{ChatRequest, DetokenizerOptions, GgufVocab, TOKENIZER_JSON, Text, TextAssets, TextError};
use serde_json::{Value, json};

use crate::common::assets_with_template;

fn text() -> Text {
    Text::load(&assets_with_template(
        "{{ messages[0].content }}",
        &[("bos_token", "<s>")],
    ))
    .unwrap()
}

fn load_tokenizer(content: &[u8]) -> Result<Text, TextError> {
    Text::load(&TextAssets::from_files(BTreeMap::from([(
        TOKENIZER_JSON.to_owned(),
        content.to_vec(),
    )])))
}

/// The tokenizer of the tests with one member replaced.
fn tokenizer_with(pointer: &str, value: Value) -> Vec<u8> {
    let assets = assets_with_template("", &[("bos_token", "<s>")]);
    let mut tokenizer: Value = serde_json::from_slice(assets.get(TOKENIZER_JSON).unwrap()).unwrap();
    *tokenizer.pointer_mut(pointer).unwrap() = value;
    tokenizer.to_string().into_bytes()
}

#[test]
fn garbage_for_a_tokenizer_is_an_error() {
    for garbage in [
        &b""[..],
        b"{}",
        b"null",
        b"\xFF\xFE",
        b"[[[[[[",
        b"{\"model\": {\"type\": \"BPE\"}}",
    ] {
        assert!(
            matches!(load_tokenizer(garbage), Err(TextError::InvalidAsset { .. })),
            "{garbage:?}"
        );
    }
    let missing = Text::load(&TextAssets::from_files(BTreeMap::new()));
    assert!(matches!(
        missing,
        Err(TextError::MissingAsset { name: TOKENIZER_JSON })
    ));
}

#[test]
fn decoder_that_is_not_incremental_is_refused_by_name() {
    let error = load_tokenizer(&tokenizer_with(
        "/decoder",
        json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}),
    ))
    .unwrap_err();
    assert!(
        matches!(&error, TextError::UnsupportedDecoder { kind } if kind == "CTC"),
        "{error}"
    );
}

#[test]
fn absurd_token_id_does_not_allocate() {
    let error = load_tokenizer(&tokenizer_with("/model/vocab", json!({"a": 4_000_000_000_u32}))).unwrap_err();
    assert!(matches!(error, TextError::InvalidAsset { .. }), "{error}");
}

#[test]
fn other_files_that_are_garbage_are_errors_that_name_the_file() {
    for (name, content) in [
        ("tokenizer_config.json", &b"{"[..]),
        ("tokenizer_config.json", b"{\"chat_template\": 7}"),
        ("generation_config.json", b"{\"temperature\": \"hot\"}"),
        ("chat_template.jinja", b"\xFF"),
    ] {
        let mut files = assets_with_template("", &[]).files().clone();
        files.insert(name.to_owned(), content.to_vec());
        let error = Text::load(&TextAssets::from_files(files)).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn ids_out_of_range_are_errors_or_no_text() {
    let text = text();
    for id in [u32::try_from(text.vocab_size()).unwrap(), u32::MAX] {
        assert!(matches!(
            text.decode(&[id], false),
            Err(TextError::UnknownToken { .. })
        ));
        assert!(text.token_str(id).is_err() && text.token_bytes(id).is_err());
        assert_eq!(
            text.detokenizer(DetokenizerOptions::default(), &[id]).push(id),
            ""
        );
        assert!(!text.is_special(id));
    }
}

#[test]
fn huge_texts_are_encoded() {
    let text = text();
    for unit in ["a", " ", "\n", "é", "<s", "1", "\u{0301}"] {
        let huge = unit.repeat(300_000);
        let tokens = text.encode_plain(&huge).unwrap();
        assert_eq!(text.decode(&tokens, false).unwrap(), huge);
    }
}

#[test]
fn nested_loops_in_a_template_of_the_request_run_out_of_fuel() {
    // C65: GHSA-4hhp-h66f-j5j7.
    let template = "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}";
    let request = ChatRequest {
        messages: vec![json!({"role": "user", "content": "x"})],
        template: Some(template.to_owned()),
        ..ChatRequest::default()
    };
    let error = text().render_chat(&request).unwrap_err();
    assert!(matches!(error, TextError::TemplateOutOfFuel { .. }), "{error}");
}

#[test]
fn deeply_nested_arguments_are_an_error() {
    let arguments = "[".repeat(100_000) + &"]".repeat(100_000);
    let request = ChatRequest {
        messages: vec![
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}),
        ],
        ..ChatRequest::default()
    };
    assert!(matches!(
        text().render_chat(&request),
        Err(TextError::InvalidMessage { .. })
    ));
}

fn gguf(change: impl Fn(&mut GgufVocab)) -> Result<TextAssets, TextError> {
    let mut vocab = GgufVocab {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: ["a", "b", "ab", "<s>"].map(str::to_owned).to_vec(),
        token_types: Some(vec![1, 1, 1, 3]),
        merges: Some(vec!["a b".to_owned()]),
        bos: Some(3),
        ..GgufVocab::default()
    };
    change(&mut vocab);
    TextAssets::from_gguf(vocab)
}

#[test]
fn small_gguf_vocabulary_works() {
    let text = Text::load(&gguf(|vocab| vocab.add_bos = Some(true)).unwrap()).unwrap();
    assert_eq!(text.encode("abb", true).unwrap(), [3, 2, 1]);
    assert_eq!(text.encode("<s>", false).unwrap(), [3]);
}

#[test]
fn unknown_pre_tokenizer_is_an_error_that_names_the_known_ones() {
    let error = gguf(|vocab| vocab.pre = Some("gpt-9".to_owned())).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("`gpt-9`") && message.contains("smollm") && message.contains("llama-bpe"),
        "{message}"
    );
    assert!(matches!(
        gguf(|vocab| vocab.pre = None),
        Err(TextError::UnknownPreTokenizer { .. })
    ));
}

#[test]
fn gguf_vocabulary_that_contradicts_itself_is_an_error() {
    let broken: [fn(&mut GgufVocab); 8] = [
        |vocab| vocab.tokens.clear(),
        |vocab| vocab.token_types = Some(vec![1]),
        |vocab| vocab.scores = Some(vec![0.0]),
        |vocab| vocab.bos = Some(4),
        |vocab| vocab.eos = Some(u32::MAX),
        |vocab| vocab.merges = None,
        |vocab| vocab.merges = Some(vec!["a c".to_owned()]),
        |vocab| vocab.merges = Some(vec!["ab".to_owned()]),
    ];
    for (number, change) in broken.into_iter().enumerate() {
        assert!(
            matches!(gguf(change), Err(TextError::InvalidGgufVocab { .. })),
            "change {number}"
        );
    }
    let spm = gguf(|vocab| vocab.model = "llama".to_owned());
    assert!(
        matches!(spm, Err(TextError::InvalidGgufVocab { .. })),
        "no scores"
    );
    assert!(matches!(
        gguf(|vocab| vocab.model = "t5".to_owned()),
        Err(TextError::UnsupportedGgufModel { .. })
    ));
}
