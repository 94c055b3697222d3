//! An endpoint: one port, and matchers for what its connections carry.
//!
//! Connections are made when something is first sent ([`connecting`]). Whatever arrives is dealt with when the program reads
//! a completion queue ([`progress`]).

mod connecting;
mod frames;
mod message;
mod operations;
mod progress;
mod remote;
mod rma;

use std::collections::{HashMap, HashSet, VecDeque};

use bywire::{Geometry, Key, OpenError, Peer, Port, PortName, PortOptions, Reach, TransferId};
use bywire_match::{ClaimId, Envelope, PeerId, Rma};
use bywire_sys::process;

use message::Put;
pub use message::{Channel, Message};
use remote::Remote;

use crate::host;
use crate::name::{EndpointName, NODE_BYTES, TICKET_BYTES, Vouched};
use crate::operation::{ReadHandle, ReceiveHandle, SendHandle};
use crate::parameters::{PAYLOAD_BYTES_HERE, PAYLOAD_BYTES_THERE, Parameters};
use crate::regions::Regions;

type Matcher = bywire_match::Endpoint<SendHandle, ReceiveHandle>;

/// Transfers of a port that may be under way for each priority: the most that it permits.
const TRANSFERS_MAX: u32 = 256;
/// Connections of an endpoint.
const PEERS_MAX: u32 = 1 << 16;
/// How long such calls of an endpoint wait in vain, in all, until one has had its connection.
const LINK_WAIT_NS: u64 = 500_000_000;
/// Short messages on their way to a peer where no other machine is reached. Each takes the next place in a ring, so with more of them
/// the rings of many ranks would take all of a core's caches.
const SHORT_MESSAGES_MAX: u32 = 64;

/// An endpoint.
#[derive(Debug)]
pub struct Endpoint {
    port: Port,
    /// Why other endpoints are looked for on this machine only, if they are.
    confined: Option<String>,
    /// Has it told the user why a connection did not come about?
    has_complained: bool,
    name: EndpointName,
    /// By [`Channel`]. A remote has the same number in both.
    matchers: [Matcher; 2],
    /// By the index of their [`PeerId`].
    remotes: Vec<Remote>,
    by_name: HashMap<EndpointName, usize>,
    /// Remotes that have greeted before they were known.
    guests: HashSet<Vouched>,
    /// The remotes of indices of the address vector, as far as they were looked up.
    by_address: Vec<Option<usize>>,
    /// What was seen of the address vector.
    names_seen: usize,
    version_seen: u64,
    /// The port's connections, by the index of their handle.
    connections: Vec<Option<Connection>>,
    /// Connections that were made without a greeting yet, by age, and since when.
    strangers: VecDeque<(Peer, u64)>,
    /// Remotes that the link had no room for.
    blocked: Vec<(Channel, PeerId)>,
    /// Remotes to which a connection is tried again.
    retries: Vec<usize>,
    /// When they are due.
    retry_ns: u64,
    /// Remotes that are being connected, and when to give up. Empty if nobody wants to give up.
    connecting: Vec<(usize, u64)>,
    /// How long a connection may take. 0: for ever.
    connect_timeout_ns: u64,
    puts: HashMap<TransferId, Put>,
    rma: Rma<SendHandle, ReadHandle>,
    /// The regions of the domain.
    pub regions: Regions,
    /// Places of regions that peers put into, and whose they are.
    exposures: HashMap<bywire_match::rma::AccessId, (Key, PeerId)>,
    /// Remotes that the link had no room for frames of RMA to.
    blocked_rma: Vec<PeerId>,
    /// Has the last progress taken something? Then there may be more.
    is_behind: bool,
    /// May completions come that the program has posted nothing for: words that peers send with writes, and messages without bytes
    /// into a buffer for several?
    has_unbidden: bool,
    /// Messages that are set aside, by the program's word.
    claims: HashMap<(Channel, usize), (ClaimId, Envelope)>,
    /// What copies of payloads take that have not left.
    copied_bytes: usize,
    /// How long calls that inject something may still wait for connections in vain.
    link_wait_ns: u64,
    /// For joining a head and its payload.
    scratch: Vec<u8>,
    /// Messages of connected endpoints that were taken: frames, and notes with what was put.
    messages_taken: u64,
    pub bindings: Bindings,
}

/// A connection of the port.
#[derive(Clone, Copy, Debug)]
struct Connection {
    peer: Peer,
    /// `None` until it has said whose it is.
    remote: Option<usize>,
}

/// What an endpoint is bound to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bindings {
    pub transmit_queue: Option<usize>,
    pub receive_queue: Option<usize>,
    /// Only operations with `FI_COMPLETION` report.
    pub is_transmit_selective: bool,
    pub is_receive_selective: bool,
    pub send_counter: Option<usize>,
    pub receive_counter: Option<usize>,
    pub read_counter: Option<usize>,
    pub write_counter: Option<usize>,
    /// Count what other endpoints do.
    pub remote_read_counter: Option<usize>,
    pub remote_write_counter: Option<usize>,
    pub addresses: Option<usize>,
    /// Do receives name a source?
    pub is_directed: bool,
    /// A buffer for several receives is given back once less room than that is left.
    pub multi_receive_bytes: u64,
    /// Flags of operations that have none of their own.
    pub transmit_flags: u64,
    pub receive_flags: u64,
    pub is_enabled: bool,
}

impl Bindings {
    pub fn has_queue(&self, number: usize) -> bool {
        [self.transmit_queue, self.receive_queue].contains(&Some(number))
    }

    pub fn has_counter(&self, number: usize) -> bool {
        [
            self.send_counter,
            self.receive_counter,
            self.read_counter,
            self.write_counter,
            self.remote_read_counter,
            self.remote_write_counter,
        ]
        .contains(&Some(number))
    }
}

/// The sizes of what a connection carries messages in. Between machines more have to be under way.
fn geometry(reach: &Reach) -> Geometry {
    let mut geometry = Geometry { fragment_bytes: PAYLOAD_BYTES_HERE as u32, ..Geometry::default() };
    for lane in &mut geometry.lanes {
        // Four of the longest payloads are under way at most, as their memory is to stay in the caches.
        lane.bulk_bytes = 4 * PAYLOAD_BYTES_HERE as u32;
    }
    if matches!(reach, Reach::Machine) {
        let [_answers, high, _low] = &mut geometry.lanes;
        high.slots = SHORT_MESSAGES_MAX;
    }
    geometry
}

/// A port that other machines reach, if this machine's node belongs to a fabric, and else one for this machine. The result also says
/// why other endpoints are looked for on this machine only, if they are.
fn open_port(parameters: &Parameters) -> Result<(Port, Option<String>), OpenError> {
    let options = |reach| PortOptions {
        geometry: geometry(&reach),
        remote_fragment_bytes: PAYLOAD_BYTES_THERE as u32,
        reach,
        integrity: parameters.integrity,
        send_tokens: TRANSFERS_MAX,
        peers_max: PEERS_MAX,
        ..PortOptions::default()
    };
    if !parameters.reaches_machines {
        let why = "FI_BYWIRE_LINK says so".to_owned();
        return Ok((Port::open(options(Reach::Machine))?, Some(why)));
    }
    let confined = match Port::open(options(Reach::Fabric)) {
        Ok(port) if port.address().node.len() <= NODE_BYTES => return Ok((port, None)),
        Ok(port) => {
            let node = port.address().node;
            host::warn(&format!(
                "no other machine reaches this endpoint: {node} is longer than {NODE_BYTES} bytes"
            ));
            None
        }
        Err(OpenError::Fabric(reason)) => {
            host::inform(&format!("for this machine only: {reason}"));
            Some(reason.to_string())
        }
        Err(error) => return Err(error),
    };
    Ok((Port::open(options(Reach::Machine))?, confined))
}

impl Endpoint {
    /// Opens an endpoint with a port of its own.
    ///
    /// # Errors
    /// The port's.
    pub fn open(parameters: &Parameters) -> Result<Self, OpenError> {
        let (port, confined) = open_port(parameters)?;
        let mut ticket = [0; TICKET_BYTES];
        process::random(&mut ticket).map_err(OpenError::System)?;
        let PortName::Number(number) = *port.name() else {
            return Err(OpenError::BadOption("a port without a name has a number".to_owned()));
        };
        let name = EndpointName::new(&port.address().node, number, bywire::incarnation(&port), ticket);
        Ok(Self {
            port,
            confined,
            has_complained: false,
            name,
            matchers: Channel::ALL.map(|_| Matcher::new(parameters.limits())),
            remotes: Vec::new(),
            by_name: HashMap::new(),
            guests: HashSet::new(),
            by_address: Vec::new(),
            names_seen: 0,
            version_seen: 0,
            connections: Vec::new(),
            strangers: VecDeque::new(),
            blocked: Vec::new(),
            retries: Vec::new(),
            retry_ns: 0,
            connecting: Vec::new(),
            connect_timeout_ns: parameters.connect_timeout_ns(),
            puts: HashMap::new(),
            rma: Rma::new(parameters.rma_limits()),
            regions: Regions::default(),
            exposures: HashMap::new(),
            blocked_rma: Vec::new(),
            is_behind: false,
            has_unbidden: false,
            claims: HashMap::new(),
            copied_bytes: 0,
            link_wait_ns: LINK_WAIT_NS,
            scratch: Vec::new(),
            messages_taken: 0,
            bindings: Bindings::default(),
        })
    }

    pub fn name(&self) -> &EndpointName {
        &self.name
    }

    /// The port, whose descriptor is ready when something may have arrived, once [`Endpoint::arm`] has said so.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Prepares to sleep on the port's descriptor, until [`Endpoint::due_ns`] at most. `false`: there is something to do first.
    pub fn arm(&mut self) -> bool {
        self.port.arm()
    }

    /// When there is something to do of which the port's descriptor does not tell: connections to try again, or to give up.
    pub fn due_ns(&self) -> Option<u64> {
        let retry = (!self.retries.is_empty()).then_some(self.retry_ns);
        self.connecting.iter().map(|(_, deadline)| *deadline).chain(retry).min()
    }
}
