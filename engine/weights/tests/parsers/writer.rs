//! Writers of both formats, with the freedom to lie.

use kvasir_weights::DType;
use kvasir_weights::gguf::{Array, Value};

/// Numbers of the format for value types.
pub(crate) mod kind {
    pub(crate) const U8: u32 = 0;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const STR: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
}

/// A GGUF file in the making.
#[derive(Clone, Debug)]
pub(crate) struct GgufFile {
    pub(crate) version: u32,
    pub(crate) alignment: u64,
    /// Key, then type number and value as they stand in the file.
    pub(crate) metadata: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<GgufTensor>,
}

/// A tensor in the making.
#[derive(Clone, Debug)]
pub(crate) struct GgufTensor {
    pub(crate) name: String,
    /// Innermost first, as in the file.
    pub(crate) dims: Vec<u64>,
    pub(crate) type_id: u32,
    pub(crate) data: Vec<u8>,
    /// Instead of the place where the data really lie.
    pub(crate) offset: Option<u64>,
}

impl Default for GgufFile {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            metadata: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl GgufFile {
    pub(crate) fn key(mut self, key: &str, value: &Value) -> Self {
        self.metadata.push((key.to_owned(), value_bytes(value)));
        self
    }

    pub(crate) fn raw_key(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.metadata
            .push((key.to_owned(), [&kind.to_le_bytes(), value].concat()));
        self
    }

    /// A tensor of zeros.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], dtype: DType) -> Self {
        let rows: u64 = dims[1..].iter().product();
        let data = vec![0; dtype.row_bytes(dims[0] as usize).unwrap() * rows as usize];
        self.raw_tensor(name, dims, type_id(dtype), data)
    }

    pub(crate) fn raw_tensor(mut self, name: &str, dims: &[u64], type_id: u32, data: Vec<u8>) -> Self {
        let (name, dims) = (name.to_owned(), dims.to_vec());
        self.tensors.push(GgufTensor {
            name,
            dims,
            type_id,
            data,
            offset: None,
        });
        self
    }

    /// The last tensor at another offset than that of its data.
    pub(crate) fn at(mut self, offset: u64) -> Self {
        self.tensors.last_mut().unwrap().offset = Some(offset);
        self
    }

    /// The file's bytes, without padding after the last tensor.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            file.extend(string_bytes(key));
            file.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment as usize), 0);
            file.extend(string_bytes(&tensor.name));
            file.extend((tensor.dims.len() as u32).to_le_bytes());
            file.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            file.extend(tensor.type_id.to_le_bytes());
            file.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        if !data.is_empty() {
            file.resize(file.len().next_multiple_of(self.alignment as usize), 0);
        }
        file.extend(data);
        file
    }
}

/// A string as in a GGUF file.
pub(crate) fn string_bytes(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// The format's number for an element type.
pub(crate) fn type_id(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q2K => 10,
        DType::Q3K => 11,
        DType::Q4K => 12,
        DType::Q5K => 13,
        DType::Q6K => 14,
        DType::BF16 => 30,
    }
}

/// Type number and value.
fn value_bytes(value: &Value) -> Vec<u8> {
    let (kind, bytes) = match value {
        Value::U8(number) => (0, number.to_le_bytes().to_vec()),
        Value::I8(number) => (1, number.to_le_bytes().to_vec()),
        Value::U16(number) => (2, number.to_le_bytes().to_vec()),
        Value::I16(number) => (3, number.to_le_bytes().to_vec()),
        Value::U32(number) => (4, number.to_le_bytes().to_vec()),
        Value::I32(number) => (5, number.to_le_bytes().to_vec()),
        Value::F32(number) => (6, number.to_le_bytes().to_vec()),
        Value::Bool(flag) => (7, vec![u8::from(*flag)]),
        Value::Str(text) => (8, string_bytes(text)),
        Value::Array(array) => (9, array_bytes(array)),
        Value::U64(number) => (10, number.to_le_bytes().to_vec()),
        Value::I64(number) => (11, number.to_le_bytes().to_vec()),
        Value::F64(number) => (12, number.to_le_bytes().to_vec()),
    };
    [&u32::to_le_bytes(kind)[..], &bytes].concat()
}

/// Element type, length, elements.
fn array_bytes(array: &Array) -> Vec<u8> {
    let (kind, bytes): (u32, Vec<u8>) = match array {
        Array::U8(all) => (0, all.clone()),
        Array::I8(all) => (1, all.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Array::U16(all) => (2, all.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Array::I16(all) => (3, all.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Array::U32(all) => (4, all.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Array::I32(all) => (5, all.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Array::F32(all) => (6, all.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Array::Bool(all) => (7, all.iter().map(|flag| u8::from(*flag)).collect()),
        Array::Str(all) => (8, all.iter().flat_map(string_bytes).collect()),
        Array::Array(all) => (9, all.iter().flat_map(array_bytes).collect()),
        Array::U64(all) => (10, all.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Array::I64(all) => (11, all.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Array::F64(all) => (12, all.iter().flat_map(|number| number.to_le_bytes()).collect()),
    };
    [
        &kind.to_le_bytes()[..],
        &(array.len() as u64).to_le_bytes(),
        &bytes,
    ]
    .concat()
}

/// A safetensors file with this header.
pub(crate) fn safetensors_file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A safetensors file of tensors that lie in order: name, type, shape, data.
pub(crate) fn safetensors_of(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let (begin, end) = (data.len(), data.len() + bytes.len());
        let name = serde_json::to_string(name).unwrap();
        entries.push(format!(
            r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        ));
        data.extend(*bytes);
    }
    safetensors_file(&format!("{{{}}}", entries.join(",")), &data)
}
