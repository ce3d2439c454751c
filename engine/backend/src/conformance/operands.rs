//! Deterministic operands.

use crate::{Backend, BackendError, DType, WeightView};

/// SplitMix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    /// In `-1..1`.
    pub(super) fn float(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
}

/// A weight in file form, and its values.
pub(super) struct Weight {
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) data: Vec<u8>,
    /// Row-major.
    pub(super) values: Vec<f32>,
}

impl Weight {
    /// Random values in F32, F16, BF16 or (for 32 | cols) Q8_0; other types are what a backend's own tests are for.
    pub(super) fn random(rng: &mut Rng, dtype: DType, rows: usize, cols: usize) -> Self {
        let floats = rng.floats(rows * cols);
        let mut data = Vec::new();
        let mut values = Vec::new();
        if dtype == DType::Q8_0 {
            for block in floats.chunks(32) {
                let scale = half::f16::from_f32(0.01 + block[0].abs() / 100.0);
                data.extend(scale.to_le_bytes());
                let quants = block.iter().map(|x| (x * 127.0) as i8);
                data.extend(quants.clone().map(i8::cast_unsigned));
                values.extend(quants.map(|q| f32::from(q) * scale.to_f32()));
            }
            return Self {
                dtype,
                rows,
                cols,
                data,
                values,
            };
        }
        for x in floats {
            let (bytes, value) = encode(dtype, x);
            data.extend(bytes);
            values.push(value);
        }
        Self {
            dtype,
            rows,
            cols,
            data,
            values,
        }
    }

    pub(super) fn view(&self) -> WeightView<'_> {
        WeightView {
            name: "test",
            dtype: self.dtype,
            rows: self.rows,
            cols: self.cols,
            data: &self.data,
        }
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }
}

fn encode(dtype: DType, x: f32) -> (Vec<u8>, f32) {
    match dtype {
        DType::F16 => {
            let x = half::f16::from_f32(x);
            (x.to_le_bytes().to_vec(), x.to_f32())
        }
        DType::BF16 => {
            let x = half::bf16::from_f32(x);
            (x.to_le_bytes().to_vec(), x.to_f32())
        }
        _ => (x.to_le_bytes().to_vec(), x),
    }
}

/// A buffer with these rows, made the only way there is: as an embedding.
pub(super) fn buffer<B: Backend>(
    backend: &mut B,
    values: &[f32],
    width: usize,
) -> Result<B::Buffer, BackendError> {
    let rows = values.len() / width;
    let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = WeightView {
        name: "rows",
        dtype: DType::F32,
        rows,
        cols: width,
        data: &data,
    };
    let table = backend.load_matrix(&[view])?;
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let mut out = backend.new_buffer(rows, width)?;
    backend.embed(&table, &tokens, &mut out)?;
    Ok(out)
}

/// A vector with these values.
pub(super) fn vector<B: Backend>(backend: &mut B, values: &[f32]) -> Result<B::Vector, BackendError> {
    let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = WeightView {
        name: "vector",
        dtype: DType::F32,
        rows: 1,
        cols: values.len(),
        data: &data,
    };
    backend.load_vector(view)
}
