//! Crockford's base 32 in lower case: no letter that looks like a digit, no padding, safe to select with a double click.

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The text of `bytes`, most significant bit first; the last character is filled up with zero bits.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(5) * 8);
    let mut bits: u32 = 0;
    let mut num_bits = 0;
    for byte in bytes {
        bits = (bits << 8) | u32::from(*byte);
        num_bits += 8;
        while num_bits >= 5 {
            num_bits -= 5;
            text.push(char::from(ALPHABET[(bits >> num_bits) as usize & 31]));
        }
    }
    if num_bits > 0 {
        text.push(char::from(ALPHABET[(bits << (5 - num_bits)) as usize & 31]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_follows_the_published_alphabet() {
        assert_eq!(encode(&[]), "");
        assert_eq!(encode(&[0]), "00");
        assert_eq!(encode(&[0xff]), "zw");
        assert_eq!(encode(&[0xff; 5]), "zzzzzzzz");
        assert_eq!(encode(b"foobar"), "csqpyrk1e8");
    }
}
