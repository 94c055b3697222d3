//! A machine: its service and its program, each of which may be there or not.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bywire_node::fabric::{Fabric, Node, ServiceAddress, UDP_PORT};
use bywire_wire::handshake::{Identity, PrivateKey, PublicKey};
use rand::Rng;
use rand::rngs::StdRng;

use super::program::Program;
use super::scenario::Scenario;
use super::service::Service;
use super::tally::Counts;

pub struct Machine {
    pub name: String,
    key: PrivateKey,
    pub public_key: PublicKey,
    has_aes: bool,
    pub ip: Ipv4Addr,
    boot_id: [u8; 16],
    /// Its fabric file.
    pub fabric: Option<Fabric>,
    pub service: Option<Service>,
    pub program: Option<Program>,
    /// It runs nothing and drops all packets until then.
    pub stalled_ns: u64,
    /// When it acts next.
    pub wake_ns: Option<u64>,
}

/// A packet on its way from one address to another.
pub struct Packet {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub is_damaged: bool,
    pub bytes: Vec<u8>,
}

impl Machine {
    pub fn new(number: usize, ip: Ipv4Addr, has_aes: bool, random: &mut StdRng) -> Self {
        let key = PrivateKey::new(random.random());
        Self {
            name: char::from(b'a' + number as u8).to_string(),
            public_key: key.public(),
            key,
            has_aes,
            ip,
            boot_id: random.random(),
            fabric: None,
            service: None,
            program: None,
            stalled_ns: 0,
            wake_ns: None,
        }
    }

    /// Does anything run on it?
    pub fn is_on(&self) -> bool {
        self.service.is_some() || self.program.is_some()
    }

    /// It as a node of the fabric.
    pub fn node(&self) -> Node {
        let addresses = vec![ServiceAddress::Address(self.service_address())];
        Node { name: self.name.clone(), addresses, key: self.public_key, is_bridge: false }
    }

    fn service_address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.ip), UDP_PORT)
    }

    /// Starts what is not there.
    pub fn start(&mut self, now_ns: u64, random: &mut StdRng) {
        self.start_service(now_ns, random);
        self.start_program(now_ns, random);
    }

    pub fn start_service(&mut self, now_ns: u64, random: &mut StdRng) {
        let Some(fabric) = self.fabric.clone().filter(|_| self.service.is_none()) else { return };
        let (key, boot_id, incarnation) = (self.key.clone(), self.boot_id, random.random());
        let identity = Identity { key, shared_secret: None, boot_id, incarnation };
        self.service = Some(Service::start(now_ns, identity, self.has_aes, fabric));
    }

    pub fn start_program(&mut self, now_ns: u64, random: &mut StdRng) {
        if self.program.is_none() {
            self.program = Some(Program::new(now_ns, random));
        }
    }

    /// The service is gone. Its fabric file stays.
    pub fn lose_service(&mut self, now_ns: u64) -> Option<Service> {
        let service = self.service.take();
        if let Some(program) = self.program.as_mut().filter(|program| program.is_registered) {
            program.lose_service(now_ns);
        }
        service
    }

    /// The process of the program is gone.
    pub fn lose_program(&mut self, now_ns: u64) {
        self.program = None;
        if let Some(service) = &mut self.service {
            service.end_port(now_ns);
        }
    }

    /// The machine loses its power. It will have another boot identity.
    pub fn turn_off(&mut self, random: &mut StdRng) {
        (self.service, self.program) = (None, None);
        self.boot_id = random.random();
    }

    /// Uses another fabric file.
    pub fn use_file(&mut self, now_ns: u64, fabric: &Fabric) {
        self.fabric = Some(fabric.clone());
        if let Some(service) = &mut self.service {
            service.reload(now_ns, fabric.clone());
        }
    }

    /// Takes a packet to one of its addresses.
    pub fn receive(&mut self, now_ns: u64, mut packet: Packet, random: &mut StdRng) -> Result<(), String> {
        if packet.to.port() == UDP_PORT {
            if let Some(service) = &mut self.service {
                service.receive(now_ns, packet.from, &mut packet.bytes, random);
            }
            return Ok(());
        }
        match self.program.as_mut().filter(|program| program.udp_port == packet.to.port()) {
            Some(program) => program.receive(now_ns, &mut packet.bytes, packet.is_damaged),
            None => Ok(()),
        }
    }

    /// Does everything that there is to do now, and returns the packets that leave.
    pub fn act(
        &mut self,
        now_ns: u64,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<Vec<Packet>, String> {
        let mut packets = Vec::new();
        self.register(now_ns, counts)?;
        loop {
            let requests = match &mut self.program {
                Some(program) => {
                    program.act(now_ns, &self.public_key, scenario, random, counts)?;
                    let requests = std::mem::take(&mut program.requests);
                    self.check_heard()?;
                    requests
                }
                None => Vec::new(),
            };
            let Some(service) = &mut self.service else { break };
            requests.into_iter().for_each(|request| service.serve(now_ns, request, random));
            let effects = service.settle(now_ns, random, counts)?;
            if self.fabric.as_ref().is_none_or(|fabric| fabric.serial != service.fabric.serial) {
                self.fabric = Some(service.fabric.clone());
            }
            let from = SocketAddr::new(IpAddr::V4(self.ip), UDP_PORT);
            let sent = effects.packets.into_iter();
            packets.extend(sent.map(|(to, bytes)| Packet { from, to, is_damaged: false, bytes }));
            let Some(program) = self.program.as_mut().filter(|_| !effects.notices.is_empty()) else { break };
            for notice in effects.notices {
                program.hear(now_ns, notice, scenario, random, counts)?;
            }
            // What an ended connection had received before.
            program.heard.clear();
        }
        self.check_connections()?;
        if let Some(program) = &mut self.program {
            let from = program.address(IpAddr::V4(self.ip));
            let sent = std::mem::take(&mut program.packets).into_iter();
            packets.extend(sent.map(|(to, bytes)| Packet { from, to, is_damaged: false, bytes }));
        }
        Ok(packets)
    }

    /// Registers the program's port, or finds that there is no service.
    fn register(&mut self, now_ns: u64, counts: &mut Counts) -> Result<(), String> {
        let Some(program) = self.program.as_mut().filter(|program| program.is_due_to_register(now_ns)) else {
            return Ok(());
        };
        match &mut self.service {
            Some(service) => {
                service.register(now_ns, program.port(), program.kept())?;
                program.registered(counts);
            }
            None => program.lose_service(now_ns),
        }
        Ok(())
    }

    /// Messages come only from machines of the fabric, as far as the service here knows it.
    fn check_heard(&mut self) -> Result<(), String> {
        let (Some(program), Some(service)) = (&mut self.program, &self.service) else { return Ok(()) };
        let heard = std::mem::take(&mut program.heard);
        let is_strange = |key: &&PublicKey| service.fabric.named(key).is_none();
        match heard.iter().find(is_strange).filter(|_| program.is_registered) {
            Some(_) => Err(format!("machine {} heard a program of a removed one", self.name)),
            None => Ok(()),
        }
    }

    /// The service knows the connections of the program, and no others.
    fn check_connections(&self) -> Result<(), String> {
        let (Some(program), Some(service)) = (&self.program, &self.service) else { return Ok(()) };
        if !program.is_registered || service.connections().into_iter().eq(program.numbers()) {
            return Ok(());
        }
        let (known, had): (_, Vec<u32>) = (service.connections(), program.numbers().collect());
        Err(format!(
            "the service of machine {} knows connections {known:?}, and its program has {had:?}",
            self.name
        ))
    }

    /// When there is something to do.
    pub fn next_ns(&self, scenario: &Scenario) -> Option<u64> {
        let program_ns = self.program.as_ref().and_then(|program| program.next_ns(scenario));
        let service_ns = self.service.as_ref().and_then(Service::next_ns);
        [program_ns, service_ns].into_iter().flatten().min()
    }
}
