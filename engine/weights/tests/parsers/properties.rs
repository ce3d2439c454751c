//! What was written is read back equal; no change of bytes makes a parser panic or hand out a wild range.

use std::collections::BTreeMap;

use kvasir_weights::gguf::{Array, Value};
use kvasir_weights::{DType, StoredType, TensorEntry, gguf, safetensors};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use crate::writer::{GgufFile, safetensors_of, type_id};

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        // Without NaN, which equals nothing.
        (-1e30_f32..1e30).prop_map(Value::F32),
        (-1e300_f64..1e300).prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::Str),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    let flat = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(-1e30_f32..1e30, 0..9).prop_map(Array::F32),
        vec(-1e300_f64..1e300, 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(any::<String>(), 0..9).prop_map(|all| Array::Str(all.iter().map(String::as_str).collect())),
    ];
    flat.prop_recursive(3, 16, 3, |inner| vec(inner, 0..4).prop_map(Array::Array))
}

fn metadata() -> impl Strategy<Value = BTreeMap<String, Value>> {
    btree_map(
        "[a-z.]{1,12}",
        prop_oneof![scalar(), array().prop_map(Value::Array)],
        0..6,
    )
}

/// A type, dimensions outermost first, and data for them.
fn tensor() -> impl Strategy<Value = (DType, Vec<usize>, Vec<u8>)> {
    let dtype = proptest::sample::select(DType::ALL.to_vec());
    (dtype, vec(1_usize..4, 0..4), 1_usize..4, any::<u8>()).prop_map(|(dtype, mut shape, blocks, seed)| {
        let cols = blocks * dtype.block_len();
        let rows: usize = shape.iter().product();
        shape.push(cols);
        let len = dtype.row_bytes(cols).unwrap() * rows;
        let data = (0..len)
            .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
            .collect();
        (dtype, shape, data)
    })
}

type Tensors = BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>;

fn gguf_file(metadata: &BTreeMap<String, Value>, tensors: &Tensors, alignment: u32) -> Vec<u8> {
    let mut file = GgufFile {
        alignment: alignment.into(),
        ..GgufFile::default()
    };
    file = file.key("general.alignment", &Value::U32(alignment));
    for (key, value) in metadata {
        file = file.key(key, value);
    }
    for (name, (dtype, shape, data)) in tensors {
        let dims: Vec<_> = shape.iter().rev().map(|&dim| dim as u64).collect();
        file = file.raw_tensor(name, &dims, type_id(*dtype), data.clone());
    }
    file.bytes()
}

/// A change of a file's bytes.
#[derive(Clone, Debug)]
enum Change {
    Set(usize, u8),
    Flip(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Cut(usize),
    /// Eight bytes at once, so that lengths become huge.
    Number(usize, u64),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let number = prop_oneof![
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 32),
        Just(0),
        any::<u64>(),
        0_u64..300
    ];
    let change = prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<usize>(), 0_u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        any::<usize>().prop_map(Change::Remove),
        any::<usize>().prop_map(Change::Cut),
        (any::<usize>(), number).prop_map(|(at, number)| Change::Number(at, number)),
    ];
    vec(change, 1..8)
}

fn apply(bytes: &mut Vec<u8>, changes: &[Change]) {
    for change in changes {
        if bytes.is_empty() {
            return;
        }
        let len = bytes.len();
        match *change {
            Change::Set(at, byte) => bytes[at % len] = byte,
            Change::Flip(at, bit) => bytes[at % len] ^= 1 << bit,
            Change::Insert(at, byte) => bytes.insert(at % len, byte),
            Change::Remove(at) => drop(bytes.remove(at % len)),
            Change::Cut(at) => bytes.truncate(at % len),
            Change::Number(at, number) => {
                let at = at % len;
                let end = len.min(at + 8);
                bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
            }
        }
    }
}

/// Holds for whatever a parser lets through.
fn check_entries(tensors: &BTreeMap<String, TensorEntry>, file_len: usize) -> Result<(), TestCaseError> {
    for (name, entry) in tensors {
        prop_assert!(
            entry.start <= entry.end && entry.end <= file_len,
            "{name}: {entry:?} of {file_len}"
        );
        if let StoredType::Known(dtype) = entry.stored {
            let elements: usize = entry.shape.iter().product();
            let bytes = elements / dtype.block_len() * dtype.block_bytes();
            prop_assert_eq!(bytes, entry.end - entry.start, "{}: {:?}", name, entry);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn gguf_reads_back_as_written(
        metadata in metadata(),
        tensors in btree_map("[a-z.]{1,12}", tensor(), 0..5),
        alignment in proptest::sample::select(vec![1_u32, 8, 32, 64]),
    ) {
        let bytes = gguf_file(&metadata, &tensors, alignment);
        let mut header = gguf::parse(&bytes).unwrap();
        prop_assert_eq!(header.metadata.remove("general.alignment"), Some(Value::U32(alignment)));
        prop_assert_eq!(&header.metadata, &metadata);
        prop_assert!(header.tensors.keys().eq(tensors.keys()));
        for (name, (dtype, shape, data)) in &tensors {
            let entry = &header.tensors[name];
            prop_assert_eq!(&entry.stored, &StoredType::Known(*dtype));
            prop_assert_eq!(&entry.shape, shape);
            prop_assert_eq!(&bytes[entry.start..entry.end], &data[..]);
        }
    }

    #[test]
    fn changed_gguf_never_panics(
        metadata in metadata(),
        tensors in btree_map("[a-z.]{1,12}", tensor(), 0..3),
        changes in changes(),
    ) {
        let mut bytes = gguf_file(&metadata, &tensors, 32);
        apply(&mut bytes, &changes);
        match gguf::parse(&bytes) {
            Ok(header) => check_entries(&header.tensors, bytes.len())?,
            Err(error) => prop_assert!(error.offset <= bytes.len() as u64, "{}", error),
        }
    }

    #[test]
    fn safetensors_read_back_as_written(
        tensors in btree_map(any::<String>(), (0_usize..3, vec(0_usize..4, 0..4), any::<u8>()), 0..5),
    ) {
        let types = [("F32", DType::F32, 4), ("F16", DType::F16, 2), ("BF16", DType::BF16, 2)];
        let data: Vec<_> = tensors
            .values()
            .map(|(kind, shape, seed)| vec![*seed; shape.iter().product::<usize>() * types[*kind].2])
            .collect();
        let parts: Vec<_> = tensors
            .iter()
            .zip(&data)
            .map(|((name, (kind, shape, _)), data)| (name.as_str(), types[*kind].0, &shape[..], &data[..]))
            .collect();
        prop_assume!(!tensors.contains_key("__metadata__"));
        let bytes = safetensors_of(&parts);
        let header = safetensors::parse(&bytes).unwrap();
        prop_assert!(header.tensors.keys().eq(tensors.keys()));
        for ((name, (kind, shape, _)), data) in tensors.iter().zip(&data) {
            let entry = &header.tensors[name];
            prop_assert_eq!(&entry.stored, &StoredType::Known(types[*kind].1));
            prop_assert_eq!(&entry.shape, shape);
            prop_assert_eq!(&bytes[entry.start..entry.end], &data[..]);
        }
    }

    #[test]
    fn changed_safetensors_never_panic(changes in changes()) {
        let mut bytes = safetensors_of(&[("a", "F32", &[2, 1], &[1; 8]), ("b", "I64", &[1], &[2; 8])]);
        apply(&mut bytes, &changes);
        if let Ok(header) = safetensors::parse(&bytes) {
            check_entries(&header.tensors, bytes.len())?;
        }
    }

    #[test]
    fn changed_index_never_panics(changes in changes()) {
        let mut bytes = br#"{"metadata":{"total_size":8},"weight_map":{"a":"m-1.safetensors","b":"m.safetensors"}}"#.to_vec();
        apply(&mut bytes, &changes);
        if let Ok(map) = safetensors::parse_index(&bytes) {
            prop_assert!(map.values().all(|shard| !shard.contains('/') && shard.ends_with(".safetensors")));
        }
    }
}
