//! Addresses of UDP sockets: to compare, and as the kernel gives them to the program.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// The longest address, in IPv6.
pub const NAME_BYTES: usize = size_of::<sockaddr_in6>();

/// An address to compare. IPv4 is in it as in IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    ip: u128,
    port: u16,
}

/// An address as the kernel has written it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Name {
    /// The bytes, of which the first [`Self::length`] count.
    pub bytes: [u8; NAME_BYTES],
    /// 0: there is none.
    pub length: socklen_t,
}

impl Name {
    /// No address.
    pub const NONE: Self = Self { bytes: [0; NAME_BYTES], length: 0 };

    /// The address, to compare. `None`: it is not one of a socket on this machine.
    pub fn address(&self) -> Option<Address> {
        // SAFETY: so many bytes are there.
        unsafe { Address::read(self.bytes.as_ptr().cast(), self.length) }
    }
}

impl Address {
    /// None.
    pub const NONE: Self = Self { ip: 0, port: 0 };

    /// Reads an address. `None`: it is none to which a flow could lead.
    ///
    /// # Safety
    /// `address` must be null, or valid for reads of `length` bytes.
    #[inline]
    pub unsafe fn read(address: *const sockaddr, length: socklen_t) -> Option<Self> {
        if address.is_null() || (length as usize) < size_of::<sockaddr_in>() {
            return None;
        }
        // SAFETY: an IPv4 address can be read, which begins with the family; an IPv6 address once its length is checked.
        unsafe {
            match i32::from(address.cast::<libc::sa_family_t>().read_unaligned()) {
                libc::AF_INET => {
                    let found = address.cast::<sockaddr_in>().read_unaligned();
                    let ip = u128::from(u32::from_be(found.sin_addr.s_addr)) | 0xffff << 32;
                    Some(Self { ip, port: u16::from_be(found.sin_port) })
                }
                libc::AF_INET6 if length as usize >= NAME_BYTES => {
                    let found = address.cast::<sockaddr_in6>().read_unaligned();
                    let ip = u128::from_be_bytes(found.sin6_addr.s6_addr);
                    (found.sin6_scope_id == 0).then_some(Self { ip, port: u16::from_be(found.sin6_port) })
                }
                _ => None,
            }
        }
    }

    /// Returns whether it may be the address of one socket on this machine.
    pub fn is_of_one(&self) -> bool {
        let may_be = match self.ip() {
            IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
            IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified() && !ip.is_unicast_link_local(),
        };
        may_be && self.port != 0
    }

    /// Its address of IP.
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from_bits(self.ip).to_canonical()
    }

    /// The whole.
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.port)
    }

    /// Its address with port 0, for the kernel.
    pub fn without_port(&self) -> Name {
        let mut name = Name::NONE;
        let place = name.bytes.as_mut_ptr();
        // SAFETY: there is room for the longest address; zeros are valid in what is not set.
        unsafe {
            match self.ip() {
                IpAddr::V4(ip) => {
                    let place = place.cast::<sockaddr_in>();
                    (&raw mut (*place).sin_family).write_unaligned(libc::AF_INET as libc::sa_family_t);
                    (&raw mut (*place).sin_addr.s_addr).write_unaligned(ip.to_bits().to_be());
                    name.length = size_of::<sockaddr_in>() as socklen_t;
                }
                IpAddr::V6(ip) => {
                    let place = place.cast::<sockaddr_in6>();
                    (&raw mut (*place).sin6_family).write_unaligned(libc::AF_INET6 as libc::sa_family_t);
                    (&raw mut (*place).sin6_addr.s6_addr).write_unaligned(ip.octets());
                    name.length = NAME_BYTES as socklen_t;
                }
            }
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ip: IpAddr, port: u16) -> Address {
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Address { ip: ip.to_bits(), port }
    }

    #[test]
    fn an_address_is_the_same_in_both_families_and_comes_back_from_the_kernels_form() {
        for text in ["127.0.0.1", "::1", "2001:db8::7"] {
            let ip: IpAddr = text.parse().expect("an address");
            let name = of(ip, 53).without_port();
            assert_eq!(name.address(), Some(of(ip, 0)));
            assert_eq!(of(ip, 53).socket_address(), SocketAddr::new(ip, 53));
            assert!(of(ip, 53).is_of_one() && !of(ip, 0).is_of_one());
        }
        for text in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "::", "ff02::1", "fe80::1"] {
            assert!(!of(text.parse().expect("an address"), 53).is_of_one(), "{text}");
        }
    }

    #[test]
    fn short_and_foreign_addresses_are_none() {
        let name = of("127.0.0.1".parse().expect("an address"), 1).without_port();
        // SAFETY: fewer bytes than there are.
        assert_eq!(unsafe { Address::read(name.bytes.as_ptr().cast(), 15) }, None);
        assert_eq!(Name { length: 16, ..Name::NONE }.address(), None, "of no family");
        assert_eq!(Name::NONE.address(), None);
    }
}
