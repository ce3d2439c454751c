//! The KV cache's storage.

use kvasir_backend::{BackendError, KvDType, KvShape};
use kvasir_kernels_cpu::{KvLayout, KvType};

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
}
