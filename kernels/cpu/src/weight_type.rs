//! How weights lie in model files.

/// A storage type of weights; the quantized ones are GGUF's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(
    missing_docs,
    reason = "the names are GGUF's and say all there is; `pack` has the layouts"
)]
pub enum WeightType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl WeightType {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
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

    /// Weights per block.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes per block, as sums of: f16 scale, f16 minimum, sub-scales, high bits, low bits.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q2K => 2 + 2 + 16 + 64,
            Self::Q3K => 2 + 12 + 32 + 64,
            Self::Q4K => 2 + 2 + 12 + 128,
            Self::Q5K => 2 + 2 + 12 + 32 + 128,
            Self::Q6K => 2 + 16 + 64 + 128,
        }
    }

    /// Bytes of a row of `cols` weights, if `cols` is a multiple of the block length and the size can be expressed.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        (cols.is_multiple_of(self.block_len()))
            .then(|| (cols / self.block_len()).checked_mul(self.block_bytes()))?
    }
}
