//! Rotary embedding, KV writes and attention.
#![expect(
    unsafe_code,
    reason = "pieces write disjoint heads of one buffer and one cache"
)]

use kvasir_backend::{AttentionBatch, AttentionSpec, BackendError, RopeStyle, RopeTable};
use kvasir_kernels_cpu::{AttentionTask, Kernels, Rotation};

use crate::backend::CpuBackend;
use crate::buffer::CpuBuffer;
use crate::check::{check_batch, check_heads, check_rope, expect};
use crate::kv::CpuKv;
use crate::pieces::VALUES_PER_PIECE;
use crate::pool::lock;
use crate::shared::SharedMut;

/// Queries (a row and a head) per piece of attention: they share every load of K and V.
const QUERIES_PER_PIECE: usize = 48;

/// Multiplications up to which attention isn't worth a hand-over: some 5 us.
const FEW_PRODUCTS: usize = 128 * 1024;

/// Some rows of a sequence and a KV head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionPiece {
    seq: usize,
    /// Counted from the sequence's first.
    row: usize,
    num_rows: usize,
    kv_head: usize,
}

/// See [`kvasir_backend::Backend::rope_and_store`]. A piece is a Q head, or a KV head with its part of the cache, over all
/// rows: so even a table that names a block twice makes no two threads write the same place.
pub(crate) fn rope_and_store(
    backend: &mut CpuBackend,
    qkv: &mut CpuBuffer,
    layer: usize,
    rope: &RopeTable,
    batch: &AttentionBatch<'_>,
    kv: &mut CpuKv,
) -> Result<(), BackendError> {
    let operation = "rope_and_store";
    check_batch(operation, batch, qkv.rows(), layer, kv)?;
    check_rope(operation, rope, batch, kv)?;
    let layout = kv.layout;
    let (head_dim, num_kv_heads) = (layout.head_dim(), layout.num_kv_heads());
    let num_heads = rope.num_q_heads.saturating_add(num_kv_heads);
    let width = num_heads.saturating_add(num_kv_heads).saturating_mul(head_dim);
    expect(operation, "row width", qkv.width(), width)?;
    let few = qkv.values().len() <= VALUES_PER_PIECE;
    let heads_per_piece = if few { num_heads.max(1) } else { 1 };
    let qkv = SharedMut::new(qkv.values_mut());
    let cache = SharedMut::new(kv.layer_mut(layer));
    let kernels = backend.kernels;
    backend
        .pool
        .run(operation, num_heads.div_ceil(heads_per_piece), &|_, piece| {
            let heads = piece * heads_per_piece..num_heads.min((piece + 1) * heads_per_piece);
            for (head, (row, position, block_of)) in
                heads.flat_map(|head| rows_of(batch).map(move |row| (head, row)))
            {
                let at = row * width + head * head_dim;
                // SAFETY: A piece owns its heads' columns, and the slice ends with this turn.
                let values = unsafe { qkv.part(at, head_dim) };
                rotate(kernels, rope, values, position);
                let Some(kv_head) = head.checked_sub(rope.num_q_heads) else {
                    continue;
                };
                // SAFETY: As above: V of a KV head goes with its K.
                let v = unsafe { qkv.part(at + num_kv_heads * head_dim, head_dim) };
                let block = block_of(position / layout.block_size());
                // SAFETY: A piece owns its heads' parts of all blocks, and the slice ends with this turn.
                let head = unsafe { cache.part(layout.head_at(block, kv_head), layout.head_bytes()) };
                kernels.store_kv(layout, head, position % layout.block_size(), values, v);
            }
        })
}

/// See [`kvasir_backend::Backend::attention`].
pub(crate) fn attend(
    backend: &mut CpuBackend,
    qkv: &CpuBuffer,
    (layer, spec): (usize, AttentionSpec),
    batch: &AttentionBatch<'_>,
    kv: &CpuKv,
    out: &mut CpuBuffer,
) -> Result<(), BackendError> {
    let operation = "attention";
    check_batch(operation, batch, qkv.rows(), layer, kv)?;
    let group = check_heads(operation, spec, kv, qkv.width(), out.width())?;
    out.set_rows(qkv.rows(), operation)?;
    let CpuBackend {
        kernels,
        pool,
        scratch,
        pieces,
        ..
    } = backend;
    let rows_per_piece = (QUERIES_PER_PIECE / group).max(1);
    list_pieces(pieces, batch, kv.layout.num_kv_heads(), rows_per_piece);
    let (width, head_dim) = (out.width(), kv.layout.head_dim());
    let out = SharedMut::new(out.values_mut());
    let attend = |worker: usize, piece: &AttentionPiece| {
        let (row, num_rows, kv_head) = (piece.row, piece.num_rows, piece.kv_head);
        let seq = batch.seqs[piece.seq];
        let first_q = kv_head * group * head_dim;
        let task = AttentionTask {
            layout: kv.layout,
            kv: kv.layer(layer),
            kv_head,
            block_of: &|index| seq.blocks[index].0 as usize,
            q: qkv.view(seq.first_row + row, num_rows),
            first_q,
            num_heads: group,
            first_position: seq.first_position + row,
            scale: spec.scale,
            window: spec.sliding_window,
        };
        let mut sink = |task_row: usize, values: &[f32]| {
            let at = (seq.first_row + row + task_row) * width + first_q;
            // SAFETY: A piece owns its heads' columns of its rows, and the slice ends with this call.
            let out = unsafe { out.part(at, values.len()) };
            out.copy_from_slice(values);
        };
        kernels.attention(task, &mut lock(&scratch[worker]).attention, &mut sink);
    };
    let few = products(batch, width) <= FEW_PRODUCTS;
    let pieces_per_turn = if few { pieces.len().max(1) } else { 1 };
    pool.run(
        operation,
        pieces.len().div_ceil(pieces_per_turn),
        &|worker, turn| {
            let first = turn * pieces_per_turn;
            pieces[first..pieces.len().min(first + pieces_per_turn)]
                .iter()
                .for_each(|piece| attend(worker, piece));
        },
    )
}

/// Multiplications of a step's attention, at most.
fn products(batch: &AttentionBatch<'_>, width: usize) -> usize {
    let seqs = batch.seqs.iter();
    let positions = seqs.map(|seq| seq.num_rows.saturating_mul(seq.first_position + seq.num_rows));
    positions.fold(0, usize::saturating_add).saturating_mul(2 * width)
}

/// All pieces, the last rows first: they see the most positions, so the threads end together.
fn list_pieces(
    pieces: &mut Vec<AttentionPiece>,
    batch: &AttentionBatch<'_>,
    num_kv_heads: usize,
    rows_per_piece: usize,
) {
    pieces.clear();
    for (index, seq) in batch.seqs.iter().enumerate() {
        for row in (0..seq.num_rows).step_by(rows_per_piece).rev() {
            let num_rows = rows_per_piece.min(seq.num_rows - row);
            pieces.extend((0..num_kv_heads).map(|kv_head| AttentionPiece {
                seq: index,
                row,
                num_rows,
                kv_head,
            }));
        }
    }
}

/// `(row, position, block table)` of every row.
fn rows_of<'a>(
    batch: &AttentionBatch<'a>,
) -> impl Iterator<Item = (usize, usize, impl Fn(usize) -> usize + 'a)> {
    batch.seqs.iter().flat_map(|seq| {
        let blocks = seq.blocks;
        let block_of = move |index: usize| blocks[index].0 as usize;
        (0..seq.num_rows).map(move |i| (seq.first_row + i, seq.first_position + i, block_of))
    })
}

fn rotate(kernels: Kernels, rope: &RopeTable, head: &mut [f32], position: usize) {
    let pairs = rope.rotary_dim / 2;
    let rotation = match rope.style {
        RopeStyle::Halves => Rotation::Halves,
        RopeStyle::Pairs => Rotation::Pairs,
    };
    let (cos, sin) = (
        &rope.cos[position * pairs..][..pairs],
        &rope.sin[position * pairs..][..pairs],
    );
    kernels.rotate(rotation, &mut head[..rope.rotary_dim], cos, sin);
}
