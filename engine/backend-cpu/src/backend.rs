//! The operations.

use std::sync::Mutex;

use kvasir_backend::{
    Activation, AttentionBatch, AttentionSpec, Backend, BackendError, BlockCopy, KvShape, RopeTable,
    WeightView,
};

use kvasir_kernels_cpu::{AttentionScratch, Gate, Isa, Kernels, MatmulScratch};

use crate::attention::{self, AttentionPiece};
use crate::buffer::{CpuBuffer, CpuVector};
use crate::check::{expect, shape};
use crate::kv::CpuKv;
use crate::matrix::{CpuMatrix, dequantize_vector};
use crate::pool::Pool;

/// How to set up a [`CpuBackend`].
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads that compute, the caller's included; at least 1.
    pub threads: usize,
    /// Instruction set; the best one if not given.
    pub isa: Option<Isa>,
}

/// Why a [`CpuBackend`] can't be made.
#[derive(Debug, thiserror::Error)]
pub enum CpuBackendError {
    /// The CPU lacks the instruction set that was asked for.
    #[error("this CPU has no {asked}; the best it has is {best}")]
    UnavailableIsa {
        /// What was asked for.
        asked: Isa,
        /// What there is.
        best: Isa,
    },
    /// No threads can't compute.
    #[error("0 threads were asked for; at least 1 is needed")]
    NoThreads,
    /// So many that their stacks and scratch space alone would be too much.
    #[error("{threads} threads were asked for; at most {MAX_THREADS} are of use, one for each CPU")]
    TooManyThreads {
        /// How many were asked for.
        threads: usize,
    },
    /// The operating system refused a thread.
    #[error("a pool of {threads} threads can't be started")]
    StartThreads {
        /// How many were asked for.
        threads: usize,
        /// What it said.
        source: std::io::Error,
    },
}

/// More hardware threads than any machine has that one process computes on.
const MAX_THREADS: usize = 1024;

/// A CPU with some threads.
#[derive(Debug)]
pub struct CpuBackend {
    pub(crate) kernels: Kernels,
    pub(crate) pool: Pool,
    /// One for each thread.
    pub(crate) scratch: Vec<Mutex<Scratch>>,
    pub(crate) pieces: Vec<AttentionPiece>,
    /// One layer of the blocks that are being copied.
    copied: Vec<u8>,
}

/// A thread's working memory.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) matmul: MatmulScratch,
    pub(crate) attention: AttentionScratch,
}

impl CpuBackend {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the CPU lacks the instruction set, or threads can't be had.
    pub fn new(options: CpuOptions) -> Result<Self, CpuBackendError> {
        let best = Isa::detect();
        let asked = options.isa.unwrap_or(best);
        let kernels = Kernels::new(asked).ok_or(CpuBackendError::UnavailableIsa { asked, best })?;
        let threads = options.threads;
        if threads == 0 {
            return Err(CpuBackendError::NoThreads);
        }
        if threads > MAX_THREADS {
            return Err(CpuBackendError::TooManyThreads { threads });
        }
        let pool = Pool::new(threads).map_err(|source| CpuBackendError::StartThreads { threads, source })?;
        let scratch = (0..threads).map(|_| Mutex::default()).collect();
        Ok(Self {
            kernels,
            pool,
            scratch,
            pieces: Vec::new(),
            copied: Vec::new(),
        })
    }

    /// Instruction set and threads, for logs.
    pub fn describe(&self) -> String {
        format!("cpu ({}, {} threads)", self.kernels.isa(), self.pool.threads())
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa()
    }

    /// The threads that compute.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

impl Backend for CpuBackend {
    type Matrix = CpuMatrix;
    type Vector = CpuVector;
    type Buffer = CpuBuffer;
    type Kv = CpuKv;

    fn load_matrix(&mut self, parts: &[WeightView<'_>]) -> Result<CpuMatrix, BackendError> {
        CpuMatrix::load(&mut self.pool, parts)
    }

    fn load_vector(&mut self, weight: WeightView<'_>) -> Result<CpuVector, BackendError> {
        Ok(CpuVector {
            values: dequantize_vector(&mut self.pool, self.kernels, weight)?,
        })
    }

    fn new_buffer(&mut self, max_rows: usize, width: usize) -> Result<CpuBuffer, BackendError> {
        CpuBuffer::new(max_rows, width)
    }

    fn new_kv(&mut self, shape: KvShape) -> Result<CpuKv, BackendError> {
        CpuKv::new(shape)
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy], kv: &mut CpuKv) -> Result<(), BackendError> {
        kv.copy_blocks(copies, &mut self.copied)
    }

    fn embed(&mut self, table: &CpuMatrix, tokens: &[u32], out: &mut CpuBuffer) -> Result<(), BackendError> {
        let operation = "embed";
        expect(operation, "width", out.width(), table.cols())?;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= table.rows()) {
            return Err(shape(
                operation,
                format!("token {token} of a table of {}", table.rows()),
            ));
        }
        out.set_rows(tokens.len(), operation)?;
        let kernels = self.kernels;
        self.by_rows(operation, out, &|scratch, row, out| {
            table.row(kernels, tokens[row] as usize, &mut scratch.matmul, out);
        })
    }

    fn rms_norm(
        &mut self,
        x: &CpuBuffer,
        weight: &CpuVector,
        eps: f32,
        out: &mut CpuBuffer,
    ) -> Result<(), BackendError> {
        let operation = "rms_norm";
        expect(operation, "weights", weight.values.len(), x.width())?;
        expect(operation, "width", out.width(), x.width())?;
        out.set_rows(x.rows(), operation)?;
        let kernels = self.kernels;
        self.by_rows(operation, out, &|_, row, out| {
            kernels.rms_norm(x.row(row), &weight.values, eps, out);
        })
    }

    fn linear(
        &mut self,
        w: &CpuMatrix,
        bias: Option<&CpuVector>,
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), BackendError> {
        out.set_rows(x.rows(), "linear")?;
        self.product("linear", w, bias, x, (out, false))
    }

    fn linear_add(
        &mut self,
        w: &CpuMatrix,
        bias: Option<&CpuVector>,
        x: &CpuBuffer,
        residual: &mut CpuBuffer,
    ) -> Result<(), BackendError> {
        self.product("linear_add", w, bias, x, (residual, true))
    }

    fn rope_and_store(
        &mut self,
        qkv: &mut CpuBuffer,
        layer: usize,
        rope: &RopeTable,
        batch: &AttentionBatch<'_>,
        kv: &mut CpuKv,
    ) -> Result<(), BackendError> {
        attention::rope_and_store(self, qkv, layer, rope, batch, kv)
    }

    fn attention(
        &mut self,
        qkv: &CpuBuffer,
        layer: usize,
        spec: AttentionSpec,
        batch: &AttentionBatch<'_>,
        kv: &CpuKv,
        out: &mut CpuBuffer,
    ) -> Result<(), BackendError> {
        attention::attend(self, qkv, (layer, spec), batch, kv, out)
    }

    fn gated_activation(
        &mut self,
        gate_up: &CpuBuffer,
        activation: Activation,
        out: &mut CpuBuffer,
    ) -> Result<(), BackendError> {
        let operation = "gated_activation";
        expect(
            operation,
            "width of gate and up",
            gate_up.width(),
            out.width().saturating_mul(2),
        )?;
        out.set_rows(gate_up.rows(), operation)?;
        let gate = match activation {
            Activation::Silu => Gate::Silu,
            Activation::GeluTanh => Gate::GeluTanh,
        };
        let kernels = self.kernels;
        self.by_rows(operation, out, &|_, row, out| {
            let (gates, ups) = gate_up.row(row).split_at(out.len());
            kernels.gated_activation(gate, gates, ups, out);
        })
    }

    fn gather_rows(
        &mut self,
        x: &CpuBuffer,
        rows: &[usize],
        out: &mut CpuBuffer,
    ) -> Result<(), BackendError> {
        let operation = "gather_rows";
        expect(operation, "width", out.width(), x.width())?;
        if let Some(row) = rows.iter().find(|row| **row >= x.rows()) {
            return Err(shape(operation, format!("row {row} of {}", x.rows())));
        }
        out.set_rows(rows.len(), operation)?;
        self.by_rows(operation, out, &|_, row, out| {
            out.copy_from_slice(x.row(rows[row]));
        })
    }

    fn read_row(&mut self, x: &CpuBuffer, row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let operation = "read_row";
        expect(operation, "width", out.len(), x.width())?;
        if row >= x.rows() {
            return Err(shape(operation, format!("row {row} of {}", x.rows())));
        }
        out.copy_from_slice(x.row(row));
        Ok(())
    }
}
