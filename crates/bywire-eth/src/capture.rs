//! Copies of frames for capturing, in pcapng. Each frame is recorded where it enters, from an interface or from the
//! fabric. Merged frames appear merged.
//!
//! The carrying loops send the copies to the capturing program and never wait for it. Copies without room are dropped
//! and counted.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bywire_sys::Errno;
use bywire_sys::poller::Poller;
use bywire_sys::socket::{Received, Socket};

use crate::frame::FRAME_BYTES_MAX;
use crate::switch::SwitchPortId;

/// The interface name under which frames of other processes are recorded.
pub const FABRIC: &str = "fabric";
/// The header of each copy: time, switch port, length of the label that follows, and number of copies lost since the last
/// one.
const HEAD_BYTES: usize = 24;
/// The longest label. A label is a namespace and a name.
const LABEL_BYTES_MAX: usize = 512;
const PACKET_BYTES_MAX: usize = HEAD_BYTES + LABEL_BYTES_MAX + FRAME_BYTES_MAX;
/// Block types of a pcapng file.
const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// The link type of Ethernet.
const ETHERNET: u32 = 1;
/// Options of an interface's block: its name, and the resolution of its timestamps.
const NAME_OPTION: u16 = 2;
const RESOLUTION_OPTION: u16 = 9;
/// The resolution of timestamps is 10 to the minus this, in seconds.
const NANOSECONDS: u8 = 9;

/// The sending side, in a carrying loop.
#[derive(Debug)]
pub struct CaptureSender {
    socket: Socket,
    lost: u64,
    packet: Vec<u8>,
}

impl CaptureSender {
    /// Sends copies to `socket` from now on.
    pub fn new(socket: Socket) -> Self {
        Self { socket, lost: 0, packet: Vec::with_capacity(PACKET_BYTES_MAX) }
    }

    /// Sends a copy of a frame with the label of its interface, because another interface may have the port later. Returns
    /// `false` when the capturing program is gone.
    pub fn send_copy(&mut self, port: SwitchPortId, label: &str, frame: &[u8]) -> bool {
        let label = &label.as_bytes()[..label.len().min(LABEL_BYTES_MAX)];
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.packet.clear();
        self.packet.extend_from_slice(&(now.as_nanos() as u64).to_le_bytes());
        self.packet.extend_from_slice(&(port as u32).to_le_bytes());
        self.packet.extend_from_slice(&(label.len() as u32).to_le_bytes());
        self.packet.extend_from_slice(&self.lost.to_le_bytes());
        self.packet.extend_from_slice(label);
        self.packet.extend_from_slice(frame);
        match self.socket.send(&self.packet, &[]) {
            Ok(()) => {
                self.lost = 0;
                true
            }
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => false,
            Err(_) => {
                self.lost += 1;
                true
            }
        }
    }
}

/// What to record.
#[derive(Clone, Debug, Default)]
pub struct CaptureFilter {
    /// The names of the existing interfaces.
    pub names: Vec<String>,
    /// Only frames that enter by this interface.
    pub interface: Option<String>,
    /// Stop after this many frames.
    pub count: Option<u64>,
}

impl CaptureFilter {
    /// The known names of what is recorded, each once, with the fabric last.
    fn recorded_names(&self) -> Vec<&str> {
        let wanted = |name: &&str| self.interface.as_ref().is_none_or(|wanted| wanted == name);
        let mut names: Vec<&str> = self.names.iter().map(String::as_str).filter(wanted).collect();
        names.sort_unstable();
        names.dedup();
        names.extend([FABRIC].iter().filter(|name| wanted(name)));
        names
    }
}

/// Writes frames from `socket` to `output`, until `filter.count` is reached, the socket is shut down, or the network
/// ends. Each block is written at once, so that an interrupted recording is still a valid file. Returns the number of
/// frames written and the number lost.
///
/// # Errors
/// Errors of `output` or of the kernel.
pub fn record(socket: &Socket, filter: &CaptureFilter, mut output: impl Write) -> io::Result<(u64, u64)> {
    let mut poller = Poller::new()?;
    poller.add(socket, 0)?;
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let mut interfaces: HashMap<String, u32> = HashMap::new();
    let (mut written, mut lost) = (0, 0u64);
    output.write_all(&section_header())?;
    // A file without frames lists its interfaces too, so that readers see what was recorded.
    for name in filter.recorded_names() {
        interfaces.insert(name.to_owned(), interfaces.len() as u32);
        output.write_all(&interface(name))?;
    }
    output.flush()?;
    while filter.count.is_none_or(|count| written < count) {
        let length = match socket.receive(&mut buffer)? {
            Received::Packet(length, _) => length,
            Received::Nothing => {
                poller.wait(Some(Duration::from_secs(3600)))?;
                continue;
            }
            Received::Closed => break,
        };
        let Some((head, rest)) = buffer[..length].split_first_chunk::<HEAD_BYTES>() else { continue };
        let [time, place, lost_before] =
            [0, 8, 16].map(|at| u64::from_le_bytes(std::array::from_fn(|index| head[at + index])));
        // Each loop counts its own losses.
        lost = lost.saturating_add(lost_before);
        let Some((label, frame)) = rest.split_at_checked((place >> 32) as usize) else { continue };
        let name = String::from_utf8_lossy(label);
        if filter.interface.as_ref().is_some_and(|wanted| *wanted != name) {
            continue;
        }
        let known = interfaces.len() as u32;
        let number = *interfaces.entry(name.clone().into_owned()).or_insert(known);
        if number == known {
            output.write_all(&interface(&name))?;
        }
        output.write_all(&packet(number, time, frame))?;
        output.flush()?;
        written += 1;
    }
    Ok((written, lost))
}

fn section_header() -> Vec<u8> {
    // Byte order, version 1.0, and an unknown section length.
    let body =
        [&0x1A2B_3C4Du32.to_le_bytes()[..], &1u16.to_le_bytes(), &0u16.to_le_bytes(), &[0xFF; 8]].concat();
    block(SECTION_HEADER, &body)
}

fn interface(name: &str) -> Vec<u8> {
    let mut body = ETHERNET.to_le_bytes().to_vec();
    // No limit on the length.
    body.extend(0u32.to_le_bytes());
    body.extend(option(NAME_OPTION, name.as_bytes()));
    body.extend(option(RESOLUTION_OPTION, &[NANOSECONDS]));
    body.extend([0; 4]);
    block(INTERFACE, &body)
}

fn packet(number: u32, time: u64, frame: &[u8]) -> Vec<u8> {
    let length = frame.len() as u32;
    let words = [number, (time >> 32) as u32, time as u32, length, length];
    let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    body.extend_from_slice(frame);
    block(ENHANCED_PACKET, &body)
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [code.to_le_bytes(), (value.len() as u16).to_le_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A block: its type, its length before and after the body, and the body padded to a multiple of four bytes.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (12 + body.len().next_multiple_of(4)) as u32;
    let mut bytes = [kind.to_le_bytes(), length.to_le_bytes()].concat();
    bytes.extend_from_slice(body);
    bytes.resize(length as usize - 4, 0);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    /// All blocks of a file, each with its type.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().expect("a word"));
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let length = word(&file[4..]) as usize;
            assert!(length.is_multiple_of(4) && word(&file[length - 4..]) as usize == length);
            blocks.push((word(file), file[8..length - 4].to_vec()));
            file = &file[length..];
        }
        blocks
    }

    #[test]
    fn frames_become_a_file_with_an_interface_for_each_label() {
        let (ours, theirs) = Socket::pair().expect("a pair");
        let mut capture = CaptureSender::new(theirs);
        let blue = "blue:by0";
        assert!(
            capture.send_copy(0, blue, &[1; 61])
                && capture.send_copy(1, FABRIC, &[2; 60])
                && capture.send_copy(0, blue, &[3; 14])
        );
        drop(capture);
        let filter = CaptureFilter { names: vec![blue.to_owned()], ..CaptureFilter::default() };
        let mut file = Vec::new();
        assert_eq!(record(&ours, &filter, &mut file).expect("recorded"), (3, 0));
        let blocks = blocks(&file);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(
            kinds,
            [SECTION_HEADER, INTERFACE, INTERFACE, ENHANCED_PACKET, ENHANCED_PACKET, ENHANCED_PACKET]
        );
        assert_eq!(&blocks[1].1[12..20], b"blue:by0");
        assert_eq!((blocks[3].1[12], &blocks[3].1[20..81]), (61, &[1; 61][..]));
        assert_eq!((blocks[4].1[0], blocks[5].1[0]), (1, 0), "numbers of their interfaces");
    }

    #[test]
    fn a_reused_port_is_another_interface() {
        let (ours, theirs) = Socket::pair().expect("a pair");
        let mut capture = CaptureSender::new(theirs);
        for label in ["blue:by0", "blue:by0", "red:by0"] {
            assert!(capture.send_copy(0, label, &[1; 60]));
        }
        drop(capture);
        let filter = CaptureFilter { interface: Some("red:by0".to_owned()), ..CaptureFilter::default() };
        assert_eq!(record(&ours, &filter, io::sink()).expect("recorded"), (1, 0));
    }

    #[test]
    fn the_losses_of_all_loops_are_added_up() {
        let (ours, theirs) = Socket::pair().expect("a pair");
        let theirs = OwnedFd::from(theirs);
        let again = Socket::from_descriptor(theirs.try_clone().expect("another")).expect("a socket");
        let theirs = Socket::from_descriptor(theirs).expect("a socket");
        for (socket, lost) in [(theirs, 3), (again, 4)] {
            let mut capture = CaptureSender { lost, ..CaptureSender::new(socket) };
            assert!(capture.send_copy(0, "blue:by0", &[1; 60]) && capture.send_copy(0, "blue:by0", &[1; 60]));
        }
        assert_eq!(record(&ours, &CaptureFilter::default(), io::sink()).expect("recorded"), (4, 7));
    }

    #[test]
    fn a_file_without_frames_lists_its_interfaces() {
        let (ours, theirs) = Socket::pair().expect("a pair");
        drop(theirs);
        let kinds = |interface: Option<&str>| {
            let names = ["blue:by0", "red:by0"].map(str::to_owned).to_vec();
            let filter = CaptureFilter { names, interface: interface.map(str::to_owned), count: None };
            let mut file = Vec::new();
            assert_eq!(record(&ours, &filter, &mut file).expect("recorded"), (0, 0));
            blocks(&file).iter().map(|(kind, _)| *kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(None), [SECTION_HEADER, INTERFACE, INTERFACE, INTERFACE]);
        assert_eq!(kinds(Some("red:by0")), [SECTION_HEADER, INTERFACE]);
    }

    #[test]
    fn a_stopped_reader_loses_frames_and_delays_nobody() {
        let (ours, theirs) = Socket::pair().expect("a pair");
        let mut capture = CaptureSender::new(theirs);
        for _ in 0..1000 {
            assert!(capture.send_copy(0, "blue:by0", &[1; 9000]));
        }
        assert!(capture.lost > 0);
        let filter = CaptureFilter { count: Some(3), ..CaptureFilter::default() };
        assert_eq!(record(&ours, &filter, io::sink()).expect("recorded").0, 3);
        // A child process of a parallel test may hold a copy of this descriptor until it calls `exec`.
        ours.shut_down();
        assert!(!capture.send_copy(0, "blue:by0", &[1; 60]));
    }
}
