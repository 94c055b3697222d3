//! Control messages of UDP sockets: the length of each of several joined packets, and the address of this machine.
//!
//! ```text
//! length usize · level i32 · type i32 · data, padded to 8 bytes
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use rustix::io::Errno;

/// From include/uapi/linux/udp.h.
const UDP_SEGMENT: i32 = 103;
pub(super) const UDP_GRO: i32 = 104;

/// The bytes before the data, which are aligned like them.
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
/// Room for every message of this module, with data of at most `in6_pktinfo`'s 20 bytes.
const ROOM: usize = 2 * (HEADER_BYTES + 24);

const _: () = assert!(HEADER_BYTES == 16, "the layout of 64-bit machines");

/// Control messages to send.
#[derive(Default)]
pub(super) struct Controls {
    /// Aligned as the kernel wants them.
    words: [u64; ROOM / 8],
    length: usize,
}

impl Controls {
    /// The kernel cuts the bytes into packets of this length (GSO).
    pub fn add_segment(&mut self, bytes: u16) {
        self.add(libc::SOL_UDP, UDP_SEGMENT, &bytes.to_ne_bytes());
    }

    /// The packets leave from this address of the machine.
    pub fn add_source(&mut self, ip: IpAddr, is_v6_socket: bool) {
        match ip {
            IpAddr::V4(ip) if !is_v6_socket => {
                // `in_pktinfo`: interface, source, destination. The kernel looks at the first two.
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip.octets());
                self.add(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            ip => {
                // `in6_pktinfo`: source, interface.
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                self.add(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    fn add(&mut self, level: i32, kind: i32, data: &[u8]) {
        let mut message = [0; HEADER_BYTES + 24];
        message[..8].copy_from_slice(&(HEADER_BYTES + data.len()).to_ne_bytes());
        message[8..12].copy_from_slice(&level.to_ne_bytes());
        message[12..16].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER_BYTES..][..data.len()].copy_from_slice(data);
        let (words, _) = message[..HEADER_BYTES + data.len().next_multiple_of(8)].as_chunks::<8>();
        for word in words {
            self.words[self.length / 8] = u64::from_ne_bytes(*word);
            self.length += 8;
        }
    }

    /// Their bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the words are that many bytes at least, they are plain data, and they live as long as the result.
        unsafe { core::slice::from_raw_parts(self.words.as_ptr().cast(), self.length) }
    }
}

/// Received control messages.
#[derive(Default)]
pub(super) struct ControlBuffer {
    words: [u64; ROOM / 8],
    length: usize,
}

impl ControlBuffer {
    /// The room for them.
    pub fn room(&mut self) -> &mut [u64; ROOM / 8] {
        &mut self.words
    }

    /// The kernel has written so many bytes.
    pub fn set_length(&mut self, bytes: usize) {
        self.length = bytes.min(ROOM);
    }

    /// The length of each of several joined packets.
    pub fn segment(&self) -> Option<usize> {
        let data = self.find(libc::SOL_UDP, UDP_GRO)?;
        usize::try_from(i32::from_ne_bytes(*data.first_chunk()?)).ok().filter(|bytes| *bytes > 0)
    }

    /// The address of this machine to which the packet was sent.
    pub fn local(&self) -> Option<IpAddr> {
        if let Some(info) = self.find(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) {
            let octets: [u8; 16] = *info.first_chunk()?;
            return Some(IpAddr::from(octets).to_canonical()).filter(is_of_one_machine);
        }
        let info = self.find(libc::IPPROTO_IP, libc::IP_PKTINFO)?;
        let octets: [u8; 4] = *info.get(4..)?.first_chunk()?;
        Some(IpAddr::from(octets)).filter(is_of_one_machine)
    }

    /// The data of the first message of a kind. The kernel has written the messages, and nothing depends on that.
    fn find(&self, level: i32, kind: i32) -> Option<[u8; 24]> {
        let mut rest = &self.words[..self.length.div_ceil(8).min(self.words.len())];
        loop {
            let [length, kinds, data @ ..] = rest else { return None };
            let length = usize::try_from(*length).ok().filter(|bytes| *bytes >= HEADER_BYTES)?;
            let kinds = kinds.to_ne_bytes();
            let is_it = kinds[..4] == level.to_ne_bytes() && kinds[4..] == kind.to_ne_bytes();
            if is_it {
                let mut found = [0; 24];
                let count = (length - HEADER_BYTES).div_ceil(8).min(data.len());
                for (place, word) in found.as_chunks_mut::<8>().0.iter_mut().zip(&data[..count]) {
                    *place = word.to_ne_bytes();
                }
                return Some(found);
            }
            rest = rest.get(length.div_ceil(8)..)?;
        }
    }
}

/// Returns whether packets can leave from this address. Those to many machines were sent to another one as well.
fn is_of_one_machine(ip: &IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if *ip == Ipv4Addr::BROADCAST);
    !ip.is_multicast() && !ip.is_unspecified() && !is_broadcast
}

/// The address in a received name, which is of IPv4 or IPv6.
pub(super) fn address(name: &libc::sockaddr_in6) -> Result<SocketAddr, Errno> {
    match i32::from(name.sin6_family) {
        libc::AF_INET6 => {
            let ip = name.sin6_addr.s6_addr.into();
            let port = u16::from_be(name.sin6_port);
            Ok(SocketAddrV6::new(ip, port, name.sin6_flowinfo, name.sin6_scope_id).into())
        }
        libc::AF_INET => {
            // `sockaddr_in` has the address in place of `sin6_flowinfo`, in the order of the network.
            let ip = Ipv4Addr::from(name.sin6_flowinfo.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(name.sin6_port)).into())
        }
        _ => Err(Errno::DESTADDRREQ),
    }
}
