use std::num::NonZeroU32;

use proptest::prelude::*;

use super::super::tokens_within;

/// The text of each token, in order; a token's id is its place.
fn within(tokens: &[&[u8]], max_chars: u32) -> usize {
    let ids: Vec<u32> = (0..tokens.len() as u32).collect();
    tokens_within(
        &ids,
        |id| tokens[id as usize],
        NonZeroU32::new(max_chars).unwrap(),
    )
}

#[test]
fn a_token_that_ends_at_the_bound_counts_and_one_that_goes_beyond_does_not() {
    let tokens: [&[u8]; 3] = [b"He", b"llo", b" you"];
    assert_eq!(within(&tokens, 1), 0);
    assert_eq!(within(&tokens, 2), 1);
    assert_eq!(within(&tokens, 4), 1);
    assert_eq!(within(&tokens, 5), 2);
    assert_eq!(within(&tokens, 8), 2);
    assert_eq!(within(&tokens, 9), 3);
    assert_eq!(within(&tokens, u32::MAX), 3);
    assert_eq!(within(&[], 1), 0);
}

#[test]
fn characters_count_and_not_their_bytes() {
    // Two, three and four bytes for each.
    let tokens: [&[u8]; 3] = ["é".as_bytes(), "語".as_bytes(), "😀".as_bytes()];
    for chars in 1..=3 {
        assert_eq!(within(&tokens, chars), chars as usize);
    }
}

#[test]
fn a_character_that_several_tokens_make_begins_with_the_first_of_them() {
    let smile = "😀".as_bytes();
    let tokens: [&[u8]; 6] = [b"a", &smile[..1], &smile[1..2], &smile[2..3], &smile[3..], b"b"];
    assert_eq!(within(&tokens, 1), 1);
    assert_eq!(within(&tokens, 2), 5);
    assert_eq!(within(&tokens, 3), 6);
}

#[test]
fn a_token_may_end_one_character_and_begin_another() {
    let text = "é語".as_bytes();
    let tokens: [&[u8]; 3] = [&text[..1], &text[1..3], &text[3..]];
    assert_eq!(within(&tokens, 1), 1);
    assert_eq!(within(&tokens, 2), 3);
}

#[test]
fn special_tokens_count_with_their_text_and_ids_without_text_take_up_nothing() {
    let tokens: [&[u8]; 4] = [b"<|im_start|>", b"", b"user", b""];
    assert_eq!(within(&tokens, 11), 0);
    assert_eq!(within(&tokens, 12), 2);
    assert_eq!(within(&tokens, 16), 4);
}

#[test]
fn what_is_no_utf8_counts_as_it_is_shown() {
    // Each lone continuation byte is one U+FFFD, and so is a beginning that something else interrupts.
    let tokens: [&[u8]; 4] = [b"\x80", b"\xf0\x9f", b"x", b"\xff\xff"];
    assert_eq!(within(&tokens, 1), 1);
    assert_eq!(within(&tokens, 2), 2);
    assert_eq!(within(&tokens, 3), 3);
    assert_eq!(within(&tokens, 4), 3);
    assert_eq!(within(&tokens, 5), 4);
}

proptest! {
    #[test]
    fn tokens_within_are_those_whose_text_has_no_more_characters(
        tokens in prop::collection::vec(
            prop::collection::vec(prop::sample::select(vec![b'a', 0xc3, 0xa9, 0xf0, 0x9f, 0x98, 0x80, 0xe8, 0xff]), 0..4),
            0..12,
        ),
        max_chars in 1_u32..20,
    ) {
        let parts: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
        let num_chars = |num: usize| String::from_utf8_lossy(&tokens[..num].concat()).chars().count();
        let expected = (1..=tokens.len()).take_while(|num| num_chars(*num) <= max_chars as usize).count();
        prop_assert_eq!(within(&parts, max_chars), expected);
    }
}
