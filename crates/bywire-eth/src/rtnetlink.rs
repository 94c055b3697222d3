//! Network interfaces of the kernel, queried and changed by rtnetlink.
//!
//! All calls act on the network namespace of the calling thread.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::str::FromStr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::address::MacAddress;

/// The longest answer that is accepted. A link with all its attributes has a few KiB.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The longest superframe, without its link headers. Together with these and a descriptor it fits into 64 KiB.
pub const SUPERFRAME_BYTES_MAX: u32 = 65_280;

/// An IP address with the length of its network's prefix: `10.77.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// The interface's own address.
    pub address: IpAddr,
    /// The number of leading bits that identify the network.
    pub prefix_bits: u8,
}

/// One link as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number in this namespace.
    pub index: u32,
    /// Its hardware address.
    pub mac: Option<MacAddress>,
    /// The longest packet, without the Ethernet header.
    pub mtu_bytes: u32,
    /// True when the link is set up.
    pub is_up: bool,
}

/// A change of one link. `None` leaves a value as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Its hardware address.
    pub mac: Option<MacAddress>,
    /// The longest packet.
    pub mtu_bytes: Option<u32>,
    /// The longest superframe that the kernel's stack delivers.
    pub superframe_bytes_max: Option<u32>,
    /// The most segments of a superframe that the kernel's stack delivers.
    pub superframe_segments_max: Option<u32>,
    /// The index of the bridge to attach it to.
    pub bridge: Option<u32>,
    /// Up or down.
    pub up: Option<bool>,
}

/// An rtnetlink socket for the namespace in which it was opened.
pub struct Links {
    socket: Socket,
    sequence: u32,
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an address with a prefix: write 10.77.0.1/24 or fd00::1/64");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = prefix.parse().ok().filter(|bits| *bits <= bits_max).ok_or_else(wrong)?;
        Ok(Self { address, prefix_bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix_bits)
    }
}

impl Links {
    /// Opens the socket.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Finds a link by its name.
    ///
    /// # Errors
    /// ENODEV when there is none.
    pub fn find(&mut self, name: &str) -> io::Result<Link> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let answer = self.ask(RouteNetlinkMessage::GetLink(message), 0)?;
        match answer {
            Some(RouteNetlinkMessage::NewLink(link)) => Ok(described(&link)),
            _ => Err(io::Error::other("the kernel answered with something else than a link")),
        }
    }

    /// Changes a link.
    ///
    /// # Errors
    /// The error of the kernel: EPERM without CAP_NET_ADMIN, EINVAL for an MTU that the device cannot have.
    pub fn change(&mut self, index: u32, change: Change) -> io::Result<()> {
        // In two steps: superframe sizes that are set while the device is up apply to new connections only.
        let mut message = LinkMessage::default();
        message.header.index = index;
        let attributes = &mut message.attributes;
        attributes.extend(change.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        attributes.extend(change.mtu_bytes.map(LinkAttribute::Mtu));
        attributes.extend(change.bridge.map(LinkAttribute::Controller));
        if let Some(bytes) = change.superframe_bytes_max {
            attributes.push(LinkAttribute::GsoMaxSize(bytes));
            attributes.push(LinkAttribute::GsoIpv4MaxSize(bytes));
        }
        attributes.extend(change.superframe_segments_max.map(LinkAttribute::GsoMaxSegs));
        if !message.attributes.is_empty() {
            self.ask(RouteNetlinkMessage::SetLink(message), NLM_F_ACK)?;
        }
        let Some(up) = change.up else { return Ok(()) };
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.change_mask = LinkFlags::Up;
        message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        self.ask(RouteNetlinkMessage::SetLink(message), NLM_F_ACK).map(drop)
    }

    /// Moves a link into another namespace. It keeps its name.
    ///
    /// # Errors
    /// EEXIST if that namespace has a link of this name already.
    pub fn hand_over(&mut self, index: u32, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        self.ask(RouteNetlinkMessage::SetLink(message), NLM_F_ACK).map(drop)
    }

    /// Gives a link an address. It is not an error if the link has it already.
    ///
    /// # Errors
    /// The error of the kernel: EACCES for IPv6 if IPv6 is switched off.
    pub fn add_address(&mut self, index: u32, cidr: Cidr) -> io::Result<()> {
        let message = address_message(index, cidr);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.ask(RouteNetlinkMessage::NewAddress(message), flags).map(drop)
    }

    /// Removes an address from a link.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if the link does not have it.
    pub fn remove_address(&mut self, index: u32, cidr: Cidr) -> io::Result<()> {
        let message = address_message(index, cidr);
        self.ask(RouteNetlinkMessage::DelAddress(message), NLM_F_ACK).map(drop)
    }

    /// Sends a request and returns the first message of the answer, unless that is only an acknowledgement.
    fn ask(&mut self, question: RouteNetlinkMessage, flags: u16) -> io::Result<Option<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut packet = NetlinkMessage::from(question);
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut buffer = vec![0; ANSWER_BYTES_MAX];
        loop {
            let length = self.socket.recv(&mut &mut buffer[..], 0)?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&buffer[..length])
                .map_err(|error| io::Error::other(error.to_string()))?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::Error(message) if message.code.is_some() => Err(message.to_io()),
                NetlinkPayload::InnerMessage(message) => Ok(Some(message)),
                _ => Ok(None),
            };
        }
    }
}

fn described(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        mac: None,
        mtu_bytes: 0,
        is_up: message.header.flags.contains(LinkFlags::Up),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => link.mac = bytes.as_slice().try_into().ok().map(MacAddress),
            LinkAttribute::Mtu(bytes) => link.mtu_bytes = *bytes,
            _ => {}
        }
    }
    link
}

fn address_message(index: u32, cidr: Cidr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.prefix_len = cidr.prefix_bits;
    message.header.family = if cidr.address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.attributes.push(AddressAttribute::Local(cidr.address));
    message.attributes.push(AddressAttribute::Address(cidr.address));
    if let (IpAddr::V4(address), true) = (cidr.address, cidr.prefix_bits < 31) {
        let host = u32::MAX.checked_shr(cidr.prefix_bits.into()).unwrap_or(0);
        message.attributes.push(AddressAttribute::Broadcast((u32::from(address) | host).into()));
    }
    message
}
