//! Metadata values.
//!
//! Arrays are stored by element type, and string arrays as one text with the ends of its parts: a vocabulary of
//! 256,000 tokens is two allocations, and no array takes more memory than a small multiple of its bytes in the file.

use std::ops::Index;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(String),
    Array(Array),
}

impl Value {
    /// The value as an integer, when it is one.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::U8(number) => Some(number.into()),
            Self::I8(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::I16(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::I32(number) => Some(number.into()),
            Self::U64(number) => Some(number.into()),
            Self::I64(number) => Some(number.into()),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::Str(_) | Self::Array(_) => None,
        }
    }

    /// The type in the words of the format's specification, such as `UINT32` or `an array of 5 INT8`.
    pub fn type_name(&self) -> String {
        match self {
            Self::U8(_) => "UINT8".to_owned(),
            Self::I8(_) => "INT8".to_owned(),
            Self::U16(_) => "UINT16".to_owned(),
            Self::I16(_) => "INT16".to_owned(),
            Self::U32(_) => "UINT32".to_owned(),
            Self::I32(_) => "INT32".to_owned(),
            Self::U64(_) => "UINT64".to_owned(),
            Self::I64(_) => "INT64".to_owned(),
            Self::F32(_) => "FLOAT32".to_owned(),
            Self::F64(_) => "FLOAT64".to_owned(),
            Self::Bool(_) => "BOOL".to_owned(),
            Self::Str(_) => "STRING".to_owned(),
            Self::Array(array) => format!("an array of {} {}", array.len(), array.element_name()),
        }
    }
}

/// An array in the metadata.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Str(Strings),
    Array(Vec<Array>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(array) => array.len(),
            Self::I8(array) => array.len(),
            Self::U16(array) => array.len(),
            Self::I16(array) => array.len(),
            Self::U32(array) => array.len(),
            Self::I32(array) => array.len(),
            Self::U64(array) => array.len(),
            Self::I64(array) => array.len(),
            Self::F32(array) => array.len(),
            Self::F64(array) => array.len(),
            Self::Bool(array) => array.len(),
            Self::Str(array) => array.len(),
            Self::Array(array) => array.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type in the words of the specification.
    pub fn element_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "UINT8",
            Self::I8(_) => "INT8",
            Self::U16(_) => "UINT16",
            Self::I16(_) => "INT16",
            Self::U32(_) => "UINT32",
            Self::I32(_) => "INT32",
            Self::U64(_) => "UINT64",
            Self::I64(_) => "INT64",
            Self::F32(_) => "FLOAT32",
            Self::F64(_) => "FLOAT64",
            Self::Bool(_) => "BOOL",
            Self::Str(_) => "STRING",
            Self::Array(_) => "ARRAY",
        }
    }
}

impl From<Strings> for Array {
    fn from(strings: Strings) -> Self {
        Self::Str(strings)
    }
}

/// An array of strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// Where each string ends in `text`; it begins where the one before ends.
    ends: Vec<usize>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text.get(start..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let string = &self.text[start..end];
            start = end;
            string
        })
    }

    /// Appends a string.
    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }
}

impl<'a> FromIterator<&'a str> for Strings {
    fn from_iter<I: IntoIterator<Item = &'a str>>(strings: I) -> Self {
        let mut all = Self::default();
        strings.into_iter().for_each(|string| all.push(string));
        all
    }
}

impl Index<usize> for Strings {
    type Output = str;

    fn index(&self, index: usize) -> &str {
        self.get(index)
            .expect("the caller indexes below `len`, as for any slice")
    }
}

#[cfg(test)]
mod tests {
    use super::Strings;

    #[test]
    fn strings_keep_their_borders() {
        let strings: Strings = ["a", "", "bc", "é"].into_iter().collect();
        assert_eq!(strings.iter().collect::<Vec<_>>(), ["a", "", "bc", "é"]);
        assert_eq!(
            (strings.len(), strings.get(1), &strings[3], strings.get(4)),
            (4, Some(""), "é", None)
        );
    }
}
