//! `copy_blocks`.

use kvasir_engine_core::{BlockId, GroupId, SeqId};

use super::attention::{BLOCK_SIZE, Case};
use super::{Outcome, same_bits};
use crate::{Backend, BackendError, BlockCopy, KvDType, RopeStyle};

const TYPES: [KvDType; 3] = [KvDType::F32, KvDType::F16, KvDType::Bf16];
const LAYERS: [usize; 2] = [0, 1];

fn copy(from: u32, to: u32, num_positions: u32) -> BlockCopy {
    BlockCopy {
        seq: SeqId(0),
        group: GroupId(0),
        from: BlockId(from),
        to: BlockId(to),
        num_positions,
    }
}

fn case(seed: u64, dtype: KvDType) -> Case {
    Case::new(seed, RopeStyle::Halves, dtype, None)
}

/// Writes the first positions of a sequence, in both layers.
fn begin<B: Backend>(
    backend: &mut B,
    kv: &mut B::Kv,
    case: &Case,
    num_positions: usize,
    blocks: &[BlockId],
) -> Result<(), BackendError> {
    for layer in LAYERS {
        Case::step_in(layer, backend, kv, &[(case, 0, num_positions, blocks)])?;
    }
    Ok(())
}

/// Attention of the next position, in both layers.
fn next<B: Backend>(
    backend: &mut B,
    kv: &mut B::Kv,
    case: &Case,
    position: usize,
    blocks: &[BlockId],
) -> Result<Vec<f32>, BackendError> {
    let mut out = Vec::new();
    for layer in LAYERS {
        out.extend(Case::step_in(layer, backend, kv, &[(case, position, 1, blocks)])?);
    }
    Ok(out)
}

/// A sequence that goes on in a copy of its last block computes the same bits as in the block itself, whatever the length of the copied part.
///
/// # Errors
/// If it doesn't.
pub fn copied_positions_are_as_good_as_their_originals<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    for dtype in TYPES {
        for used in [1, 7, BLOCK_SIZE] {
            let case = case(11, dtype);
            let position = BLOCK_SIZE + used;
            let mut kv = case.kv(backend)?;
            begin(backend, &mut kv, &case, position, &[3, 6].map(BlockId))?;
            backend.copy_blocks(&[copy(6, 9, used as u32)], &mut kv)?;
            let copied = next(backend, &mut kv, &case, position, &[3, 9, 1].map(BlockId))?;
            let original = next(backend, &mut kv, &case, position, &[3, 6, 2].map(BlockId))?;
            same_bits("attention over a copy", &copied, &original)?;
        }
    }
    Ok(())
}

/// All copies read what was there before any of them wrote.
///
/// # Errors
/// If one reads what another wrote.
pub fn copies_read_before_any_of_them_writes<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    const USED: u32 = 10;
    let used = USED as usize;
    for dtype in TYPES {
        let (one, two) = (case(12, dtype), case(13, dtype));
        let mut kv = one.kv(backend)?;
        begin(backend, &mut kv, &one, used, &[BlockId(1)])?;
        begin(backend, &mut kv, &two, used, &[BlockId(2)])?;
        let expected_one = next(backend, &mut kv, &one, used, &[BlockId(1)])?;
        let expected_two = next(backend, &mut kv, &two, used, &[BlockId(2)])?;
        let swap = [copy(1, 2, USED), copy(2, 1, USED)];
        let chain = [copy(1, 2, USED), copy(2, 3, USED)];
        let backwards = [copy(2, 3, USED), copy(1, 2, USED)];
        for (what, copies, places) in [
            ("a swap", swap, [2, 1]),
            ("a chain", chain, [2, 3]),
            ("a chain backwards", backwards, [2, 3]),
        ] {
            let mut kv = one.kv(backend)?;
            begin(backend, &mut kv, &one, used, &[BlockId(1)])?;
            begin(backend, &mut kv, &two, used, &[BlockId(2)])?;
            backend.copy_blocks(&copies, &mut kv)?;
            let [place_one, place_two] = places.map(BlockId);
            let found = next(backend, &mut kv, &one, used, &[place_one])?;
            same_bits(what, &found, &expected_one)?;
            let found = next(backend, &mut kv, &two, used, &[place_two])?;
            same_bits(what, &found, &expected_two)?;
        }
    }
    Ok(())
}

/// A copy of some positions leaves the others of the block alone.
///
/// # Errors
/// If it doesn't.
pub fn positions_that_are_not_copied_stay<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    let (used, total) = (5, 12);
    for dtype in TYPES {
        let (one, two) = (case(14, dtype), case(15, dtype));
        let mut mixed = case(15, dtype);
        let cut = used * one.width();
        mixed.qkv[..cut].copy_from_slice(&one.qkv[..cut]);
        let mut kv = one.kv(backend)?;
        begin(backend, &mut kv, &mixed, total, &[BlockId(5)])?;
        let expected = next(backend, &mut kv, &two, total, &[BlockId(5)])?;
        begin(backend, &mut kv, &one, total, &[BlockId(1)])?;
        begin(backend, &mut kv, &two, total, &[BlockId(2)])?;
        backend.copy_blocks(&[copy(1, 2, used as u32), copy(1, 3, 0)], &mut kv)?;
        let found = next(backend, &mut kv, &two, total, &[BlockId(2)])?;
        same_bits("positions beside copied ones", &found, &expected)?;
    }
    Ok(())
}
