//! Deterministic operands and comparisons.

use crate::{Isa, Kernels, MatmulScratch, Packed, PackedLayout, WeightType};

/// The kernels of every instruction set that this CPU has, scalar first.
pub(super) fn all_kernels() -> Vec<Kernels> {
    Isa::ALL.into_iter().filter_map(Kernels::new).collect()
}

pub(super) fn scalar() -> Kernels {
    Kernels::new(Isa::Scalar).expect("scalar runs everywhere")
}

/// SplitMix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `-1..1`.
    pub(super) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }

    /// Random blocks with scales around 0.1.
    pub(super) fn weights(&mut self, weight_type: WeightType, rows: usize, cols: usize) -> Vec<u8> {
        let len = rows * weight_type.row_bytes(cols).unwrap();
        let plain: Vec<f32> = if weight_type.block_len() == 1 {
            self.floats(rows * cols)
        } else {
            Vec::new()
        };
        match weight_type {
            WeightType::F32 => return plain.iter().flat_map(|x| x.to_le_bytes()).collect(),
            WeightType::F16 => {
                return plain
                    .iter()
                    .flat_map(|x| half::f16::from_f32(*x).to_le_bytes())
                    .collect();
            }
            WeightType::Bf16 => {
                return plain
                    .iter()
                    .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
                    .collect();
            }
            _ => {}
        }
        let mut bytes: Vec<u8> = (0..len).map(|_| self.next() as u8).collect();
        for block in bytes.chunks_mut(weight_type.block_bytes()) {
            for at in halves(weight_type) {
                block[*at..at + 2].copy_from_slice(&half::f16::from_f32(self.float() * 0.1).to_le_bytes());
            }
        }
        bytes
    }
}

/// Where a block's f16 values are.
fn halves(weight_type: WeightType) -> &'static [usize] {
    match weight_type {
        WeightType::Q2K => &[80, 82],
        WeightType::Q3K => &[108],
        WeightType::Q6K => &[208],
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => &[0],
        _ => &[0, 2],
    }
}

/// A packed matrix that owns its bytes.
pub(super) struct Matrix {
    pub(super) layout: PackedLayout,
    data: Vec<u8>,
}

impl Matrix {
    pub(super) fn pack(weight_type: WeightType, rows: usize, cols: usize, source: &[u8]) -> Self {
        let layout = PackedLayout::new(weight_type, rows, cols).unwrap();
        let mut data = vec![0; layout.bytes()];
        for panel in 0..layout.num_panels() {
            let at = panel * layout.panel_bytes();
            layout.pack_panel(source, panel, &mut data[at..at + layout.panel_bytes()]);
        }
        Self { layout, data }
    }

    pub(super) fn packed(&self) -> Packed<'_> {
        Packed::new(self.layout, &self.data).unwrap()
    }

    pub(super) fn row(&self, kernels: Kernels, row: usize) -> Vec<f32> {
        let mut out = vec![0.0; self.layout.cols()];
        kernels.dequantize_row(self.packed(), row, &mut MatmulScratch::default(), &mut out);
        out
    }
}

/// The bits, so that -0 differs from 0 and NaN equals itself.
pub(super) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
