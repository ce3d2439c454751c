//! Instruction sets, from the slowest to the fastest.

use std::fmt;
use std::str::FromStr;

/// An instruction set that the kernels are compiled for. All of them give the same bits.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Isa {
    /// No vector instructions: the reference, which runs everywhere.
    Scalar,
    /// AVX2 with FMA and F16C (x86-64-v3).
    Avx2,
    /// AVX-512 F, BW, DQ and VL (x86-64-v4).
    Avx512,
}

impl Isa {
    /// All of them, slowest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// The fastest one that this CPU has.
    pub fn detect() -> Self {
        Self::ALL
            .into_iter()
            .rev()
            .find(|isa| isa.is_available())
            .unwrap_or(Self::Scalar)
    }

    /// Whether this CPU has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => crate::x86_64::Avx2::new().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => crate::x86_64::Avx512::new().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The name that [`Isa::from_str`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

/// A name that is no instruction set of ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnknownIsa(pub String);

impl fmt::Display for UnknownIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown instruction set {:?}; known are scalar, avx2 and avx512",
            self.0
        )
    }
}

impl std::error::Error for UnknownIsa {}
