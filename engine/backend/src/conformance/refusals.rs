//! Operands that don't fit give errors.

use kvasir_engine_core::BlockId;

use super::operands::{Rng, Weight, buffer, vector};
use super::{Failure, Outcome};
use crate::{
    Activation, AttentionBatch, AttentionSeq, AttentionSpec, Backend, DType, KvDType, KvShape, RopeStyle,
    RopeTable,
};

/// Wrong sizes, rows, tokens, blocks and tables.
///
/// # Errors
/// If one is accepted.
pub fn operands_that_do_not_fit_are_refused<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    weights(backend)?;
    rows(backend)?;
    caches(backend)?;
    sequences(backend)
}

fn refused<T, E>(what: &'static str, result: Result<T, E>) -> Outcome {
    match result {
        Ok(_) => Err(Failure::Accepted(what)),
        Err(_) => Ok(()),
    }
}

fn weights<B: Backend>(backend: &mut B) -> Outcome {
    let mut rng = Rng(7);
    let weight = Weight::random(&mut rng, DType::F16, 3, 32);
    let narrow = Weight::random(&mut rng, DType::F16, 3, 31);
    let view = weight.view();
    refused(
        "too few bytes",
        backend.load_matrix(&[crate::WeightView {
            data: &weight.data[1..],
            ..view
        }]),
    )?;
    refused(
        "too many rows",
        backend.load_matrix(&[crate::WeightView { rows: 4, ..view }]),
    )?;
    refused(
        "rows beyond memory",
        backend.load_matrix(&[crate::WeightView {
            rows: usize::MAX,
            ..view
        }]),
    )?;
    refused(
        "half a block",
        backend.load_matrix(&[crate::WeightView {
            dtype: DType::Q4_0,
            cols: 48,
            ..view
        }]),
    )?;
    refused(
        "parts of different widths",
        backend.load_matrix(&[view, narrow.view()]),
    )?;
    refused("a vector of 3 rows", backend.load_vector(view))?;
    refused("a buffer beyond memory", backend.new_buffer(usize::MAX, 2))
}

fn rows<B: Backend>(backend: &mut B) -> Outcome {
    let mut rng = Rng(8);
    let weight = Weight::random(&mut rng, DType::F32, 10, 16);
    let w = backend.load_matrix(&[weight.view()])?;
    let x = buffer(backend, &rng.floats(32), 16)?;
    let (short, right) = (vector(backend, &[1.0; 9])?, vector(backend, &[1.0; 16])?);
    let mut out = backend.new_buffer(2, 10)?;
    let mut wide = backend.new_buffer(2, 16)?;
    let mut one = backend.new_buffer(1, 16)?;
    refused("token 10 of 10", backend.embed(&w, &[0, 10], &mut wide))?;
    refused("3 rows into 2", backend.embed(&w, &[0, 1, 2], &mut wide))?;
    refused("a table of another width", backend.embed(&w, &[0], &mut out))?;
    refused(
        "outputs of another width",
        backend.linear(&w, None, &x, &mut wide),
    )?;
    refused("a short bias", backend.linear(&w, Some(&short), &x, &mut out))?;
    let mut residual = buffer(backend, &[0.0; 10], 10)?;
    refused(
        "a residual of another height",
        backend.linear_add(&w, None, &x, &mut residual),
    )?;
    refused("a short norm", backend.rms_norm(&x, &short, 1e-5, &mut wide))?;
    refused("2 rows into 1", backend.rms_norm(&x, &right, 1e-5, &mut one))?;
    refused(
        "a gate without up",
        backend.gated_activation(&x, Activation::Silu, &mut wide),
    )?;
    refused("row 2 of 2", backend.gather_rows(&x, &[2], &mut wide))?;
    refused("row 2 of 2", backend.read_row(&x, 2, &mut [0.0; 16]))?;
    refused("a row of another width", backend.read_row(&x, 0, &mut [0.0; 15]))
}

const SHAPE: KvShape = KvShape {
    num_layers: 1,
    num_kv_heads: 1,
    head_dim: 16,
    block_size: 16,
    num_blocks: 4,
    dtype: KvDType::F16,
};

fn caches<B: Backend>(backend: &mut B) -> Outcome {
    refused(
        "blocks of nothing",
        backend.new_kv(KvShape {
            block_size: 0,
            ..SHAPE
        }),
    )?;
    refused(
        "a cache beyond memory",
        backend.new_kv(KvShape {
            num_blocks: usize::MAX / 2,
            ..SHAPE
        }),
    )
}

fn sequences<B: Backend>(backend: &mut B) -> Outcome {
    let mut kv = backend.new_kv(SHAPE)?;
    let rope = RopeTable {
        style: RopeStyle::Halves,
        rotary_dim: 16,
        num_q_heads: 2,
        cos: vec![1.0; 40 * 8],
        sin: vec![0.0; 40 * 8],
    };
    let mut qkv = buffer(backend, &[0.5; 3 * 64], 64)?;
    let mut out = backend.new_buffer(3, 32)?;
    let blocks = [BlockId(1), BlockId(2)];
    let seq = AttentionSeq {
        first_row: 0,
        num_rows: 3,
        first_position: 0,
        blocks: &blocks,
    };
    let spec = AttentionSpec {
        num_q_heads: 2,
        scale: 1.0,
        sliding_window: None,
    };
    let bad = [
        (
            "a gap before the first row",
            AttentionSeq {
                first_row: 1,
                num_rows: 2,
                ..seq
            },
        ),
        ("a row without a sequence", AttentionSeq { num_rows: 2, ..seq }),
        (
            "more rows than there are",
            AttentionSeq {
                num_rows: usize::MAX,
                ..seq
            },
        ),
        (
            "a table that is too short",
            AttentionSeq {
                first_position: 30,
                ..seq
            },
        ),
        (
            "a position beyond all",
            AttentionSeq {
                first_position: usize::MAX,
                ..seq
            },
        ),
        (
            "a block that doesn't exist",
            AttentionSeq {
                blocks: &[BlockId(4)],
                ..seq
            },
        ),
    ];
    for (what, seq) in bad {
        let batch = AttentionBatch { seqs: &[seq] };
        refused(what, backend.rope_and_store(&mut qkv, 0, &rope, &batch, &mut kv))?;
        refused(what, backend.attention(&qkv, 0, spec, &batch, &kv, &mut out))?;
    }
    let batch = AttentionBatch { seqs: &[seq] };
    let long = [BlockId(1), BlockId(2), BlockId(3)];
    let late = AttentionBatch {
        seqs: &[AttentionSeq {
            first_position: 40,
            blocks: &long,
            ..seq
        }],
    };
    let odd = RopeTable {
        rotary_dim: 15,
        ..rope.clone()
    };
    let large = RopeTable {
        rotary_dim: 18,
        ..rope.clone()
    };
    let heads = RopeTable {
        num_q_heads: 3,
        ..rope.clone()
    };
    refused(
        "layer 1 of 1",
        backend.rope_and_store(&mut qkv, 1, &rope, &batch, &mut kv),
    )?;
    refused(
        "a position without angles",
        backend.rope_and_store(&mut qkv, 0, &rope, &late, &mut kv),
    )?;
    refused(
        "an odd rotation",
        backend.rope_and_store(&mut qkv, 0, &odd, &batch, &mut kv),
    )?;
    refused(
        "a rotation beyond the head",
        backend.rope_and_store(&mut qkv, 0, &large, &batch, &mut kv),
    )?;
    refused(
        "heads beyond the row",
        backend.rope_and_store(&mut qkv, 0, &heads, &batch, &mut kv),
    )?;
    for (what, spec) in [
        (
            "no heads",
            AttentionSpec {
                num_q_heads: 0,
                ..spec
            },
        ),
        (
            "heads beyond the row",
            AttentionSpec {
                num_q_heads: 3,
                ..spec
            },
        ),
        (
            "a window of nothing",
            AttentionSpec {
                sliding_window: Some(0),
                ..spec
            },
        ),
    ] {
        refused(what, backend.attention(&qkv, 0, spec, &batch, &kv, &mut out))?;
    }
    refused(
        "layer 1 of 1",
        backend.attention(&qkv, 1, spec, &batch, &kv, &mut out),
    )
}
