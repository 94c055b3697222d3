//! A running network: the part with privileges, which makes the interfaces of its settings and maintains them.
//!
//! It never sees a frame. While it runs, it answers on its control socket, replaces interfaces that another program
//! has removed, and follows its settings when they are read again.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bywire_metrics::Metrics;
use bywire_sys::deferred::Deferred;
use bywire_sys::poller::Poller;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::control::{self, ControlError, ControlSocket, PortLinks, Request, ports_directory};
use crate::interface::{InterfaceError, Plan};
use crate::metrics;
use crate::network::{self, Launch, Network, NetworkError};
use crate::order::{Counts, Node};
use crate::settings::{Settings, SettingsError};
use crate::status;
use crate::timed_write::write_within;

/// How often a missing interface is tried again. Its namespace may come back, for instance with a restarted
/// container.
const RETRY: Duration = Duration::from_secs(1);

/// How often the node's service is asked for the nodes of the fabric. A removed node is cut off without that.
const NODES_INTERVAL: Duration = Duration::from_secs(2);

/// How long a caller may take to read an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Why a service did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The control socket could not be opened.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The network failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The address for Prometheus cannot be used.
    #[error("cannot listen on {0} for Prometheus: {1}; choose another address")]
    Metrics(SocketAddr, std::io::Error),
    /// The kernel refused what the service itself needs.
    #[error("cannot watch for signals and requests: {0}")]
    System(std::io::Error),
}

/// Tags of the poller.
const CONTROL: u64 = 0;
const STOP: u64 = 1;
const RELOAD: u64 = 2;
const CARRIERS: u64 = 3;
const METRICS: u64 = 4;
const CAPTURE: u64 = 5;

/// A network with its control socket.
pub struct Service<'a> {
    settings: Settings,
    network: Network,
    control_socket: ControlSocket,
    metrics: Option<Metrics>,
    missing: Vec<Plan>,
    /// Labels of interfaces whose process has ended, as long as the settings name them.
    given_up: HashSet<String>,
    poller: Poller,
    /// Only polled: it becomes readable when the service is to stop.
    _stop: UnixStream,
    reload: UnixStream,
    began: Instant,
    read: &'a dyn Fn() -> Result<Settings, SettingsError>,
    nodes: &'a dyn Fn() -> Option<Vec<Node>>,
    /// The nodes whose processes are sought, and when the next list is fetched. `None` without the fabric.
    sought: Option<(Vec<Node>, Instant)>,
    /// Removed with the service, after the processes whose ports they name.
    _port_links: Option<PortLinks>,
    log: &'a dyn Fn(&str),
}

impl<'a> Service<'a> {
    /// Starts everything in the settings. `read` returns them now and at each SIGHUP. `nodes` returns the other nodes
    /// of the fabric, or `None` if no service tells. `log` takes a log line.
    ///
    /// # Errors
    /// [`ServiceError`]. After an error, nothing is left running.
    pub fn start(
        read: &'a dyn Fn() -> Result<Settings, SettingsError>,
        launch: &Launch,
        nodes: &'a dyn Fn() -> Option<Vec<Node>>,
        log: &'a dyn Fn(&str),
    ) -> Result<Self, ServiceError> {
        let (settings, plans) = planned(read)?;
        let (stop, reload) = watch_signals().map_err(ServiceError::System)?;
        let control_socket = ControlSocket::open(&settings.network, &settings.node())?;
        let listen =
            |address| Metrics::listen(address).map_err(|error| ServiceError::Metrics(address, error));
        let metrics = settings.metrics.map(listen).transpose()?;
        let mut network = Network::start(launch, settings.queues, settings.carrier())?;
        for plan in plans {
            network.add(plan)?;
        }
        let node = settings.fabric_node.as_ref().map_or_else(|| settings.node(), |own| own.name.clone());
        network.join(&settings.network, &node, &ports_directory()?)?;
        let mut port_links = None;
        if settings.fabric {
            control::link_node()?;
            let names = network::port_names(&settings.network, &node, network.loops_count());
            port_links = Some(PortLinks::make(&names)?);
            network.reach_fabric()?;
        }
        let poller = Poller::new().map_err(|error| ServiceError::System(error.into()))?;
        let watched = [
            (control_socket.listener().as_fd(), CONTROL),
            (control_socket.capture_listener().as_fd(), CAPTURE),
            (stop.as_fd(), STOP),
            (reload.as_fd(), RELOAD),
        ];
        let watched = watched.into_iter().chain(metrics.iter().map(|metrics| (metrics.as_fd(), METRICS)));
        for (file, tag) in watched {
            poller.add(&file, tag).map_err(|error| ServiceError::System(error.into()))?;
        }
        for socket in network.watched() {
            poller.add(socket, CARRIERS).map_err(|error| ServiceError::System(error.into()))?;
        }
        let began = Instant::now();
        let sought = settings.fabric.then(|| (Vec::new(), began));
        Ok(Self {
            settings,
            network,
            control_socket,
            metrics,
            missing: Vec::new(),
            given_up: HashSet::new(),
            poller,
            _stop: stop,
            reload,
            began,
            read,
            nodes,
            sought,
            _port_links: port_links,
            log,
        })
    }

    /// The network's name.
    pub fn network(&self) -> &str {
        &self.settings.network
    }

    /// The name of this node.
    pub fn node(&self) -> String {
        self.settings.node()
    }

    /// The existing interfaces, one line for each.
    pub fn lines(&self) -> Vec<String> {
        let interfaces = self.network.interfaces();
        interfaces.map(|(_, interface)| status::heading(&interface.plan)).collect()
    }

    /// Runs until a signal or a request on the control socket ends it. Everything is removed by then.
    ///
    /// # Errors
    /// [`ServiceError::Network`] when the part that carries frames has ended.
    pub fn run(mut self) -> Result<(), ServiceError> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        loop {
            self.seek_nodes()?;
            let timeout = match self.network.has_vanished() {
                true => Some(Duration::ZERO),
                false => [
                    (!self.missing.is_empty()).then_some(RETRY),
                    self.until_next_list(),
                    self.metrics.as_ref().and_then(Metrics::timeout),
                ]
                .into_iter()
                .flatten()
                .min(),
            };
            let ready = self.poller.wait(timeout).map_err(|error| ServiceError::System(error.into()))?;
            // Reports of the carrying loops wake the poller too. They are read below.
            let ready = ready.to_vec();
            if ready.contains(&STOP) {
                return Ok(());
            }
            if ready.contains(&RELOAD) {
                drain(&self.reload);
                self.reload_settings()?;
            }
            if ready.contains(&CAPTURE)
                && let Ok(Some(capture_socket)) = self.control_socket.capture_listener().accept()
            {
                // Loops close a capture socket at once, which must not block. A capturing program has nothing to send, so the
                // socket is shut for reading.
                match capture_socket
                    .hear_no_more()
                    .then(|| self.network.capture_to(&capture_socket))
                    .transpose()
                {
                    Ok(_) => capture_socket.release(),
                    // Some loops did not get the socket. The capturing program sees the end, and the service continues.
                    Err(error) => (self.log)(&format!("frames cannot be captured now: {error}")),
                }
            }
            if let Some(mut metrics) = self.metrics.take() {
                let served = metrics.serve(|| self.status().map(|status| metrics::page(&status)));
                self.metrics = Some(metrics);
                served?;
            }
            if ready.contains(&CONTROL)
                && let Some(caller) = self.answer()?
            {
                self.end(caller);
                return Ok(());
            }
            // A loop may have reported a vanished interface while it was asked for something else.
            self.note_vanished()?;
            self.retry()?;
        }
    }

    fn until_next_list(&self) -> Option<Duration> {
        let (_, at) = self.sought.as_ref()?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Fetches the list of nodes when that is due, and has the loops connect to all of them if the list has changed.
    fn seek_nodes(&mut self) -> Result<(), ServiceError> {
        let Some((known, at)) = &mut self.sought else { return Ok(()) };
        if Instant::now() < *at {
            return Ok(());
        }
        // Carriers call the service by themselves when it is there again.
        let linked = control::link_node();
        if let (Ok(true), Some(nodes)) = (linked, (self.nodes)())
            && nodes != *known
        {
            self.network.seek_nodes(&nodes)?;
            *known = nodes;
        }
        *at = Instant::now() + NODES_INTERVAL;
        Ok(())
    }

    /// Notes the interfaces that another program has removed.
    fn note_vanished(&mut self) -> Result<(), ServiceError> {
        for interface in self.network.vanished()? {
            let label = interface.plan.label();
            (self.log)(&format!("{label} was removed: it will be made again"));
            self.missing.push(interface.plan);
        }
        Ok(())
    }

    /// Makes missing interfaces where that is possible now.
    fn retry(&mut self) -> Result<(), ServiceError> {
        for plan in std::mem::take(&mut self.missing) {
            match self.network.add(plan.clone()) {
                Ok(_) => (self.log)(&format!("{} is up again", plan.label())),
                Err(NetworkError::Exchange(error)) => return Err(NetworkError::Exchange(error).into()),
                Err(error) => self.keep_for_retry(plan, &error),
            }
        }
        Ok(())
    }

    /// Keeps an interface that could not be made for a retry, unless it can never be made.
    fn keep_for_retry(&mut self, plan: Plan, error: &NetworkError) {
        match error {
            NetworkError::Interface(InterfaceError::NoProcess(_)) => {
                (self.log)(&format!("{} is given up: {error}", plan.label()));
                self.given_up.insert(plan.label());
            }
            _ => self.missing.push(plan),
        }
    }

    /// Reads the settings again and applies the differences.
    fn reload_settings(&mut self) -> Result<(), ServiceError> {
        // A file that is just being written may be empty for a moment, so empty settings are refused here too.
        let (settings, mut plans) = match planned(self.read) {
            Ok(planned) => planned,
            Err(error) => {
                (self.log)(&format!("the settings stay as they were: {error}"));
                return Ok(());
            }
        };
        let fixed = |settings: &Settings| {
            (
                settings.network.clone(),
                settings.node(),
                settings.queues,
                settings.metrics,
                settings.fabric_node.clone(),
            )
        };
        if fixed(&settings) != fixed(&self.settings) {
            (self.log)(
                "the settings stay as they were: network, node, queues, metrics and fabric change with a restart only",
            );
            return Ok(());
        }
        self.network.configure(settings.carrier())?;
        self.keep_namespaces(&mut plans);
        self.given_up.retain(|label| plans.iter().any(|wanted| wanted.label() == *label));
        plans.retain(|wanted| !self.given_up.contains(&wanted.label()));
        let missed: HashSet<_> = self.missing.iter().map(Plan::label).collect();
        self.missing = plans.iter().filter(|wanted| missed.contains(&wanted.label())).cloned().collect();
        self.change(plans)?;
        self.settings = settings;
        (self.log)("the settings were read again");
        Ok(())
    }

    /// Keeps the namespace that is known for a label. The process id in the new settings may belong to another
    /// process by now.
    fn keep_namespaces(&self, plans: &mut [Plan]) {
        let standing = self.network.interfaces().map(|(_, interface)| &interface.plan);
        let known: HashMap<_, _> =
            standing.chain(&self.missing).map(|plan| (plan.label(), &plan.namespace)).collect();
        for plan in plans {
            if let Some(namespace) = known.get(&plan.label()) {
                plan.namespace = (*namespace).clone();
            }
        }
    }

    /// Changes the interfaces to the planned ones, except missing ones.
    fn change(&mut self, plans: Vec<Plan>) -> Result<(), ServiceError> {
        let standing: Vec<_> =
            self.network.interfaces().map(|(id, interface)| (id, interface.plan.clone())).collect();
        for (id, plan) in &standing {
            let wanted = plans.iter().find(|wanted| wanted.label() == plan.label());
            let fits = wanted.is_some_and(|wanted| wanted.mac == plan.mac && wanted.bridge == plan.bridge);
            if !fits {
                self.network.remove(*id)?;
            } else if let Some(wanted) = wanted
                && let Err(error) = self.network.adapt(*id, wanted.clone())
            {
                (self.log)(&error.to_string());
            }
        }
        for plan in plans {
            let label = plan.label();
            let stands = self.network.interfaces().any(|(_, interface)| interface.plan.label() == label);
            if stands || self.missing.iter().any(|plan| plan.label() == label) {
                continue;
            }
            if let Err(error) = self.network.add(plan.clone()) {
                (self.log)(&error.to_string());
                self.keep_for_retry(plan, &error);
            }
        }
        Ok(())
    }

    /// Answers the next caller on the control socket. Returns the caller if it asks for the end.
    fn answer(&mut self) -> Result<Option<Deferred<UnixStream>>, ServiceError> {
        let Some((request, mut caller)) = self.control_socket.answer_next() else { return Ok(None) };
        if request == Request::Down {
            return Ok(Some(caller));
        }
        let answer = self.status()?;
        // Below, an error means that the caller has gone.
        let answer = answer.to_string();
        let _ = write_within(&mut *caller, UnixStream::set_write_timeout, answer.as_bytes(), TIMEOUT);
        Ok(None)
    }

    fn status(&mut self) -> Result<serde_json::Value, ServiceError> {
        let ids: Vec<_> = self.network.interfaces().map(|(id, _)| id).collect();
        let mut interfaces = Vec::new();
        for id in ids {
            // An interface that vanishes in between is reported once its end is known.
            let counts = match self.network.counts(id) {
                Ok(counts) => counts,
                Err(NetworkError::Refused(_)) => Counts { interface: id, ..Counts::default() },
                Err(error) => return Err(error.into()),
            };
            let interface = self.network.interface(id);
            interfaces.extend(
                interface.map(|interface| status::interface(interface, self.network.probe(), &counts)),
            );
        }
        let loops = self.network.confinements()?;
        let peers: Vec<_> = self.network.peers()?.iter().map(status::peer).collect();
        Ok(json!({
            "schema": status::SCHEMA,
            "network": self.settings.network,
            "node": self.settings.node(),
            "machine": self.settings.fabric_node.as_ref().map(|own| &own.name),
            "process": std::process::id(),
            "uptime_s": self.began.elapsed().as_secs(),
            "coalesce": self.settings.coalesce,
            "spin_us": self.settings.carrier().spin_us,
            "carriers": loops.iter().map(|(process, given_up)| status::carrier(*process, given_up)).collect::<Vec<_>>(),
            "warnings": status::warnings(&interfaces, &peers),
            "peers": peers,
            "interfaces": interfaces,
            "missing": self.missing.iter().map(Plan::label).collect::<Vec<_>>(),
        }))
    }

    /// Removes everything, then confirms it to the caller, which may look at once.
    fn end(self, mut caller: Deferred<UnixStream>) {
        let (network, node) = (&self.settings.network, self.settings.node());
        let answer = json!({ "network": network, "node": node, "ended": true });
        // As a whole: a field that is left would go with the end of this function, after the answer.
        drop(self);
        let _ = caller.write_all(answer.to_string().as_bytes());
    }
}

/// The settings with their plans, of which there must be at least one.
fn planned(
    read: &dyn Fn() -> Result<Settings, SettingsError>,
) -> Result<(Settings, Vec<Plan>), SettingsError> {
    let settings = read()?;
    let plans = settings.plans()?;
    if plans.is_empty() {
        return Err(SettingsError::Nothing);
    }
    Ok((settings, plans))
}

/// Two streams: the first becomes readable when this process is to end, the second when it is to read its settings
/// again.
fn watch_signals() -> std::io::Result<(UnixStream, UnixStream)> {
    let (stop, stopped) = UnixStream::pair()?;
    let (reload, reloaded) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, stopped.try_clone()?)?;
    }
    signal_hook::low_level::pipe::register(SIGHUP, reloaded)?;
    reload.set_nonblocking(true)?;
    Ok((stop, reload))
}

fn drain(mut stream: &UnixStream) {
    let mut bytes = [0; 64];
    while matches!(std::io::Read::read(&mut stream, &mut bytes), Ok(1..)) {}
}
