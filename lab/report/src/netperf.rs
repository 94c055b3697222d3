//! Netperf 2.2's classic text for stream and request/response with CPU at both ends (`-c -C`).
//!
//! The columns, headings and blanks are netperf's own, so that scripts that read its output also read ours. Lines have
//! no trailing blanks. Utilisation is in percent. Rates are in 10⁶ bits or transactions per second. Service demand is
//! in µs per KB of 1,024 bytes or in µs per transaction.

use std::fmt;

use bywire_results::cell::{Cell, CpuEnd};
use bywire_results::ethernet;
use bywire_results::parameter::Domain;

/// Service demand as netperf defines it: CPU µs per unit of work, on `cpu_count` CPUs `utilisation` percent busy.
///
/// `work_per_second` is KB/s (1,024 bytes) for µs/KB, or transactions/s for µs per transaction.
pub fn service_demand_us(utilisation_percent: f64, cpu_count: u32, work_per_second: f64) -> f64 {
    utilisation_percent * f64::from(cpu_count) * 1e4 / work_per_second
}

/// A test of netperf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// `TCP_STREAM`.
    TcpStream,
    /// `UDP_STREAM`. The second row has the receiver's figures.
    UdpStream,
    /// `TCP_RR`. The second row has the responding end's buffers.
    TcpRequestResponse,
    /// `UDP_RR`, in the form of `TCP_RR`.
    UdpRequestResponse,
}

/// The raw figures of one netperf run. What its test does not print is zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Netperf {
    /// The test.
    pub test: Test,
    /// Host in the banner.
    pub host: String,
    /// Length of one send, datagram or request.
    pub message_bytes: u64,
    /// Length of a response.
    pub response_bytes: u64,
    /// The length of the run.
    pub elapsed_seconds: f64,
    /// Sends of datagrams that failed.
    pub send_errors: u64,
    /// The sending or requesting end.
    pub local: End,
    /// The receiving or responding end.
    pub remote: End,
}

/// The figures of one end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// `SO_SNDBUF` and `SO_RCVBUF` in force.
    pub socket_bytes: [u64; 2],
    /// Datagrams sent or received.
    pub messages: u64,
    /// 10⁶ bits per second that it sent or received, or round trips per second.
    pub rate: f64,
    /// Busy share of the CPUs of this end, 0 to 100, or −1 if unknown, as netperf prints it.
    pub utilisation_percent: f64,
    /// µs per KB or µs per transaction, or −1 if unknown.
    pub service_demand_us: f64,
    /// The source of the utilisation: `S` for `/proc/stat`, `R` for the threads' own clocks, `U` for none.
    pub method: char,
}

/// Why a cell cannot be shown in netperf's form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetperfError {
    /// Netperf has no test like that of this level and name.
    #[error(
        "netperf has no text for `{0} {1}`: leave out --style, or measure stream or rr of tcp, udp or eth"
    )]
    NoCounterpart(String, String),
    /// The cell lacks a value that netperf prints.
    #[error("the cell has no `{0}`, which netperf prints; measure it again with this version")]
    Missing(&'static str),
}

impl NetperfError {
    fn no_counterpart(level: &str, test: &str) -> Self {
        Self::NoCounterpart(level.to_owned(), test.to_owned())
    }
}

impl Netperf {
    /// Takes netperf's figures from a measured cell.
    ///
    /// `size_bytes` gives the length of a message or request, `value` the rate, and `between` the host in the banner.
    /// `cpu` gives the utilisation of the core that each end is pinned to, so one CPU counts, and a shared machine is
    /// not counted twice. `details` gives `elapsed_seconds`, `source_send_socket_bytes`, `target_receive_socket_bytes`
    /// and the other two of that form, and for `udp stream` also `messages_sent`, `messages_received` and
    /// `send_errors`. A response is as long as the request unless the parameter `response-size` (or `response_size`) is
    /// given. Fails if netperf has no such test, or if the cell lacks one of these values.
    pub fn from_cell(cell: &Cell) -> Result<Self, NetperfError> {
        // Over the level `eth` the ends use TCP or UDP, and under `bywire run` TCP or Unix sockets.
        let spoken = match cell.parameters.domain() {
            Domain::Unix => Some("unix"),
            Domain::Inet => cell.parameters.text("protocol"),
        };
        let test = match (spoken.unwrap_or(&cell.level), cell.test.as_str()) {
            ("tcp" | "sock", "stream") => Test::TcpStream,
            ("udp", "stream") => Test::UdpStream,
            ("tcp" | "sock", "rr") => Test::TcpRequestResponse,
            ("udp", "rr") => Test::UdpRequestResponse,
            (level, test) => return Err(NetperfError::no_counterpart(level, test)),
        };
        let message_bytes = cell.size_bytes.ok_or(NetperfError::Missing("size_bytes"))?;
        let [local, remote] = socket_bytes(cell, test)?;
        let elapsed_seconds = cell.details.number("elapsed_seconds");
        let elapsed_seconds = elapsed_seconds.ok_or(NetperfError::Missing("elapsed_seconds"))?;
        let count = |name| match test {
            Test::UdpStream => cell.details.count(name).ok_or(NetperfError::Missing(name)),
            _ => Ok(0),
        };
        let end = |cpu: &CpuEnd, messages: u64, socket_bytes| {
            let value = match test {
                Test::UdpStream => messages as f64 * message_bytes as f64 / elapsed_seconds,
                _ => cell.value,
            };
            let (rate, work_per_second) = match test {
                Test::TcpStream | Test::UdpStream => (value * 8.0 / 1e6, value / 1024.0),
                _ => (value, value),
            };
            End { socket_bytes, messages, rate, ..End::of(cpu, work_per_second) }
        };
        let response =
            ["response-size", "response_size"].iter().find_map(|name| cell.parameters.number(name));
        Ok(Self {
            test,
            host: host(cell),
            message_bytes,
            response_bytes: response.unwrap_or(message_bytes),
            elapsed_seconds,
            send_errors: count("send_errors")?,
            local: end(&cell.cpu.source, count("messages_sent")?, local),
            remote: end(&cell.cpu.target, count("messages_received")?, remote),
        })
    }

    /// Checks that a cell of this level and test will have a form in netperf, before it is measured. Fails if it will
    /// have none.
    pub fn check(level: &str, test: &str) -> Result<(), NetperfError> {
        let exists =
            ["tcp", "sock", "udp", ethernet::LEVEL].contains(&level) && ["stream", "rr"].contains(&test);
        if exists { Ok(()) } else { Err(NetperfError::no_counterpart(level, test)) }
    }
}

/// Banner, headings, a blank line, and the rows. Lines have no trailing blanks.
impl fmt::Display for Netperf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.test {
            Test::TcpStream => self.tcp_stream(),
            Test::UdpStream => self.udp_stream(),
            Test::TcpRequestResponse => self.request_response("TCP", "  "),
            Test::UdpRequestResponse => self.request_response("UDP", "   "),
        };
        text.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))
    }
}

impl Netperf {
    fn tcp_stream(&self) -> String {
        let Self { host, message_bytes, elapsed_seconds, local, remote, .. } = self;
        let ([send, _], [_, receive], rate) = (local.socket_bytes, remote.socket_bytes, local.rate);
        format!(
            "TCP STREAM TEST to {host}\n\
             Recv   Send    Send                          Utilization       Service Demand\n\
             Socket Socket  Message  Elapsed              Send     Recv     Send    Recv\n\
             Size   Size    Size     Time     Throughput  local    remote   local   remote\n\
             bytes  bytes   bytes    secs.    10^6bits/s  % {}      % {}      us/KB   us/KB\n\
             \n\
             {receive:6} {send:6} {message_bytes:6}    {elapsed_seconds:<6.2}     {rate:7.2}   \
             {:<6.2}   {:<6.2}   {:<6.3}  {:<6.3}\n",
            local.method,
            remote.method,
            local.utilisation_percent,
            remote.utilisation_percent,
            local.service_demand_us,
            remote.service_demand_us,
        )
    }

    fn udp_stream(&self) -> String {
        let Self { host, message_bytes, elapsed_seconds, send_errors, local, remote, .. } = self;
        let ([send, _], [_, receive]) = (local.socket_bytes, remote.socket_bytes);
        format!(
            "UDP UNIDIRECTIONAL SEND TEST to {host}\n\
             Socket  Message  Elapsed      Messages                   CPU      Service\n\
             Size    Size     Time         Okay Errors   Throughput   Util     Demand\n\
             bytes   bytes    secs            #      #   10^6bits/sec % {}{}     us/KB\n\
             \n\
             {send:6}  {message_bytes:6}   {elapsed_seconds:<7.2}   {:7} {send_errors:6}    {:7.1}     {:<6.2}   {:<6.3}\n\
             {receive:6}           {elapsed_seconds:<7.2}   {:7}           {:7.1}     {:<6.2}   {:<6.3}\n",
            local.method,
            remote.method,
            local.messages,
            local.rate,
            local.utilisation_percent,
            local.service_demand_us,
            remote.messages,
            remote.rate,
            remote.utilisation_percent,
            remote.service_demand_us,
        )
    }

    /// TCP_RR has two blanks after the rate, and UDP_RR three. This irregularity is netperf's own.
    fn request_response(&self, protocol: &str, after_rate: &str) -> String {
        let Self { host, message_bytes, response_bytes, elapsed_seconds, local, remote, .. } = self;
        let ([send, receive], [remote_send, remote_receive]) = (local.socket_bytes, remote.socket_bytes);
        format!(
            "{protocol} REQUEST/RESPONSE TEST to {host}\n\
             Local /Remote\n\
             Socket Size   Request Resp.  Elapsed Trans.   CPU    CPU    S.dem   S.dem\n\
             Send   Recv   Size    Size   Time    Rate     local  remote local   remote\n\
             bytes  bytes  bytes   bytes  secs.   per sec  % {}    % {}    us/Tr   us/Tr\n\
             \n\
             {send:<6} {receive:<6} {message_bytes:<6}  {response_bytes:<6} {elapsed_seconds:<6.2}  {:<6.2}{after_rate}\
             {:<6.2} {:<6.2} {:<6.3}  {:<6.3}\n\
             {remote_send:<6} {remote_receive:<6}\n",
            local.method,
            remote.method,
            local.rate,
            local.utilisation_percent,
            remote.utilisation_percent,
            local.service_demand_us,
            remote.service_demand_us,
        )
    }
}

impl End {
    /// The machine's account of the pinned core, or else the threads' clocks, or else netperf's "unknown".
    fn of(end: &CpuEnd, work_per_second: f64) -> Self {
        let (share, method) = match (end.machine_busy, end.attributed) {
            (Some(share), _) => (Some(share), 'S'),
            (None, Some(share)) => (Some(share), 'R'),
            (None, None) => (None, 'U'),
        };
        let percent = share.map(|share| share * 100.0);
        let demand_us = percent.map(|percent| service_demand_us(percent, 1, work_per_second));
        let [utilisation_percent, service_demand_us] =
            [percent, demand_us].map(|known| known.unwrap_or(-1.0));
        Self { socket_bytes: [0; 2], messages: 0, rate: 0.0, utilisation_percent, service_demand_us, method }
    }
}

/// Two ends of one machine are `localhost`, even in two namespaces.
fn host(cell: &Cell) -> String {
    match cell.between.as_str() {
        "processes" | "threads" | "namespaces" => "localhost".into(),
        host => host.into(),
    }
}

/// The socket buffers for sending and receiving, at the source and at the target.
fn socket_bytes(cell: &Cell, test: Test) -> Result<[[u64; 2]; 2], NetperfError> {
    // If the detail does not name the end, it holds for both.
    let granted = |end: &str, direction: &'static str| {
        let names = [format!("{end}_{direction}_socket_bytes"), format!("{direction}_socket_bytes")];
        names.iter().find_map(|name| cell.details.count(name)).ok_or(NetperfError::Missing(direction))
    };
    Ok(match test {
        Test::TcpStream | Test::UdpStream => {
            let receive = granted("target", "receive")?;
            [[granted("source", "send")?, 0], [0, receive]]
        }
        Test::TcpRequestResponse | Test::UdpRequestResponse => {
            let [send, receive] = [granted("source", "send")?, granted("source", "receive")?];
            let target = |direction, own| granted("target", direction).unwrap_or(own);
            [[send, receive], [target("send", send), target("receive", receive)]]
        }
    })
}
