//! `bywire measure`: one cell.

use std::path::PathBuf;

use anyhow::Result;
use bywire_lab::measure::{self, Request};
use bywire_lab::netperf::Netperf;
use bywire_lab::{interrupt, size};
use clap::{ArgAction, Args, ValueEnum};

use crate::{key, table};

/// What to measure, and how.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bywire measure tcp latency --size 1
  bywire measure unix stream --size 64KiB --json
  bywire measure udp rr --between namespaces --mtu 9000
  bywire measure tcp stream --between HOST --style netperf
  bywire measure eth stream --mtu 9000 --link two-processes
  bywire measure tcp fanin --connections 12 --nodes 4
  bywire measure memory memcpy --size 1MiB

Levels: memory, msg, unix, tcp, udp, eth (needs root).
Tests: latency, stream, bidir, rr, overhead, interleave, nhalf;
with several connections: streams, hotspot, fanin, fanout;
of memory: cacheline, memcpy, touched, read, write, readwrite, syscall, futex, pipe.")]
pub struct MeasureArgs {
    /// What is under test
    level: String,
    /// What is measured of it
    test: String,
    /// How the messages are carried, where the level has a choice: shm (msg); one-process, two-processes or veth (eth)
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// Where the ends run: processes, threads, namespaces, or HOST[:PORT] with `bywire serve`
    #[arg(long, value_name = "WHERE")]
    between: Option<String>,
    /// What the ends speak over emulated Ethernet: tcp or udp (eth) [default: tcp]
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<String>,
    /// Take all frames there are at each wake of a process that carries them (eth) [default: on]
    #[arg(long, value_name = "SWITCH")]
    coalesce: Option<Switch>,
    /// Idle peers that stay connected (msg); of tests with several connections, namespaces around a switch (tcp, udp, eth)
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// How many connections at once, up to 64 (streams, hotspot, fanin, fanout) [default: 4]
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Length of a message or a buffer: 64, 1KiB, 1MiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Length of a response (rr); by default as long as the request
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    response_size: Option<u64>,
    /// MTU of the link, in bytes
    #[arg(long, value_name = "N")]
    mtu: Option<u32>,
    /// End-to-end check (msg)
    #[arg(long, value_name = "SWITCH")]
    integrity: Option<Switch>,
    /// Measuring time of the whole cell, over five fresh pairs
    #[arg(long, value_name = "SECONDS")]
    time: Option<f64>,
    /// Cores of source and target
    #[arg(long, value_name = "A,B", value_parser = measure::parse_cores)]
    cores: Option<(u32, u32)>,
    /// Poll rather than sleep
    #[arg(long, overrides_with = "no_spin")]
    spin: bool,
    /// Sleep rather than poll
    #[arg(long, overrides_with = "spin")]
    no_spin: bool,
    /// Nagle's algorithm (tcp); off by default
    #[arg(long, value_name = "SWITCH")]
    nagle: Option<Switch>,
    /// Compare every byte of every payload
    #[arg(long)]
    verify: bool,
    /// Send lent buffers rather than copies (msg)
    #[arg(long)]
    lent: bool,
    /// Socket buffers to ask for, in both directions at both ends
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    socket_buffer: Option<u64>,
    /// File with the key of the host's `bywire serve`, which tells in its help how to make one
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Lines walked (memory cacheline)
    #[arg(long, value_name = "N")]
    lines: Option<u32>,
    /// Both cores at once (rates of memory)
    #[arg(long, action = ArgAction::SetTrue)]
    both_cores: bool,
    /// Print one JSON object and nothing else
    #[arg(long, conflicts_with = "style")]
    json: bool,
    /// Print in another program's form
    #[arg(long, value_name = "STYLE")]
    style: Option<Style>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Style {
    /// Netperf 2.2's classic text with CPU at both ends
    Netperf,
}

impl MeasureArgs {
    /// Measures and prints.
    pub fn run(self) -> Result<()> {
        interrupt::arm()?;
        let request = self.request()?;
        let cell = match measure::run(request) {
            Err(_) if interrupt::requested() => {
                eprintln!("bywire: interrupted before the cell was complete: nothing is printed");
                std::process::exit(interrupt::EXIT_CODE);
            }
            result => result?,
        };
        let text = if self.json {
            serde_json::to_string(&cell)? + "\n"
        } else if self.style.is_some() {
            Netperf::from_cell(&cell)?.to_string()
        } else {
            table::of_cell(&cell)
        };
        crate::print(&text)
    }

    fn request(&self) -> Result<Request> {
        let on = |switch: Option<Switch>| switch.map(|switch| matches!(switch, Switch::On));
        let mut request = Request::new(&self.level, &self.test);
        request.link.clone_from(&self.link);
        request.between.clone_from(&self.between);
        request.protocol.clone_from(&self.protocol);
        request.coalesce = on(self.coalesce);
        request.nodes = self.nodes;
        request.connections = self.connections;
        request.size_bytes = self.size;
        request.response_bytes = self.response_size;
        request.mtu_bytes = self.mtu;
        request.integrity = on(self.integrity);
        request.time_seconds = self.time;
        request.cores = self.cores;
        request.spin = (self.spin || self.no_spin).then_some(self.spin);
        request.nagle = on(self.nagle);
        request.verify = self.verify;
        request.lent = self.lent;
        request.socket_buffer_bytes = self.socket_buffer;
        request.key = self.key.as_deref().map(key::read).transpose()?;
        request.lines = self.lines;
        request.both_cores = self.both_cores;
        Ok(request)
    }
}
