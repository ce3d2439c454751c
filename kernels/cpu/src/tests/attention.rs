use super::support::{Rng, all_kernels, bits, scalar};
use crate::{AttentionScratch, AttentionTask, Kernels, KvLayout, KvType, Rows};

/// A sequence in a cache whose other memory is NaN.
struct Case {
    layout: KvLayout,
    kv: Vec<u8>,
    blocks: Vec<usize>,
    /// `[position][kv head][head_dim]`, as stored.
    k: Vec<f32>,
    v: Vec<f32>,
    /// `[position][q head][head_dim]`, with as many values of padding behind each row.
    q: Vec<f32>,
    num_q_heads: usize,
    len: usize,
    scale: f32,
    window: Option<usize>,
}

#[derive(Clone, Copy)]
struct Shape {
    kv_type: KvType,
    num_kv_heads: usize,
    group: usize,
    head_dim: usize,
    block_size: usize,
    len: usize,
    window: Option<usize>,
}

const SMALL: Shape = Shape {
    kv_type: KvType::F16,
    num_kv_heads: 2,
    group: 3,
    head_dim: 64,
    block_size: 16,
    len: 150,
    window: None,
};

impl Case {
    fn new(shape: Shape, seed: u64) -> Self {
        let Shape {
            kv_type,
            num_kv_heads,
            group,
            head_dim,
            block_size,
            len,
            window,
        } = shape;
        let layout = KvLayout::new(kv_type, num_kv_heads, head_dim, block_size).unwrap();
        let mut rng = Rng(seed);
        let num_blocks = len.div_ceil(block_size);
        // Blocks in reverse, and one before them that belongs to nobody.
        let blocks: Vec<usize> = (1..=num_blocks).rev().collect();
        let mut kv = vec![0xff; (num_blocks + 1) * layout.block_bytes()];
        let round = |x: Vec<f32>| -> Vec<f32> {
            x.into_iter()
                .map(|x| match kv_type {
                    KvType::F32 => x,
                    KvType::F16 => half::f16::from_f32(x).to_f32(),
                    KvType::Bf16 => half::bf16::from_f32(x).to_f32(),
                })
                .collect()
        };
        let k = round(rng.floats(len * num_kv_heads * head_dim));
        let v = round(rng.floats(len * num_kv_heads * head_dim));
        for (position, head) in
            (0..len).flat_map(|position| (0..num_kv_heads).map(move |head| (position, head)))
        {
            let at = layout.head_at(blocks[position / block_size], head);
            let from = (position * num_kv_heads + head) * head_dim;
            scalar().store_kv(
                layout,
                &mut kv[at..at + layout.head_bytes()],
                position % block_size,
                &k[from..][..head_dim],
                &v[from..][..head_dim],
            );
        }
        let num_q_heads = num_kv_heads * group;
        let q = rng
            .floats(2 * len * num_q_heads * head_dim)
            .iter()
            .map(|x| x * 3.0)
            .collect();
        let scale = 1.0 / (head_dim as f32).sqrt();
        Self {
            layout,
            kv,
            blocks,
            k,
            v,
            q,
            num_q_heads,
            len,
            scale,
            window,
        }
    }

    /// Rows `first..first + count`, `[row][q head][head_dim]`.
    fn run(&self, kernels: Kernels, first: usize, count: usize) -> Vec<f32> {
        let (kv_heads, head_dim) = (self.layout.num_kv_heads(), self.layout.head_dim());
        let width = self.num_q_heads * head_dim;
        let group = self.num_q_heads / kv_heads;
        let mut out = vec![f32::NAN; count * width];
        for kv_head in 0..kv_heads {
            let first_q = kv_head * group * head_dim;
            let task = AttentionTask {
                layout: self.layout,
                kv: &self.kv,
                kv_head,
                block_of: &|index| self.blocks[index],
                q: Rows {
                    data: &self.q[first * 2 * width..],
                    stride: 2 * width,
                    num_rows: count,
                },
                first_q,
                num_heads: group,
                first_position: first,
                scale: self.scale,
                window: self.window,
            };
            kernels.attention(task, &mut AttentionScratch::default(), &mut |row, values| {
                out[row * width + first_q..][..values.len()].copy_from_slice(values);
            });
        }
        out
    }

    /// Naive f64, and the largest error that rounding explains.
    fn exact(&self, row: usize, head: usize) -> (Vec<f64>, f64) {
        let (kv_heads, head_dim) = (self.layout.num_kv_heads(), self.layout.head_dim());
        let kv_head = head / (self.num_q_heads / kv_heads);
        let q = &self.q[row * 2 * self.num_q_heads * head_dim + head * head_dim..][..head_dim];
        let from = self.window.map_or(0, |window| (row + 1).saturating_sub(window));
        let mut score_error = 0.0_f64;
        let scores: Vec<f64> = (from..=row)
            .map(|position| {
                let k = &self.k[(position * kv_heads + kv_head) * head_dim..][..head_dim];
                let terms = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k));
                let magnitude: f64 = terms.clone().map(f64::abs).sum::<f64>() * f64::from(self.scale);
                score_error = score_error.max(magnitude * (head_dim + 2) as f64 * 2.0_f64.powi(-24));
                terms.sum::<f64>() * f64::from(self.scale)
            })
            .collect();
        let max = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; head_dim];
        for (position, weight) in (from..=row).zip(&weights) {
            for (d, out) in out.iter_mut().enumerate() {
                *out += weight / total * f64::from(self.v[(position * kv_heads + kv_head) * head_dim + d]);
            }
        }
        // A score's error moves its weight by as much relatively, above and below the fraction bar; then the errors of exp
        // (2^-22.5), of its argument, and of sums of `row` terms with a correction per piece. Values are below 1.
        let argument = scores.iter().fold(0.0_f64, |a, b| a.max(max - b)) * 2.0_f64.powi(-24);
        let chains = (row + 2 * row.div_ceil(64) + 30) as f64 * 2.0_f64.powi(-24);
        (out, 2.0 * (score_error + argument + chains))
    }
}

fn shapes() -> Vec<Shape> {
    let mut shapes = vec![SMALL];
    for kv_type in [KvType::F32, KvType::Bf16] {
        shapes.push(Shape {
            kv_type,
            len: 70,
            ..SMALL
        });
    }
    for (group, head_dim) in [(1, 16), (2, 8), (4, 20), (5, 32), (8, 128)] {
        shapes.push(Shape {
            group,
            head_dim,
            len: 67,
            ..SMALL
        });
    }
    for window in [1, 5, 64, 100] {
        shapes.push(Shape {
            window: Some(window),
            ..SMALL
        });
    }
    for len in [1, 15, 16, 17, 64, 65] {
        shapes.push(Shape {
            len,
            block_size: 32,
            ..SMALL
        });
    }
    shapes
}

#[test]
fn scalar_attention_is_within_its_bound_of_f64() {
    for (seed, shape) in shapes().into_iter().enumerate() {
        let case = Case::new(shape, seed as u64);
        let out = case.run(scalar(), 0, case.len);
        for (i, found) in out.chunks(shape.head_dim).enumerate() {
            let (row, head) = (i / case.num_q_heads, i % case.num_q_heads);
            let (exact, bound) = case.exact(row, head);
            for (found, exact) in found.iter().zip(exact) {
                let error = (f64::from(*found) - exact).abs();
                assert!(
                    error <= bound,
                    "case {seed} row {row} head {head}: off by {error}, bound {bound}"
                );
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_scalar_bits() {
    for (seed, shape) in shapes().into_iter().enumerate() {
        let case = Case::new(shape, seed as u64);
        let expected = bits(&case.run(scalar(), 0, case.len));
        for kernels in &all_kernels()[1..] {
            assert_eq!(
                bits(&case.run(*kernels, 0, case.len)),
                expected,
                "case {seed} with {}",
                kernels.isa()
            );
        }
    }
}

#[test]
fn a_row_alone_and_rows_in_chunks_equal_all_rows_at_once() {
    for window in [None, Some(40)] {
        let case = Case::new(Shape { window, ..SMALL }, 20);
        for kernels in all_kernels() {
            let all = bits(&case.run(kernels, 0, case.len));
            for chunk in [1, 7, 16, 64] {
                let mut chunks = Vec::new();
                for first in (0..case.len).step_by(chunk) {
                    chunks.extend(bits(&case.run(kernels, first, chunk.min(case.len - first))));
                }
                assert_eq!(chunks, all, "chunks of {chunk}");
            }
        }
    }
}

#[test]
fn the_block_size_changes_nothing() {
    for kernels in all_kernels() {
        let expected = bits(&Case::new(SMALL, 21).run(kernels, 0, SMALL.len));
        for block_size in [32, 48, 64, 128] {
            let case = Case::new(Shape { block_size, ..SMALL }, 21);
            assert_eq!(
                bits(&case.run(kernels, 0, case.len)),
                expected,
                "blocks of {block_size}"
            );
        }
    }
}

#[test]
fn later_rows_cannot_leak_into_earlier_ones() {
    let mut case = Case::new(SMALL, 22);
    let expected: Vec<_> = all_kernels()
        .into_iter()
        .map(|kernels| bits(&case.run(kernels, 0, 100)))
        .collect();
    // Position 100 and later hold NaN from here on.
    let clean = case.kv.clone();
    let nan = vec![f32::NAN; 64];
    for position in 100..case.len {
        for head in 0..2 {
            let at = case.layout.head_at(case.blocks[position / 16], head);
            let bytes = case.layout.head_bytes();
            scalar().store_kv(
                case.layout,
                &mut case.kv[at..at + bytes],
                position % 16,
                &nan,
                &nan,
            );
        }
    }
    assert_ne!(clean, case.kv);
    for (kernels, expected) in all_kernels().into_iter().zip(expected) {
        let all = case.run(kernels, 0, case.len);
        assert_eq!(bits(&all[..expected.len()]), expected);
        assert!(all[expected.len()..].iter().all(|x| x.is_nan()));
    }
}
