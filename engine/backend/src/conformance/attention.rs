//! `rope_and_store` and `attention`.

use kvasir_engine_core::BlockId;

use super::operands::{Rng, buffer};
use super::products::dot;
use super::{Outcome, close, read, same_bits};
use crate::{
    AttentionBatch, AttentionSeq, AttentionSpec, Backend, BackendError, KvDType, KvShape, RopeStyle,
    RopeTable,
};

pub(super) const BLOCK_SIZE: usize = 16;
const NUM_BLOCKS: usize = 12;
/// The layer in use, of two.
const LAYER: usize = 1;

/// Heads, their rotation and a sequence's activations.
pub(super) struct Case {
    num_q_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    rope: RopeTable,
    dtype: KvDType,
    window: Option<usize>,
    /// `[position][q | k | v]`.
    pub(super) qkv: Vec<f32>,
    len: usize,
}

impl Case {
    pub(super) fn new(seed: u64, style: RopeStyle, dtype: KvDType, window: Option<usize>) -> Self {
        let (num_q_heads, num_kv_heads, head_dim, rotary_dim, len) = (4, 2, 24, 16, 50);
        let mut rng = Rng(seed);
        // The same angles for all: one step has one table.
        let angles = Rng(0).floats(len * rotary_dim / 2);
        let (cos, sin) = angles
            .iter()
            .map(|angle| (angle * 3.0).sin_cos())
            .map(|(sin, cos)| (cos, sin))
            .unzip();
        let rope = RopeTable {
            style,
            rotary_dim,
            num_q_heads,
            cos,
            sin,
        };
        let qkv = rng.floats(len * (num_q_heads + 2 * num_kv_heads) * head_dim);
        Self {
            num_q_heads,
            num_kv_heads,
            head_dim,
            rope,
            dtype,
            window,
            qkv,
            len,
        }
    }

    pub(super) fn width(&self) -> usize {
        (self.num_q_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    pub(super) fn kv<B: Backend>(&self, backend: &mut B) -> Result<B::Kv, BackendError> {
        backend.new_kv(KvShape {
            num_layers: 2,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            block_size: BLOCK_SIZE,
            num_blocks: NUM_BLOCKS,
            dtype: self.dtype,
        })
    }

    /// One step over some rows of this sequence, and of others beside it: `(case, first position, rows, blocks)`.
    pub(super) fn step<B: Backend>(
        backend: &mut B,
        kv: &mut B::Kv,
        seqs: &[(&Self, usize, usize, &[BlockId])],
    ) -> Result<Vec<f32>, BackendError> {
        Self::step_in(LAYER, backend, kv, seqs)
    }

    /// The same in a layer, 0 or 1.
    pub(super) fn step_in<B: Backend>(
        layer: usize,
        backend: &mut B,
        kv: &mut B::Kv,
        seqs: &[(&Self, usize, usize, &[BlockId])],
    ) -> Result<Vec<f32>, BackendError> {
        let case = seqs[0].0;
        let width = case.width();
        let mut x = Vec::new();
        let mut batch = Vec::new();
        for (case, first, count, blocks) in seqs {
            let first_row = x.len() / width;
            x.extend_from_slice(&case.qkv[first * width..][..count * width]);
            batch.push(AttentionSeq {
                first_row,
                num_rows: *count,
                first_position: *first,
                blocks,
            });
        }
        let rows = x.len() / width;
        let batch = AttentionBatch { seqs: &batch };
        let mut qkv = buffer(backend, &x, width)?;
        let out_width = case.num_q_heads * case.head_dim;
        let mut out = backend.new_buffer(rows, out_width)?;
        backend.rope_and_store(&mut qkv, layer, &case.rope, &batch, kv)?;
        let spec = AttentionSpec {
            num_q_heads: case.num_q_heads,
            scale: 0.3,
            sliding_window: case.window,
        };
        backend.attention(&qkv, layer, spec, &batch, kv, &mut out)?;
        read(backend, &out, rows, out_width)
    }

    /// A head's values after rotation.
    fn rotated(&self, position: usize, head: usize) -> Vec<f32> {
        let mut x = self.qkv[position * self.width() + head * self.head_dim..][..self.head_dim].to_vec();
        let pairs = self.rope.rotary_dim / 2;
        for i in 0..pairs {
            let (a, b) = match self.rope.style {
                RopeStyle::Halves => (i, i + pairs),
                RopeStyle::Pairs => (2 * i, 2 * i + 1),
            };
            let (cos, sin) = (
                self.rope.cos[position * pairs + i],
                self.rope.sin[position * pairs + i],
            );
            let [first, second] = [x[a], x[b]].map(f64::from);
            let [cos, sin] = [cos, sin].map(f64::from);
            x[a] = (first * cos - second * sin) as f32;
            x[b] = (second * cos + first * sin) as f32;
        }
        x
    }

    fn exact(&self, row: usize, head: usize) -> Vec<f64> {
        let kv_head = self.num_q_heads + head / (self.num_q_heads / self.num_kv_heads);
        let q = self.rotated(row, head);
        let from = self.window.map_or(0, |window| (row + 1).saturating_sub(window));
        let scores = (from..=row).map(|position| dot(&q, &self.rotated(position, kv_head)).0 * 0.3);
        let weights: Vec<f64> = scores.map(f64::exp).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; self.head_dim];
        for (position, weight) in (from..=row).zip(weights) {
            let v = position * self.width() + (kv_head + self.num_kv_heads) * self.head_dim;
            for (out, v) in out.iter_mut().zip(&self.qkv[v..][..self.head_dim]) {
                *out += weight / total * f64::from(*v);
            }
        }
        out
    }
}

/// Both rotations, partly rotated heads, shared KV heads, windows and all storage types.
///
/// # Errors
/// If a value is off by more than rounding explains, that of the stored type included.
pub fn attention_matches_f64<B: Backend>(backend: &mut B, unit: f64) -> Outcome {
    let types = [(KvDType::F32, 24), (KvDType::F16, 11), (KvDType::Bf16, 8)];
    for (seed, style) in [RopeStyle::Halves, RopeStyle::Pairs].into_iter().enumerate() {
        for (dtype, bits) in types {
            for window in [None, Some(1), Some(20)] {
                let case = Case::new(seed as u64, style, dtype, window);
                let mut kv = case.kv(backend)?;
                let blocks = [7, 2, 11, 5].map(BlockId);
                let found = Case::step(backend, &mut kv, &[(&case, 0, case.len, &blocks)])?;
                let stored = 2.0_f64.powi(-bits);
                for (i, found) in found.chunks(case.head_dim).enumerate() {
                    let (row, head) = (i / case.num_q_heads, i % case.num_q_heads);
                    // Values are below 1 (below sqrt 2 rotated), so a score's terms sum to at most 2 * 24 * 0.3; its
                    // error moves a weight by as much on both sides of the fraction bar. Then V's rounding and the sum.
                    let score = 2.0 * case.head_dim as f64 * 0.3 * (stored + case.head_dim as f64 * unit);
                    let bound = 2.0 * score + stored + 2.0 * (case.len + 20) as f64 * unit;
                    for (found, exact) in found.iter().zip(case.exact(row, head)) {
                        let what =
                            || format!("{style:?} {dtype:?} window {window:?}, row {row}, head {head}");
                        close(what, *found, exact, bound)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// The second promise: chunks, single tokens and the places of blocks change nothing.
///
/// # Errors
/// If they do.
pub fn attention_ignores_chunks_and_block_order<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    for window in [None, Some(9)] {
        let case = Case::new(3, RopeStyle::Halves, KvDType::F16, window);
        let mut kv = case.kv(backend)?;
        let all = Case::step(
            backend,
            &mut kv,
            &[(&case, 0, case.len, &[1, 2, 3, 4].map(BlockId))],
        )?;
        let blocks = [9, 3, 8, 1].map(BlockId);
        for chunk in [1, 7, 16, 33] {
            let mut kv = case.kv(backend)?;
            let mut chunks = Vec::new();
            for first in (0..case.len).step_by(chunk) {
                let count = chunk.min(case.len - first);
                let needed = (first + count).div_ceil(BLOCK_SIZE);
                chunks.extend(Case::step(
                    backend,
                    &mut kv,
                    &[(&case, first, count, &blocks[..needed])],
                )?);
            }
            same_bits("attention in chunks", &chunks, &all)?;
        }
    }
    Ok(())
}

/// What was in a block before, NaN included, doesn't show in what is computed from the positions that were written since.
///
/// # Errors
/// If it does.
pub fn attention_ignores_what_blocks_held_before<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    for dtype in [KvDType::F32, KvDType::F16, KvDType::Bf16] {
        let case = Case::new(6, RopeStyle::Halves, dtype, None);
        let blocks = [2, 9, 4, 1].map(BlockId);
        let mut kv = case.kv(backend)?;
        let clean = Case::step(backend, &mut kv, &[(&case, 0, case.len, &blocks)])?;
        for filler in [f32::NAN, f32::INFINITY] {
            let mut spoilt = Case::new(6, RopeStyle::Halves, dtype, None);
            spoilt.qkv.fill(filler);
            let mut kv = case.kv(backend)?;
            Case::step(backend, &mut kv, &[(&spoilt, 0, case.len, &blocks)])?;
            let mut found = Case::step(backend, &mut kv, &[(&case, 0, 35, &blocks[..3])])?;
            for position in 35..case.len {
                let needed = position / BLOCK_SIZE + 1;
                found.extend(Case::step(
                    backend,
                    &mut kv,
                    &[(&case, position, 1, &blocks[..needed])],
                )?);
            }
            same_bits("attention in used blocks", &found, &clean)?;
        }
    }
    Ok(())
}

/// The first promise for attention, with several sequences in prefill and decode in one step.
///
/// # Errors
/// If a sequence changes another's bits.
pub fn attention_rows_ignore_other_sequences<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    let [first, second] = [4, 5].map(|seed| Case::new(seed, RopeStyle::Pairs, KvDType::Bf16, None));
    let (one, two) = ([1, 2, 3, 4].map(BlockId), [8, 7, 6, 5].map(BlockId));
    let mut kv = first.kv(backend)?;
    let alone = Case::step(backend, &mut kv, &[(&first, 0, 50, &one)])?;
    let alone_second = Case::step(backend, &mut kv, &[(&second, 0, 50, &two)])?;
    let mut kv = first.kv(backend)?;
    let width = first.num_q_heads * first.head_dim;
    let step = Case::step(
        backend,
        &mut kv,
        &[(&first, 0, 49, &one), (&second, 0, 20, &two[..2])],
    )?;
    same_bits("the first sequence", &step[..49 * width], &alone[..49 * width])?;
    same_bits(
        "the second sequence",
        &step[49 * width..],
        &alone_second[..20 * width],
    )?;
    let step = Case::step(
        backend,
        &mut kv,
        &[(&second, 20, 30, &two), (&first, 49, 1, &one)],
    )?;
    same_bits(
        "the second sequence's rest",
        &step[..30 * width],
        &alone_second[20 * width..],
    )?;
    same_bits(
        "the first sequence's next token",
        &step[30 * width..],
        &alone[49 * width..],
    )
}
