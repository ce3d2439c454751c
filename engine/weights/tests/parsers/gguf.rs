//! What a good GGUF file means.

use kvasir_weights::gguf::{Array, Value, parse};
use kvasir_weights::{DType, Gguf, OptionalKey, WeightsError};

use crate::writer::{GgufFile, type_id};

fn open(file: &GgufFile) -> Gguf {
    let on_disk = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(on_disk.path(), file.bytes()).unwrap();
    // The map outlives the name.
    Gguf::open(on_disk.path()).unwrap()
}

#[test]
fn matrix_has_its_rows_first() {
    let file = GgufFile::default().tensor("w", &[64, 3, 2], DType::Q4_1);
    let gguf = open(&file);
    let tensor = gguf.tensor("w").unwrap();
    assert_eq!(
        (tensor.name, tensor.dtype, tensor.shape),
        ("w", DType::Q4_1, &[2, 3, 64][..])
    );
    assert_eq!(tensor.data.len(), 2 * 3 * 40);
}

#[test]
fn data_are_found_behind_their_padding() {
    let file = GgufFile::default()
        .raw_tensor("a", &[3], type_id(DType::F16), vec![1, 2, 3, 4, 5, 6])
        .raw_tensor("b", &[1], type_id(DType::F32), vec![7, 8, 9, 10]);
    let gguf = open(&file);
    assert_eq!(gguf.tensor("a").unwrap().data, [1, 2, 3, 4, 5, 6]);
    assert_eq!(gguf.tensor("b").unwrap().data, [7, 8, 9, 10]);
}

#[test]
fn stated_alignment_is_used() {
    let mut file = GgufFile::default().key("general.alignment", &Value::U32(128));
    file.alignment = 128;
    let file = file
        .raw_tensor("a", &[1], type_id(DType::F16), vec![1, 2])
        .raw_tensor("b", &[1], type_id(DType::F16), vec![3, 4]);
    let header = parse(&file.bytes()).unwrap();
    assert_eq!(header.tensors["b"].start - header.tensors["a"].start, 128);
    assert_eq!(open(&file).tensor("b").unwrap().data, [3, 4]);
}

#[test]
fn tensors_may_lie_in_any_order_with_gaps() {
    let file = GgufFile::default()
        .tensor("late", &[1], DType::F32)
        .at(64)
        .tensor("early", &[1], DType::F32)
        .at(0)
        .raw_tensor("fill", &[16], type_id(DType::F32), vec![0; 64])
        .at(128);
    let mut bytes = file.bytes();
    bytes.resize(bytes.len() + 128, 0);
    let header = parse(&bytes).unwrap();
    assert_eq!(header.tensors["late"].start - header.tensors["early"].start, 64);
}

#[test]
fn version_2_reads_as_version_3_does() {
    let mut file = GgufFile::default()
        .key("k", &Value::U8(1))
        .tensor("w", &[4], DType::F32);
    let three = parse(&file.bytes()).unwrap();
    file.version = 2;
    let two = parse(&file.bytes()).unwrap();
    assert_eq!((two.version, three.version), (2, 3));
    assert_eq!((two.metadata, two.tensors), (three.metadata, three.tensors));
}

#[test]
fn file_without_tensors_is_a_vocabulary() {
    let file = GgufFile::default().key("tokenizer.ggml.model", &Value::Str("gpt2".to_owned()));
    assert_eq!(open(&file).get_str("tokenizer.ggml.model").unwrap(), "gpt2");
}

#[test]
fn integers_of_any_width_that_fit_are_taken() {
    let values = [
        Value::U8(7),
        Value::I8(7),
        Value::U16(7),
        Value::I16(7),
        Value::U32(7),
        Value::I32(7),
        Value::U64(7),
        Value::I64(7),
    ];
    for value in values {
        let gguf = open(&GgufFile::default().key("k", &value));
        assert_eq!(gguf.get_u32("k").unwrap(), 7, "{value:?}");
    }
    for value in [Value::I8(-1), Value::U64(1 << 32), Value::I64(i64::MIN)] {
        let gguf = open(&GgufFile::default().key("k", &value));
        let error = gguf.get_u32("k").unwrap_err();
        assert!(
            matches!(error, WeightsError::OutOfRange { .. }),
            "{value:?}: {error}"
        );
    }
}

#[test]
fn integer_arrays_of_any_width_that_fit_are_taken() {
    for array in [
        Array::I32(vec![1, 2]),
        Array::U8(vec![1, 2]),
        Array::I64(vec![1, 2]),
        Array::U32(vec![1, 2]),
    ] {
        let gguf = open(&GgufFile::default().key("k", &Value::Array(array)));
        assert_eq!(gguf.get_i32_array("k").unwrap(), [1, 2]);
    }
    let gguf = open(&GgufFile::default().key("k", &Value::Array(Array::U32(vec![1, u32::MAX]))));
    assert!(matches!(
        gguf.get_i32_array("k"),
        Err(WeightsError::OutOfRange { .. })
    ));
}

#[test]
fn scores_declared_as_bytes_are_no_floats() {
    let gguf = open(&GgufFile::default().key("tokenizer.ggml.scores", &Value::Array(Array::U8(vec![0; 40]))));
    let error = gguf.get_f32_array("tokenizer.ggml.scores").unwrap_err();
    assert_eq!(
        error.to_string(),
        "metadata key `tokenizer.ggml.scores` must be an array of 32-bit floats, the file has an array of 40 UINT8"
    );
}

#[test]
fn missing_key_is_an_error_or_none_as_the_caller_wants() {
    let gguf = open(&GgufFile::default().key("k", &Value::Bool(true)));
    assert!(matches!(gguf.get_u32("none"), Err(WeightsError::MissingKey { key }) if key == "none"));
    assert_eq!(gguf.get_u32("none").optional().unwrap(), None);
    assert_eq!(gguf.get_bool("k").optional().unwrap(), Some(true));
    // A wrong type isn't a missing key.
    assert!(matches!(
        gguf.get_u32("k").optional(),
        Err(WeightsError::WrongType { .. })
    ));
}

#[test]
fn every_getter_names_what_it_wanted_and_found() {
    let gguf = open(&GgufFile::default().key("k", &Value::Array(Array::Bool(vec![true]))));
    let errors = [
        gguf.get_u32("k").map(|_| ()),
        gguf.get_f32("k").map(|_| ()),
        gguf.get_str("k").map(|_| ()),
        gguf.get_bool("k").map(|_| ()),
        gguf.get_str_array("k").map(|_| ()),
        gguf.get_i32_array("k").map(|_| ()),
        gguf.get_f32_array("k").map(|_| ()),
    ];
    for error in errors {
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("`k`") && text.ends_with("the file has an array of 1 BOOL"),
            "{text}"
        );
    }
}

#[test]
fn metadata_come_in_the_order_of_their_keys() {
    let file = GgufFile::default()
        .key("b", &Value::U8(1))
        .key("a", &Value::F64(0.5));
    let gguf = open(&file);
    let all: Vec<_> = gguf.metadata().collect();
    assert_eq!(all, [("a", &Value::F64(0.5)), ("b", &Value::U8(1))]);
    assert_eq!(gguf.get_f32("a").unwrap(), 0.5);
    assert_eq!(gguf.get("c"), None);
}
