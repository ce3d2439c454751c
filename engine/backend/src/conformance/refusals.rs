//! Operands that don't fit give errors.

use kvasir_engine_core::{BlockId, GroupId, SeqId};

use super::operands::{Rng, Weight, buffer, vector};
use super::{Failure, Outcome};
use crate::{
    Activation, AttentionBatch, AttentionSeq, AttentionSpec, Backend, BlockCopy, DType, KvDType, KvShape,
    RopeStyle, RopeTable,
};

/// Wrong sizes, rows, tokens, blocks and tables.
///
/// # Errors
/// If one is accepted.
pub fn operands_that_do_not_fit_are_refused<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    weights(backend)?;
    rows(backend)?;
    caches(backend)?;
    copies(backend)?;
    batches(backend)?;
    specs(backend)?;
    rotations(backend)
}

fn refused(what: &'static str, accepted: bool) -> Outcome {
    if accepted {
        Err(Failure::Accepted(what))
    } else {
        Ok(())
    }
}

fn weights<B: Backend>(backend: &mut B) -> Outcome {
    let mut rng = Rng(7);
    let weight = Weight::random(&mut rng, DType::F16, 3, 32);
    let narrow = Weight::random(&mut rng, DType::F16, 3, 31);
    let view = weight.view();
    refused(
        "too few bytes",
        backend
            .load_matrix(&[crate::WeightView {
                data: &weight.data[1..],
                ..view
            }])
            .is_ok(),
    )?;
    refused(
        "too many rows",
        backend
            .load_matrix(&[crate::WeightView { rows: 4, ..view }])
            .is_ok(),
    )?;
    refused(
        "rows beyond memory",
        backend
            .load_matrix(&[crate::WeightView {
                rows: usize::MAX,
                ..view
            }])
            .is_ok(),
    )?;
    refused(
        "half a block",
        backend
            .load_matrix(&[crate::WeightView {
                dtype: DType::Q4_0,
                cols: 48,
                ..view
            }])
            .is_ok(),
    )?;
    refused(
        "parts of different widths",
        backend.load_matrix(&[view, narrow.view()]).is_ok(),
    )?;
    refused("a vector of 3 rows", backend.load_vector(view).is_ok())?;
    refused(
        "a buffer beyond memory",
        backend.new_buffer(usize::MAX, 2).is_ok(),
    )
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
    refused("token 10 of 10", backend.embed(&w, &[0, 10], &mut wide).is_ok())?;
    refused("3 rows into 2", backend.embed(&w, &[0, 1, 2], &mut wide).is_ok())?;
    refused(
        "a table of another width",
        backend.embed(&w, &[0], &mut out).is_ok(),
    )?;
    refused(
        "outputs of another width",
        backend.linear(&w, None, &x, &mut wide).is_ok(),
    )?;
    refused(
        "a short bias",
        backend.linear(&w, Some(&short), &x, &mut out).is_ok(),
    )?;
    let mut residual = buffer(backend, &[0.0; 10], 10)?;
    refused(
        "a residual of another height",
        backend.linear_add(&w, None, &x, &mut residual).is_ok(),
    )?;
    refused(
        "a short norm",
        backend.rms_norm(&x, &short, 1e-5, &mut wide).is_ok(),
    )?;
    refused(
        "2 rows into 1",
        backend.rms_norm(&x, &right, 1e-5, &mut one).is_ok(),
    )?;
    refused(
        "a gate without up",
        backend.gated_activation(&x, Activation::Silu, &mut wide).is_ok(),
    )?;
    refused("row 2 of 2", backend.gather_rows(&x, &[2], &mut wide).is_ok())?;
    refused("row 2 of 2", backend.read_row(&x, 2, &mut [0.0; 16]).is_ok())?;
    refused(
        "a row of another width",
        backend.read_row(&x, 0, &mut [0.0; 15]).is_ok(),
    )
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
        backend
            .new_kv(KvShape {
                block_size: 0,
                ..SHAPE
            })
            .is_ok(),
    )?;
    refused(
        "a cache beyond memory",
        backend
            .new_kv(KvShape {
                num_blocks: usize::MAX / 2,
                ..SHAPE
            })
            .is_ok(),
    )
}

fn copies<B: Backend>(backend: &mut B) -> Outcome {
    let mut kv = backend.new_kv(SHAPE)?;
    let good = BlockCopy {
        seq: SeqId(0),
        group: GroupId(0),
        from: BlockId(1),
        to: BlockId(2),
        num_positions: 16,
    };
    for (what, copy) in [
        (
            "a copy of a block that doesn't exist",
            BlockCopy {
                from: BlockId(4),
                ..good
            },
        ),
        (
            "a copy to a block that doesn't exist",
            BlockCopy {
                to: BlockId(u32::MAX),
                ..good
            },
        ),
        (
            "a copy of 17 of 16 positions",
            BlockCopy {
                num_positions: 17,
                ..good
            },
        ),
    ] {
        refused(what, backend.copy_blocks(&[good, copy], &mut kv).is_ok())?;
    }
    Ok(())
}

const SEQ: AttentionSeq<'static> = AttentionSeq {
    first_row: 0,
    num_rows: 3,
    first_position: 0,
    blocks: &[BlockId(1), BlockId(2)],
};

const SPEC: AttentionSpec = AttentionSpec {
    num_q_heads: 2,
    scale: 1.0,
    sliding_window: None,
};

fn rope() -> RopeTable {
    let (cos, sin) = (vec![1.0; 40 * 8], vec![0.0; 40 * 8]);
    RopeTable {
        style: RopeStyle::Halves,
        rotary_dim: 16,
        num_q_heads: 2,
        cos,
        sin,
    }
}

fn batches<B: Backend>(backend: &mut B) -> Outcome {
    let mut kv = backend.new_kv(SHAPE)?;
    let mut qkv = buffer(backend, &[0.5; 3 * 64], 64)?;
    let mut out = backend.new_buffer(3, 32)?;
    let rope = rope();
    for (what, seq) in [
        (
            "a gap before the first row",
            AttentionSeq {
                first_row: 1,
                num_rows: 2,
                ..SEQ
            },
        ),
        ("a row without a sequence", AttentionSeq { num_rows: 2, ..SEQ }),
        (
            "more rows than there are",
            AttentionSeq {
                num_rows: usize::MAX,
                ..SEQ
            },
        ),
        (
            "a table that is too short",
            AttentionSeq {
                first_position: 30,
                ..SEQ
            },
        ),
        (
            "a position beyond all",
            AttentionSeq {
                first_position: usize::MAX,
                ..SEQ
            },
        ),
        (
            "a block that doesn't exist",
            AttentionSeq {
                blocks: &[BlockId(4)],
                ..SEQ
            },
        ),
    ] {
        let batch = AttentionBatch { seqs: &[seq] };
        refused(
            what,
            backend
                .rope_and_store(&mut qkv, 0, &rope, &batch, &mut kv)
                .is_ok(),
        )?;
        refused(
            what,
            backend.attention(&qkv, 0, SPEC, &batch, &kv, &mut out).is_ok(),
        )?;
    }
    Ok(())
}

fn specs<B: Backend>(backend: &mut B) -> Outcome {
    let kv = backend.new_kv(SHAPE)?;
    let qkv = buffer(backend, &[0.5; 3 * 64], 64)?;
    let mut out = backend.new_buffer(3, 32)?;
    let batch = AttentionBatch { seqs: &[SEQ] };
    for (what, layer, spec) in [
        ("layer 1 of 1", 1, SPEC),
        (
            "no heads",
            0,
            AttentionSpec {
                num_q_heads: 0,
                ..SPEC
            },
        ),
        (
            "heads beyond the row",
            0,
            AttentionSpec {
                num_q_heads: 3,
                ..SPEC
            },
        ),
        (
            "a window of nothing",
            0,
            AttentionSpec {
                sliding_window: Some(0),
                ..SPEC
            },
        ),
    ] {
        refused(
            what,
            backend
                .attention(&qkv, layer, spec, &batch, &kv, &mut out)
                .is_ok(),
        )?;
    }
    Ok(())
}

fn rotations<B: Backend>(backend: &mut B) -> Outcome {
    let mut kv = backend.new_kv(SHAPE)?;
    let mut qkv = buffer(backend, &[0.5; 3 * 64], 64)?;
    let blocks = [BlockId(1), BlockId(2), BlockId(3)];
    let late = AttentionSeq {
        first_position: 40,
        blocks: &blocks,
        ..SEQ
    };
    for (what, layer, rope, seq) in [
        ("layer 1 of 1", 1, rope(), SEQ),
        ("a position without angles", 0, rope(), late),
        (
            "an odd rotation",
            0,
            RopeTable {
                rotary_dim: 15,
                ..rope()
            },
            SEQ,
        ),
        (
            "a rotation beyond the head",
            0,
            RopeTable {
                rotary_dim: 18,
                ..rope()
            },
            SEQ,
        ),
        (
            "heads beyond the row",
            0,
            RopeTable {
                num_q_heads: 3,
                ..rope()
            },
            SEQ,
        ),
        (
            "sines without cosines",
            0,
            RopeTable {
                cos: Vec::new(),
                ..rope()
            },
            SEQ,
        ),
    ] {
        let batch = AttentionBatch { seqs: &[seq] };
        refused(
            what,
            backend
                .rope_and_store(&mut qkv, layer, &rope, &batch, &mut kv)
                .is_ok(),
        )?;
    }
    Ok(())
}
