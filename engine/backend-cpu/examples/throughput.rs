//! What the backend reaches beside what the machine can do, in one run: `cargo run --release -p kvasir-backend-cpu
//! --example throughput -- [THREADS] [ISA] [TYPE]`.
//!
//! The model has the default model's shapes (SmolLM2-135M) and random weights, so decoding reads as many bytes and
//! prefill multiplies as often as the real one. With one thread, time is the thread's own, so that other work on the
//! machine takes part only through the caches and the memory; with more it is the clock's.
#![expect(
    clippy::print_stdout,
    unsafe_code,
    reason = "a program that reports; a probe of the CPU's own speed"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use kvasir_backend::{
    Activation, AttentionBatch, AttentionSeq, AttentionSpec, Backend, DType, KvDType, KvShape, RopeStyle,
    RopeTable, WeightView,
};
use kvasir_backend_cpu::{CpuBackend, CpuBuffer, CpuKv, CpuMatrix, CpuOptions, CpuVector, Isa};
use kvasir_engine_core::BlockId;

const LAYERS: usize = 30;
const HIDDEN: usize = 576;
const INNER: usize = 1536;
const VOCAB: usize = 49_152;
const Q_HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;
const MAX_ROWS: usize = 512;
const CONTEXT: usize = 1024;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map_or(Ok(2), |threads| threads.parse())?;
    let isa: Option<Isa> = arguments.next().map(|isa| isa.parse()).transpose()?;
    let dtype = match arguments.next().as_deref() {
        None | Some("q4_1") => DType::Q4_1,
        Some("q8_0") => DType::Q8_0,
        Some("bf16") => DType::BF16,
        Some("f32") => DType::F32,
        Some(other) => return Err(format!("unknown type {other}").into()),
    };
    let backend = CpuBackend::new(CpuOptions { threads, isa })?;
    println!("{}, {dtype:?}", backend.describe());
    let bandwidth = read_bandwidth(threads);
    let arithmetic = fma_rate(threads, backend.isa());
    println!("machine: {bandwidth:.1} GB/s read, {arithmetic:.0} GFLOP/s fused multiply-add");
    let started = Instant::now();
    let mut model = Model::new(backend, dtype)?;
    let bytes = model.bytes() as f64;
    println!(
        "load: {:.2} s for {:.1} MB packed",
        started.elapsed().as_secs_f64(),
        bytes / 1e6
    );

    for context in [16, 320] {
        let seconds = model.best(&[(context, 1)], 24)?;
        let rate = bytes / seconds / 1e9;
        println!(
            "decode at {context}: {:.1} tok/s, {rate:.1} GB/s, {:.0} % of the read bandwidth",
            1.0 / seconds,
            100.0 * rate / bandwidth
        );
    }
    for streams in [2, 4, 8, 32] {
        let seconds = model.best(&vec![(320 / streams.min(4), 1); streams], 6)?;
        println!(
            "decode of {streams} streams: {:.1} tok/s",
            streams as f64 / seconds
        );
    }
    for rows in [16, 64, 256, 512] {
        let seconds = model.best(&[(0, rows)], 3)?;
        let flops = 2.0 * rows as f64 * (model.weights() - (VOCAB * HIDDEN) as f64);
        let rate = flops / seconds / 1e9;
        println!(
            "prefill of {rows}: {:.0} tok/s, {rate:.0} GFLOP/s in products, {:.0} % of the arithmetic",
            rows as f64 / seconds,
            100.0 * rate / arithmetic
        );
    }
    Ok(())
}

/// A forward pass without sampling.
struct Model {
    backend: CpuBackend,
    embeddings: CpuMatrix,
    layers: Vec<[CpuMatrix; 4]>,
    norm: CpuVector,
    kv: CpuKv,
    rope: RopeTable,
    blocks: Vec<BlockId>,
    x: CpuBuffer,
    normed: CpuBuffer,
    qkv: CpuBuffer,
    heads: CpuBuffer,
    gate_up: CpuBuffer,
    inner: CpuBuffer,
    last: CpuBuffer,
    logits: CpuBuffer,
}

impl Model {
    fn new(mut backend: CpuBackend, dtype: DType) -> Result<Self, Failure> {
        let widths = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM;
        let mut layers = Vec::new();
        for _ in 0..LAYERS {
            layers.push([
                matrix(&mut backend, dtype, widths, HIDDEN)?,
                matrix(&mut backend, dtype, HIDDEN, Q_HEADS * HEAD_DIM)?,
                matrix(&mut backend, dtype, 2 * INNER, HIDDEN)?,
                matrix(&mut backend, dtype, HIDDEN, INNER)?,
            ]);
        }
        let ones = 1.0_f32.to_le_bytes().repeat(HIDDEN);
        let weight = WeightView {
            name: "norm",
            dtype: DType::F32,
            rows: 1,
            cols: HIDDEN,
            data: &ones,
        };
        let angles = CONTEXT * HEAD_DIM / 2;
        let num_blocks = 32 * CONTEXT / 16 + 1;
        let shape = KvShape {
            num_layers: LAYERS,
            num_kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            block_size: 16,
            num_blocks,
            dtype: KvDType::F16,
        };
        Ok(Self {
            embeddings: matrix(&mut backend, dtype, VOCAB, HIDDEN)?,
            layers,
            norm: backend.load_vector(weight)?,
            kv: backend.new_kv(shape)?,
            rope: RopeTable {
                style: RopeStyle::Pairs,
                rotary_dim: HEAD_DIM,
                num_q_heads: Q_HEADS,
                cos: vec![0.8; angles],
                sin: vec![0.6; angles],
            },
            blocks: (1..num_blocks as u32).map(BlockId).collect(),
            x: backend.new_buffer(MAX_ROWS, HIDDEN)?,
            normed: backend.new_buffer(MAX_ROWS, HIDDEN)?,
            qkv: backend.new_buffer(MAX_ROWS, widths)?,
            heads: backend.new_buffer(MAX_ROWS, Q_HEADS * HEAD_DIM)?,
            gate_up: backend.new_buffer(MAX_ROWS, 2 * INNER)?,
            inner: backend.new_buffer(MAX_ROWS, INNER)?,
            last: backend.new_buffer(MAX_ROWS, HIDDEN)?,
            logits: backend.new_buffer(MAX_ROWS, VOCAB)?,
            backend,
        })
    }

    fn bytes(&self) -> usize {
        self.embeddings.bytes() + self.layers.iter().flatten().map(CpuMatrix::bytes).sum::<usize>()
    }

    fn weights(&self) -> f64 {
        let matrices = self.layers.iter().flatten().chain([&self.embeddings]);
        matrices
            .map(|matrix| (matrix.rows() * matrix.cols()) as f64)
            .sum()
    }

    /// Seconds of the fastest of `tries` passes over `(context, rows)` sequences.
    fn best(&mut self, seqs: &[(usize, usize)], tries: usize) -> Result<f64, Failure> {
        let mut best = f64::INFINITY;
        for _ in 0..=tries {
            let watch = Watch::start(self.backend.threads());
            self.forward(seqs)?;
            best = best.min(watch.seconds());
        }
        Ok(best)
    }

    fn forward(&mut self, seqs: &[(usize, usize)]) -> Result<(), Failure> {
        let mut rows = 0;
        let mut batch = Vec::new();
        let mut last_rows = Vec::new();
        for (index, (context, num_rows)) in seqs.iter().enumerate() {
            let blocks = &self.blocks[index * CONTEXT / 16..][..CONTEXT / 16];
            batch.push(AttentionSeq {
                first_row: rows,
                num_rows: *num_rows,
                first_position: *context,
                blocks,
            });
            rows += num_rows;
            last_rows.push(rows - 1);
        }
        let batch = AttentionBatch { seqs: &batch };
        let tokens: Vec<u32> = (0..rows as u32).collect();
        let spec = AttentionSpec {
            num_q_heads: Q_HEADS,
            scale: 0.125,
            sliding_window: None,
        };
        let backend = &mut self.backend;
        backend.embed(&self.embeddings, &tokens, &mut self.x)?;
        for (layer, [qkv, output, gate_up, down]) in self.layers.iter().enumerate() {
            backend.rms_norm(&self.x, &self.norm, 1e-5, &mut self.normed)?;
            backend.linear(qkv, None, &self.normed, &mut self.qkv)?;
            backend.rope_and_store(&mut self.qkv, layer, &self.rope, &batch, &mut self.kv)?;
            backend.attention(&self.qkv, layer, spec, &batch, &self.kv, &mut self.heads)?;
            backend.linear_add(output, None, &self.heads, &mut self.x)?;
            backend.rms_norm(&self.x, &self.norm, 1e-5, &mut self.normed)?;
            backend.linear(gate_up, None, &self.normed, &mut self.gate_up)?;
            backend.gated_activation(&self.gate_up, Activation::Silu, &mut self.inner)?;
            backend.linear_add(down, None, &self.inner, &mut self.x)?;
        }
        backend.gather_rows(&self.x, &last_rows, &mut self.last)?;
        backend.rms_norm(&self.last, &self.norm, 1e-5, &mut self.normed)?;
        Ok(backend.linear(&self.embeddings, None, &self.normed, &mut self.logits)?)
    }
}

/// Random bits with small scales.
fn matrix(backend: &mut CpuBackend, dtype: DType, rows: usize, cols: usize) -> Result<CpuMatrix, Failure> {
    let row_bytes = dtype.row_bytes(cols).ok_or("rows of whole blocks")?;
    let mut state = 1_u64;
    let mut data: Vec<u8> = (0..rows * row_bytes)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            let size = row_bytes / cols;
            data.chunks_mut(size)
                .for_each(|value| value[size - 1] = 0x3c | value[size - 1] & 0x80);
        }
        _ => {
            let block = row_bytes / (cols / dtype.block_len());
            data.chunks_mut(block)
                .for_each(|block| block[..4].copy_from_slice(&[0, 0x18, 0, 0x98]));
        }
    }
    Ok(backend.load_matrix(&[WeightView {
        name: "random",
        dtype,
        rows,
        cols,
        data: &data,
    }])?)
}

/// A stopwatch.
struct Watch {
    started: Instant,
    /// Of the thread, where it is the only one.
    cpu: Option<Duration>,
}

impl Watch {
    fn start(threads: usize) -> Self {
        Self {
            started: Instant::now(),
            cpu: (threads == 1).then(thread_time),
        }
    }

    fn seconds(&self) -> f64 {
        let elapsed = self
            .cpu
            .map_or_else(|| self.started.elapsed(), |cpu| thread_time().saturating_sub(cpu));
        elapsed.as_secs_f64()
    }
}

/// How long this thread has run.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: The call writes the structure that it gets.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "every thread has a clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Seconds of the fastest of `tries` runs of `work` on all threads at once.
fn best_of(tries: usize, threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..tries {
        let watch = Watch::start(threads);
        std::thread::scope(|scope| {
            for thread in 1..threads {
                let work = &work;
                scope.spawn(move || work(thread));
            }
            work(0);
        });
        best = best.min(watch.seconds());
    }
    best
}

/// GB/s of all threads together.
fn read_bandwidth(threads: usize) -> f64 {
    let words = vec![1_u64; 32 << 20];
    let part = words.len() / threads / 32 * 32;
    let seconds = best_of(8, threads, |thread| {
        let mut sums = [0_u64; 32];
        for words in words[thread * part..][..part].as_chunks::<32>().0 {
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum ^= word;
            }
        }
        black_box(sums);
    });
    (part * threads * 8) as f64 / seconds / 1e9
}

/// GFLOP/s of all threads together with the widest fused multiply-adds of `isa`.
fn fma_rate(threads: usize, isa: Isa) -> f64 {
    let (steps, values) = match isa {
        Isa::Scalar => (40_000, 16),
        Isa::Avx2 => (1_000_000, AVX2_VALUES),
        Isa::Avx512 => (1_000_000, AVX512_VALUES),
    };
    let seconds = best_of(8, threads, |_| {
        match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: The backend runs with this instruction set.
            Isa::Avx512 => unsafe { fma_avx512(steps) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: As above.
            Isa::Avx2 => unsafe { fma_avx2(steps) },
            _ => chains::<16>(steps),
        };
    });
    (threads * steps * 2 * values) as f64 / seconds / 1e9
}

/// 12 registers: enough for a latency of 4 cycles on 2 ports.
const AVX2_VALUES: usize = 12 * 8;
/// As above.
const AVX512_VALUES: usize = 12 * 16;

#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "must be compiled with its caller's target features"
)]
fn chains<const N: usize>(steps: usize) -> f32 {
    let mut acc = [1.0_f32; N];
    let factor = black_box(0.999_f32);
    for _ in 0..steps {
        for acc in &mut acc {
            *acc = acc.mul_add(factor, 0.001);
        }
    }
    black_box(acc).iter().sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,fma")]
fn fma_avx512(steps: usize) -> f32 {
    chains::<AVX512_VALUES>(steps)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_avx2(steps: usize) -> f32 {
    chains::<AVX2_VALUES>(steps)
}
