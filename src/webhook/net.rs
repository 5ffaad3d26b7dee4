//! Where messages may go: public addresses, and inner ones that are named.

use crate::model::field::{FieldError, Reason, shown};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address and how many of its leading bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Net {
    address: IpAddr,
    bits: u8,
}

impl Net {
    /// Whether an address lies in it.
    pub fn has(&self, address: IpAddr) -> bool {
        fn same(a: u128, b: u128, width: u32, bits: u8) -> bool {
            bits == 0 || (a ^ b) >> (width - u32::from(bits)) == 0
        }
        match (self.address, address) {
            (IpAddr::V4(net), IpAddr::V4(at)) => {
                same(u32::from(net).into(), u32::from(at).into(), 32, self.bits)
            }
            (IpAddr::V6(net), IpAddr::V6(at)) => same(net.into(), at.into(), 128, self.bits),
            _ => false,
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Net {
    type Err = FieldError;

    /// Reads `10.1.0.0/16`, `fd00::/8`, or a single address.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let wrong = || {
            let detail = format!("{} is no network; write for example 10.1.0.0/16", shown(text));
            FieldError::new("allow", Reason::InvalidType, detail)
        };
        let (address, bits) = match text.trim().split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse::<u8>().map_err(|_| wrong()))?;
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }
}

/// Which inner addresses messages may go to. By default none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// Public addresses, and these networks.
    Public(Vec<Net>),
    /// Every address: the operator names them all.
    All,
}

impl Default for Allowed {
    fn default() -> Self {
        Self::Public(Vec::new())
    }
}

impl Allowed {
    /// Whether a message may go there.
    pub fn may_reach(&self, address: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::Public(nets) => {
                let address = address.to_canonical();
                is_public(address) || nets.iter().any(|net| net.has(address))
            }
        }
    }

    /// Reads networks with commas between them; `all` for every address.
    pub fn read(text: &str) -> Result<Self, FieldError> {
        if text.trim() == "all" {
            return Ok(Self::All);
        }
        let nets = text.split(',').filter(|part| !part.trim().is_empty()).map(str::parse);
        Ok(Self::Public(nets.collect::<Result<_, _>>()?))
    }
}

/// Whether an address is one of the open Internet, by the registries of special addresses (RFC 6890 and what
/// came after it).
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b == 18 || b == 19)))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let s = address.segments();
    // Addresses that carry one of version 4 in them go where that one goes.
    let inner = match s {
        [0, 0, 0, 0, 0, 0xffff, hi, lo]
        | [0, 0, 0, 0, 0, 0, hi, lo]
        | [0x64, 0xff9b, 0, 0, 0, 0, hi, lo]
        | [0x2002, hi, lo, ..] => Some((hi, lo)),
        _ => None,
    };
    if let Some((hi, lo)) = inner {
        return is_public_v4(Ipv4Addr::from((u32::from(hi) << 16) | u32::from(lo)));
    }
    // Of all others only 2000::/3 is given out, and some of that for special use.
    let special =
        matches!(s, [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] | [0x5f00, ..]);
    s[0] & 0xe000 == 0x2000 && !special
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn inner_addresses_are_told_from_public_ones() {
        for inner in [
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "192.0.0.8",
            "198.18.0.1",
            "192.0.2.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fd00::1",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "fec0::1",
        ] {
            assert!(!is_public(inner.parse().unwrap()), "{inner}");
        }
        for public in [
            "1.1.1.1",
            "172.32.0.1",
            "172.15.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::101:101",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn networks_are_read_and_what_they_allow_is_allowed() {
        let allowed = Allowed::read("10.1.0.0/16, ::1,127.0.0.1").unwrap();
        let may = |text: &str| allowed.may_reach(text.parse().unwrap());
        assert!(may("10.1.255.3") && may("::1") && may("127.0.0.1") && may("9.9.9.9"));
        assert!(may("::ffff:10.1.0.1"), "the same address in another dress");
        assert!(!may("10.2.0.1") && !may("127.0.0.2") && !may("::2"));
        assert!(Allowed::read("all").unwrap().may_reach("10.2.0.1".parse().unwrap()));
        assert_eq!(Allowed::read("").unwrap(), Allowed::default());
        for wrong in ["10.0.0.0/33", "x", "10.0.0.0/", "fd00::/129", "1.2.3/8"] {
            assert_eq!(Allowed::read(wrong).unwrap_err().field, "allow", "{wrong}");
        }
        assert_eq!("0.0.0.0/0".parse::<Net>().unwrap().to_string(), "0.0.0.0/0");
        assert!("0.0.0.0/0".parse::<Net>().unwrap().has("10.0.0.1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn an_address_of_version_4_is_judged_alike_in_every_dress(bits: u32) {
            let plain = Ipv4Addr::from(bits);
            let [hi, lo] = [(bits >> 16) as u16, bits as u16];
            let dresses = [
                plain.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, hi, lo),
                Ipv6Addr::new(0x2002, hi, lo, 0, 0, 0, 0, 1),
            ];
            for dress in dresses {
                prop_assert_eq!(is_public(dress.into()), is_public(plain.into()), "{} {}", dress, plain);
            }
        }
    }
}
