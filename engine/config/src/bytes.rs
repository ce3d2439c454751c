//! Numbers as people write them: `2GiB`, `8k`.

use std::fmt;

/// A number of bytes: `1073741824`, `1GiB`, `1.5GB`, `512MiB`. A bare `k`, `m`, `g`, `t` is decimal and a bare `K`, `M`, `G`,
/// `T` is binary, as in vLLM.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ByteCount(pub u64);

/// A number of things, for example tokens: `4096`, `4k` (4000) or `4K` (4096), as in vLLM.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Count(pub u64);

impl ByteCount {
    /// Parses a size.
    ///
    /// # Errors
    /// What is allowed, as a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let scale = match unit {
            "" | "B" | "b" => Some(1),
            "KiB" | "kib" => scale_of("K"),
            "MiB" | "mib" => scale_of("M"),
            "GiB" | "gib" => scale_of("G"),
            "TiB" | "tib" => scale_of("T"),
            "KB" | "kB" | "kb" => scale_of("k"),
            "MB" | "mb" => scale_of("m"),
            "GB" | "gb" => scale_of("g"),
            "TB" | "tb" => scale_of("t"),
            other => scale_of(other),
        };
        scale
            .and_then(|scale| scaled(number, scale))
            .map(Self)
            .ok_or_else(|| "expected a size such as 2GiB, 512MiB or 1000000".to_owned())
    }
}

impl Count {
    /// Parses a count.
    ///
    /// # Errors
    /// What is allowed, as a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let scale = if unit.is_empty() { Some(1) } else { scale_of(unit) };
        scale
            .and_then(|scale| scaled(number, scale))
            .map(Self)
            .ok_or_else(|| "expected a whole number such as 4096 or 4k".to_owned())
    }
}

impl fmt::Display for ByteCount {
    /// The largest binary unit that keeps the number above 1, with two decimals where they say something.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (power, unit) in [(4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")] {
            let scale = 1_u64 << (10 * power);
            if self.0 >= scale {
                return if self.0.is_multiple_of(scale) {
                    write!(f, "{}{unit}", self.0 / scale)
                } else {
                    write!(f, "{:.2}{unit}", self.0 as f64 / scale as f64)
                };
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// vLLM's suffixes: lower case is decimal, upper case is binary.
fn scale_of(unit: &str) -> Option<u64> {
    Some(match unit {
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return None,
    })
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// `number * scale`, exactly; a fraction of a unit is allowed if the result is whole.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let digits = number.replace('_', "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    // Twelve decimals are finer than one byte in a tebibyte.
    if whole.is_empty() || fraction.len() > 12 || (fraction.is_empty() && digits.contains('.')) {
        return None;
    }
    let unit = 10_u128.pow(fraction.len() as u32);
    let mut total = whole.parse::<u64>().ok().map(u128::from)?.checked_mul(unit)?;
    if !fraction.is_empty() {
        total += u128::from(fraction.parse::<u64>().ok()?);
    }
    let total = total.checked_mul(u128::from(scale))?;
    // `1.5GiB` is whole; `1.5` bytes is not a size.
    if scale == 1 && !total.is_multiple_of(unit) {
        return None;
    }
    u64::try_from(total / unit).ok()
}
