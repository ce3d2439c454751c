//! GGUF files that declare what isn't true. The cases named C83 are crashes and hangs of other readers.

use kvasir_weights::DType;
use kvasir_weights::gguf::{GgufError, GgufProblem, Strings, Subject, Value, parse};

use crate::writer::{GgufFile, kind, string_bytes, type_id};

fn refused(bytes: &[u8]) -> GgufError {
    parse(bytes).unwrap_err()
}

fn key(name: &str) -> Subject {
    Subject::Key(name.to_owned())
}

fn tensor(name: &str) -> Subject {
    Subject::Tensor(name.to_owned())
}

/// The header of a file with these counts.
fn counts(tensors: u64, keys: u64) -> Vec<u8> {
    [
        b"GGUF",
        &3_u32.to_le_bytes()[..],
        &tensors.to_le_bytes(),
        &keys.to_le_bytes(),
    ]
    .concat()
}

#[test]
fn dimension_whose_size_wraps_to_zero_is_refused() {
    // C83: (2^42 + 1) rows of 2^22 floats are 4 * 2^22 bytes modulo 2^64.
    for dims in [
        &[1 << 22, (1 << 42) + 1][..],
        &[(1 << 62) + 1],
        &[1 << 32, 1 << 32],
        &[u64::MAX; 4],
    ] {
        let error = refused(&GgufFile::default().raw_tensor("w", dims, 0, vec![0; 64]).bytes());
        assert_eq!(error.subject, tensor("w"));
        assert!(
            matches!(error.problem, GgufProblem::ShapeOverflow { .. }),
            "{dims:?}: {error}"
        );
    }
}

#[test]
fn quantized_shape_whose_element_count_wraps_is_refused() {
    let dims = [32, 1 << 59, 1 << 2];
    let error = refused(
        &GgufFile::default()
            .raw_tensor("w", &dims, type_id(DType::Q4_0), vec![0; 64])
            .bytes(),
    );
    assert!(
        matches!(error.problem, GgufProblem::ShapeOverflow { .. }),
        "{error}"
    );
}

#[test]
fn string_of_2_to_the_63_bytes_is_refused() {
    let error = refused(
        &GgufFile::default()
            .raw_key("k", kind::STR, &(1_u64 << 63).to_le_bytes())
            .bytes(),
    );
    assert_eq!(error.subject, key("k"));
    assert!(
        matches!(
            error.problem,
            GgufProblem::StringTooLong {
                len: 0x8000_0000_0000_0000,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn string_that_leaves_the_file_is_refused() {
    let error = refused(
        &GgufFile::default()
            .raw_key("k", kind::STR, &100_u64.to_le_bytes())
            .bytes(),
    );
    assert_eq!(
        error.problem,
        GgufProblem::Truncated {
            needed: 100,
            available: 0
        }
    );
}

#[test]
fn array_of_2_to_the_63_elements_is_refused_at_once() {
    // C83: 43 bytes of file that hung a reader while its memory grew.
    for element in [kind::U8, kind::F32, kind::STR, kind::ARRAY] {
        for len in [1 << 63, u64::MAX, 1 << 40] {
            let value = [&element.to_le_bytes()[..], &u64::to_le_bytes(len)].concat();
            let error = refused(&GgufFile::default().raw_key("k", kind::ARRAY, &value).bytes());
            assert_eq!(error.subject, key("k"));
            assert!(
                matches!(error.problem, GgufProblem::CountBeyondFile { .. }),
                "{element} {len}: {error}"
            );
        }
    }
}

#[test]
fn tensor_count_of_2_to_the_63_is_refused() {
    let error = refused(&counts(1 << 63, 0));
    assert_eq!((error.subject, error.offset), (Subject::Header, 8));
    assert!(
        matches!(error.problem, GgufProblem::TooMany { what: "tensors", .. }),
        "{}",
        error.problem
    );
    let error = refused(&counts(0, 1 << 63));
    assert!(
        matches!(
            error.problem,
            GgufProblem::TooMany {
                what: "metadata entries",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn counts_below_the_limit_are_compared_with_the_file() {
    for (tensors, keys) in [(1000, 0), (0, 1000), (1, 0), (0, 1)] {
        let error = refused(&counts(tensors, keys));
        assert!(
            matches!(error.problem, GgufProblem::CountBeyondFile { .. }),
            "{error}"
        );
    }
}

#[test]
fn alignment_of_another_type_is_refused() {
    // C83: INT32 read as UINT32.
    let error = refused(
        &GgufFile::default()
            .raw_key("general.alignment", kind::I32, &32_i32.to_le_bytes())
            .bytes(),
    );
    assert_eq!(error.subject, key("general.alignment"));
    assert_eq!(
        error.problem,
        GgufProblem::AlignmentType {
            found: "INT32".to_owned()
        }
    );
}

#[test]
fn alignment_that_is_no_power_of_two_is_refused() {
    for found in [0, 3, 33, u32::MAX] {
        let error = refused(
            &GgufFile::default()
                .key("general.alignment", &Value::U32(found))
                .bytes(),
        );
        assert_eq!(error.problem, GgufProblem::Alignment { found });
    }
}

#[test]
fn huge_alignment_does_not_wrap() {
    let file = GgufFile::default().key("general.alignment", &Value::U32(1 << 31));
    let error = refused(&file.tensor("w", &[1], DType::F32).bytes());
    assert!(
        matches!(error.problem, GgufProblem::DataBeyondFile { .. }),
        "{error}"
    );
}

#[test]
fn wrong_numbers_of_dimensions_are_refused() {
    for dims in [&[][..], &[1; 5], &[1; 64]] {
        let error = refused(&GgufFile::default().raw_tensor("w", dims, 0, vec![0; 4]).bytes());
        assert_eq!(error.subject, tensor("w"));
        assert_eq!(
            error.problem,
            GgufProblem::Dimensions {
                found: dims.len() as u32
            }
        );
    }
}

#[test]
fn zero_dimension_is_refused() {
    let error = refused(
        &GgufFile::default()
            .raw_tensor("w", &[4, 0], 0, Vec::new())
            .bytes(),
    );
    assert_eq!(error.problem, GgufProblem::ZeroDimension { index: 1 });
}

#[test]
fn row_of_broken_blocks_is_refused() {
    let error = refused(
        &GgufFile::default()
            .raw_tensor("w", &[33], type_id(DType::Q8_0), vec![0; 68])
            .bytes(),
    );
    assert_eq!(
        error.problem,
        GgufProblem::BrokenBlock {
            cols: 33,
            dtype: DType::Q8_0,
            block: 32
        }
    );
}

#[test]
fn unsupported_and_unknown_types_are_named() {
    for (id, name) in [
        (20, "IQ4_NL"),
        (39, "MXFP4"),
        (4, "number 4"),
        (u32::MAX, "number 4294967295"),
    ] {
        let error = refused(
            &GgufFile::default()
                .raw_tensor("w", &[32], id, vec![0; 64])
                .bytes(),
        );
        assert_eq!(
            error.problem,
            GgufProblem::UnsupportedType {
                name: name.to_owned()
            }
        );
    }
}

#[test]
fn data_behind_the_end_are_refused() {
    let file = GgufFile::default().tensor("w", &[16], DType::F32);
    let mut bytes = file.bytes();
    bytes.pop();
    assert!(matches!(
        refused(&bytes).problem,
        GgufProblem::DataBeyondFile { size: 64, .. }
    ));
    for offset in [64, 1 << 40, u64::MAX - 31] {
        let error = refused(&file.clone().at(offset).bytes());
        assert!(
            matches!(error.problem, GgufProblem::DataBeyondFile { .. }),
            "{offset}: {error}"
        );
    }
}

#[test]
fn unaligned_offset_is_refused() {
    let file = GgufFile::default()
        .tensor("a", &[16], DType::F32)
        .tensor("w", &[1], DType::F32)
        .at(4);
    let error = refused(&file.bytes());
    assert_eq!(
        (error.subject, error.problem),
        (
            tensor("w"),
            GgufProblem::Unaligned {
                offset: 4,
                alignment: 32
            }
        )
    );
}

#[test]
fn overlapping_tensors_are_refused() {
    let file = GgufFile::default()
        .tensor("a", &[16], DType::F32)
        .tensor("b", &[16], DType::F32);
    for offset in [0, 32] {
        let error = refused(&file.clone().at(offset).bytes());
        assert_eq!(
            (error.subject, error.problem),
            (
                tensor("b"),
                GgufProblem::Overlap {
                    other: "a".to_owned()
                }
            )
        );
    }
}

#[test]
fn repeated_names_are_refused() {
    let file = GgufFile::default()
        .key("k", &Value::U8(1))
        .key("k", &Value::U8(2));
    let error = refused(&file.bytes());
    assert_eq!((error.subject, error.problem), (key("k"), GgufProblem::Duplicate));
    let file = GgufFile::default()
        .tensor("w", &[1], DType::F32)
        .tensor("w", &[1], DType::F32);
    let error = refused(&file.bytes());
    assert_eq!(
        (error.subject, error.problem),
        (tensor("w"), GgufProblem::Duplicate)
    );
}

#[test]
fn nested_arrays_end_at_the_limit() {
    let nested = |depth: usize| {
        let mut value = Vec::new();
        for _ in 1..depth {
            value.extend([&kind::ARRAY.to_le_bytes()[..], &1_u64.to_le_bytes()].concat());
        }
        value.extend([&kind::U8.to_le_bytes()[..], &1_u64.to_le_bytes(), &[7]].concat());
        GgufFile::default().raw_key("k", kind::ARRAY, &value).bytes()
    };
    assert!(parse(&nested(4)).is_ok());
    for depth in [5, 100_000] {
        assert_eq!(
            refused(&nested(depth)).problem,
            GgufProblem::NestedTooDeep { limit: 4 }
        );
    }
}

#[test]
fn odd_values_are_refused() {
    let boolean = refused(&GgufFile::default().raw_key("k", 7, &[2]).bytes());
    assert_eq!(boolean.problem, GgufProblem::InvalidBool { found: 2 });
    let unknown = refused(&GgufFile::default().raw_key("k", 13, &[0]).bytes());
    assert_eq!(unknown.problem, GgufProblem::UnknownValueType { found: 13 });
    let text = [&2_u64.to_le_bytes()[..], &[0xc3, 0x28]].concat();
    assert_eq!(
        refused(&GgufFile::default().raw_key("k", kind::STR, &text).bytes()).problem,
        GgufProblem::NotUtf8
    );
    let long = GgufFile::default().tensor(&"n".repeat(257), &[1], DType::F32);
    assert!(matches!(
        refused(&long.bytes()).problem,
        GgufProblem::StringTooLong { len: 257, limit: 256 }
    ));
}

#[test]
fn other_files_and_versions_are_told_apart() {
    assert!(matches!(
        refused(b"").problem,
        GgufProblem::Truncated {
            needed: 4,
            available: 0
        }
    ));
    assert_eq!(
        refused(b"PK\x03\x04rest").problem,
        GgufProblem::WrongMagic {
            found: *b"PK\x03\x04"
        }
    );
    for (version, expected) in [
        (1, GgufProblem::UnsupportedVersion { found: 1 }),
        (4, GgufProblem::UnsupportedVersion { found: 4 }),
        (3_u32.swap_bytes(), GgufProblem::BigEndian),
    ] {
        let file = GgufFile {
            version,
            ..GgufFile::default()
        };
        let error = refused(&file.bytes());
        assert_eq!((error.offset, error.problem), (4, expected));
    }
}

#[test]
fn part_of_a_split_model_is_refused() {
    let error = refused(&GgufFile::default().key("split.count", &Value::U16(3)).bytes());
    assert_eq!(error.problem, GgufProblem::Split { parts: 3 });
    assert!(parse(&GgufFile::default().key("split.count", &Value::U16(1)).bytes()).is_ok());
}

#[test]
fn file_cut_at_any_byte_is_refused_with_a_place_inside_it() {
    let file = GgufFile::default()
        .key("text", &Value::Str("words".to_owned()))
        .key(
            "list",
            &Value::Array(["a", "b"].into_iter().collect::<Strings>().into()),
        )
        .tensor("a", &[32, 2], DType::Q4_0)
        .tensor("b", &[3], DType::F32);
    let bytes = file.bytes();
    assert!(parse(&bytes).is_ok());
    for len in 0..bytes.len() {
        let error = refused(&bytes[..len]);
        assert!(error.offset <= len as u64, "cut at {len}: {error}");
    }
}

#[test]
fn error_text_names_place_offset_and_problem() {
    let bytes = GgufFile::default()
        .raw_key("k", kind::STR, &string_bytes("abc")[..9])
        .bytes();
    assert_eq!(
        refused(&bytes).to_string(),
        "metadata key `k` at byte 45: the file ends here: 3 bytes are needed, 1 are left"
    );
}
