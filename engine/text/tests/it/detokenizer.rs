//! The concatenated stream equals the whole, for every sequence of tokens and every start.

use std::sync::LazyLock;

use kvasir_text::{DetokenizerOptions, Text, TextAssets};
use proptest::prelude::*;

use crate::common::{assets, assets_with_template, vocab};

const SPECIAL: [(&str, &str); 1] = [("eos_token", "</s>")];

/// One token per byte.
static BYTES: LazyLock<Text> = LazyLock::new(|| Text::load(&assets_with_template("", &SPECIAL)).unwrap());

/// SentencePiece: byte tokens, and a space that the first token loses.
static PIECES: LazyLock<Text> = LazyLock::new(|| {
    let vocab = vocab(&assets().join("ggml-vocab-llama-spm.gguf"));
    Text::load(&TextAssets::from_gguf(vocab).unwrap()).unwrap()
});

fn stream(text: &Text, tokens: &[u32], skip_special_tokens: bool) -> Vec<String> {
    let mut detokenizer = text.detokenizer(DetokenizerOptions { skip_special_tokens }, &[]);
    let mut pieces: Vec<String> = tokens
        .iter()
        .map(|token| detokenizer.push(*token).to_owned())
        .collect();
    pieces.push(detokenizer.finish());
    pieces
}

fn bytes(bytes: &[u8]) -> Vec<u32> {
    bytes
        .iter()
        .map(|byte| {
            (0..384)
                .find(|id| BYTES.token_bytes(*id).unwrap() == [*byte])
                .unwrap()
        })
        .collect()
}

#[test]
fn character_over_several_tokens_comes_out_whole() {
    // C34: no U+FFFD in the deltas.
    let tokens = bytes("né🌶你".as_bytes());
    let pieces = stream(&BYTES, &tokens, true);
    assert!(
        pieces.iter().all(|piece| !piece.contains('\u{FFFD}')),
        "{pieces:?}"
    );
    assert_eq!(pieces.concat(), "né🌶你");
    assert_eq!(pieces[2], "é");
}

#[test]
fn prompt_that_ends_within_a_character_is_not_repeated() {
    // C33: vllm#48853, "Hello world " and the first two bytes of U+1F336.
    let prompt = bytes(b"Hello world \xF0\x9F");
    let mut detokenizer = BYTES.detokenizer(DetokenizerOptions::default(), &prompt);
    let generated: String = bytes(b"\x8C\xB6!")
        .iter()
        .map(|token| detokenizer.push(*token).to_owned())
        .collect();
    assert_eq!(generated, "🌶!");

    let mut detokenizer = BYTES.detokenizer(DetokenizerOptions::default(), &prompt);
    assert_eq!(
        detokenizer.push(bytes(b"a")[0]),
        "a",
        "the prompt's broken character is the prompt's"
    );
    assert_eq!(detokenizer.finish(), "");
    let mut unfinished = BYTES.detokenizer(DetokenizerOptions::default(), &prompt);
    assert_eq!(unfinished.finish(), "");
}

#[test]
fn broken_bytes_become_replacement_characters_as_for_the_whole() {
    let broken = b"a\xFFb\xF0\x9Fc\xC3";
    let pieces = stream(&BYTES, &bytes(broken), true);
    assert_eq!(pieces.concat(), String::from_utf8_lossy(broken));
    assert_eq!(pieces.last().unwrap(), "\u{FFFD}");
}

#[test]
fn first_piece_loses_its_space_only_at_the_beginning_of_a_text() {
    let hello = PIECES.encode("Hello", false).unwrap();
    assert_eq!(PIECES.decode(&hello, true).unwrap(), "Hello");
    let mut behind_a_prompt = PIECES.detokenizer(DetokenizerOptions::default(), &hello);
    assert_eq!(behind_a_prompt.push(hello[0]), " Hello");
    assert_eq!(PIECES.token_str(hello[0]).unwrap(), " Hello");
}

#[test]
fn special_tokens_are_left_out_on_demand() {
    let end = BYTES.id_of("</s>").unwrap();
    let tokens = [bytes(b"a"), vec![end], bytes(b"b")].concat();
    assert_eq!(BYTES.decode(&tokens, true).unwrap(), "ab");
    assert_eq!(BYTES.decode(&tokens, false).unwrap(), "a</s>b");
}

proptest! {
    #[test]
    fn stream_of_any_bytes_equals_the_lossy_text(content in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(stream(&BYTES, &bytes(&content), true).concat(), String::from_utf8_lossy(&content));
    }

    #[test]
    fn stream_of_any_text_never_has_a_replacement_character(content in "\\PC{0,32}") {
        prop_assume!(!content.contains(char::REPLACEMENT_CHARACTER));
        let pieces = stream(&BYTES, &bytes(content.as_bytes()), true);
        let broken = pieces.iter().any(|piece| piece.contains(char::REPLACEMENT_CHARACTER));
        prop_assert!(!broken);
        prop_assert_eq!(pieces.concat(), content);
    }

    #[test]
    fn stream_of_any_tokens_equals_their_decoding(
        tokens in prop::collection::vec(prop_oneof![0..300_u32, 0..32_000_u32], 0..32),
        skip: bool,
    ) {
        prop_assert_eq!(stream(&PIECES, &tokens, skip).concat(), PIECES.decode(&tokens, skip).unwrap());
    }

    #[test]
    fn stream_behind_any_prompt_continues_its_text(content in "\\PC{1,24}", cut: prop::sample::Index) {
        let tokens = PIECES.encode(&content, false).unwrap();
        let (prompt, generated) = tokens.split_at(cut.index(tokens.len()));
        let whole = PIECES.decode(&tokens, true).unwrap();
        let mut detokenizer = PIECES.detokenizer(DetokenizerOptions::default(), prompt);
        let mut stream: String = generated.iter().map(|token| detokenizer.push(*token).to_owned()).collect();
        stream.push_str(&detokenizer.finish());
        prop_assert!(whole.ends_with(&stream), "{:?} ends {:?}", stream, whole);
    }
}
