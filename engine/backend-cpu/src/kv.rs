//! The KV cache's storage.

use kvasir_backend::{BackendError, BlockCopy, KvDType, KvShape};

use kvasir_kernels_cpu::{KvLayout, KvType};

use crate::check::check_copies;
use crate::region::Region;

/// K and V of all layers: `[layer][block][kv head]`; the kernels' `KvLayout` has the rest.
#[derive(Debug)]
pub struct CpuKv {
    pub(crate) layout: KvLayout,
    pub(crate) num_layers: usize,
    pub(crate) num_blocks: usize,
    region: Region,
}

impl CpuKv {
    pub(crate) fn new(shape: KvShape) -> Result<Self, BackendError> {
        let kv_type = match shape.dtype {
            KvDType::F32 => KvType::F32,
            KvDType::F16 => KvType::F16,
            KvDType::Bf16 => KvType::Bf16,
        };
        let layout = KvLayout::new(kv_type, shape.num_kv_heads, shape.head_dim, shape.block_size);
        let layout = layout.ok_or_else(|| BackendError::Shape {
            operation: "new_kv",
            reason: format!(
                "block size {} with {} heads of {}: the block size must be a positive multiple of 16, the block addressable",
                shape.block_size, shape.num_kv_heads, shape.head_dim
            ),
        })?;
        let bytes = layout.block_bytes().checked_mul(shape.num_blocks);
        let bytes = bytes.and_then(|layer| layer.checked_mul(shape.num_layers));
        let what = "the KV cache";
        let bytes = bytes.ok_or(BackendError::OutOfMemory {
            what,
            bytes: usize::MAX,
        })?;
        let region = Region::new(bytes, what)?;
        Ok(Self {
            layout,
            num_layers: shape.num_layers,
            num_blocks: shape.num_blocks,
            region,
        })
    }

    fn layer_bytes(&self) -> usize {
        self.num_blocks * self.layout.block_bytes()
    }

    pub(crate) fn layer(&self, layer: usize) -> &[u8] {
        &self.region.bytes()[layer * self.layer_bytes()..][..self.layer_bytes()]
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut [u8] {
        let len = self.layer_bytes();
        &mut self.region.bytes_mut()[layer * len..][..len]
    }

    /// See [`kvasir_backend::Backend::copy_blocks`]. `copied` is scratch memory: it holds one layer of the blocks, so that all are read before one is
    /// written.
    pub(crate) fn copy_blocks(
        &mut self,
        copies: &[BlockCopy],
        copied: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        check_copies("copy_blocks", copies, self)?;
        let layout = self.layout;
        let (block_bytes, head_bytes) = (layout.block_bytes(), layout.head_bytes());
        if head_bytes == 0 {
            return Ok(());
        }
        for layer in 0..self.num_layers {
            let blocks = self.layer_mut(layer);
            copied.clear();
            for copy in copies {
                copied.extend_from_slice(&blocks[copy.from.0 as usize * block_bytes..][..block_bytes]);
            }
            for (copy, from) in copies.iter().zip(copied.chunks(block_bytes)) {
                let to = &mut blocks[copy.to.0 as usize * block_bytes..][..block_bytes];
                for (from, to) in from.chunks_exact(head_bytes).zip(to.chunks_exact_mut(head_bytes)) {
                    copy_positions(layout, from, to, copy.num_positions as usize);
                }
            }
        }
        Ok(())
    }
}

/// Copies the first positions of one head's part of a block. K lies by dimension and V by position, as the layout's documentation says.
fn copy_positions(layout: KvLayout, from: &[u8], to: &mut [u8], num_positions: usize) {
    let value = layout.kv_type().value_bytes();
    let (row, used) = (layout.block_size() * value, num_positions * value);
    let keys = layout.head_dim() * row;
    for (to, from) in to[..keys]
        .chunks_exact_mut(row)
        .zip(from[..keys].chunks_exact(row))
    {
        to[..used].copy_from_slice(&from[..used]);
    }
    let values = keys..keys + layout.head_dim() * used;
    to[values.clone()].copy_from_slice(&from[values]);
}
