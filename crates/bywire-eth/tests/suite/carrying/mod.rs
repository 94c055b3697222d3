//! A carrying loop on a thread of its own. Packet sockets stand for the kernel's ends of the TAP devices.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use bywire_eth::carrier;
use bywire_eth::order::{
    self, Answer, CarrierSettings, Confinement, Counts, ExchangeError, Join, NewInterface, Order, PeerReport,
};
use bywire_sys::socket::{Received, Socket};
use bywire_testing::eventually;

/// The timeout of every answer.
pub const TIMEOUT: Duration = Duration::from_secs(20);
pub const SETTINGS: CarrierSettings =
    CarrierSettings { coalesce: true, spin_us: 0, storm_frames_per_second: 1000, hold_back_ms: 50 };

/// The loop, with the kernel's ends of its queues held by the test.
pub struct Carrying {
    pub orders: Socket,
    pub ends: Vec<Socket>,
    thread: Option<JoinHandle<Result<(), ExchangeError>>>,
}

impl Carrying {
    pub fn start(settings: CarrierSettings) -> Self {
        Self::start_with("loop", settings, || ())
    }

    /// A loop whose thread has a name. `begin` runs first there.
    pub fn start_with(name: &str, settings: CarrierSettings, begin: impl FnOnce() + Send + 'static) -> Self {
        let (orders, theirs) = Socket::pair().expect("a pair");
        let run = move || {
            begin();
            carrier::run(theirs, Confinement::Absent)
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run).expect("a thread");
        let carrying = Self { orders, ends: Vec::new(), thread: Some(thread) };
        carrying.tell(&Order::Configure(settings));
        carrying
    }

    pub fn tell(&self, order: &Order) {
        order::send(&self.orders, order, None).expect("sent");
    }

    pub fn answer(&self) -> Answer {
        order::await_next(&self.orders, TIMEOUT).expect("an answer")
    }

    pub fn ask(&self, order: &Order) -> Answer {
        self.tell(order);
        self.answer()
    }

    pub fn barrier(&self) {
        assert_eq!(self.ask(&Order::Barrier), Answer::Done);
    }

    /// Gives it a queue with this order. Returns the kernel's end, and the queue.
    pub fn give_queue(&self, order: &Order) -> (Socket, OwnedFd) {
        let (end, queue) = Socket::pair().expect("a pair");
        let queue = OwnedFd::from(queue);
        order::send(&self.orders, order, Some(&queue)).expect("sent");
        (end, queue)
    }

    /// Gives it an interface.
    pub fn add(&mut self, new: NewInterface) {
        let (end, _) = self.give_queue(&Order::AddInterface(new));
        self.ends.push(end);
        self.barrier();
    }

    /// Lets it join the network in a directory.
    pub fn join(&self, node: &str, directory: &Path) {
        let (network, node, directory) = ("test".to_owned(), node.to_owned(), directory.to_owned());
        self.tell(&Order::Join(Join { network, node, queue: 0, directory }));
        self.barrier();
    }

    pub fn counts(&self, interface: usize) -> Counts {
        match self.ask(&Order::QueryCounts(interface)) {
            Answer::Counts(counts) => *counts,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the counters of an interface satisfy `what`. The loop takes orders and frames in any order.
    #[track_caller]
    pub fn counts_when(&self, interface: usize, what: impl Fn(&Counts) -> bool) -> Counts {
        eventually("the counts", || Some(self.counts(interface)).filter(&what))
    }

    /// Waits until the report about the peer at `place` satisfies `what`.
    #[track_caller]
    pub fn report(&self, place: usize, what: impl Fn(&PeerReport) -> bool) -> PeerReport {
        eventually("the report", || match self.ask(&Order::QueryPeer(place)) {
            Answer::Peer(report, _) => report.map(|report| *report).filter(&what),
            other => panic!("{other:?}"),
        })
    }
}

impl Drop for Carrying {
    fn drop(&mut self) {
        self.orders.shut_down();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(Ok(())))), "{ended:?}");
        }
    }
}

/// An interface of the kernel that takes superframes.
pub fn interface(interface: usize, mac: [u8; 6]) -> NewInterface {
    NewInterface {
        interface,
        label: format!("near:by{interface}"),
        mac,
        mtu_bytes: 9000,
        is_bridge: false,
        takes_tcp: true,
        takes_udp: true,
    }
}

/// A packet that has arrived already, if there is one.
pub fn look(end: &Socket) -> Option<Vec<u8>> {
    let mut buffer = [0; 70_000];
    match end.receive(&mut buffer).expect("received") {
        Received::Packet(length, _) => Some(buffer[..length].to_vec()),
        _ => None,
    }
}

/// Waits for the next packet.
#[track_caller]
pub fn await_packet(end: &Socket) -> Vec<u8> {
    eventually("a packet", || look(end))
}
