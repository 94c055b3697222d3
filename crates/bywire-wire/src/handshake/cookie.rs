//! Cookies: a responder under load requires proof that a hello comes from the address that it claims.

use std::net::{IpAddr, SocketAddr};

use crate::packet::{HEADER_BYTES, Header, PacketKind};
use crate::planted::{self, Bug};
use crate::random::{Random, draw};

use super::load::{self, SourceHashes};
use super::macs::{self, KEY_BYTES, MAC_BYTES, MacKey};

/// How long cookies are made with one secret. They are valid until the secret after the next begins.
pub const SECRET_LIFE_NS: u64 = 120_000_000_000;
/// How long the receiver of a cookie uses it.
pub const COOKIE_LIFE_NS: u64 = SECRET_LIFE_NS;
/// Bytes of a packet with a cookie.
pub const COOKIE_BYTES: usize = HEADER_BYTES + KEY_BYTES + 32;

/// Makes cookies, without a memory of them.
#[derive(Debug, Default)]
pub struct Cookies {
    current: Option<(MacKey, u64)>,
    previous: Option<MacKey>,
}

impl Cookies {
    /// Makes a new secret if it is time.
    pub fn rotate(&mut self, now_ns: u64, random: Random) {
        let age_ns = self.current.as_ref().map(|(_, from_ns)| now_ns.saturating_sub(*from_ns));
        if age_ns.is_some_and(|age_ns| age_ns < SECRET_LIFE_NS || planted::is(Bug::CookieForever)) {
            return;
        }
        let secret = MacKey::new(&draw::<KEY_BYTES>(random));
        let current = self.current.replace((secret, now_ns));
        let is_recent = age_ns.is_some_and(|age_ns| age_ns < 2 * SECRET_LIFE_NS);
        self.previous = current.map(|(key, _)| key).filter(|_| is_recent);
    }

    /// The present cookie of an address. `None`: [`Self::rotate`] was never called.
    pub fn current(&self, address: SocketAddr) -> Option<[u8; MAC_BYTES]> {
        self.current.as_ref().map(|(key, _)| key.mac(&address_bytes(address)))
    }

    /// Hashes of the networks of an address. `None`: [`Self::rotate`] was never called.
    pub fn hashes(&self, ip: IpAddr) -> Option<SourceHashes> {
        // An address has another length, so no hash is a cookie.
        let (key, _) = self.current.as_ref()?;
        Some(load::networks(ip).map(|network| key.mac(&[&b"network "[..], &network].concat())))
    }

    /// The valid cookies of an address.
    pub fn taken(&self, address: SocketAddr) -> impl Iterator<Item = [u8; MAC_BYTES]> {
        let keys = self.current.iter().map(|(key, _)| key).chain(&self.previous);
        keys.map(move |key| key.mac(&address_bytes(address)))
    }
}

/// The address that a cookie proves, with its port: other programs may have other ports of the same address. An IPv4-mapped
/// address counts as IPv4.
fn address_bytes(address: SocketAddr) -> [u8; 18] {
    let mut bytes = [0; 18];
    if planted::is(Bug::CookieForAll) {
        return bytes;
    }
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

/// The packet with a cookie for the sender of a hello with this number and `mac1`.
pub fn write(
    giver: &[u8; KEY_BYTES],
    salt: [u8; KEY_BYTES],
    connection: u32,
    mac1: &[u8; MAC_BYTES],
    cookie: [u8; MAC_BYTES],
) -> Vec<u8> {
    let header = Header {
        kind: PacketKind::Cookie,
        key_phase: false,
        length: COOKIE_BYTES as u16,
        connection,
        number: 0,
    };
    let header = header.to_bytes();
    let sealed = macs::seal_cookie(giver, &salt, &[&header[..], mac1].concat(), cookie);
    [&header[..], &salt, &sealed].concat()
}

/// The cookie in a packet that answers a hello with this `mac1`. `None`: it is forged, or answers another hello.
pub fn read(giver: &[u8; KEY_BYTES], mac1: &[u8; MAC_BYTES], packet: &[u8]) -> Option<[u8; MAC_BYTES]> {
    let (header, body) = packet.split_first_chunk::<HEADER_BYTES>()?;
    let (salt, sealed) = body.split_first_chunk()?;
    let bound = [&header[..], mac1].concat();
    macs::open_cookie(giver, salt, &bound, sealed.try_into().ok()?)
}
