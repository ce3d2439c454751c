//! A small model's whole step has the same bits with every instruction set and number of threads.

use kvasir_backend::{
    Activation, AttentionBatch, AttentionSeq, AttentionSpec, Backend, BackendError, DType, KvDType, KvShape,
    RopeStyle, RopeTable, WeightView,
};
use kvasir_engine_core::BlockId;

use crate::{CpuBackend, CpuBackendError, CpuBuffer, CpuKv, CpuMatrix, CpuOptions, CpuVector, Isa};

const HIDDEN: usize = 256;
const VOCAB: usize = 100;

fn backend(isa: Option<Isa>, threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads, isa }).unwrap()
}

/// Random blocks whose scales (bytes 0 to 3, or 80 to 83 and 208 on) are small; both ways of reading them are exercised.
fn matrix(backend: &mut CpuBackend, dtype: DType, rows: usize, cols: usize, seed: u64) -> CpuMatrix {
    let mut state = seed;
    let len = rows * dtype.row_bytes(cols).unwrap();
    let mut data: Vec<u8> = (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    let block = dtype.row_bytes(dtype.block_len()).unwrap();
    let halves: &[usize] = match dtype {
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 => &[0],
        _ => &[0, 2],
    };
    for (i, block) in data.chunks_mut(block).enumerate() {
        for at in halves {
            // f16 of about 2^-10, of either sign.
            block[*at..at + 2].copy_from_slice(&[i as u8, 0x14 | ((i as u8) << 7)]);
        }
    }
    backend
        .load_matrix(&[WeightView {
            name: "random",
            dtype,
            rows,
            cols,
            data: &data,
        }])
        .unwrap()
}

const Q_HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const INNER: usize = 512;

/// One layer with a different type in every matrix.
struct Model {
    table: CpuMatrix,
    qkv: CpuMatrix,
    output: CpuMatrix,
    gate_up: CpuMatrix,
    down: CpuMatrix,
    norm: CpuVector,
    rope: RopeTable,
    kv: CpuKv,
}

impl Model {
    fn new(b: &mut CpuBackend) -> Self {
        let ones = 1.0_f32.to_le_bytes().repeat(HIDDEN);
        let norm = WeightView {
            name: "norm",
            dtype: DType::F32,
            rows: 1,
            cols: HIDDEN,
            data: &ones,
        };
        let shape = KvShape {
            num_layers: 1,
            num_kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            block_size: 16,
            num_blocks: 20,
            dtype: KvDType::F16,
        };
        let (sin, cos) = (0..200 * HEAD_DIM / 2)
            .map(|i| (i as f32 / 7.0).sin_cos())
            .unzip();
        Self {
            table: matrix(b, DType::Q6K, VOCAB, HIDDEN, 1),
            qkv: matrix(b, DType::Q4K, (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, 2),
            output: matrix(b, DType::Q5_1, HIDDEN, Q_HEADS * HEAD_DIM, 3),
            gate_up: matrix(b, DType::Q3K, 2 * INNER, HIDDEN, 4),
            down: matrix(b, DType::Q2K, HIDDEN, INNER, 5),
            norm: b.load_vector(norm).unwrap(),
            rope: RopeTable {
                style: RopeStyle::Pairs,
                rotary_dim: HEAD_DIM,
                num_q_heads: Q_HEADS,
                cos,
                sin,
            },
            kv: b.new_kv(shape).unwrap(),
        }
    }

    /// The logits of all rows of a step.
    fn step(
        &mut self,
        b: &mut CpuBackend,
        batch: &AttentionBatch<'_>,
        rows: usize,
    ) -> Result<CpuBuffer, BackendError> {
        let mut new = |width| b.new_buffer(rows, width);
        let (mut x, mut normed, mut heads) = (new(HIDDEN)?, new(HIDDEN)?, new(Q_HEADS * HEAD_DIM)?);
        let (mut qkv, mut gates, mut inner) = (new(2 * Q_HEADS * HEAD_DIM)?, new(2 * INNER)?, new(INNER)?);
        let mut out = new(VOCAB)?;
        let tokens: Vec<u32> = (0..rows).map(|i| (i * 7 % VOCAB) as u32).collect();
        let spec = AttentionSpec {
            num_q_heads: Q_HEADS,
            scale: 0.2,
            sliding_window: None,
        };
        b.embed(&self.table, &tokens, &mut x)?;
        b.rms_norm(&x, &self.norm, 1e-5, &mut normed)?;
        b.linear(&self.qkv, None, &normed, &mut qkv)?;
        b.rope_and_store(&mut qkv, 0, &self.rope, batch, &mut self.kv)?;
        b.attention(&qkv, 0, spec, batch, &self.kv, &mut heads)?;
        b.linear_add(&self.output, None, &heads, &mut x)?;
        b.rms_norm(&x, &self.norm, 1e-5, &mut normed)?;
        b.linear(&self.gate_up, None, &normed, &mut gates)?;
        b.gated_activation(&gates, Activation::Silu, &mut inner)?;
        b.linear_add(&self.down, None, &inner, &mut x)?;
        b.linear(&self.table, None, &x, &mut out)?;
        Ok(out)
    }
}

/// The bits of two sequences' logits in a prefill and a decode.
fn logits(mut backend: CpuBackend) -> Vec<u32> {
    let mut model = Model::new(&mut backend);
    let blocks: Vec<BlockId> = (1..20).map(BlockId).collect();
    let mut bits = Vec::new();
    for (positions, rows) in [([0, 0], [61, 40]), ([61, 40], [1, 1])] {
        let seq = |first_row, i: usize, blocks| AttentionSeq {
            first_row,
            num_rows: rows[i],
            first_position: positions[i],
            blocks,
        };
        let seqs = [seq(0, 0, &blocks[..5]), seq(rows[0], 1, &blocks[5..])];
        let total = rows[0] + rows[1];
        let out = model
            .step(&mut backend, &AttentionBatch { seqs: &seqs }, total)
            .unwrap();
        for row in 0..total {
            let mut logits = vec![0.0; VOCAB];
            backend.read_row(&out, row, &mut logits).unwrap();
            assert!(logits.iter().all(|x| x.is_finite()));
            bits.extend(logits.iter().map(|x| x.to_bits()));
        }
    }
    bits
}

#[test]
fn a_step_has_the_same_bits_with_every_instruction_set_and_number_of_threads() {
    let expected = logits(backend(Some(Isa::Scalar), 1));
    assert!(expected.iter().any(|bits| *bits != expected[0]));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for threads in 1..=3 {
            assert_eq!(
                logits(backend(Some(isa), threads)),
                expected,
                "{isa} with {threads} threads"
            );
        }
    }
}

#[test]
fn the_backend_says_what_it_is() {
    let backend = backend(Some(Isa::Scalar), 2);
    assert_eq!(backend.describe(), "cpu (scalar, 2 threads)");
    assert_eq!(self::backend(None, 1).isa(), Isa::detect());
}

#[test]
fn no_threads_are_refused() {
    let refused = CpuBackend::new(CpuOptions {
        threads: 0,
        isa: None,
    });
    assert!(matches!(refused, Err(CpuBackendError::NoThreads)));
}

#[test]
fn more_threads_than_any_machine_has_are_refused_before_memory_is_asked_for() {
    for threads in [1025, u32::MAX as usize, usize::MAX] {
        let refused = CpuBackend::new(CpuOptions { threads, isa: None });
        assert!(matches!(refused, Err(CpuBackendError::TooManyThreads { .. })));
    }
}

#[test]
fn block_sizes_that_are_no_multiple_of_16_are_refused_with_the_rule() {
    let shape = KvShape {
        num_layers: 1,
        num_kv_heads: 1,
        head_dim: 64,
        block_size: 24,
        num_blocks: 4,
        dtype: KvDType::F16,
    };
    let Err(BackendError::Shape { reason, .. }) = backend(None, 1).new_kv(shape) else {
        panic!("accepted")
    };
    assert!(reason.contains("multiple of 16"), "{reason}");
}

#[test]
fn a_cache_takes_memory_only_where_it_is_written() {
    // A terabyte: more than any test machine has.
    let shape = KvShape {
        num_layers: 32,
        num_kv_heads: 8,
        head_dim: 128,
        block_size: 16,
        num_blocks: 1 << 19,
        dtype: KvDType::F16,
    };
    assert_eq!(shape.block_bytes() << 19, 1 << 40);
    let mut backend = backend(None, 1);
    let mut kv = backend.new_kv(shape).unwrap();
    let width = 3 * 8 * 128;
    let mut qkv = backend.new_buffer(1, width).unwrap();
    let table = 1.0_f32.to_le_bytes().repeat(width);
    let view = WeightView {
        name: "row",
        dtype: DType::F32,
        rows: 1,
        cols: width,
        data: &table,
    };
    let table = backend.load_matrix(&[view]).unwrap();
    backend.embed(&table, &[0], &mut qkv).unwrap();
    let rope = RopeTable {
        style: RopeStyle::Halves,
        rotary_dim: 0,
        num_q_heads: 8,
        cos: Vec::new(),
        sin: Vec::new(),
    };
    let blocks = [BlockId((1 << 19) - 1)];
    let seqs = [AttentionSeq {
        first_row: 0,
        num_rows: 1,
        first_position: 0,
        blocks: &blocks,
    }];
    backend
        .rope_and_store(&mut qkv, 31, &rope, &AttentionBatch { seqs: &seqs }, &mut kv)
        .unwrap();
    let mut out = backend.new_buffer(1, 8 * 128).unwrap();
    let spec = AttentionSpec {
        num_q_heads: 8,
        scale: 0.1,
        sliding_window: None,
    };
    backend
        .attention(&qkv, 31, spec, &AttentionBatch { seqs: &seqs }, &kv, &mut out)
        .unwrap();
    let mut row = vec![0.0; 8 * 128];
    backend.read_row(&out, 0, &mut row).unwrap();
    assert_eq!(row, vec![1.0; 8 * 128]);
}
