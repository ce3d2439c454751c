//! Amounts as Kubernetes writes them.

/// The amount in thousandths, rounded up; nothing where the text isn't an amount.
pub fn milli(text: &str) -> Option<i128> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    // 24 digits are more than any amount in use and leave room in 128 bits for the largest suffix.
    if (whole.is_empty() && fraction.is_empty())
        || whole.len() + fraction.len() > 24
        || fraction.contains('.')
    {
        return None;
    }
    let number: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let (times, per) = suffix_ratio(suffix)?;
    let divisor = 10_i128
        .checked_pow(u32::try_from(fraction.len()).ok()?)?
        .checked_mul(per)?;
    let product = number.checked_mul(times)?.checked_mul(1000)?;
    Some(product.div_euclid(divisor) + i128::from(product.rem_euclid(divisor) != 0))
}

/// The amount in whole units, rounded up.
pub fn units(text: &str) -> Option<i128> {
    milli(text).map(|m| m.div_euclid(1000) + i128::from(m.rem_euclid(1000) != 0))
}

/// What a suffix stands for, as numerator and denominator.
fn suffix_ratio(suffix: &str) -> Option<(i128, i128)> {
    let power = |base: i128, exponent: u32| base.checked_pow(exponent);
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, power(1000, 3)?),
        "u" => (1, power(1000, 2)?),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (power(1000, 2)?, 1),
        "G" => (power(1000, 3)?, 1),
        "T" => (power(1000, 4)?, 1),
        "P" => (power(1000, 5)?, 1),
        "E" => (power(1000, 6)?, 1),
        "Ki" => (1024, 1),
        "Mi" => (power(1024, 2)?, 1),
        "Gi" => (power(1024, 3)?, 1),
        "Ti" => (power(1024, 4)?, 1),
        "Pi" => (power(1024, 5)?, 1),
        "Ei" => (power(1024, 6)?, 1),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let number: i32 = digits.parse().ok()?;
            let ten = power(10, number.unsigned_abs())?;
            if number < 0 { (1, ten) } else { (ten, 1) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        for (text, thousandths) in [
            ("4", 4000),
            ("500m", 500),
            ("0.5", 500),
            (".5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("1k", 1_000_000),
            ("2e3", 2_000_000),
            ("1u", 1),
            ("+3", 3000),
        ] {
            assert_eq!(milli(text), Some(thousandths), "{text}");
        }
        assert_eq!(units("1500m"), Some(2));
    }

    #[test]
    fn texts_that_are_no_amount_are_refused() {
        for text in [
            "",
            "much",
            "1.2.3",
            "Gi",
            "-1",
            "1e",
            "1e99999",
            "99999999999999999999999999",
            "1 Gi",
        ] {
            assert_eq!(milli(text), None, "{text}");
        }
    }
}
