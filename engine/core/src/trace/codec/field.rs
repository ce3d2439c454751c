//! What can be written and read back, and how numbers, options, pairs and lists are.
//!
//! A list is read value by value, so memory grows with the bytes that are there, whatever a length says.

use std::sync::Arc;

use super::TraceError;

/// Something that can be written and read back.
pub(super) trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError>;
}

/// What is left to read, and where that begins.
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl Reader<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        let (head, tail) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or(TraceError::CutOff { at: self.at })?;
        self.bytes = tail;
        self.at += N;
        Ok(*head)
    }

    /// A byte below `end`.
    pub(super) fn choice(&mut self, end: u8) -> Result<u8, TraceError> {
        let at = self.at;
        let [value] = self.array()?;
        if value < end {
            Ok(value)
        } else {
            Err(TraceError::Value { at, value })
        }
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
                Ok(Self::from_le_bytes(input.array()?))
            }
        }
    )*};
}

numbers!(u8, u32, u64, i64);

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        Ok(input.choice(2)? == 1)
    }
}

impl Field for [u8; 32] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        input.array()
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        bool::take(input)?.then(|| T::take(input)).transpose()
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for value in self {
            value.put(out);
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        let len = u64::take(input)?;
        // Grows with what is read: a length that lies ends at the end of the bytes.
        let mut values = Self::new();
        for _ in 0..len {
            values.push(T::take(input)?);
        }
        Ok(values)
    }
}

impl Field for Arc<[u32]> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        self.iter().for_each(|token| token.put(out));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        Ok(Vec::take(input)?.into())
    }
}
