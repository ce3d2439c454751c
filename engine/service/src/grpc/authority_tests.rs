use proptest::prelude::*;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
    frame.extend(payload);
    frame
}

/// A literal with a name of its own, as C core writes it.
fn literal(first: u8, name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![first, name.len() as u8];
    field.extend(name.bytes());
    field.push(value.len() as u8);
    field.extend(value.bytes());
    field
}

fn connection(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE.to_vec(), frames.concat()].concat()
}

fn passed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    Frames::default().pass(&mut bytes);
    bytes
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn only_the_authority_loses_its_percent_signs() {
    let block = [
        literal(0x40, ":path", "/a%2Fb"),
        literal(0x40, ":authority", "tmp%2Fa.sock"),
        literal(0x40, ":authoritz", "x%y"),
        literal(0x40, "user", "c%d"),
    ];
    let settings = frame(4, 0, b"%%%%%%");
    let data = frame(0, 0, b"data%");
    let bytes = connection(&[settings, frame(HEADERS, 4, &block.concat()), data]);
    let after = text(&passed(&bytes));
    assert_eq!(after, text(&bytes).replace("tmp%2Fa.sock", "tmp-2Fa.sock"));
}

#[test]
fn an_authority_named_by_the_static_table_is_changed_too() {
    for first in [0x41, 0x01, 0x11] {
        let block = [&[first, 3][..], b"a%b", &[0x82], &literal(0, ":authority", "%")].concat();
        let after = passed(&connection(&[frame(HEADERS, 4, &block)]));
        assert!(after.windows(3).any(|bytes| bytes == b"a-b"), "{}", text(&after));
        assert!(!after.contains(&b'%'));
    }
}

#[test]
fn padding_priority_and_continuations_are_understood() {
    let block = literal(0x40, ":authority", "tmp%2Fa.sock");
    let (head, tail) = block.split_at(16);
    let payload = [&[4][..], b"%%%%%", head, b"%%%%"].concat();
    let bytes = connection(&[
        frame(HEADERS, FLAG_PADDED | FLAG_PRIORITY, &payload),
        frame(CONTINUATION, 4, tail),
    ]);
    let after = passed(&bytes);
    assert_eq!(String::from_utf8_lossy(&after).matches('%').count(), 9);
    assert!(text(&after).contains("2Fa.sock"));
}

#[test]
fn long_texts_and_huffman_codes_pass() {
    let long = "p".repeat(300);
    let mut block = vec![0x40, 1, b'n', 0x7f, 0xad, 0x01];
    block.extend(long.bytes());
    block.extend([0x41, 0x83, b'%', b'%', b'%']);
    block.extend(literal(0x40, ":authority", "a%b"));
    let after = text(&passed(&connection(&[frame(HEADERS, 4, &block)])));
    assert!(after.contains("%%%") && after.contains("a-b"), "{after}");
}

proptest! {
    #[test]
    fn cutting_the_stream_anywhere_changes_nothing(cuts in prop::collection::vec(1_usize..40, 0..20)) {
        let block = [literal(0x40, ":path", "/%"), literal(0x40, ":authority", "tmp%2Fa%2Fb.sock")].concat();
        let bytes = connection(&[frame(HEADERS, 4, &block), frame(0, 0, b"%"), frame(HEADERS, 4, &block)]);
        let mut frames = Frames::default();
        let mut cut = bytes.clone();
        let mut rest = cut.as_mut_slice();
        for length in cuts {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(length.min(rest.len()));
            frames.pass(head);
            rest = tail;
        }
        frames.pass(rest);
        prop_assert_eq!(cut, passed(&bytes));
    }

    #[test]
    fn any_bytes_keep_their_length_and_lose_at_most_percent_signs(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let bytes = [PREFACE.to_vec(), bytes].concat();
        let after = passed(&bytes);
        prop_assert_eq!(bytes.len(), after.len());
        for (before, after) in bytes.iter().zip(&after) {
            prop_assert!(before == after || (*before == b'%' && *after == b'-'));
        }
    }
}
