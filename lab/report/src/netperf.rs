//! Netperf 2.2's classic text for stream and request/response with CPU at both ends (`-c -C`).
//!
//! The columns, headings and blanks are netperf's own, so that scripts that read its output also read ours. Lines have
//! no trailing blanks. Utilisation is in percent. Rates are in 10⁶ bits or transactions per second. Service demand is
//! in µs per KB of 1,024 bytes or in µs per transaction.

use std::fmt;

use bywire_results::cell::{Cell, CpuEnd};
use bywire_results::ethernet;

/// Service demand as netperf defines it: CPU µs per unit of work, on `cpu_count` CPUs `utilisation` percent busy.
///
/// `work_per_second` is KB/s (1,024 bytes) for µs/KB, or transactions/s for µs per transaction.
pub fn service_demand_us(utilisation_percent: f64, cpu_count: u32, work_per_second: f64) -> f64 {
    utilisation_percent * f64::from(cpu_count) * 1e4 / work_per_second
}

/// CPU at one end as netperf prints it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// Busy share of the CPUs of this end, 0 to 100, or −1 if unknown, as netperf prints it.
    pub utilisation_percent: f64,
    /// µs per KB or µs per transaction, or −1 if unknown.
    pub service_demand_us: f64,
    /// The source of the utilisation: `S` for `/proc/stat`, `R` for the threads' own clocks, `U` for none.
    pub method: char,
}

/// The raw figures of one netperf run.
#[derive(Clone, Debug, PartialEq)]
pub enum Netperf {
    /// `TCP_STREAM`.
    TcpStream(TcpStream),
    /// `UDP_STREAM`.
    UdpStream(UdpStream),
    /// `TCP_RR`.
    TcpRequestResponse(RequestResponse),
    /// `UDP_RR`.
    UdpRequestResponse(RequestResponse),
}

/// One `TCP_STREAM` run.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpStream {
    /// Host in the banner.
    pub host: String,
    /// `SO_RCVBUF` in force at the receiver.
    pub receive_socket_bytes: u64,
    /// `SO_SNDBUF` in force at the sender.
    pub send_socket_bytes: u64,
    /// Length of one send.
    pub message_bytes: u64,
    /// The length of the run.
    pub elapsed_seconds: f64,
    /// Received, 10⁶ bits per second.
    pub megabits_per_second: f64,
    /// The sender.
    pub local: End,
    /// The receiver.
    pub remote: End,
}

/// One `UDP_STREAM` run. The second row has the receiver's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct UdpStream {
    /// Host in the banner.
    pub host: String,
    /// `SO_SNDBUF` in force at the sender.
    pub send_socket_bytes: u64,
    /// `SO_RCVBUF` in force at the receiver.
    pub receive_socket_bytes: u64,
    /// Length of one datagram.
    pub message_bytes: u64,
    /// Elapsed at the sender.
    pub sent_seconds: f64,
    /// Elapsed at the receiver.
    pub received_seconds: f64,
    /// Datagrams sent.
    pub messages_sent: u64,
    /// Sends that failed.
    pub send_errors: u64,
    /// Datagrams received.
    pub messages_received: u64,
    /// Sent, 10⁶ bits per second.
    pub sent_megabits_per_second: f64,
    /// Received, 10⁶ bits per second.
    pub received_megabits_per_second: f64,
    /// The sender.
    pub local: End,
    /// The receiver.
    pub remote: End,
}

/// One `TCP_RR` or `UDP_RR` run. The second row has the responding end's buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestResponse {
    /// Host in the banner.
    pub host: String,
    /// `SO_SNDBUF` and `SO_RCVBUF` at the requesting end.
    pub local_socket_bytes: [u64; 2],
    /// `SO_SNDBUF` and `SO_RCVBUF` at the responding end.
    pub remote_socket_bytes: [u64; 2],
    /// Length of a request.
    pub request_bytes: u64,
    /// Length of a response.
    pub response_bytes: u64,
    /// The length of the run.
    pub elapsed_seconds: f64,
    /// Round trips per second.
    pub transactions_per_second: f64,
    /// The requesting end.
    pub local: End,
    /// The responding end.
    pub remote: End,
}

/// Why a cell cannot be shown in netperf's form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetperfError {
    /// Netperf has no such test.
    #[error(
        "netperf has no text for `{level} {test}`: leave out --style, or measure stream or rr of tcp, udp or eth"
    )]
    NoCounterpart {
        /// The cell's level.
        level: String,
        /// The cell's test.
        test: String,
    },
    /// The cell lacks a value that netperf prints.
    #[error("the cell has no `{0}`, which netperf prints; measure it again with this version")]
    Missing(&'static str),
}

impl NetperfError {
    fn no_counterpart(level: &str, test: &str) -> Self {
        Self::NoCounterpart { level: level.to_owned(), test: test.to_owned() }
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
    /// given.
    ///
    /// # Errors
    /// Netperf has no such test, or the cell lacks one of these values.
    pub fn from_cell(cell: &Cell) -> Result<Self, NetperfError> {
        // Over the level `eth` the ends use TCP or UDP.
        let spoken = cell.parameters.text("protocol");
        match (spoken.unwrap_or(&cell.level), cell.test.as_str()) {
            ("tcp" | "sock", "stream") => TcpStream::from_cell(cell).map(Self::TcpStream),
            ("udp", "stream") => UdpStream::from_cell(cell).map(Self::UdpStream),
            ("tcp" | "sock", "rr") => RequestResponse::from_cell(cell).map(Self::TcpRequestResponse),
            ("udp", "rr") => RequestResponse::from_cell(cell).map(Self::UdpRequestResponse),
            (level, test) => Err(NetperfError::no_counterpart(level, test)),
        }
    }

    /// Checks that a cell of this level and test will have a form in netperf, before it is measured.
    ///
    /// # Errors
    /// It has none.
    pub fn check(level: &str, test: &str) -> Result<(), NetperfError> {
        let exists =
            ["tcp", "sock", "udp", ethernet::LEVEL].contains(&level) && ["stream", "rr"].contains(&test);
        if exists { Ok(()) } else { Err(NetperfError::no_counterpart(level, test)) }
    }
}

/// Banner, headings, a blank line, and the rows. Lines have no trailing blanks.
impl fmt::Display for Netperf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::TcpStream(run) => run.text(),
            Self::UdpStream(run) => run.text(),
            Self::TcpRequestResponse(run) => run.text("TCP", "  "),
            Self::UdpRequestResponse(run) => run.text("UDP", "   "),
        };
        text.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))
    }
}

impl TcpStream {
    fn from_cell(cell: &Cell) -> Result<Self, NetperfError> {
        let kilobytes_per_second = cell.value / 1024.0;
        Ok(Self {
            host: host(cell),
            receive_socket_bytes: granted(cell, "target", "receive")?,
            send_socket_bytes: granted(cell, "source", "send")?,
            message_bytes: size_bytes(cell)?,
            elapsed_seconds: number(cell, "elapsed_seconds")?,
            megabits_per_second: cell.value * 8.0 / 1e6,
            local: End::of(&cell.cpu.source, kilobytes_per_second),
            remote: End::of(&cell.cpu.target, kilobytes_per_second),
        })
    }

    fn text(&self) -> String {
        let (local, remote) = (self.local, self.remote);
        format!(
            "TCP STREAM TEST to {}\n\
             Recv   Send    Send                          Utilization       Service Demand\n\
             Socket Socket  Message  Elapsed              Send     Recv     Send    Recv\n\
             Size   Size    Size     Time     Throughput  local    remote   local   remote\n\
             bytes  bytes   bytes    secs.    10^6bits/s  % {}      % {}      us/KB   us/KB\n\
             \n\
             {:6} {:6} {:6}    {:<6.2}     {:7.2}   {:<6.2}   {:<6.2}   {:<6.3}  {:<6.3}\n",
            self.host,
            local.method,
            remote.method,
            self.receive_socket_bytes,
            self.send_socket_bytes,
            self.message_bytes,
            self.elapsed_seconds,
            self.megabits_per_second,
            local.utilisation_percent,
            remote.utilisation_percent,
            local.service_demand_us,
            remote.service_demand_us,
        )
    }
}

impl UdpStream {
    fn from_cell(cell: &Cell) -> Result<Self, NetperfError> {
        let message_bytes = size_bytes(cell)?;
        let seconds = number(cell, "elapsed_seconds")?;
        let messages_sent = whole(cell, "messages_sent")?;
        let messages_received = whole(cell, "messages_received")?;
        let bytes_per_second = |messages: u64| messages as f64 * message_bytes as f64 / seconds;
        let (sent, received) = (bytes_per_second(messages_sent), bytes_per_second(messages_received));
        Ok(Self {
            host: host(cell),
            send_socket_bytes: granted(cell, "source", "send")?,
            receive_socket_bytes: granted(cell, "target", "receive")?,
            message_bytes,
            sent_seconds: seconds,
            received_seconds: seconds,
            messages_sent,
            send_errors: whole(cell, "send_errors")?,
            messages_received,
            sent_megabits_per_second: sent * 8.0 / 1e6,
            received_megabits_per_second: received * 8.0 / 1e6,
            local: End::of(&cell.cpu.source, sent / 1024.0),
            remote: End::of(&cell.cpu.target, received / 1024.0),
        })
    }

    fn text(&self) -> String {
        let (local, remote) = (self.local, self.remote);
        format!(
            "UDP UNIDIRECTIONAL SEND TEST to {}\n\
             Socket  Message  Elapsed      Messages                   CPU      Service\n\
             Size    Size     Time         Okay Errors   Throughput   Util     Demand\n\
             bytes   bytes    secs            #      #   10^6bits/sec % {}{}     us/KB\n\
             \n\
             {:6}  {:6}   {:<7.2}   {:7} {:6}    {:7.1}     {:<6.2}   {:<6.3}\n\
             {:6}           {:<7.2}   {:7}           {:7.1}     {:<6.2}   {:<6.3}\n",
            self.host,
            local.method,
            remote.method,
            self.send_socket_bytes,
            self.message_bytes,
            self.sent_seconds,
            self.messages_sent,
            self.send_errors,
            self.sent_megabits_per_second,
            local.utilisation_percent,
            local.service_demand_us,
            self.receive_socket_bytes,
            self.received_seconds,
            self.messages_received,
            self.received_megabits_per_second,
            remote.utilisation_percent,
            remote.service_demand_us,
        )
    }
}

impl RequestResponse {
    fn from_cell(cell: &Cell) -> Result<Self, NetperfError> {
        let request_bytes = size_bytes(cell)?;
        let local = [granted(cell, "source", "send")?, granted(cell, "source", "receive")?];
        let response =
            ["response-size", "response_size"].iter().find_map(|name| cell.parameters.number(name));
        Ok(Self {
            host: host(cell),
            local_socket_bytes: local,
            remote_socket_bytes: [
                granted(cell, "target", "send").unwrap_or(local[0]),
                granted(cell, "target", "receive").unwrap_or(local[1]),
            ],
            request_bytes,
            response_bytes: response.unwrap_or(request_bytes),
            elapsed_seconds: number(cell, "elapsed_seconds")?,
            transactions_per_second: cell.value,
            local: End::of(&cell.cpu.source, cell.value),
            remote: End::of(&cell.cpu.target, cell.value),
        })
    }

    /// TCP_RR has two blanks after the rate, and UDP_RR three. This irregularity is netperf's own.
    fn text(&self, protocol: &str, after_rate: &str) -> String {
        let (local, remote) = (self.local, self.remote);
        format!(
            "{protocol} REQUEST/RESPONSE TEST to {}\n\
             Local /Remote\n\
             Socket Size   Request Resp.  Elapsed Trans.   CPU    CPU    S.dem   S.dem\n\
             Send   Recv   Size    Size   Time    Rate     local  remote local   remote\n\
             bytes  bytes  bytes   bytes  secs.   per sec  % {}    % {}    us/Tr   us/Tr\n\
             \n\
             {:<6} {:<6} {:<6}  {:<6} {:<6.2}  {:<6.2}{after_rate}{:<6.2} {:<6.2} {:<6.3}  {:<6.3}\n\
             {:<6} {:<6}\n",
            self.host,
            local.method,
            remote.method,
            self.local_socket_bytes[0],
            self.local_socket_bytes[1],
            self.request_bytes,
            self.response_bytes,
            self.elapsed_seconds,
            self.transactions_per_second,
            local.utilisation_percent,
            remote.utilisation_percent,
            local.service_demand_us,
            remote.service_demand_us,
            self.remote_socket_bytes[0],
            self.remote_socket_bytes[1],
        )
    }
}

impl End {
    /// The machine's account of the pinned core, or else the threads' clocks, or else netperf's "unknown".
    fn of(end: &CpuEnd, work_per_second: f64) -> Self {
        let (share, method) = match (end.machine_busy, end.attributed) {
            (Some(share), _) => (share, 'S'),
            (None, Some(share)) => (share, 'R'),
            (None, None) => {
                return Self { utilisation_percent: -1.0, service_demand_us: -1.0, method: 'U' };
            }
        };
        let utilisation_percent = share * 100.0;
        Self {
            utilisation_percent,
            service_demand_us: service_demand_us(utilisation_percent, 1, work_per_second),
            method,
        }
    }
}

/// Two ends of one machine are `localhost`, even in two namespaces.
fn host(cell: &Cell) -> String {
    match cell.between.as_str() {
        "processes" | "threads" | "namespaces" => "localhost".into(),
        host => host.into(),
    }
}

fn size_bytes(cell: &Cell) -> Result<u64, NetperfError> {
    cell.size_bytes.ok_or(NetperfError::Missing("size_bytes"))
}

/// An end's socket buffer in one direction, `send` or `receive`. If the detail does not name the end, it holds for
/// both.
fn granted(cell: &Cell, end: &str, direction: &'static str) -> Result<u64, NetperfError> {
    let of = |name: String| cell.details.count(&name);
    let value =
        of(format!("{end}_{direction}_socket_bytes")).or_else(|| of(format!("{direction}_socket_bytes")));
    value.ok_or(NetperfError::Missing(direction))
}

fn whole(cell: &Cell, key: &'static str) -> Result<u64, NetperfError> {
    cell.details.count(key).ok_or(NetperfError::Missing(key))
}

fn number(cell: &Cell, key: &'static str) -> Result<f64, NetperfError> {
    cell.details.number(key).ok_or(NetperfError::Missing(key))
}
