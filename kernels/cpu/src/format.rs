//! The packed weight formats: how one panel's records are read back as f32 weights.
//!
//! A panel holds 16 outputs (one per lane). Along k it is a sequence of records; all values of a record are interleaved
//! by lane, so that a load gives all lanes at once:
//!
//! ```text
//! plain    (F32, F16, BF16):   { value[16 lanes] } per k
//! legacy   (Q4_0 .. Q8_0):     { f16 scale[16], f16 min[16]?, quants of 32 k }                      per 32 k
//! super    (Q2_K .. Q6_K):     { f16 d[16], f16 dmin[16]?, { i8 sc[16], i8 m[16]?, quants of a group }* } per 256 k
//! quants   crumbs, nibbles:    { u32[16 lanes], 16 (8) consecutive k each, the first in the low bits }
//!          bytes:              { i8[16 lanes] } per k
//! ```
//!
//! A weight is `q * scale`, `q * scale + min` (legacy) or `q * (d * sc) - dmin * m` (super), each operation rounded by
//! itself, as GGUF's reference computes it: the f32 weights are bit-equal to the reference's.

use std::marker::PhantomData;

use crate::simd::Simd;
use crate::weight_type::WeightType;

/// Reads a panel's records. Records start at multiples of `RECORD_BYTES`; only plain formats have a shorter last one.
pub(crate) trait Format {
    /// Inputs per record.
    const RECORD_LEN: usize;
    /// Bytes per record.
    const RECORD_BYTES: usize;
    /// Inputs that share a scale.
    const GROUP_LEN: usize;
    /// Whether the last record may be shorter.
    const RAGGED: bool;
    /// How the integers lie.
    type Quants: Quants;
    /// A record's scales.
    type Header<S: Simd>: Copy;
    /// A group's scales.
    type Scales<S: Simd>: Copy;

    /// Reads a record's scales.
    fn header<S: Simd>(s: S, record: &[u8]) -> Self::Header<S>;
    /// Computes a group's scales.
    fn scales<S: Simd>(s: S, header: Self::Header<S>, record: &[u8], group: usize) -> Self::Scales<S>;
    /// Where a group's quants start in the record.
    fn quants_at(group: usize) -> usize;
    /// The weight of a quant.
    fn weight<S: Simd>(s: S, q: S::F, scales: Self::Scales<S>) -> S::F;
}

/// Reads integers (or plain values) of 16 lanes for a few consecutive k.
pub(crate) trait Quants {
    /// Consecutive k per load.
    const STEP: usize;
    /// Bytes per load.
    const STEP_BYTES: usize;
    /// What a load gives.
    type Loaded<'a, S: Simd>: Copy;

    /// Loads `STEP_BYTES`.
    fn load<S: Simd>(s: S, bytes: &[u8]) -> Self::Loaded<'_, S>;
    /// The values of the `i`-th k of the load.
    fn get<S: Simd>(s: S, loaded: Self::Loaded<'_, S>, i: usize) -> S::F;
}

/// Runs `$body` with `$format` as the format of `$weight_type`.
macro_rules! with_format {
    ($weight_type:expr, $format:ident => $body:expr) => {{
        use $crate::format::{Bytes, Crumbs, Legacy, Nibbles, Plain, PlainBf16, PlainF16, PlainF32, Super};
        match $weight_type {
            $crate::WeightType::F32 => {
                type $format = Plain<PlainF32>;
                $body
            }
            $crate::WeightType::F16 => {
                type $format = Plain<PlainF16>;
                $body
            }
            $crate::WeightType::Bf16 => {
                type $format = Plain<PlainBf16>;
                $body
            }
            $crate::WeightType::Q4_0 => {
                type $format = Legacy<Nibbles<8>, false>;
                $body
            }
            $crate::WeightType::Q4_1 => {
                type $format = Legacy<Nibbles<0>, true>;
                $body
            }
            $crate::WeightType::Q5_0 | $crate::WeightType::Q8_0 => {
                type $format = Legacy<Bytes, false>;
                $body
            }
            $crate::WeightType::Q5_1 => {
                type $format = Legacy<Bytes, true>;
                $body
            }
            $crate::WeightType::Q2K => {
                type $format = Super<Crumbs, 16, true>;
                $body
            }
            $crate::WeightType::Q3K => {
                type $format = Super<Nibbles<4>, 16, false>;
                $body
            }
            $crate::WeightType::Q4K => {
                type $format = Super<Nibbles<0>, 32, true>;
                $body
            }
            $crate::WeightType::Q5K => {
                type $format = Super<Bytes, 32, true>;
                $body
            }
            $crate::WeightType::Q6K => {
                type $format = Super<Bytes, 16, false>;
                $body
            }
        }
    }};
}
pub(crate) use with_format;

/// How a type's records are laid out, for the code that writes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordShape {
    /// Inputs per record.
    pub(crate) len: usize,
    /// Bytes per record.
    pub(crate) bytes: usize,
    /// Inputs per group.
    pub(crate) group_len: usize,
    /// Bits per quant.
    pub(crate) bits: usize,
    /// Where group 0's quants start.
    pub(crate) first_quants: usize,
    /// Where group 1's quants would start, less `first_quants`.
    pub(crate) group_stride: usize,
    /// What a stored nibble or crumb means less than its value.
    pub(crate) zero: i32,
}

impl RecordShape {
    /// The shape of `weight_type`'s records.
    pub(crate) fn of(weight_type: WeightType) -> Self {
        with_format!(weight_type, F => Self::from_format::<F>(weight_type))
    }

    fn from_format<F: Format>(weight_type: WeightType) -> Self {
        let zero = match weight_type {
            WeightType::Q4_0 => 8,
            WeightType::Q3K => 4,
            _ => 0,
        };
        Self {
            len: F::RECORD_LEN,
            bytes: F::RECORD_BYTES,
            group_len: F::GROUP_LEN,
            bits: F::Quants::STEP_BYTES * 8 / 16 / F::Quants::STEP,
            first_quants: F::quants_at(0),
            group_stride: F::quants_at(1) - F::quants_at(0),
            zero,
        }
    }
}

/// The first `N` bytes; callers' slices have the length by construction, so the check folds away.
#[inline(always)]
pub(crate) fn chunk<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes
        .first_chunk()
        .expect("records and groups have their full length")
}

/// F32, F16 and BF16: a record is up to 16 k.
pub(crate) struct Plain<Q>(PhantomData<Q>);

impl<Q: Quants> Format for Plain<Q> {
    const RECORD_LEN: usize = 16;
    const RECORD_BYTES: usize = 16 * Q::STEP_BYTES;
    const GROUP_LEN: usize = 16;
    const RAGGED: bool = true;
    type Quants = Q;
    type Header<S: Simd> = ();
    type Scales<S: Simd> = ();

    #[inline(always)]
    fn header<S: Simd>(_: S, _: &[u8]) {}

    #[inline(always)]
    fn scales<S: Simd>(_: S, (): (), _: &[u8], _: usize) {}

    #[inline(always)]
    fn quants_at(group: usize) -> usize {
        group * Self::RECORD_BYTES
    }

    #[inline(always)]
    fn weight<S: Simd>(_: S, q: S::F, (): ()) -> S::F {
        q
    }
}

/// GGUF's types with one scale (and minimum) per 32 weights.
pub(crate) struct Legacy<Q, const MIN: bool>(PhantomData<Q>);

impl<Q: Quants, const MIN: bool> Format for Legacy<Q, MIN> {
    const RECORD_LEN: usize = 32;
    const RECORD_BYTES: usize = 32 + if MIN { 32 } else { 0 } + 32 / Q::STEP * Q::STEP_BYTES;
    const GROUP_LEN: usize = 32;
    const RAGGED: bool = false;
    type Quants = Q;
    type Header<S: Simd> = ();
    type Scales<S: Simd> = (S::F, S::F);

    #[inline(always)]
    fn header<S: Simd>(_: S, _: &[u8]) {}

    #[inline(always)]
    fn scales<S: Simd>(s: S, (): (), record: &[u8], _: usize) -> (S::F, S::F) {
        let scale = s.load_f16(chunk(record));
        let min = if MIN {
            s.load_f16(chunk(&record[32..]))
        } else {
            s.splat(0.0)
        };
        (scale, min)
    }

    #[inline(always)]
    fn quants_at(group: usize) -> usize {
        32 + if MIN { 32 } else { 0 } + group * (32 / Q::STEP * Q::STEP_BYTES)
    }

    #[inline(always)]
    fn weight<S: Simd>(s: S, q: S::F, (scale, min): (S::F, S::F)) -> S::F {
        let scaled = s.mul(q, scale);
        if MIN { s.add(scaled, min) } else { scaled }
    }
}

/// GGUF's K types: 256 weights with a scale (and minimum) scale, and small integer scales per group.
pub(crate) struct Super<Q, const GROUP: usize, const MIN: bool>(PhantomData<Q>);

impl<Q: Quants, const GROUP: usize, const MIN: bool> Super<Q, GROUP, MIN> {
    const HEADER_BYTES: usize = 32 + if MIN { 32 } else { 0 };
    const SCALE_BYTES: usize = 16 + if MIN { 16 } else { 0 };
    const GROUP_BYTES: usize = Self::SCALE_BYTES + GROUP / Q::STEP * Q::STEP_BYTES;
}

impl<Q: Quants, const GROUP: usize, const MIN: bool> Format for Super<Q, GROUP, MIN> {
    const RECORD_LEN: usize = 256;
    const RECORD_BYTES: usize = Self::HEADER_BYTES + 256 / GROUP * Self::GROUP_BYTES;
    const GROUP_LEN: usize = GROUP;
    const RAGGED: bool = false;
    type Quants = Q;
    type Header<S: Simd> = (S::F, S::F);
    type Scales<S: Simd> = (S::F, S::F);

    #[inline(always)]
    fn header<S: Simd>(s: S, record: &[u8]) -> (S::F, S::F) {
        let d = s.load_f16(chunk(record));
        let dmin = if MIN {
            s.load_f16(chunk(&record[32..]))
        } else {
            s.splat(0.0)
        };
        (d, dmin)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, (d, dmin): (S::F, S::F), record: &[u8], group: usize) -> (S::F, S::F) {
        let at = Self::HEADER_BYTES + group * Self::GROUP_BYTES;
        let scale = s.mul(d, s.load_i8(chunk(&record[at..])));
        let min = if MIN {
            s.mul(dmin, s.load_i8(chunk(&record[at + 16..])))
        } else {
            dmin
        };
        (scale, min)
    }

    #[inline(always)]
    fn quants_at(group: usize) -> usize {
        Self::HEADER_BYTES + group * Self::GROUP_BYTES + Self::SCALE_BYTES
    }

    #[inline(always)]
    fn weight<S: Simd>(s: S, q: S::F, (scale, min): (S::F, S::F)) -> S::F {
        let scaled = s.mul(q, scale);
        if MIN { s.sub(scaled, min) } else { scaled }
    }
}

/// 2 bits each.
pub(crate) struct Crumbs;

impl Quants for Crumbs {
    const STEP: usize = 16;
    const STEP_BYTES: usize = 64;
    type Loaded<'a, S: Simd> = S::I;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::I {
        s.load_i(chunk(bytes))
    }

    #[inline(always)]
    fn get<S: Simd>(s: S, loaded: S::I, i: usize) -> S::F {
        s.crumb(loaded, i as u32)
    }
}

/// 4 bits each; `ZERO` is the stored value that means 0.
pub(crate) struct Nibbles<const ZERO: i32>;

impl<const ZERO: i32> Quants for Nibbles<ZERO> {
    const STEP: usize = 8;
    const STEP_BYTES: usize = 64;
    type Loaded<'a, S: Simd> = S::I;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::I {
        s.load_i(chunk(bytes))
    }

    #[inline(always)]
    fn get<S: Simd>(s: S, loaded: S::I, i: usize) -> S::F {
        s.nibble::<ZERO>(loaded, i as u32)
    }
}

/// Signed bytes.
pub(crate) struct Bytes;

impl Quants for Bytes {
    const STEP: usize = 4;
    const STEP_BYTES: usize = 64;
    type Loaded<'a, S: Simd> = &'a [u8; 64];

    #[inline(always)]
    fn load<S: Simd>(_: S, bytes: &[u8]) -> &[u8; 64] {
        chunk(bytes)
    }

    #[inline(always)]
    fn get<S: Simd>(s: S, loaded: &[u8; 64], i: usize) -> S::F {
        s.load_i8(chunk(&loaded[16 * i..]))
    }
}

/// Implements [`Quants`] for a plain type.
macro_rules! plain {
    ($name:ident, $bytes:literal, $load:ident) => {
        #[doc = concat!("Values that [`Simd::", stringify!($load), "`] reads.")]
        pub(crate) struct $name;

        impl Quants for $name {
            const STEP: usize = 1;
            const STEP_BYTES: usize = $bytes;
            type Loaded<'a, S: Simd> = &'a [u8; $bytes];

            #[inline(always)]
            fn load<S: Simd>(_: S, bytes: &[u8]) -> &[u8; $bytes] {
                chunk(bytes)
            }

            #[inline(always)]
            fn get<S: Simd>(s: S, loaded: &[u8; $bytes], _: usize) -> S::F {
                s.$load(loaded)
            }
        }
    };
}

plain!(PlainF32, 64, load_f32);
plain!(PlainF16, 32, load_f16);
plain!(PlainBf16, 32, load_bf16);
