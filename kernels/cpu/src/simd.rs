//! The vector operations that kernels are written over.

/// Lanes of a vector, and outputs of a panel.
pub const LANES: usize = 16;

/// A proof that the CPU has an instruction set, and its operations on vectors of [`LANES`] values.
///
/// Implementations are zero-sized tokens that exist only where their instructions do, so all methods are safe.
/// Every operation rounds as IEEE 754 says; [`Simd::max`] and [`Simd::min`] give `b` when either operand is NaN or both
/// are zero, as x86 does.
pub(crate) trait Simd: Copy {
    /// 16 lanes of f32.
    type F: Copy;
    /// 16 lanes of 32 bits.
    type I: Copy;

    /// Panels that the matmul micro kernel works on at once, so that 6 rows of accumulators fit the registers: 1 or 4.
    const TILE_PANELS: usize;

    /// Rows up to which products go straight from packed weights to sums: 1, 2, 4 or 8, as the registers allow.
    const DIRECT_ROWS: usize;

    /// Runs `task` compiled for this instruction set.
    fn vectorize<T: Task>(self, task: T) -> T::Output;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Lane `i` is `x[i]`.
    fn load(self, x: &[f32; LANES]) -> Self::F;
    /// `out[i]` becomes lane `i`.
    fn store(self, x: Self::F, out: &mut [f32; LANES]);
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;

    /// The bits of the lanes.
    fn bits(self, x: Self::F) -> Self::I;
    /// Lanes with these bits.
    fn with_bits(self, x: Self::I) -> Self::F;
    /// All lanes `x`.
    fn splat_i(self, x: i32) -> Self::I;
    /// Wrapping `a + b`.
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Wrapping `a - b`.
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// `x << N`.
    fn shl_i<const N: u32>(self, x: Self::I) -> Self::I;
    /// `x >> N`, keeping the sign.
    fn sar_i<const N: u32>(self, x: Self::I) -> Self::I;

    /// 16 little-endian words.
    fn load_i(self, bytes: &[u8; 64]) -> Self::I;
    /// `((x >> (4 * index)) & 15) - ZERO` for `index` in `0..8`.
    fn nibble<const ZERO: i32>(self, x: Self::I, index: u32) -> Self::F;
    /// `(x >> (2 * index)) & 3` for `index` in `0..16`.
    fn crumb(self, x: Self::I, index: u32) -> Self::F;
    /// 16 signed bytes.
    fn load_i8(self, bytes: &[u8; 16]) -> Self::F;
    /// 16 little-endian IEEE half-precision values.
    fn load_f16(self, bytes: &[u8; 32]) -> Self::F;
    /// 16 little-endian bfloat16 values.
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::F;
    /// 16 little-endian f32 values.
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F;
    /// Half-precision bits, rounded to nearest even.
    fn to_f16(self, x: &[f32; LANES]) -> [u16; LANES];
}

/// A kernel with its operands.
pub(crate) trait Task {
    /// What it returns.
    type Output;

    /// Does the work. Implementations are `#[inline(always)]`, as is everything generic over `S` that they call, except
    /// through [`Simd::vectorize`].
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The sum of all lanes, in one fixed order.
#[inline(always)]
pub(crate) fn sum<S: Simd>(s: S, x: S::F) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(x, &mut lanes);
    sum_lanes(lanes)
}

/// The sum of 16 values as a balanced tree.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The maximum of all lanes.
#[inline(always)]
pub(crate) fn max<S: Simd>(s: S, x: S::F) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(x, &mut lanes);
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            let (a, b) = (lanes[i], lanes[i + width]);
            lanes[i] = if a > b { a } else { b };
        }
        width /= 2;
    }
    lanes[0]
}
