//! Checks of operands, before anything is indexed by them.

use kvasir_backend::{AttentionBatch, AttentionSpec, BackendError, BlockCopy, RopeTable};

use crate::kv::CpuKv;

pub(crate) fn shape(operation: &'static str, reason: String) -> BackendError {
    BackendError::Shape { operation, reason }
}

/// `found` must be `expected`.
pub(crate) fn expect(
    operation: &'static str,
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), BackendError> {
    if found == expected {
        return Ok(());
    }
    Err(shape(operation, format!("{what}: {found} where {expected} fit")))
}

/// Every sequence's rows follow each other and fill `rows`; every position has a block, and every block exists.
pub(crate) fn check_batch(
    operation: &'static str,
    batch: &AttentionBatch<'_>,
    rows: usize,
    layer: usize,
    kv: &CpuKv,
) -> Result<(), BackendError> {
    let fail = |reason: String| Err(shape(operation, reason));
    if layer >= kv.num_layers {
        return fail(format!("layer {layer} of {}", kv.num_layers));
    }
    let mut next_row = 0_usize;
    for (i, seq) in batch.seqs.iter().enumerate() {
        if seq.first_row != next_row {
            return fail(format!(
                "sequence {i} starts at row {}, not {next_row}",
                seq.first_row
            ));
        }
        next_row = next_row.saturating_add(seq.num_rows);
        let end = seq.first_position.saturating_add(seq.num_rows);
        let capacity = seq.blocks.len().saturating_mul(kv.layout.block_size());
        if end > capacity {
            return fail(format!(
                "sequence {i} has blocks for {capacity} positions and needs {end}"
            ));
        }
        if let Some(block) = seq.blocks.iter().find(|block| block.0 as usize >= kv.num_blocks) {
            return fail(format!(
                "sequence {i} names block {} of {}",
                block.0, kv.num_blocks
            ));
        }
    }
    if next_row != rows {
        return fail(format!("the sequences have {next_row} rows, the buffer {rows}"));
    }
    Ok(())
}

/// Every block exists and has as many positions as are copied.
pub(crate) fn check_copies(
    operation: &'static str,
    copies: &[BlockCopy],
    kv: &CpuKv,
) -> Result<(), BackendError> {
    for copy in copies {
        if let Some(block) = [copy.from, copy.to]
            .into_iter()
            .find(|block| block.0 as usize >= kv.num_blocks)
        {
            return Err(shape(
                operation,
                format!("block {} of {}", block.0, kv.num_blocks),
            ));
        }
        if copy.num_positions as usize > kv.layout.block_size() {
            let (found, size) = (copy.num_positions, kv.layout.block_size());
            return Err(shape(operation, format!("{found} positions of blocks of {size}")));
        }
    }
    Ok(())
}

/// The table has angles for every position, and the head has the values that rotate.
pub(crate) fn check_rope(
    operation: &'static str,
    rope: &RopeTable,
    batch: &AttentionBatch<'_>,
    kv: &CpuKv,
) -> Result<(), BackendError> {
    let (rotary_dim, head_dim) = (rope.rotary_dim, kv.layout.head_dim());
    if !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
        return Err(shape(
            operation,
            format!("{rotary_dim} values rotate: it must be even and at most {head_dim}"),
        ));
    }
    expect(operation, "sines", rope.sin.len(), rope.cos.len())?;
    let end = batch
        .seqs
        .iter()
        .map(|seq| seq.first_position + seq.num_rows)
        .max()
        .unwrap_or(0);
    if end.saturating_mul(rotary_dim / 2) > rope.cos.len() {
        return Err(shape(
            operation,
            format!("position {} is past the end of the rope table", end - 1),
        ));
    }
    Ok(())
}

/// Returns how many query heads share a KV head.
pub(crate) fn check_heads(
    operation: &'static str,
    spec: AttentionSpec,
    kv: &CpuKv,
    qkv_width: usize,
    out_width: usize,
) -> Result<usize, BackendError> {
    let (num_kv_heads, head_dim) = (kv.layout.num_kv_heads(), kv.layout.head_dim());
    let num_q_heads = spec.num_q_heads;
    if num_q_heads == 0 || num_kv_heads == 0 || !num_q_heads.is_multiple_of(num_kv_heads) {
        let reason = format!("{num_q_heads} query heads can't share {num_kv_heads} KV heads evenly");
        return Err(shape(operation, reason));
    }
    if spec.sliding_window == Some(0) {
        return Err(shape(
            operation,
            "a sliding window of 0 positions sees nothing".to_owned(),
        ));
    }
    let width = num_kv_heads
        .saturating_mul(2)
        .saturating_add(num_q_heads)
        .saturating_mul(head_dim);
    expect(operation, "row width", qkv_width, width)?;
    expect(
        operation,
        "output width",
        out_width,
        num_q_heads.saturating_mul(head_dim),
    )?;
    Ok(num_q_heads / num_kv_heads)
}
