//! VLAN tags pass unchanged. Packet sockets show this. The kernel's own VLAN devices are tested too, but not every
//! kernel has them.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use bywire_eth::address::MacAddress;
use bywire_eth::drops::Cause;
use bywire_eth::rtnetlink::Links;
use bywire_testing::eventually;

use crate::hosts::{
    self, Host, INTERFACE, Link, SETTINGS, TIMEOUT, connect, exchange, hosts, join, tcp, udp,
};

const LINKS: [Link; 2] = [Link::Within, Link::Between];
const MTU_BYTES: u32 = 1500;
/// An EtherType for experiments (IEEE 802), to which no stack answers.
const EXPERIMENT: u16 = 0x88B5;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88A8;

/// A socket that sends and receives whole frames on one interface.
struct PacketSocket(OwnedFd);

/// The size of a socket option or address, which has a few bytes.
fn size<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

fn checked(status: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(status).map_err(|_| io::Error::last_os_error())
}

impl PacketSocket {
    /// Opens a socket that receives everything on the host's interface.
    fn open(host: &Host) -> io::Result<Self> {
        host.inside(|| {
            let index = Links::open()?.find(INTERFACE)?.index;
            let everything = (libc::ETH_P_ALL as u16).to_be();
            // SAFETY: no pointers are passed.
            let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, everything.into()) };
            checked(raw as libc::ssize_t)?;
            // SAFETY: the descriptor was just opened, and nothing else owns it.
            let socket = Self(unsafe { OwnedFd::from_raw_fd(raw) });
            // SAFETY: the structure consists of plain numbers, for which zeroes are valid.
            let mut address: libc::sockaddr_ll = unsafe { zeroed() };
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = everything;
            address.sll_ifindex = index.cast_signed();
            // SAFETY: the address lives in this frame and has the given length.
            let bound = unsafe { libc::bind(raw, (&raw const address).cast(), size::<libc::sockaddr_ll>()) };
            checked(bound as libc::ssize_t)?;
            socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1_i32)?;
            let timeout = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
            socket.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout)?;
            Ok(socket)
        })
    }

    fn set<T>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
        // SAFETY: the value is borrowed for the call and has the given length.
        let status = unsafe {
            libc::setsockopt(self.0.as_raw_fd(), level, name, (&raw const *value).cast(), size::<T>())
        };
        checked(status as libc::ssize_t).map(drop)
    }

    fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the frame is borrowed for the call and has the given length.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(checked(sent)?, frame.len());
        Ok(())
    }

    /// The next frame. The kernel delivers the outer tag separately; it is put back in its place.
    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut frame = vec![0_u8; 65_536];
        let mut control = [0_u64; 32];
        let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: the structure consists of plain numbers and pointers, for which zeroes are valid.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<[u64; 32]>();
        // SAFETY: every buffer that the header points to lives in this frame and has the given length.
        let received = checked(unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0) })?;
        frame.truncate(received);
        // SAFETY: the kernel has filled in the header. The first control message, if there is one, lies in `control`.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
        if let Some(first) = first
            && (first.cmsg_level, first.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA)
        {
            // SAFETY: a message of this kind holds one such value, of any alignment.
            let told = unsafe { libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned() };
            if told.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                let tag = [told.tp_vlan_tpid.to_be_bytes(), told.tp_vlan_tci.to_be_bytes()].concat();
                frame.splice(12..12, tag);
            }
        }
        Ok(frame)
    }

    /// True if exactly this frame arrives.
    fn hears(&self, wanted: &[u8]) -> bool {
        self.hears_within(TIMEOUT, wanted)
    }

    fn hears_within(&self, timeout: Duration, wanted: &[u8]) -> bool {
        let started = Instant::now();
        while started.elapsed() < timeout {
            if self.receive().is_ok_and(|frame| frame == wanted) {
                return true;
            }
        }
        false
    }
}

/// The hardware address of a host.
fn mac(host: &Host) -> [u8; 6] {
    host.plan(MTU_BYTES).mac.0
}

/// A frame with these tags before its type. Each tag is a protocol and its control word.
fn frame(target: [u8; 6], source: [u8; 6], tags: &[(u16, u16)], kind: u16, payload: &[u8]) -> Vec<u8> {
    let words = tags.iter().flat_map(|(protocol, control)| [*protocol, *control]).chain([kind]);
    let words = words.flat_map(u16::to_be_bytes);
    target.into_iter().chain(source).chain(words).chain(payload.iter().copied()).collect()
}

fn payload(length: u32) -> Vec<u8> {
    (0..length as usize).map(|index| hosts::byte_at(5, index)).collect()
}

#[test]
fn tags_are_kept_and_may_exceed_the_mtu_by_four_bytes() {
    for link in LINKS {
        let Some(hosts) = hosts(2) else { return };
        let _joined = join(&hosts, link, MTU_BYTES);
        let sockets: Vec<_> = hosts.iter().map(|host| PacketSocket::open(host).expect("a socket")).collect();
        // VLAN 7, VLAN 7 with the highest priority and the drop-eligible bit, and the last VLAN.
        for control in [7, 7 | 0xF000, 4094] {
            for length in [46, 1499, MTU_BYTES] {
                for (from, to) in [(0, 1), (1, 0)] {
                    let tags = [(VLAN, control)];
                    let sent = frame(mac(&hosts[to]), mac(&hosts[from]), &tags, EXPERIMENT, &payload(length));
                    sockets[from].send(&sent).expect("sent");
                    assert!(sockets[to].hears(&sent), "{link:?}: {length} bytes, tag {control:#06x}");
                }
            }
        }
        // Without a tag, the frame is too long. The sender's kernel reports that.
        let long = frame(mac(&hosts[1]), mac(&hosts[0]), &[], EXPERIMENT, &payload(MTU_BYTES + 4));
        assert_eq!(sockets[0].send(&long).map_err(|error| error.raw_os_error()), Err(Some(libc::EMSGSIZE)));
    }
}

#[test]
fn two_tags_and_tagged_broadcasts_pass() {
    for link in LINKS {
        let Some(hosts) = hosts(3) else { return };
        let _joined = join(&hosts, link, MTU_BYTES);
        let sockets: Vec<_> = hosts.iter().map(|host| PacketSocket::open(host).expect("a socket")).collect();
        let two = [(SERVICE_VLAN, 100), (VLAN, 7)];
        let sent = frame(mac(&hosts[1]), mac(&hosts[0]), &two, EXPERIMENT, &payload(1400));
        sockets[0].send(&sent).expect("sent");
        assert!(sockets[1].hears(&sent), "{link:?}");
        let sent = frame([0xFF; 6], mac(&hosts[0]), &[(VLAN, 7)], EXPERIMENT, &payload(100));
        sockets[0].send(&sent).expect("sent");
        assert!(sockets[1].hears(&sent) && sockets[2].hears(&sent), "{link:?}");
    }
}

#[test]
fn a_tag_does_not_hide_the_source_address_of_another_node() {
    let Some(hosts) = hosts(2) else { return };
    let mut joined = join(&hosts, Link::Within, MTU_BYTES);
    let (one, other) = (PacketSocket::open(&hosts[0]), PacketSocket::open(&hosts[1]));
    let (one, other) = (one.expect("a socket"), other.expect("a socket"));
    let stranger = MacAddress::of_node("nobody").0;
    let sent = frame(mac(&hosts[1]), stranger, &[(VLAN, 7)], EXPERIMENT, &payload(100));
    one.send(&sent).expect("sent");
    let dropped = eventually("it is dropped", || {
        let counts = joined.networks[0].counts(0).expect("counts");
        Some(counts.drops.of(Cause::ForeignSource)).filter(|dropped| *dropped > 0)
    });
    assert_eq!(dropped, 1);
    assert!(!other.hears_within(Duration::from_secs(1), &sent), "it came under a foreign address");
}

#[test]
fn frames_with_only_a_priority_tag_are_delivered() {
    for link in LINKS {
        let Some(hosts) = hosts(2) else { return };
        let _joined = join(&hosts, link, MTU_BYTES);
        let socket = PacketSocket::open(&hosts[0]).expect("a socket");
        let listener = udp(&hosts[1], hosts[1].ipv4(7001));
        listener.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
        let datagram = datagram(hosts[0].number, hosts[1].number, 7001, b"urgent");
        let sent = frame(mac(&hosts[1]), mac(&hosts[0]), &[(VLAN, 5 << 13)], 0x0800, &datagram);
        socket.send(&sent).expect("sent");
        let mut buffer = [0; 64];
        let (length, _) = listener.recv_from(&mut buffer).expect("received");
        assert_eq!(&buffer[..length], b"urgent");
    }
}

/// An IPv4 packet that holds a UDP datagram without a checksum.
fn datagram(source: u8, target: u8, port: u16, payload: &[u8]) -> Vec<u8> {
    let length = (28 + payload.len()) as u16;
    let mut words = vec![0x4500, length, 1, 0, 0x4011, 0, 0x0A4D, source.into(), 0x0A4D, target.into()];
    let mut sum: u32 = words.iter().map(|word| u32::from(*word)).sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    words[5] = !(sum as u16);
    words.extend([port, port, length - 20, 0]);
    words.into_iter().flat_map(u16::to_be_bytes).chain(payload.iter().copied()).collect()
}

#[test]
fn vlan_devices_of_the_kernel_exchange_frames() {
    let Some(hosts) = hosts(2) else { return };
    let _network = connect(&hosts, MTU_BYTES, SETTINGS);
    for host in &hosts {
        if let Err(said) = host.try_ip(&format!("link add link {INTERFACE} name tagged type vlan id 7")) {
            println!("not run: this kernel has no VLAN devices ({}): `modprobe 8021q`", said.trim());
            return;
        }
        host.ip(&format!("address add 10.78.0.{}/24 dev tagged", host.number));
        host.ip("link set tagged up");
    }
    let (near, far) = tcp(&hosts[0], &hosts[1], ([10, 78, 0, 2], 7000).into());
    exchange(&near, &far, 4 << 20);
}
