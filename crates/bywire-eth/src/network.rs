//! All interfaces of this process, and the loops that carry their frames.
//!
//! This part has privileges: it makes devices and passes their queues on. Each carrying process serves a few queues
//! of every interface. The frames of one flow stay with one process, because the kernel answers a flow on the queue
//! that it came by.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bywire_sys::Errno;
use bywire_sys::namespace::Namespace;
use bywire_sys::socket::Socket;
use bywire_sys::tap;

use crate::address::MacAddress;
use crate::announced::ADDRESSES_MAX;
use crate::carrier::{self, INTERFACES_MAX};
use crate::fabric::{self, PEERS_MAX};
use crate::interface::{Interface, InterfaceError, Plan};
use crate::order::{
    self, Answer, CarrierSettings, Confinement, Counts, ExchangeError, InterfaceId, Join, NewInterface,
    Order, PeerReport, printable,
};
use crate::probe::{self, Probe};

/// How long a carrying process may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The most nodes in one order, whose length is bounded.
const NODES_AT_ONCE: usize = 128;

/// How many refusals of one loop are read before its answer to a query.
const REFUSALS_MAX: usize = 16;

/// How many queues of an interface one loop serves, if there are enough for all loops. One queue serves the
/// interfaces of this process. The others serve other processes, so that a process without room holds up only the
/// frames that are sent to it.
const QUEUES: usize = 8;

/// How a carrying loop is started.
#[derive(Clone, Debug)]
pub enum Launch {
    /// As a thread of this process, with its privileges: for tests.
    Thread,
    /// As a process of its own: this program with these arguments. It must call [`carrier::run`] on its standard
    /// input.
    Program(std::path::PathBuf, Vec<OsString>),
}

/// Why the network could not be changed or queried.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// An interface could not be made.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Two interfaces would have one hardware address.
    #[error(
        "{0} and {1} would both have the address {2}: give one of them another name, or a `mac` of its own"
    )]
    SameAddress(String, String, MacAddress),
    /// There are too many interfaces.
    #[error("more than {INTERFACES_MAX} interfaces in one process: start a second one")]
    TooMany,
    /// A carrying loop could not be started.
    #[error("cannot start the part that carries frames: {0}")]
    Launch(io::Error),
    /// No empty namespace could be made.
    #[error(
        "cannot make a network namespace to work in: {0}; this needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)"
    )]
    Workshop(Errno),
    /// The exchange with the carrying part failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The carrying part refused an order.
    #[error("the part that carries frames refused: {0}")]
    Refused(String),
}

/// The names of the ports of a network's loops.
pub fn port_names(network: &str, node: &str, loops_count: usize) -> Vec<String> {
    (0..loops_count).map(|queue| fabric::port_name(network, node, queue)).collect()
}

/// Every interface with its loops. Dropping it ends them all.
#[derive(Debug)]
pub struct Network {
    workshop: Namespace,
    probe: Probe,
    interfaces: Vec<Option<Interface>>,
    loops: Vec<Loop>,
    vanished: BTreeSet<InterfaceId>,
}

/// One carrying loop.
#[derive(Debug)]
struct Loop {
    orders: Socket,
    /// Taken when the loop is waited for.
    work: Option<Work>,
}

/// The thread or process of a carrying loop.
#[derive(Debug)]
enum Work {
    Thread(std::thread::JoinHandle<Result<(), ExchangeError>>),
    Process(Child),
}

impl Network {
    /// Starts `loops_count` carrying loops that work as `settings` says, without interfaces.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn start(
        launch: &Launch,
        loops_count: usize,
        settings: CarrierSettings,
    ) -> Result<Self, NetworkError> {
        let workshop = Namespace::fresh().map_err(NetworkError::Workshop)?;
        let probe = probe::probe(&workshop);
        let loops = (0..loops_count.max(1)).map(|_| Loop::start(launch)).collect::<Result<Vec<_>, _>>()?;
        let network = Self { workshop, probe, interfaces: Vec::new(), loops, vanished: BTreeSet::new() };
        network.configure(settings)?;
        Ok(network)
    }

    /// Changes how frames are carried.
    ///
    /// # Errors
    /// [`NetworkError::Exchange`].
    pub fn configure(&self, settings: CarrierSettings) -> Result<(), NetworkError> {
        for each in &self.loops {
            order::send(&each.orders, &Order::Configure(settings), None)?;
        }
        Ok(())
    }

    /// The superframes that this kernel accepts.
    pub fn probe(&self) -> &Probe {
        &self.probe
    }

    /// The number of carrying loops.
    pub fn loops_count(&self) -> usize {
        self.loops.len()
    }

    /// All existing interfaces, with their numbers.
    pub fn interfaces(&self) -> impl Iterator<Item = (InterfaceId, &Interface)> {
        self.interfaces.iter().enumerate().filter_map(|(id, interface)| Some((id, interface.as_ref()?)))
    }

    /// Makes an interface, and carries its frames from now on.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn add(&mut self, plan: Plan) -> Result<InterfaceId, NetworkError> {
        if let Some((_, other)) = self.interfaces().find(|(_, interface)| interface.plan.mac == plan.mac) {
            return Err(NetworkError::SameAddress(other.plan.label(), plan.label(), plan.mac));
        }
        let id = self.interfaces.iter().position(Option::is_none).unwrap_or(self.interfaces.len());
        if id >= INTERFACES_MAX {
            return Err(NetworkError::TooMany);
        }
        let each_count = (tap::QUEUES_MAX / self.loops.len()).clamp(1, QUEUES);
        let plan = Plan { queues_count: each_count * self.loops.len(), ..plan };
        let (interface, queues) = Interface::build(plan, &self.workshop)?;
        let new = NewInterface {
            interface: id,
            label: interface.plan.label(),
            mac: interface.plan.mac.0,
            mtu_bytes: interface.plan.mtu_bytes,
            is_bridge: interface.plan.bridge.is_some(),
            takes_tcp: self.probe.takes_tcp,
            takes_udp: self.probe.takes_udp,
        };
        let mut queues = queues.into_iter().map(OwnedFd::from);
        for each in &self.loops {
            order::send(&each.orders, &Order::AddInterface(new.clone()), queues.next().as_ref())?;
            for queue in queues.by_ref().take(each_count - 1) {
                order::send(&each.orders, &Order::AddQueue(id), Some(&queue))?;
            }
        }
        if id == self.interfaces.len() {
            self.interfaces.push(None);
        }
        self.tell_addresses(id, &interface.plan)?;
        self.interfaces[id] = Some(interface);
        if let Err(error) = self.barrier() {
            // Half an interface would be worse than none. The reason for this failure matters more than a failure to
            // remove it.
            let _ = self.remove(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Removes an interface.
    ///
    /// # Errors
    /// [`NetworkError::Exchange`].
    pub fn remove(&mut self, id: InterfaceId) -> Result<Option<Interface>, NetworkError> {
        let interface = self.interfaces.get_mut(id).and_then(Option::take);
        for each in &self.loops {
            order::send(&each.orders, &Order::RemoveInterface(id), None)?;
        }
        self.barrier()?;
        // A report about the old interface must not apply to the next one in its place.
        self.vanished.remove(&id);
        Ok(interface)
    }

    /// The interface of this number.
    pub fn interface(&self, id: InterfaceId) -> Option<&Interface> {
        self.interfaces.get(id)?.as_ref()
    }

    /// Changes an existing interface as far as possible: see [`Interface::adapt`].
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn adapt(&mut self, id: InterfaceId, wanted: Plan) -> Result<(), NetworkError> {
        let Some(interface) = self.interfaces.get_mut(id).and_then(Option::as_mut) else { return Ok(()) };
        let adapted = interface.adapt(wanted);
        // The new MTU is sent even if only a part of the change succeeded.
        let plan = interface.plan.clone();
        for each in &self.loops {
            order::send(&each.orders, &Order::SetMtu(id, plan.mtu_bytes), None)?;
        }
        self.tell_addresses(id, &plan)?;
        Ok(adapted?)
    }

    /// Tells the loops the IP addresses of an interface, for other machines.
    fn tell_addresses(&self, id: InterfaceId, plan: &Plan) -> Result<(), NetworkError> {
        let addresses = plan.addresses.iter().take(ADDRESSES_MAX).map(|cidr| cidr.address).collect();
        let order = Order::SetAddresses(id, addresses);
        for each in &self.loops {
            order::send(&each.orders, &order, None)?;
        }
        Ok(())
    }

    /// Connects to the other processes of the network.
    ///
    /// # Errors
    /// [`NetworkError::Refused`] with the reason.
    pub fn join(&mut self, network: &str, node: &str, directory: &Path) -> Result<(), NetworkError> {
        for (queue, each) in self.loops.iter().enumerate() {
            let (network, node, directory) = (network.to_owned(), node.to_owned(), directory.to_owned());
            order::send(&each.orders, &Order::Join(Join { network, node, queue, directory }), None)?;
        }
        self.barrier()
    }

    /// Lets processes of other machines connect. The ports of [`port_names`] have their names in the runtime directory of
    /// the node's service by now.
    ///
    /// # Errors
    /// [`NetworkError::Refused`] with the reason.
    pub fn reach_fabric(&mut self) -> Result<(), NetworkError> {
        for each in &self.loops {
            order::send(&each.orders, &Order::ReachFabric, None)?;
        }
        self.barrier()
    }

    /// Connects to the network's processes on these nodes of the fabric.
    ///
    /// # Errors
    /// [`NetworkError::Exchange`].
    pub fn seek_nodes(&mut self, nodes: &[order::Node]) -> Result<(), NetworkError> {
        // An empty list is told, too.
        for start in (0..nodes.len().max(1)).step_by(NODES_AT_ONCE) {
            let part = nodes[start..nodes.len().min(start + NODES_AT_ONCE)].to_vec();
            for each in &self.loops {
                let order = Order::SeekNodes { nodes: part.clone(), is_first: start == 0 };
                order::send(&each.orders, &order, None)?;
            }
            // Their sockets have room for the next part then.
            self.barrier()?;
        }
        Ok(())
    }

    /// The connected processes, sorted by their nodes. The traffic over several queues is added up.
    ///
    /// # Errors
    /// [`NetworkError::Exchange`].
    pub fn peers(&mut self) -> Result<Vec<PeerReport>, NetworkError> {
        let mut peers: Vec<PeerReport> = Vec::new();
        for index in 0..self.loops.len() {
            let (mut place, mut places) = (0, 1);
            while place < places.min(PEERS_MAX) {
                let Answer::Peer(report, count) = self.ask(index, &Order::QueryPeer(place))? else { break };
                (place, places) = (place + 1, count);
                let Some(report) = report else { continue };
                match peers.iter_mut().find(|known| known.node == report.node) {
                    Some(known) => known.add(&report),
                    None => peers.push(*report),
                }
            }
        }
        peers.sort_by(|one, other| one.node.cmp(&other.node));
        Ok(peers)
    }

    /// The sum of the counters of an interface's queues.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn counts(&mut self, id: InterfaceId) -> Result<Counts, NetworkError> {
        let mut sum = Counts { interface: id, ..Counts::default() };
        for index in 0..self.loops.len() {
            match self.ask(index, &Order::QueryCounts(id))? {
                Answer::Counts(counts) => sum.add(&counts),
                Answer::Refused(reason) => return Err(NetworkError::Refused(reason)),
                _ => {}
            }
        }
        Ok(sum)
    }

    /// The sockets to poll. One of them becomes readable when [`Network::vanished`] has something to report.
    pub fn watched(&self) -> impl Iterator<Item = &Socket> {
        self.loops.iter().map(|each| &each.orders)
    }

    /// True when [`Network::vanished`] has something to report that no loop will report again.
    pub fn has_vanished(&self) -> bool {
        !self.vanished.is_empty()
    }

    /// The interfaces whose device was removed by another program since the last call. Their numbers are free again.
    ///
    /// # Errors
    /// [`NetworkError::Exchange`] when a carrying loop has ended.
    pub fn vanished(&mut self) -> Result<Vec<Interface>, NetworkError> {
        for each in &self.loops {
            // A bounded number: the other end is not trusted and could send forever.
            for _ in 0..INTERFACES_MAX {
                let Some(answer) = order::receive::<Answer>(&each.orders)? else { break };
                if let Answer::Vanished(id) = answer
                    && id < INTERFACES_MAX
                {
                    self.vanished.insert(id);
                }
            }
        }
        let ids = std::mem::take(&mut self.vanished);
        let mut gone = Vec::with_capacity(ids.len());
        for id in ids {
            // Each loop reports the end of its queues of the device, each at its own time.
            gone.extend(self.remove(id)?);
        }
        Ok(gone)
    }

    /// Sends copies of all frames that enter to the other end of `capture_socket`.
    ///
    /// # Errors
    /// [`NetworkError::Exchange`].
    pub fn capture_to(&self, capture_socket: &Socket) -> Result<(), NetworkError> {
        for each in &self.loops {
            let copy = capture_socket.as_fd().try_clone_to_owned().map_err(NetworkError::Launch)?;
            order::send(&each.orders, &Order::Capture, Some(&copy))?;
        }
        Ok(())
    }

    /// The process of each loop, and what it has given up.
    ///
    /// # Errors
    /// [`NetworkError::Exchange`].
    pub fn confinements(&mut self) -> Result<Vec<(u32, Confinement)>, NetworkError> {
        let mut confinements = Vec::with_capacity(self.loops.len());
        for index in 0..self.loops.len() {
            let process = match &self.loops[index].work {
                Some(Work::Process(process)) => process.id(),
                _ => std::process::id(),
            };
            if let Answer::Confined(confinement) = self.ask(index, &Order::QueryConfinement)? {
                confinements.push((process, confinement));
            }
        }
        Ok(confinements)
    }

    /// Waits until every loop has carried out or refused every order.
    fn barrier(&mut self) -> Result<(), NetworkError> {
        let mut refused = None;
        for index in 0..self.loops.len() {
            let mut answer = self.ask(index, &Order::Barrier)?;
            // Refusals come before the answer to the query.
            for _ in 0..REFUSALS_MAX {
                let Answer::Refused(reason) = answer else { break };
                refused.get_or_insert(reason);
                answer = self.await_answer(index)?;
            }
        }
        refused.map_or(Ok(()), |reason| Err(NetworkError::Refused(reason)))
    }

    fn ask(&mut self, index: usize, question: &Order) -> Result<Answer, NetworkError> {
        order::send(&self.loops[index].orders, question, None)?;
        self.await_answer(index)
    }

    fn await_answer(&mut self, index: usize) -> Result<Answer, NetworkError> {
        let each = &self.loops[index];
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            match order::await_next(&each.orders, rest)? {
                Answer::Vanished(id) if id < INTERFACES_MAX => drop(self.vanished.insert(id)),
                Answer::Refused(reason) => return Ok(Answer::Refused(printable(&reason))),
                answer => return Ok(answer),
            }
        }
    }
}

impl Loop {
    fn start(launch: &Launch) -> Result<Self, NetworkError> {
        let (orders, theirs) = Socket::pair().map_err(|error| NetworkError::Launch(error.into()))?;
        let work = match launch {
            Launch::Thread => {
                let thread = std::thread::Builder::new().name("carrier".to_owned());
                Work::Thread(
                    thread
                        .spawn(move || carrier::run(theirs, Confinement::Absent))
                        .map_err(NetworkError::Launch)?,
                )
            }
            Launch::Program(program, arguments) => {
                let mut command = Command::new(program);
                command.args(arguments).stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
                // An interrupt from the terminal goes to this process, which then ends the carrier in order.
                command.process_group(0);
                Work::Process(command.spawn().map_err(NetworkError::Launch)?)
            }
        };
        Ok(Self { orders, work: Some(work) })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.orders.shut_down();
        // The loop ends when its orders end. Waiting for it makes sure that its devices are gone.
        match self.work.take() {
            Some(Work::Thread(thread)) => drop(thread.join()),
            Some(Work::Process(process)) => end_within(process, TIMEOUT),
            None => {}
        }
    }
}

/// Waits for a process to end, and kills it if it does not end in time. It may be stopped or stuck.
fn end_within(mut process: Child, timeout: Duration) {
    let deadline = Instant::now() + timeout;
    while matches!(process.try_wait(), Ok(None)) {
        if Instant::now() >= deadline {
            // An error means that it has ended by now.
            let _ = process.kill();
            let _ = process.wait();
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network of one loop whose answers are written by the test.
    fn network() -> (Network, Socket) {
        let (network, mut theirs) = network_of(1);
        (network, theirs.remove(0))
    }

    fn network_of(loops_count: usize) -> (Network, Vec<Socket>) {
        let (loops, theirs) = (0..loops_count)
            .map(|_| {
                let (orders, theirs) = Socket::pair().expect("a pair");
                (Loop { orders, work: None }, theirs)
            })
            .unzip();
        let workshop = Namespace::open(&bywire_sys::namespace::NamespaceName::Current).expect("ours");
        let (probe, interfaces, vanished) = (Probe::default(), Vec::new(), BTreeSet::new());
        (Network { workshop, probe, interfaces, loops, vanished }, theirs)
    }

    #[test]
    fn text_of_a_refusal_does_not_control_the_terminal() {
        let (mut network, theirs) = network();
        order::send(&theirs, &Answer::Refused("\u{1b}[2Jno\n".to_owned()), None).expect("sent");
        let said = network.counts(0).expect_err("refused").to_string();
        assert!(said.ends_with("?[2Jno?"), "{said:?}");
    }

    #[test]
    fn refusals_of_every_loop_are_read_before_the_next_command() {
        let (mut network, theirs) = network_of(2);
        for (index, each) in theirs.iter().enumerate() {
            let said = [Answer::Refused(index.to_string()), Answer::Vanished(index), Answer::Done];
            said.iter().for_each(|answer| order::send(each, answer, None).expect("sent"));
        }
        let refused = network.barrier();
        assert!(matches!(&refused, Err(NetworkError::Refused(reason)) if reason == "0"), "{refused:?}");
        assert_eq!(network.vanished, BTreeSet::from([0, 1]));
        for each in &network.loops {
            assert!(order::receive::<Answer>(&each.orders).expect("nothing").is_none());
        }
    }

    #[test]
    fn a_process_that_does_not_end_is_killed() {
        let sleeping = Command::new("sleep").arg("60").spawn().expect("`sleep`");
        let began = Instant::now();
        end_within(sleeping, Duration::from_millis(20));
        assert!(began.elapsed() < TIMEOUT);
    }

    #[test]
    fn the_removal_of_an_unknown_interface_is_ignored() {
        let (mut network, theirs) = network();
        for id in [INTERFACES_MAX, usize::MAX] {
            order::send(&theirs, &Answer::Vanished(id), None).expect("sent");
        }
        order::send(&theirs, &Answer::Done, None).expect("sent");
        assert!(network.vanished().expect("an answer").is_empty());
        assert!(!network.has_vanished());
    }
}
