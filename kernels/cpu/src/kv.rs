//! Where keys and values of a paged cache lie, and how they are rounded.
//!
//! One layer's storage, with `E` bytes per value:
//!
//! ```text
//! [block][kv head] { K: [head_dim][block_size]   V: [block_size][head_dim] }
//! ```
//!
//! K is stored by dimension, so that one load gives a dimension of 16 consecutive positions: scores need no sums over lanes.

use crate::scalar::to_bf16;
use crate::simd::{LANES, Simd, Task};

/// Storage type of keys and values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvType {
    /// 4 bytes.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of f32.
    Bf16,
}

impl KvType {
    /// Bytes of a value.
    pub fn value_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// The shape of one layer's storage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvLayout {
    kv_type: KvType,
    num_kv_heads: usize,
    head_dim: usize,
    block_size: usize,
}

impl KvLayout {
    /// A layout; `None` if `block_size` isn't a positive multiple of 16 or a block's size overflows.
    pub fn new(kv_type: KvType, num_kv_heads: usize, head_dim: usize, block_size: usize) -> Option<Self> {
        if block_size == 0 || !block_size.is_multiple_of(LANES) {
            return None;
        }
        head_dim
            .checked_mul(block_size)?
            .checked_mul(2 * kv_type.value_bytes())?
            .checked_mul(num_kv_heads)?;
        Some(Self {
            kv_type,
            num_kv_heads,
            head_dim,
            block_size,
        })
    }

    /// Storage type.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// Heads per block.
    pub fn num_kv_heads(&self) -> usize {
        self.num_kv_heads
    }

    /// Values per head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Positions per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Bytes of K and V of one head in one block.
    pub fn head_bytes(&self) -> usize {
        2 * self.head_dim * self.block_size * self.kv_type.value_bytes()
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.num_kv_heads * self.head_bytes()
    }

    /// Where a head of a block starts in the layer's storage.
    pub fn head_at(&self, block: usize, kv_head: usize) -> usize {
        block * self.block_bytes() + kv_head * self.head_bytes()
    }
}

/// A storage type as the kernels use it.
pub(crate) trait KvElement {
    /// Bytes of a value.
    const BYTES: usize;
    /// 16 values from the start of `bytes`.
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F;
    /// Rounds 16 values; the first `16 * BYTES` bytes of the result are in use.
    fn encode<S: Simd>(s: S, x: &[f32; LANES]) -> [u8; 64];
}

/// Runs `$body` with `$element` as the type's [`KvElement`].
macro_rules! with_kv_element {
    ($kv_type:expr, $element:ident => $body:expr) => {
        match $kv_type {
            $crate::kv::KvType::F32 => {
                type $element = $crate::kv::KvF32;
                $body
            }
            $crate::kv::KvType::F16 => {
                type $element = $crate::kv::KvF16;
                $body
            }
            $crate::kv::KvType::Bf16 => {
                type $element = $crate::kv::KvBf16;
                $body
            }
        }
    };
}
pub(crate) use with_kv_element;

/// See [`KvType::F32`].
pub(crate) struct KvF32;
/// See [`KvType::F16`].
pub(crate) struct KvF16;
/// See [`KvType::Bf16`].
pub(crate) struct KvBf16;

impl KvElement for KvF32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_f32(crate::format::chunk(bytes))
    }

    #[inline(always)]
    fn encode<S: Simd>(_: S, x: &[f32; LANES]) -> [u8; 64] {
        let mut out = [0; 64];
        for (slot, x) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
            *slot = x.to_le_bytes();
        }
        out
    }
}

impl KvElement for KvF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_f16(crate::format::chunk(bytes))
    }

    #[inline(always)]
    fn encode<S: Simd>(s: S, x: &[f32; LANES]) -> [u8; 64] {
        encode_u16(s.to_f16(x))
    }
}

impl KvElement for KvBf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_bf16(crate::format::chunk(bytes))
    }

    #[inline(always)]
    fn encode<S: Simd>(_: S, x: &[f32; LANES]) -> [u8; 64] {
        encode_u16(x.map(to_bf16))
    }
}

#[inline(always)]
fn encode_u16(values: [u16; LANES]) -> [u8; 64] {
    let mut out = [0; 64];
    for (slot, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
        *slot = value.to_le_bytes();
    }
    out
}

/// Writes one position's K and V of one head.
pub(crate) struct StoreKv<'a> {
    pub(crate) layout: KvLayout,
    /// The head's part of the block.
    pub(crate) head: &'a mut [u8],
    /// The position's place in the block.
    pub(crate) slot: usize,
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
}

impl Task for StoreKv<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_kv_element!(self.layout.kv_type, E => store::<S, E>(s, self));
    }
}

#[inline(always)]
fn store<S: Simd, E: KvElement>(s: S, task: StoreKv<'_>) {
    let StoreKv {
        layout,
        head,
        slot,
        k,
        v,
    } = task;
    let (keys, values) = head.split_at_mut(layout.head_dim * layout.block_size * E::BYTES);
    for (i, k) in k.chunks(LANES).enumerate() {
        let encoded = E::encode(s, &padded(k));
        for (j, value) in encoded.chunks_exact(E::BYTES).take(k.len()).enumerate() {
            let at = ((i * LANES + j) * layout.block_size + slot) * E::BYTES;
            keys[at..][..E::BYTES].copy_from_slice(value);
        }
    }
    let values = &mut values[slot * layout.head_dim * E::BYTES..][..layout.head_dim * E::BYTES];
    for (out, v) in values.chunks_mut(LANES * E::BYTES).zip(v.chunks(LANES)) {
        out.copy_from_slice(&E::encode(s, &padded(v))[..v.len() * E::BYTES]);
    }
}

/// Up to 16 values, then zeros.
#[inline(always)]
pub(crate) fn padded(x: &[f32]) -> [f32; LANES] {
    if let Ok(full) = x.try_into() {
        return full;
    }
    let mut lanes = [0.0; LANES];
    lanes[..x.len()].copy_from_slice(x);
    lanes
}
