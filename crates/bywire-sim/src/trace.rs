//! The trace of a failed run for a reader: packets with their contents, and what happened to them.

use std::collections::VecDeque;
use std::fmt::Write;

use bywire_wire::frame::{Ack, Frame, Lane, frames};
use bywire_wire::packet::Header;
use bywire_wire::sealing::Opener;

use crate::bytes::Source;
use crate::end::{End, secret_of, side_of};
use crate::network::Packet;
use crate::scenario::Scenario;

/// The most ranges of an acknowledgement that are shown.
const RANGES: usize = 4;

/// The last events of a run.
#[derive(Debug)]
pub struct Trace {
    lines: VecDeque<String>,
    lines_max: usize,
    /// The keys of an end in its present incarnation, to decrypt what it sends.
    openers: [(Source, Opener); 2],
}

fn opener(source: Source, scenario: &Scenario) -> (Source, Opener) {
    (source, Opener::new(scenario.security, &secret_of(scenario, source.life), side_of(source.end)))
}

impl Trace {
    /// A trace of a new run that keeps this many lines.
    pub fn new(scenario: &Scenario, lines_max: usize) -> Self {
        let openers = [0, 1].map(|end| opener(Source { end, life: 0 }, scenario));
        Self { lines: VecDeque::new(), lines_max, openers }
    }

    /// The lines, the oldest first.
    pub fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }

    /// Notes an event.
    pub fn note(&mut self, now_ns: u64, what: &str) {
        if self.lines.len() == self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{:>10}.{:03} µs  {what}", now_ns / 1000, now_ns % 1000));
    }

    /// Notes that an end has processed its received packets.
    pub fn taken(&mut self, now_ns: u64, end: &End, [packets, taken]: [usize; 2]) {
        let (in_flight, window) = end.connection.flight();
        let acknowledged = bywire_wire::frame::LANES.map(|lane| end.connection.acknowledged(lane));
        let who = name(end.source);
        self.note(
            now_ns,
            &format!(
                "{who} takes {taken} of {packets} packets in; {in_flight} of {window} bytes in flight, acknowledged \
                 {acknowledged:?}, sent {:?}, consumed {:?}",
                end.sent, end.consumed
            ),
        );
    }

    /// Notes that a packet has left, and when it arrives.
    pub fn sent(
        &mut self,
        now_ns: u64,
        source: Source,
        packet: &[u8],
        carried: &[(u64, Packet)],
        scenario: &Scenario,
    ) {
        let (known, reader) = &mut self.openers[source.end];
        if *known != source {
            (*known, *reader) = opener(source, scenario);
        }
        let mut text = format!("{} sends ", name(source));
        let mut copy = packet.to_vec();
        match Header::parse(packet) {
            Some(header) => {
                let _ = write!(text, "#{} of {} bytes:", header.number, header.length);
                match reader.open(now_ns, 0, &header, &mut copy) {
                    Ok(payload) => frames(payload).flatten().for_each(|frame| text += &describe(&frame)),
                    Err(_) => text += " what nobody can open",
                }
            }
            None => text += "no packet",
        }
        if carried.is_empty() {
            text += " -- lost";
        }
        for (at_ns, packet) in carried {
            let _ = write!(text, " -- comes after {} µs", (at_ns - now_ns) / 1000);
            text += if packet.is_damaged { ", damaged" } else { "" };
        }
        self.note(now_ns, &text);
    }
}

fn name(source: Source) -> String {
    let again = if source.life > 0 { ", again" } else { "" };
    format!("end {}{again}", source.end)
}

fn describe(frame: &Frame) -> String {
    let name = |lane: Lane| format!("{lane:?}").to_lowercase();
    match *frame {
        Frame::Pad => String::new(),
        Frame::Ping => " ping".to_owned(),
        Frame::Close { reason } => format!(" close({reason})"),
        Frame::Ack(ack) => describe_ack(ack),
        Frame::Lane { lane, offset, bytes } => {
            format!(" {} {offset}..{}", name(lane), offset + bytes.len() as u64)
        }
        Frame::Credit { lane, taken, limit } => {
            format!(" credit({} {taken} taken, up to {limit})", name(lane))
        }
        Frame::Datagram { lane, id, offset, total, bytes } => {
            let end = usize::from(offset) + bytes.len();
            format!(" datagram({} {id}: {offset}..{end} of {total})", name(lane))
        }
    }
}

fn describe_ack(ack: Ack) -> String {
    let all = ack.ranges().count();
    let shown = ack.ranges().take(RANGES).map(|range| match range {
        range if range.start() == range.end() => range.start().to_string(),
        range => format!("{}–{}", range.start(), range.end()),
    });
    let shown: Vec<_> = shown.collect();
    let more = if all > RANGES { format!(" and {} ranges", all - RANGES) } else { String::new() };
    format!(" ack({}{more})", shown.join(" "))
}
