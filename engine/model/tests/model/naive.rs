//! The plainest backend there is, in f64 and without any cleverness: the oracle for the model's own code. It holds plain
//! types only, and can be told to fail, to panic or to give NaN.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicIsize, Ordering};

use half::{bf16, f16};
use kvasir_backend::{
    Activation, AttentionBatch, AttentionSeq, AttentionSpec, Backend, BackendError, BlockCopy, DType,
    KvShape, RopeStyle, RopeTable, WeightView,
};
use kvasir_engine_core::BlockId;

/// What tests can do to a backend that a model already owns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sabotage {
    /// Operations until one fails; negative for never.
    countdown: Arc<AtomicIsize>,
    /// One more than the token whose embedding is NaN; 0 for none.
    poison: Arc<AtomicI64>,
    panic: Arc<AtomicBool>,
}

impl Sabotage {
    pub(crate) fn fail_after(&self, operations: isize) {
        self.countdown.store(operations + 1, Ordering::Relaxed);
    }

    pub(crate) fn never_fail(&self) {
        self.countdown.store(0, Ordering::Relaxed);
    }

    /// Sequences that contain this token compute NaN from there on.
    pub(crate) fn poison(&self, token: u32) {
        self.poison.store(i64::from(token) + 1, Ordering::Relaxed);
    }

    pub(crate) fn heal(&self) {
        self.poison.store(0, Ordering::Relaxed);
    }

    fn is_poison(&self, token: u32) -> bool {
        self.poison.load(Ordering::Relaxed) == i64::from(token) + 1
    }

    /// The next operation panics.
    pub(crate) fn panic(&self) {
        self.panic.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), BackendError> {
        assert!(!self.panic.load(Ordering::Relaxed), "the test asked for a panic");
        let left = self.countdown.load(Ordering::Relaxed);
        if left > 0 {
            self.countdown.store(left - 1, Ordering::Relaxed);
        }
        if left == 1 {
            Err(shape("sabotaged"))
        } else {
            Ok(())
        }
    }
}

#[derive(Default)]
pub(crate) struct Naive {
    pub(crate) sabotage: Sabotage,
}

pub(crate) struct Matrix {
    cols: usize,
    data: Vec<f64>,
}

pub(crate) struct Rows {
    capacity: usize,
    width: usize,
    data: Vec<f64>,
}

impl Rows {
    fn row(&self, index: usize) -> &[f64] {
        &self.data[index * self.width..][..self.width]
    }

    fn fill(&mut self, rows: impl Iterator<Item = Vec<f64>>) -> Result<(), BackendError> {
        self.data.clear();
        for row in rows {
            if row.len() != self.width {
                return Err(shape("width"));
            }
            self.data.extend(row);
        }
        if self.data.len() > self.capacity * self.width {
            Err(shape("too many rows"))
        } else {
            Ok(())
        }
    }

    fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.data.chunks_exact(self.width)
    }
}

pub(crate) struct Kv {
    shape: KvShape,
    /// `[layer][block][slot][k or v][head][value]`; NaN until written.
    data: Vec<f64>,
}

impl Kv {
    fn at(&self, layer: usize, seq: &AttentionSeq<'_>, position: usize) -> Result<usize, BackendError> {
        let block = seq
            .blocks
            .get(position / self.shape.block_size)
            .ok_or(shape("block table"))?;
        let slot = (layer * self.shape.num_blocks + block.0 as usize) * self.shape.block_size
            + position % self.shape.block_size;
        Ok(slot * 2 * self.width())
    }

    fn width(&self) -> usize {
        self.shape.num_kv_heads * self.shape.head_dim
    }
}

impl Backend for Naive {
    type Matrix = Matrix;
    type Vector = Vec<f64>;
    type Buffer = Rows;
    type Kv = Kv;

    fn load_matrix(&mut self, parts: &[WeightView<'_>]) -> Result<Matrix, BackendError> {
        let mut data = Vec::new();
        for part in parts {
            data.extend(decode(part)?);
        }
        Ok(Matrix {
            cols: parts[0].cols,
            data,
        })
    }

    fn load_vector(&mut self, weight: WeightView<'_>) -> Result<Vec<f64>, BackendError> {
        decode(&weight)
    }

    fn new_buffer(&mut self, max_rows: usize, width: usize) -> Result<Rows, BackendError> {
        Ok(Rows {
            capacity: max_rows,
            width,
            data: Vec::new(),
        })
    }

    fn new_kv(&mut self, shape: KvShape) -> Result<Kv, BackendError> {
        let num_values = shape.block_bytes() / 4 * shape.num_blocks;
        Ok(Kv {
            shape,
            data: vec![f64::NAN; num_values],
        })
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy], kv: &mut Kv) -> Result<(), BackendError> {
        self.sabotage.check()?;
        let slot = 2 * kv.width();
        let block = kv.shape.block_size * slot;
        let before = kv.data.clone();
        for layer in 0..kv.shape.num_layers {
            let at = |block_id: BlockId| (layer * kv.shape.num_blocks + block_id.0 as usize) * block;
            for copy in copies {
                let len = copy.num_positions as usize * slot;
                kv.data[at(copy.to)..][..len].copy_from_slice(&before[at(copy.from)..][..len]);
            }
        }
        Ok(())
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32], out: &mut Rows) -> Result<(), BackendError> {
        self.sabotage.check()?;
        if tokens
            .iter()
            .any(|token| *token as usize >= table.data.len() / table.cols)
        {
            return Err(shape("token"));
        }
        out.fill(tokens.iter().map(|token| {
            if self.sabotage.is_poison(*token) {
                return vec![f64::NAN; table.cols];
            }
            table.data[*token as usize * table.cols..][..table.cols].to_vec()
        }))
    }

    fn rms_norm(
        &mut self,
        x: &Rows,
        weight: &Vec<f64>,
        eps: f32,
        out: &mut Rows,
    ) -> Result<(), BackendError> {
        self.sabotage.check()?;
        out.fill(x.rows().map(|row| {
            let mean = row.iter().map(|value| value * value).sum::<f64>() / row.len() as f64;
            let factor = 1.0 / (mean + f64::from(eps)).sqrt();
            row.iter()
                .zip(weight)
                .map(|(value, weight)| value * factor * weight)
                .collect()
        }))
    }

    fn linear(
        &mut self,
        w: &Matrix,
        bias: Option<&Vec<f64>>,
        x: &Rows,
        out: &mut Rows,
    ) -> Result<(), BackendError> {
        self.sabotage.check()?;
        out.fill(x.rows().map(|row| product(w, bias, row)))
    }

    fn linear_add(
        &mut self,
        w: &Matrix,
        bias: Option<&Vec<f64>>,
        x: &Rows,
        residual: &mut Rows,
    ) -> Result<(), BackendError> {
        self.sabotage.check()?;
        let sums: Vec<f64> = x.rows().flat_map(|row| product(w, bias, row)).collect();
        residual
            .data
            .iter_mut()
            .zip(sums)
            .for_each(|(value, sum)| *value += sum);
        Ok(())
    }

    fn rope_and_store(
        &mut self,
        qkv: &mut Rows,
        layer: usize,
        rope: &RopeTable,
        batch: &AttentionBatch<'_>,
        kv: &mut Kv,
    ) -> Result<(), BackendError> {
        self.sabotage.check()?;
        let (dim, width, kv_width) = (kv.shape.head_dim, qkv.width, kv.width());
        for seq in batch.seqs {
            for row in 0..seq.num_rows {
                let position = seq.first_position + row;
                let values = &mut qkv.data[(seq.first_row + row) * width..][..width];
                let num_rotated = rope.num_q_heads + kv.shape.num_kv_heads;
                values
                    .chunks_exact_mut(dim)
                    .take(num_rotated)
                    .for_each(|head| rotate(head, rope, position));
                let at = kv.at(layer, seq, position)?;
                kv.data[at..at + 2 * kv_width].copy_from_slice(&values[rope.num_q_heads * dim..]);
            }
        }
        Ok(())
    }

    fn attention(
        &mut self,
        qkv: &Rows,
        layer: usize,
        spec: AttentionSpec,
        batch: &AttentionBatch<'_>,
        kv: &Kv,
        out: &mut Rows,
    ) -> Result<(), BackendError> {
        self.sabotage.check()?;
        let mut rows = Vec::new();
        for seq in batch.seqs {
            for row in 0..seq.num_rows {
                rows.push(attend(
                    qkv.row(seq.first_row + row),
                    layer,
                    spec,
                    seq,
                    seq.first_position + row,
                    kv,
                )?);
            }
        }
        out.fill(rows.into_iter())
    }

    fn gated_activation(
        &mut self,
        gate_up: &Rows,
        activation: Activation,
        out: &mut Rows,
    ) -> Result<(), BackendError> {
        self.sabotage.check()?;
        if activation != Activation::Silu {
            return Err(shape("activation"));
        }
        out.fill(gate_up.rows().map(|row| {
            let (gate, up) = row.split_at(row.len() / 2);
            gate.iter()
                .zip(up)
                .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
                .collect()
        }))
    }

    fn gather_rows(&mut self, x: &Rows, rows: &[usize], out: &mut Rows) -> Result<(), BackendError> {
        self.sabotage.check()?;
        out.fill(rows.iter().map(|row| x.row(*row).to_vec()))
    }

    fn read_row(&mut self, x: &Rows, row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        self.sabotage.check()?;
        out.iter_mut()
            .zip(x.row(row))
            .for_each(|(out, value)| *out = *value as f32);
        Ok(())
    }
}

fn product(w: &Matrix, bias: Option<&Vec<f64>>, row: &[f64]) -> Vec<f64> {
    let sums = w
        .data
        .chunks_exact(w.cols)
        .map(|weights| weights.iter().zip(row).map(|(w, x)| w * x).sum::<f64>());
    match bias {
        Some(bias) => sums.zip(bias).map(|(sum, bias)| sum + bias).collect(),
        None => sums.collect(),
    }
}

fn rotate(head: &mut [f64], rope: &RopeTable, position: usize) {
    let half = rope.rotary_dim / 2;
    for pair in 0..half {
        let (first, second) = match rope.style {
            RopeStyle::Halves => (pair, pair + half),
            RopeStyle::Pairs => (2 * pair, 2 * pair + 1),
        };
        let cos = f64::from(rope.cos[position * half + pair]);
        let sin = f64::from(rope.sin[position * half + pair]);
        let (x, y) = (head[first], head[second]);
        head[first] = x * cos - y * sin;
        head[second] = y * cos + x * sin;
    }
}

fn attend(
    qkv: &[f64],
    layer: usize,
    spec: AttentionSpec,
    seq: &AttentionSeq<'_>,
    position: usize,
    kv: &Kv,
) -> Result<Vec<f64>, BackendError> {
    let dim = kv.shape.head_dim;
    let first = spec
        .sliding_window
        .map_or(0, |window| (position + 1).saturating_sub(window));
    let places = (first..=position)
        .map(|p| kv.at(layer, seq, p))
        .collect::<Result<Vec<_>, _>>()?;
    let mut out = Vec::new();
    for (index, query) in qkv.chunks_exact(dim).take(spec.num_q_heads).enumerate() {
        let kv_head = index / (spec.num_q_heads / kv.shape.num_kv_heads) * dim;
        let dot = |at: &usize| {
            query
                .iter()
                .zip(&kv.data[at + kv_head..])
                .map(|(q, k)| q * k)
                .sum::<f64>()
        };
        let scores: Vec<f64> = places.iter().map(|at| dot(at) * f64::from(spec.scale)).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        out.extend((0..dim).map(|value| {
            let of = |(at, weight): (&usize, &f64)| kv.data[at + kv.width() + kv_head + value] * weight;
            places.iter().zip(&weights).map(of).sum::<f64>() / total
        }));
    }
    Ok(out)
}

fn decode(weight: &WeightView<'_>) -> Result<Vec<f64>, BackendError> {
    match weight.dtype {
        DType::F32 => Ok(weight
            .data
            .as_chunks()
            .0
            .iter()
            .map(|v| f64::from(f32::from_le_bytes(*v)))
            .collect()),
        DType::F16 => Ok(weight
            .data
            .as_chunks()
            .0
            .iter()
            .map(|v| f64::from(f16::from_le_bytes(*v)))
            .collect()),
        DType::BF16 => Ok(weight
            .data
            .as_chunks()
            .0
            .iter()
            .map(|v| f64::from(bf16::from_le_bytes(*v)))
            .collect()),
        other => Err(BackendError::Weight {
            name: weight.name.to_owned(),
            reason: format!("{other} is not plain"),
        }),
    }
}

fn shape(reason: &str) -> BackendError {
    BackendError::Shape {
        operation: "naive",
        reason: reason.to_owned(),
    }
}
