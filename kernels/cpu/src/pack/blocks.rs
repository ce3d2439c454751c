//! Reading GGUF's quantized blocks (the layouts of the gguf Python package's `quants` module, little-endian).

use crate::weight_type::WeightType;

/// One block, with its integers in the order of their weights and centred on 0 where the type says so.
pub(super) struct Block {
    /// The integers; legacy types use the first 32.
    pub(super) quants: [i8; 256],
    /// f16: scale, or scale of the group scales.
    pub(super) scale: [u8; 2],
    /// f16: minimum, or scale of the group minima.
    pub(super) min: Option<[u8; 2]>,
    /// Scales of groups; legacy types have none.
    pub(super) group_scales: [i8; 16],
    /// Minima of groups, to be subtracted.
    pub(super) group_mins: [i8; 16],
    /// How many groups have a scale of their own.
    pub(super) num_groups: usize,
}

impl Block {
    /// Reads a block of `weight_type`; plain types have none and give zeros.
    pub(super) fn read(weight_type: WeightType, bytes: &[u8]) -> Self {
        let mut block = Self {
            quants: [0; 256],
            scale: [0; 2],
            min: None,
            group_scales: [0; 16],
            group_mins: [0; 16],
            num_groups: 0,
        };
        match weight_type {
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 => {}
            WeightType::Q4_0 => block.read_legacy(bytes, false, false, 8),
            WeightType::Q4_1 => block.read_legacy(bytes, true, false, 0),
            WeightType::Q5_0 => block.read_legacy(bytes, false, true, 16),
            WeightType::Q5_1 => block.read_legacy(bytes, true, true, 0),
            WeightType::Q8_0 => block.read_q8_0(bytes),
            WeightType::Q2K => block.read_q2_k(bytes),
            WeightType::Q3K => block.read_q3_k(bytes),
            WeightType::Q4K => block.read_q45_k(bytes, false),
            WeightType::Q5K => block.read_q45_k(bytes, true),
            WeightType::Q6K => block.read_q6_k(bytes),
        }
        block
    }

    /// `{ f16 scale, f16 min?, u32 high bits?, 16 bytes: weights 0..16 low, 16..32 high nibbles }`.
    fn read_legacy(&mut self, bytes: &[u8], has_min: bool, has_high: bool, zero: i8) {
        let (scale, mut rest) = bytes.split_at(2);
        self.scale.copy_from_slice(scale);
        if has_min {
            let (min, after) = rest.split_at(2);
            self.min = Some([min[0], min[1]]);
            rest = after;
        }
        let mut high = [0; 4];
        if has_high {
            let (bits, after) = rest.split_at(4);
            high.copy_from_slice(bits);
            rest = after;
        }
        for i in 0..32 {
            let low = (rest[i % 16] >> (4 * (i / 16))) & 15;
            let q = low | (bit(high, i) << 4);
            self.quants[i] = q.cast_signed() - zero;
        }
    }

    /// `{ f16 scale, i8 quants[32] }`.
    fn read_q8_0(&mut self, bytes: &[u8]) {
        self.scale.copy_from_slice(&bytes[..2]);
        for (q, byte) in self.quants.iter_mut().zip(&bytes[2..34]) {
            *q = byte.cast_signed();
        }
    }

    /// `{ u8 scale and min nibbles[16], 2-bit quants[256], f16 d, f16 dmin }`, groups of 16.
    fn read_q2_k(&mut self, bytes: &[u8]) {
        let (scales, rest) = bytes.split_at(16);
        self.scale.copy_from_slice(&rest[64..66]);
        self.min = Some([rest[66], rest[67]]);
        self.num_groups = 16;
        for (group, byte) in scales.iter().enumerate() {
            self.group_scales[group] = (byte & 15).cast_signed();
            self.group_mins[group] = (byte >> 4).cast_signed();
        }
        for (i, q) in self.quants.iter_mut().enumerate() {
            *q = crumb(rest, i).cast_signed();
        }
    }

    /// `{ high bits[256], 2-bit quants[256], 6-bit scales[16], f16 d }`, groups of 16; a set high bit adds 4 to `q - 4`.
    fn read_q3_k(&mut self, bytes: &[u8]) {
        let (high, rest) = bytes.split_at(32);
        let (low, rest) = rest.split_at(64);
        let (scales, d) = rest.split_at(12);
        self.scale.copy_from_slice(&d[..2]);
        self.num_groups = 16;
        for group in 0..16 {
            let low_bits = (scales[group % 8] >> (4 * (group / 8))) & 15;
            let high_bits = (scales[8 + group % 4] >> (2 * (group / 4))) & 3;
            self.group_scales[group] = (low_bits | (high_bits << 4)).cast_signed() - 32;
        }
        for (i, q) in self.quants.iter_mut().enumerate() {
            let high_bit = (high[i % 32] >> (i / 32)) & 1;
            *q = (crumb(low, i) | (high_bit << 2)).cast_signed() - 4;
        }
    }

    /// `{ f16 d, f16 dmin, 6-bit scales and mins[8], high bits[256]?, 4-bit quants[256] }`, groups of 32.
    fn read_q45_k(&mut self, bytes: &[u8], has_high: bool) {
        self.scale.copy_from_slice(&bytes[..2]);
        self.min = Some([bytes[2], bytes[3]]);
        self.num_groups = 8;
        let scales = &bytes[4..16];
        for group in 0..8 {
            let (scale, min) = if group < 4 {
                (scales[group] & 63, scales[group + 4] & 63)
            } else {
                let low = scales[group + 4];
                let (scale_top, min_top) = (scales[group - 4] >> 6, scales[group] >> 6);
                ((low & 15) | (scale_top << 4), (low >> 4) | (min_top << 4))
            };
            self.group_scales[group] = scale.cast_signed();
            self.group_mins[group] = min.cast_signed();
        }
        let (high, low) = bytes[16..].split_at(if has_high { 32 } else { 0 });
        for (i, q) in self.quants.iter_mut().enumerate() {
            let nibble = (low[i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2))) & 15;
            let high_bit = if has_high {
                (high[i % 32] >> (i / 32)) & 1
            } else {
                0
            };
            *q = (nibble | (high_bit << 4)).cast_signed();
        }
    }

    /// `{ low nibbles[256], high crumbs[256], i8 scales[16], f16 d }`, groups of 16, centred on 32.
    fn read_q6_k(&mut self, bytes: &[u8]) {
        let (low, rest) = bytes.split_at(128);
        let (high, rest) = rest.split_at(64);
        let (scales, d) = rest.split_at(16);
        self.scale.copy_from_slice(&d[..2]);
        self.num_groups = 16;
        for (scale, byte) in self.group_scales.iter_mut().zip(scales) {
            *scale = byte.cast_signed();
        }
        for (i, q) in self.quants.iter_mut().enumerate() {
            let nibble = (low[i / 128 * 64 + i % 64] >> (4 * (i / 64 % 2))) & 15;
            *q = (nibble | (crumb(high, i) << 4)).cast_signed() - 32;
        }
    }
}

fn bit(bytes: [u8; 4], i: usize) -> u8 {
    (bytes[i / 8] >> (i % 8)) & 1
}

/// The `i`-th 2-bit value in the K types' order: 128 weights per 32 bytes, each shift a run of 32.
fn crumb(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4))) & 3
}
