//! The least that messages between two machines cost: the same packets and system calls, and nothing of a protocol.
//!
//! Two processes run in two namespaces on a veth pair, with connected sockets that poll. Packets are sealed by AES-256-GCM
//! or bare. Long messages leave in batches that the kernel segments, and their payload is written, copied once into the batch
//! and once out of it, and read.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use bywire_measure::clock::Clock;
use bywire_measure::endpoint::{Kind, Mark};
use bywire_measure::payload::{Reader, Writer};
use bywire_sys::udp::{BATCH_BYTES_MAX, BATCH_PACKETS_MAX, RECEIVE_BYTES, SendError, UdpSocket};

use crate::contestant::{Contestant, Unit};
use crate::process::{Ends, Place};

/// The payload of a UDP packet at an MTU of 1500.
const PACKET_BYTES: usize = 1472;
/// A packet's number and its length.
const HEADER_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
/// A packet of a short message, as long as one of the fabric's.
const SHORT_BYTES: usize = 64;
const MESSAGE_BYTES: usize = 1 << 20;
/// Bytes that may be under way: both sockets have room for several times as many.
const WINDOW_BYTES: u64 = 512 << 10;
/// The target reports its progress in steps of this many bytes.
const TOLD_AT_ONCE: u64 = 64 << 10;
const SOCKET_BYTES: usize = 8 << 20;
const TIMEOUT: Duration = Duration::from_secs(5);

/// The work of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Half-RTT of a short packet.
    Latency,
    /// The rate of messages of 1 MiB.
    Bulk,
    /// The rate of the same packets, without writing, copying or reading their payload.
    Packets,
    /// That rate with a system call for each packet sent.
    OneByOne,
}

impl What {
    const ALL: [Self; 4] = [Self::Latency, Self::Bulk, Self::Packets, Self::OneByOne];

    pub fn unit(self) -> Unit {
        if self == Self::Latency { Unit::Nanoseconds } else { Unit::BytesPerSecond }
    }
}

/// Seals and opens packets, or leaves them as they are.
struct Protection(Option<LessSafeKey>);

impl Protection {
    fn new(is_sealed: bool) -> Result<Self> {
        // The key protects nothing: both ends and their packets are this program's own.
        let key = is_sealed.then(|| UnboundKey::new(&AES_256_GCM, &[7; 32])).transpose()?;
        Ok(Self(key.map(LessSafeKey::new)))
    }

    fn tag_bytes(&self) -> usize {
        if self.0.is_some() { TAG_BYTES } else { 0 }
    }

    /// Writes the header of a packet whose body is in place, and seals the body.
    #[inline]
    fn finish(&self, packet: &mut [u8], number: u64) -> Result<()> {
        let length = packet.len() as u64;
        let (header, rest) = packet.split_at_mut(HEADER_BYTES);
        header[..8].copy_from_slice(&number.to_le_bytes());
        header[8..].copy_from_slice(&length.to_le_bytes());
        let Some(key) = &self.0 else { return Ok(()) };
        let (body, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        let sealed = key.seal_in_place_separate_tag(nonce(number), Aad::from(&*header), body)?;
        tag.copy_from_slice(sealed.as_ref());
        Ok(())
    }

    /// The body of the first of several joined packets, opened, and the packets behind it.
    #[inline]
    fn open<'a>(&self, packets: &'a mut [u8]) -> Result<(&'a [u8], &'a mut [u8])> {
        ensure!(packets.len() >= HEADER_BYTES, "a packet without a header");
        let word = |at: usize| u64::from_le_bytes(packets[at..at + 8].try_into().expect("8 bytes"));
        let (number, length) = (word(0), word(8) as usize);
        ensure!(
            (HEADER_BYTES + self.tag_bytes()..=packets.len()).contains(&length),
            "a packet of another length"
        );
        let (packet, rest) = packets.split_at_mut(length);
        let (header, body) = packet.split_at_mut(HEADER_BYTES);
        let body = match &self.0 {
            Some(key) => key.open_in_place(nonce(number), Aad::from(&*header), body)?,
            None => body,
        };
        Ok((body, rest))
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

struct End {
    socket: UdpSocket,
    protection: Protection,
    buffer: Vec<u8>,
    number: u64,
    what: What,
}

impl End {
    /// Polls until a packet arrives.
    fn receive(&mut self) -> Result<usize> {
        let started = Instant::now();
        loop {
            for _ in 0..10_000 {
                if let Some(bytes) = self.socket.receive(&mut self.buffer)? {
                    return Ok(bytes);
                }
            }
            ensure!(started.elapsed() < TIMEOUT, "nothing has come for {} s", TIMEOUT.as_secs());
        }
    }

    fn send_short(&mut self, word: u64) -> Result<()> {
        let mut packet = [0; SHORT_BYTES];
        packet[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&word.to_le_bytes());
        self.number += 1;
        self.protection.finish(&mut packet, self.number)?;
        Ok(self.socket.send(None, &packet)?)
    }

    /// The word of the last of the short packets that came together.
    fn word(&mut self) -> Result<u64> {
        let bytes = self.receive()?;
        let (mut rest, mut word) = (&mut self.buffer[..bytes], None);
        while !rest.is_empty() {
            let (body, behind) = self.protection.open(rest)?;
            (word, rest) = (Some(u64::from_le_bytes(body[..8].try_into()?)), behind);
        }
        word.context("an empty packet")
    }

    /// Median half-RTT in nanoseconds.
    fn ask(&mut self, duration: Duration) -> Result<f64> {
        let clock = Clock::shared();
        let started = Instant::now();
        let mut round_trips = Vec::new();
        while started.elapsed() < duration {
            let sent = clock.now_ns();
            self.send_short(round_trips.len() as u64)?;
            ensure!(self.word()? == round_trips.len() as u64, "another packet was answered");
            round_trips.push(clock.now_ns() - sent);
        }
        self.send_short(u64::MAX)?;
        round_trips.sort_unstable();
        Ok(round_trips[round_trips.len() / 2] as f64 / 2.0)
    }

    fn answer(&mut self) -> Result<()> {
        loop {
            match self.word()? {
                u64::MAX => return Ok(()),
                word => self.send_short(word)?,
            }
        }
    }

    /// Bytes per second, as the target has them.
    fn send_long(&mut self, duration: Duration) -> Result<f64> {
        let body_bytes = PACKET_BYTES - HEADER_BYTES - self.protection.tag_bytes();
        let batch_packets = (BATCH_BYTES_MAX / PACKET_BYTES).min(BATCH_PACKETS_MAX);
        let mut batch = vec![0; batch_packets * PACKET_BYTES];
        let (mut message, mut writer) = (vec![0; MESSAGE_BYTES], Writer::default());
        let (started, mut sent, mut taken) = (Instant::now(), 0u64, 0u64);
        while started.elapsed() < duration {
            if self.what == What::Bulk {
                writer.fill(&mut message, Mark::new(Kind::Data, 0));
            }
            let mut left = &message[..];
            while !left.is_empty() {
                let mut filled = 0;
                while !left.is_empty() && filled + PACKET_BYTES <= batch.len() {
                    let (now, later) = left.split_at(left.len().min(body_bytes));
                    let packet =
                        &mut batch[filled..filled + HEADER_BYTES + now.len() + self.protection.tag_bytes()];
                    if self.what == What::Bulk {
                        packet[HEADER_BYTES..HEADER_BYTES + now.len()].copy_from_slice(now);
                    }
                    self.number += 1;
                    self.protection.finish(packet, self.number)?;
                    (filled, left, sent) = (filled + packet.len(), later, sent + now.len() as u64);
                }
                self.send_packets(&batch[..filled])?;
                while sent - taken > WINDOW_BYTES {
                    taken = self.word()?;
                }
            }
        }
        while taken < sent {
            taken = self.word()?;
        }
        let rate = taken as f64 / started.elapsed().as_secs_f64();
        self.send_short(0)?;
        Ok(rate)
    }

    fn send_packets(&self, mut left: &[u8]) -> Result<()> {
        while let Some(first) = left.chunks(PACKET_BYTES).next() {
            let sent = match self.what {
                What::OneByOne => self.socket.send(None, first).map(|()| first.len()),
                _ => self.socket.send_batch(None, left, PACKET_BYTES),
            };
            match sent {
                Ok(bytes) => left = &left[bytes..],
                Err(SendError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive_long(&mut self) -> Result<()> {
        let (mut message, mut reader, mut filled) = (vec![0; MESSAGE_BYTES], Reader::new(false, true), 0);
        let (mut taken, mut told, mut sum) = (0u64, 0u64, 0u64);
        loop {
            let bytes = self.receive()?;
            let mut rest = &mut self.buffer[..bytes];
            while !rest.is_empty() {
                let (body, behind) = self.protection.open(rest)?;
                if body.len() == SHORT_BYTES - HEADER_BYTES - self.protection.tag_bytes() && filled == 0 {
                    std::hint::black_box(sum);
                    return Ok(());
                }
                ensure!(filled + body.len() <= MESSAGE_BYTES, "packets were lost");
                if self.what == What::Bulk {
                    message[filled..filled + body.len()].copy_from_slice(body);
                }
                (filled, taken) = (filled + body.len(), taken + body.len() as u64);
                if filled == MESSAGE_BYTES {
                    if self.what == What::Bulk {
                        sum = sum.wrapping_add(reader.read(&message)?.sum);
                    }
                    filled = 0;
                }
                rest = behind;
            }
            if taken - told >= TOLD_AT_ONCE || filled == 0 {
                self.send_short(taken)?;
                told = taken;
            }
        }
    }
}

/// Plays an end, whose words are the name of a [`What`] and `sealed` or `bare`. The target prints that it is ready, and the source its
/// figure.
pub fn play(arguments: &[String]) -> Result<()> {
    let Ends { is_target, addresses: [source, target], duration, words, .. } = Ends::of(arguments)?;
    let [word, sealed] = words else { bail!("an end has two words") };
    let known = What::ALL.into_iter().find(|known| format!("{known:?}") == *word);
    let what = known.with_context(|| format!("bare UDP does nothing that is called {word}"))?;
    let (own, peer) = if is_target { (target, source) } else { (source, target) };
    let socket = UdpSocket::bind(own)?;
    let granted_bytes = socket.request_buffers(SOCKET_BYTES)?.receive_bytes;
    ensure!(
        granted_bytes as u64 >= 4 * WINDOW_BYTES,
        "a socket has {granted_bytes} bytes for what has come, and the bare loop needs {}: run as root, or set the sysctl \
         net.core.rmem_max",
        4 * WINDOW_BYTES
    );
    socket.enable_gro();
    socket.connect(peer)?;
    let protection = Protection::new(sealed == "sealed")?;
    let mut end = End { socket, protection, buffer: vec![0; RECEIVE_BYTES], number: 0, what };
    if is_target {
        println!("ready");
        return if what == What::Latency { end.answer() } else { end.receive_long() };
    }
    let figure = if what == What::Latency { end.ask(duration)? } else { end.send_long(duration)? };
    println!("{figure}");
    Ok(())
}

/// The figure of two fresh processes: nanoseconds, or bytes per second.
pub fn contestant(place: &Place, what: What, is_sealed: bool, seconds: f64) -> Contestant {
    let place = place.clone();
    let security = if is_sealed { "sealed" } else { "bare" };
    let take = move || place.figure("bare-udp", &[&format!("{what:?}"), security], seconds);
    Contestant::of_value("./x figures links (bare loop)", what.unit(), take)
}
