//! Element types of stored tensors and the arithmetic of their blocks.

use std::fmt;

/// How a tensor's elements are stored.
///
/// Block sizes and byte counts are those of the GGUF specification's quantized types; the plain types are blocks of one
/// element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// 32 elements: one f16 scale, 4-bit values.
    Q4_0,
    /// 32 elements: f16 scale and minimum, 4-bit values.
    Q4_1,
    /// 32 elements: one f16 scale, 5-bit values.
    Q5_0,
    /// 32 elements: f16 scale and minimum, 5-bit values.
    Q5_1,
    /// 32 elements: one f16 scale, 8-bit values.
    Q8_0,
    /// 256 elements in 16 groups, 2-bit values.
    Q2K,
    /// 256 elements in 16 groups, 3-bit values.
    Q3K,
    /// 256 elements in 8 groups, 4-bit values.
    Q4K,
    /// 256 elements in 8 groups, 5-bit values.
    Q5K,
    /// 256 elements in 16 groups, 6-bit values.
    Q6K,
}

impl DType {
    /// Every type, in the order of declaration.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Elements per block: 1, 32 or 256.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` elements; `None` when the row isn't a whole number of blocks or its size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether elements are stored in blocks with shared scales.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// The name that GGUF tools print, such as `Q4_1` or `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn rows_of_whole_blocks_have_a_size() {
        assert_eq!(DType::F32.row_bytes(3), Some(12));
        assert_eq!(DType::Q4_1.row_bytes(64), Some(40));
        assert_eq!(DType::Q6K.row_bytes(512), Some(420));
        assert_eq!(DType::Q4K.row_bytes(0), Some(0));
    }

    #[test]
    fn rows_of_broken_blocks_have_no_size() {
        assert_eq!(DType::Q4_0.row_bytes(33), None);
        assert_eq!(DType::Q3K.row_bytes(128), None);
    }

    #[test]
    fn row_size_that_overflows_is_refused() {
        assert_eq!(DType::F32.row_bytes(usize::MAX), None);
        assert_eq!(DType::F16.row_bytes(usize::MAX), None);
    }

    #[test]
    fn k_quants_print_with_an_underscore() {
        assert_eq!(DType::Q4K.to_string(), "Q4_K");
        assert_eq!(format!("{:>6}", DType::Q4_1), "  Q4_1");
    }
}
