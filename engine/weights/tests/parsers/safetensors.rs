//! safetensors files, good and bad.

use kvasir_weights::safetensors::{SafetensorsError, parse};
use kvasir_weights::{Checkpoint, DType, WeightsError};

use crate::writer::{safetensors_file, safetensors_of};

fn refused(header: &str, data: &[u8]) -> SafetensorsError {
    parse(&safetensors_file(header, data)).unwrap_err()
}

/// A header with one tensor `w`.
fn one(dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
}

#[test]
fn tensors_are_found_with_shape_and_data() {
    let bytes = safetensors_of(&[
        ("b", "F32", &[1, 2], &[1; 8]),
        ("a", "BF16", &[3], &[2; 6]),
        ("e", "F16", &[0], &[]),
    ]);
    let header = parse(&bytes).unwrap();
    let data = |name: &str| &bytes[header.tensors[name].start..header.tensors[name].end];
    assert_eq!(
        (data("b"), data("a"), data("e")),
        (&[1; 8][..], &[2; 6][..], &[][..])
    );
    assert_eq!(header.tensors["b"].shape, [1, 2]);
}

#[test]
fn metadata_and_padding_are_accepted() {
    let header = r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F16","shape":[],"data_offsets":[0,2]}}   "#;
    let header = parse(&safetensors_file(header, &[1, 2])).unwrap();
    assert_eq!(header.metadata["format"], "pt");
    assert!(header.tensors["w"].shape.is_empty());
    assert!(parse(&safetensors_file("{}", &[])).unwrap().tensors.is_empty());
}

#[test]
fn other_types_are_refused_by_name_when_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let tensors = safetensors_of(&[
        ("position_ids", "I64", &[1], &[0; 8]),
        ("w", "F32", &[1], &[0; 4]),
    ]);
    std::fs::write(&path, tensors).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.tensor("w").unwrap().dtype, DType::F32);
    let error = checkpoint.tensor("position_ids").unwrap_err();
    assert!(
        matches!(&error, WeightsError::UnsupportedDType { name, found } if name == "position_ids" && found == "I64")
    );
    assert!(checkpoint.contains("position_ids"));
}

#[test]
fn header_length_is_compared_with_limit_and_file() {
    let with_len = |len: u64| parse(&[&len.to_le_bytes()[..], b"{}"].concat()).unwrap_err();
    assert!(matches!(
        with_len(u64::MAX),
        SafetensorsError::HeaderTooLong { .. }
    ));
    assert!(matches!(
        with_len(1 << 63),
        SafetensorsError::HeaderTooLong { .. }
    ));
    assert_eq!(
        with_len(3),
        SafetensorsError::Truncated {
            needed: 11,
            available: 10
        }
    );
    assert_eq!(
        parse(b"").unwrap_err(),
        SafetensorsError::Truncated {
            needed: 8,
            available: 0
        }
    );
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_the_name() {
    let header = one("F32", "[2]", 0, 4);
    let start = 8 + header.len() as u64;
    let expected = SafetensorsError::SizeMismatch {
        name: "w".into(),
        start,
        found: 4,
        needed: 8,
    };
    assert_eq!(refused(&header, &[0; 4]), expected);
    for (begin, end) in [(0, 5), (4, 2), (u64::MAX, 0), (0, u64::MAX), (1 << 63, 1 << 63)] {
        let error = refused(&one("F32", "[1]", begin, end), &[0; 4]);
        assert!(
            matches!(error, SafetensorsError::BadRange { .. }),
            "{begin}..{end}: {error}"
        );
    }
}

#[test]
fn shapes_that_overflow_are_refused() {
    let shapes = [
        "[4294967296,4294967296]",
        "[18446744073709551615]",
        "[4611686018427387905]",
        "[0,4294967296,4294967296]",
    ];
    for shape in shapes {
        let error = refused(&one("F32", shape, 0, 4), &[0; 4]);
        assert!(
            matches!(error, SafetensorsError::ShapeOverflow { .. }),
            "{shape}: {error}"
        );
    }
    let many = format!("[{}1]", "1,".repeat(100_000));
    let error = refused(&one("F32", &many, 0, 4), &[0; 4]);
    assert_eq!(
        error,
        SafetensorsError::Dimensions {
            name: "w".into(),
            found: 100_001,
            limit: 8
        }
    );
}

#[test]
fn gaps_and_overlaps_are_refused() {
    let two = |first: [u64; 2], second: [u64; 2]| {
        format!(
            r#"{{"a":{{"dtype":"F16","shape":[2],"data_offsets":{first:?}}},"b":{{"dtype":"F16","shape":[2],"data_offsets":{second:?}}}}}"#
        )
    };
    assert!(parse(&safetensors_file(&two([4, 8], [0, 4]), &[0; 8])).is_ok());
    for (first, second, len) in [
        ([0, 4], [2, 6], 6),
        ([0, 4], [0, 4], 4),
        ([0, 4], [6, 10], 10),
        ([2, 6], [6, 10], 10),
    ] {
        let error = refused(&two(first, second), &vec![0; len]);
        assert!(
            matches!(error, SafetensorsError::GapOrOverlap { .. }),
            "{first:?} {second:?}: {error}"
        );
    }
    let error = refused(&two([0, 4], [4, 8]), &[0; 9]);
    let expected = SafetensorsError::GapOrOverlap {
        name: "end of the file".into(),
        expected: 8,
        found: 9,
    };
    assert_eq!(error, expected);
}

#[test]
fn repeated_name_is_refused() {
    let entry = r#"{"dtype":"F16","shape":[1],"data_offsets":[0,2]}"#;
    let error = refused(&format!(r#"{{"w":{entry},"w":{entry}}}"#), &[0; 2]);
    assert!(error.to_string().contains("`w` occurs a second time"), "{error}");
}

#[test]
fn malformed_headers_are_refused_with_an_offset() {
    let deep = format!(r#"{{"w":{}}}"#, "[".repeat(100_000));
    let cases = [
        "",
        " {}",
        "[]",
        "{",
        "null",
        r#"{"w":1}"#,
        r#"{"w":{"dtype":"F16"}}"#,
        r#"{"__metadata__":{"a":1}}"#,
        r#"{"w":{"dtype":"F16","shape":[-1],"data_offsets":[0,2]}}"#,
        r#"{"w":{"dtype":"F16","shape":[1.5],"data_offsets":[0,2]}}"#,
        r#"{"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2,3]}}"#,
        "{} {}",
        "{}\0",
        &deep,
    ];
    for header in cases {
        let error = refused(header, &[0; 2]);
        let SafetensorsError::Malformed { offset, .. } = error else {
            unreachable!("{header}: {error}")
        };
        assert!(
            offset >= 8 && offset <= 8 + header.len() as u64,
            "{header}: {offset}"
        );
    }
    let error = refused("{\n\"w\": 1}", &[]);
    assert!(
        matches!(error, SafetensorsError::Malformed { offset: 16, .. }),
        "{error:?}"
    );
}

#[test]
fn file_cut_at_any_byte_is_refused() {
    let bytes = safetensors_of(&[("a", "F32", &[2], &[1; 8]), ("b", "F16", &[1], &[2; 2])]);
    assert!(parse(&bytes).is_ok());
    for len in 0..bytes.len() {
        assert!(parse(&bytes[..len]).is_err(), "cut at {len}");
    }
}
