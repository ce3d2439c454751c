//! Address ranges.

use std::net::IpAddr;

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cidr {
    address: IpAddr,
    bits: u32,
}

impl Cidr {
    /// Reads `address/bits`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        // "+8" and "08" parse as numbers but aren't CIDR notation.
        let number: u32 = bits.parse().ok()?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        (number <= longest && number.to_string() == bits).then_some(Self {
            address,
            bits: number,
        })
    }

    /// Whether the address lies in the range.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32 - self.bits;
                u64::from(own.to_bits()) >> shift == u64::from(other.to_bits()) >> shift
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = 128 - self.bits;
                own.to_bits().checked_shr(shift).unwrap_or(0)
                    == other.to_bits().checked_shr(shift).unwrap_or(0)
            }
            _ => false,
        }
    }

    /// Whether all of `inner` lies in the range, and isn't all of it: Kubernetes refuses an exception that is.
    pub(crate) fn holds(&self, inner: &Self) -> bool {
        inner.bits > self.bits && self.contains(inner.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap()
    }

    #[test]
    fn a_range_contains_its_addresses_and_no_others() {
        assert!(cidr("10.0.0.0/8").contains("10.255.0.1".parse().unwrap()));
        assert!(!cidr("10.0.0.0/8").contains("11.0.0.1".parse().unwrap()));
        assert!(cidr("0.0.0.0/0").contains("192.0.2.1".parse().unwrap()));
        assert!(!cidr("0.0.0.0/0").contains("2001:db8::1".parse().unwrap()));
        assert!(cidr("::/0").contains("2001:db8::1".parse().unwrap()));
        assert!(!cidr("2001:db8::/32").contains("2001:db9::1".parse().unwrap()));
    }

    #[test]
    fn an_exception_lies_inside_and_is_smaller() {
        assert!(cidr("10.0.0.0/8").holds(&cidr("10.1.0.0/16")));
        assert!(!cidr("10.0.0.0/8").holds(&cidr("10.0.0.0/8")));
        assert!(!cidr("10.0.0.0/8").holds(&cidr("11.0.0.0/16")));
    }

    #[test]
    fn texts_that_are_no_range_are_refused() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "::/129",
            "a/8",
        ] {
            assert_eq!(Cidr::parse(text), None, "{text}");
        }
    }
}
