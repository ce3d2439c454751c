//! The kernels, bound to one instruction set.

use crate::attention::{AttentionScratch, AttentionTask, RunAttention};
use crate::isa::Isa;
use crate::kv::{KvLayout, StoreKv};
use crate::matmul::{DequantizeRow, MatmulScratch, MatmulTask};
use crate::pack::Packed;
use crate::rowwise::{Gate, GatedActivation, RmsNorm, Rotate, Rotation};
use crate::scalar::Scalar;
use crate::simd::{Simd, Task};
#[cfg(target_arch = "x86_64")]
use crate::x86_64::{Avx2, Avx512};

/// The kernels of one instruction set. It exists only if the CPU has it.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    token: Token,
}

#[derive(Clone, Copy, Debug)]
enum Token {
    Scalar(Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Kernels {
    /// The kernels of `isa`, if the CPU has it.
    pub fn new(isa: Isa) -> Option<Self> {
        let token = match isa {
            Isa::Scalar => Some(Token::Scalar(Scalar)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::new().map(Token::Avx2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Avx512::new().map(Token::Avx512),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => None,
        };
        token.map(|token| Self { token })
    }

    /// Which instruction set.
    pub fn isa(self) -> Isa {
        match self.token {
            Token::Scalar(_) => Isa::Scalar,
            #[cfg(target_arch = "x86_64")]
            Token::Avx2(_) => Isa::Avx2,
            #[cfg(target_arch = "x86_64")]
            Token::Avx512(_) => Isa::Avx512,
        }
    }

    /// Multiplies some panels of a matrix with all rows.
    ///
    /// # Panics
    /// If `x` is shorter than its shape or the matrix's inputs, or there is no such panel.
    pub fn matmul(self, task: MatmulTask<'_>) {
        self.run(task);
    }

    /// `out` becomes row `row` of the matrix.
    ///
    /// # Panics
    /// If there is no such row or `out` doesn't have the matrix's inputs.
    pub fn dequantize_row(
        self,
        weights: Packed<'_>,
        row: usize,
        scratch: &mut MatmulScratch,
        out: &mut [f32],
    ) {
        assert!(
            row < weights.layout().rows(),
            "row {row} of {}",
            weights.layout().rows()
        );
        assert_eq!(
            out.len(),
            weights.layout().cols(),
            "a row has the matrix's inputs"
        );
        self.run(DequantizeRow {
            weights,
            row,
            out,
            scratch,
        });
    }

    /// Attention of some rows of one sequence, for one KV head. `sink` gets `(row, values)` for every row, where values are
    /// `[num_heads][head_dim]`.
    ///
    /// # Panics
    /// If the rows are shorter than their shape or a block is outside the storage.
    pub fn attention(
        self,
        task: AttentionTask<'_>,
        scratch: &mut AttentionScratch,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) {
        self.run(RunAttention { task, scratch, sink });
    }

    /// Rounds one position's K and V of one head into `slot` of the head's part of a block.
    ///
    /// # Panics
    /// If a slice doesn't have the layout's size or `slot` is outside the block.
    pub fn store_kv(self, layout: KvLayout, head: &mut [u8], slot: usize, k: &[f32], v: &[f32]) {
        assert_eq!(head.len(), layout.head_bytes(), "a head has the layout's size");
        assert!(
            slot < layout.block_size(),
            "slot {slot} of {}",
            layout.block_size()
        );
        assert!(
            k.len() == layout.head_dim() && v.len() == layout.head_dim(),
            "K and V have the head's size"
        );
        self.run(StoreKv {
            layout,
            head,
            slot,
            k,
            v,
        });
    }

    /// `out = x / sqrt(mean(x^2) + eps) * weight`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn rms_norm(self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert!(
            x.len() == weight.len() && x.len() == out.len(),
            "lengths are equal"
        );
        self.run(RmsNorm { x, weight, eps, out });
    }

    /// Rotates the values of `head` in place; `cos` and `sin` have half as many.
    ///
    /// # Panics
    /// If lengths don't fit.
    pub fn rotate(self, rotation: Rotation, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(
            head.len() == 2 * cos.len() && cos.len() == sin.len(),
            "an angle for every pair"
        );
        self.run(Rotate {
            rotation,
            head,
            cos,
            sin,
        });
    }

    /// `out = act(gates) * ups`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn gated_activation(self, gate: Gate, gates: &[f32], ups: &[f32], out: &mut [f32]) {
        assert!(
            gates.len() == ups.len() && gates.len() == out.len(),
            "lengths are equal"
        );
        self.run(GatedActivation {
            gate,
            gates,
            ups,
            out,
        });
    }

    pub(crate) fn run<T: Task>(self, task: T) -> T::Output {
        match self.token {
            Token::Scalar(s) => s.vectorize(task),
            #[cfg(target_arch = "x86_64")]
            Token::Avx2(s) => s.vectorize(task),
            #[cfg(target_arch = "x86_64")]
            Token::Avx512(s) => s.vectorize(task),
        }
    }
}
