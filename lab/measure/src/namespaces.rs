//! Network namespaces joined by a veth pair or a bridge, or by another program that puts an interface into each: several
//! hosts on one machine, as the kernel's network sees them.
//!
//! The namespaces have no names. Descriptors of this process and the processes inside keep them alive, so they end with
//! this program even if it is killed by SIGKILL. With CAP_SYS_ADMIN they are made directly. Without it they are made
//! inside an unprivileged user namespace, if the system allows that.

use std::any::Any;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use bywire_command::exit_status::Misuse;

use crate::bounds::bounded;

/// The bounds of a veth device's MTU, in bytes.
pub const MTU_BYTES: std::ops::RangeInclusive<u32> = 68..=65_535;
/// The name of the veth device in each namespace.
pub const INTERFACE: &str = "veth0";
/// The length of the longest superframe.
const SUPERFRAME_BYTES: u32 = 64 << 10;
/// The prefix length of the network that both addresses are in.
pub const PREFIX_LENGTH: u32 = 24;

/// The permitted number of namespaces.
pub const NODES: std::ops::RangeInclusive<u32> = 2..=64;

/// Namespaces and what joins them.
#[derive(Debug)]
pub struct Namespaces {
    /// The link between them. It is dropped first.
    link: NamespaceLink,
    /// At least two, with addresses in one network.
    pub nodes: Vec<Namespace>,
}

/// A link between namespaces.
#[derive(Debug)]
pub struct NamespaceLink {
    /// Its name in cells, such as `veth`.
    pub name: &'static str,
    /// Processes of this machine that carry the packets. Empty if the kernel does.
    pub processes: Vec<u32>,
    /// Dropped before the namespaces are, for instance a process that ends when it is dropped.
    pub kept: Box<dyn Any + Send + Sync>,
}

/// A namespace that is about to be joined. Its loopback is up.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The namespace. It is to have an interface with [`Namespace::address`] in a network of [`PREFIX_LENGTH`].
    pub namespace: &'a Namespace,
    /// A process inside that lives until the two are joined, and no longer.
    pub process: u32,
}

/// One network namespace, alive while this value or a process inside lives.
#[derive(Debug)]
pub struct Namespace {
    user: Option<Arc<OwnedFd>>,
    network: OwnedFd,
    address: Ipv4Addr,
    /// Whether fragments of incomplete datagrams are kept for one second only, in up to 64 MiB. Otherwise this kernel's
    /// default applies (30 s, 4 MiB).
    forgets_fragments: bool,
}

impl Namespaces {
    /// Makes two namespaces, with loopback and the veth devices up and addressed, and `mtu_bytes` at both ends. Fails with
    /// one line: why this machine or this user cannot, and what to do.
    pub fn veth_pair(mtu_bytes: u32) -> Result<Self> {
        check_mtu(mtu_bytes)?;
        Self::joined(2, |sides| {
            lay_cable([sides[0], sides[1]], mtu_bytes, Namespace::address)?;
            Ok(NamespaceLink { name: "veth", processes: Vec::new(), kept: Box::new(()) })
        })
    }

    /// Makes `count` namespaces at the ports of a bridge, with an MTU of `mtu_bytes` everywhere. Each port lets pass what
    /// `rate_mbits` allows, and drops what its queue cannot hold. Fails as [`Namespaces::veth_pair`].
    pub fn bridge(count: u32, mtu_bytes: u32, rate_mbits: Option<u32>) -> Result<Self> {
        check_mtu(mtu_bytes)?;
        Self::joined(count, |sides| {
            let switch = connect(sides, mtu_bytes, Namespace::address, rate_mbits)?;
            Ok(NamespaceLink { name: "bridge", processes: Vec::new(), kept: Box::new(switch) })
        })
    }

    /// Makes `count` namespaces of one owner, whose addresses count from 1, with their loopback up, and calls `join` with
    /// them. `join` puts an interface with the namespace's address into each, and returns when it is up. Fails as
    /// [`Namespaces::veth_pair`], or with the error of `join`.
    pub fn joined(count: u32, join: impl FnOnce(&[Side]) -> Result<NamespaceLink>) -> Result<Self> {
        let mut made: Vec<Made> = Vec::new();
        for host in 1..=bounded("nodes", count, NODES, "")? {
            let next = make_one(host as usize, made.first().map(|first| &first.namespace))?;
            made.push(next);
        }
        let link = join(&made.iter().map(Made::side).collect::<Vec<_>>())?;
        Ok(Self { link, nodes: made.into_iter().map(|made| made.namespace).collect() })
    }

    /// The namespaces of the measuring and the answering end, if there are two.
    pub fn pair(&self) -> [&Namespace; 2] {
        [&self.nodes[0], &self.nodes[1]]
    }

    /// The link's name in a cell.
    pub fn link(&self) -> &'static str {
        self.link.name
    }

    /// Returns whether all namespaces soon drop fragments of incomplete datagrams. If that cannot be set, this kernel's
    /// default applies.
    pub fn forgets_fragments(&self) -> bool {
        self.nodes.iter().all(|node| node.forgets_fragments)
    }

    /// The processes that carry the packets, unless the kernel alone does.
    pub fn carriers(&self) -> &[u32] {
        &self.link.processes
    }
}

/// A namespace, and the process that keeps it alive until it is joined.
pub(crate) struct Made {
    pub(crate) namespace: Namespace,
    holder: Holder,
}

impl Made {
    pub(crate) fn side(&self) -> Side<'_> {
        Side { namespace: &self.namespace, process: self.holder.child.0.id() }
    }
}

/// Joins two namespaces by a veth pair whose devices have these addresses.
pub(crate) fn lay_cable(sides: [Side; 2], mtu_bytes: u32, address: fn(&Namespace) -> Ipv4Addr) -> Result<()> {
    let [source, target] = sides.map(|side| side.namespace);
    let laid = source
        .add_veth(mtu_bytes, INTERFACE, sides[1].process)
        .and_then(|()| source.bring_up(address(source)))
        .and_then(|()| target.bring_up(address(target)));
    laid.context("cannot set up a veth pair (does this kernel have veth?)")
}

/// Checks that a veth device accepts this MTU.
pub(crate) fn check_mtu(mtu_bytes: u32) -> Result<u32, Misuse> {
    bounded("mtu", mtu_bytes, MTU_BYTES, " bytes")
}

/// Connects nodes to a bridge in a namespace of its own, which is returned. Each node gets a veth device with this address.
pub(crate) fn connect(
    nodes: &[Side],
    mtu_bytes: u32,
    address: fn(&Namespace) -> Ipv4Addr,
    rate_mbits: Option<u32>,
) -> Result<Namespace> {
    let switch = make_one(nodes.len() + 1, nodes.first().map(|node| node.namespace))?;
    let set_up = || -> Result<()> {
        switch.namespace.configure("link add br0 type bridge\nlink set br0 up\n")?;
        for (port, node) in nodes.iter().map(|node| node.namespace).enumerate() {
            let port = format!("port{port}");
            node.add_veth(mtu_bytes, &port, switch.side().process)?;
            node.bring_up(address(node))?;
            switch.namespace.configure(&format!("link set {port} master br0 up\n"))?;
            rate_mbits.map_or(Ok(()), |rate| switch.namespace.shape(&port, rate))?;
        }
        Ok(())
    };
    set_up().context("cannot set up a bridge (does this kernel have bridge and veth?)")?;
    Ok(switch.namespace)
}

/// One namespace. A veth pair joins only namespaces of one owner, so it is made inside the user namespace of `beside`.
pub(crate) fn make_one(host: usize, beside: Option<&Namespace>) -> Result<Made> {
    let holder = Holder::with_new_network(beside.and_then(|beside| beside.user.clone()))?;
    let (user, network) = (holder.user.clone(), holder.open("net")?);
    let address = Ipv4Addr::new(10, 77, 0, host as u8);
    let mut namespace = Namespace { user, network, address, forgets_fragments: false };
    namespace.configure("link set lo up\n").context("cannot set up a network namespace")?;
    namespace.forgets_fragments = namespace.forget_fragments_soon()?;
    Ok(Made { namespace, holder })
}

impl Namespace {
    /// The address of its interface.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The address of the wire below, where a fabric carries the frames of the interface with [`Namespace::address`].
    pub fn wire_address(&self) -> Ipv4Addr {
        let [.., host] = self.address.octets();
        Ipv4Addr::new(10, 78, 0, host)
    }

    /// Makes `command` run inside whenever it is spawned. The command keeps the namespace alive.
    pub fn enter(&self, command: &mut Command) -> Result<()> {
        let (user, network) = (self.user.clone(), self.network.try_clone()?);
        before_exec(command, move || {
            enter_user(user.as_deref())?;
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        });
        Ok(())
    }

    /// Returns whether the namespace belongs to an unprivileged user namespace.
    pub fn is_unprivileged(&self) -> bool {
        self.user.is_some()
    }

    /// A path by which this user's programs find the namespace while this value lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.network.as_raw_fd()).into()
    }

    /// By default the kernel keeps the fragments of an incomplete datagram for 30 s. Once they fill 4 MiB, no datagram
    /// beyond the MTU arrives any more, so a measurement would end at an early loss. Returns whether it was allowed to
    /// change that here.
    fn forget_fragments_soon(&self) -> Result<bool> {
        const SET: &str =
            "cd /proc/sys/net/ipv4 && echo 1 > ipfrag_time && echo 67108864 > ipfrag_high_thresh";
        let mut shell = Command::new("sh");
        shell.args(["-c", SET]).stdin(Stdio::null()).stderr(Stdio::null());
        self.enter(&mut shell)?;
        Ok(shell.status().context("cannot run `sh`")?.success())
    }

    /// Runs a batch of `ip` commands inside, one a line. Fails if there is no `ip` here, or with the first line of its error
    /// message.
    pub fn configure(&self, batch: &str) -> Result<()> {
        self.run("ip", "-batch", batch, "iproute2")
    }

    /// Adds a veth device whose peer is in the namespace of another process.
    pub(crate) fn add_veth(&self, mtu_bytes: u32, peer: &str, process: u32) -> Result<()> {
        self.configure(&format!(
            "link add {INTERFACE} mtu {mtu_bytes} type veth peer name {peer} mtu {mtu_bytes} netns {process}\n"
        ))
    }

    pub(crate) fn bring_up(&self, address: Ipv4Addr) -> Result<()> {
        self.configure(&format!(
            "address add {address}/{PREFIX_LENGTH} dev {INTERFACE}\nlink set {INTERFACE} up\n"
        ))
    }

    /// Makes `interface` send at most this much, with a queue of 2 ms before it.
    pub(crate) fn shape(&self, interface: &str, rate_mbits: u32) -> Result<()> {
        // A bucket and a queue of a superframe at least, which is cut into its frames where it is longer.
        let queue_bytes = (250 * rate_mbits).max(SUPERFRAME_BYTES);
        let discipline = format!(
            "qdisc add dev {interface} root tbf rate {rate_mbits}mbit burst {SUPERFRAME_BYTES} limit {queue_bytes}\n"
        );
        let limited = self.run("tc", "-batch", &discipline, "iproute2");
        limited.context("cannot limit a rate (does this kernel have sch_tbf?)")
    }

    /// Makes `interface` lose this many of a million received packets from now on, at random. Fails if there is no `nft` here,
    /// or with the first line of its error message.
    pub fn lose(&self, interface: &str, lost_ppm: u32) -> Result<()> {
        // Earlier settings are removed first. A table that does not exist cannot be deleted.
        let mut rules = "add table inet laboratory\ndelete table inet laboratory\n".to_owned();
        if let Some(last) = lost_ppm.checked_sub(1) {
            rules += &format!(
                "add table inet laboratory\n\
                 add chain inet laboratory lossy {{ type filter hook input priority 0; }}\n\
                 add rule inet laboratory lossy iifname {interface} numgen random mod 1000000 <= {last} drop\n"
            );
        }
        let dropped = self.run("nft", "-f", &rules, "nftables");
        dropped.context("cannot drop packets at random (does this kernel have nft_numgen?)")
    }

    /// Runs a program inside that reads its commands from its standard input after `option`.
    fn run(&self, program: &str, option: &str, commands: &str, package: &str) -> Result<()> {
        let mut command = Command::new(program);
        command.args([option, "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        self.enter(&mut command)?;
        let mut child = command.spawn().with_context(|| {
            format!("cannot run `{program}`: install it with `apt-get install {package}`")
        })?;
        // A child that died early says more by its status than by the broken pipe.
        let _ = child.stdin.take().expect("just piped").write_all(commands.as_bytes());
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} said: {}", said.lines().next().unwrap_or("nothing"));
        Ok(())
    }
}

/// A child that stays in fresh namespaces until this process has opened them.
struct Holder {
    child: Killed,
    /// The user namespace that owns them, unless it is ours.
    user: Option<Arc<OwnedFd>>,
}

impl Holder {
    /// In a new network namespace. It is owned by `user`, or else by our user namespace, or else by a new one.
    fn with_new_network(user: Option<Arc<OwnedFd>>) -> Result<Self> {
        match Self::spawn(user.clone(), UnshareFlags::NEWNET) {
            Ok(child) => return Ok(Self { child, user }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && user.is_none() => {}
            Err(error) => bail!("cannot make a network namespace: {error}"),
        }
        let child = Self::spawn(None, UnshareFlags::NEWUSER | UnshareFlags::NEWNET).map_err(|error| {
            anyhow!(
                "cannot make a network namespace: this needs root, or unprivileged user namespaces \
                 (`sysctl kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns \
                 user.max_user_namespaces` tells why they are off): {error}"
            )
        })?;
        let mut holder = Self { child, user: None };
        holder.map_to_root().context(
            "cannot become root in a user namespace: run as root, or allow unprivileged user namespaces",
        )?;
        holder.user = Some(Arc::new(holder.open("user")?));
        Ok(holder)
    }

    fn spawn(user: Option<Arc<OwnedFd>>, flags: UnshareFlags) -> io::Result<Killed> {
        let mut command = Command::new("cat");
        // The pipe to its standard input ends with this process, and `cat` with the pipe.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        before_exec(&mut command, move || {
            enter_user(user.as_deref())?;
            // SAFETY: the child shares no descriptor table with any process, and FILES is not among the flags.
            unsafe { unshare_unsafe(flags) }
        });
        command.spawn().map(Killed)
    }

    /// Makes this user root inside, so that `ip` keeps its capabilities when it is executed.
    fn map_to_root(&self) -> io::Result<()> {
        let process = format!("/proc/{}", self.child.0.id());
        fs::write(format!("{process}/setgroups"), "deny")?;
        fs::write(format!("{process}/uid_map"), format!("0 {} 1", rustix::process::geteuid().as_raw()))?;
        fs::write(format!("{process}/gid_map"), format!("0 {} 1", rustix::process::getegid().as_raw()))
    }

    /// Its namespace of this kind.
    fn open(&self, kind: &str) -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/{}/ns/{kind}", self.child.0.id()))?.into())
    }
}

/// A child that is killed when this is dropped.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only if the child has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has the kernel kill whatever `command` starts when the calling thread ends without ending it.
pub(crate) fn end_with_this_thread(command: &mut Command) {
    let parent = Pid::from_raw(std::process::id() as i32);
    before_exec(command, move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that has ended already cannot send a signal any more.
        if getppid() == parent { Ok(()) } else { Err(rustix::io::Errno::SRCH) }
    });
}

fn enter_user(user: Option<&OwnedFd>) -> rustix::io::Result<()> {
    user.map_or(Ok(()), |user| move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User)))
}

/// Runs `action` in the forked child of `command`, just before it becomes the program.
fn before_exec(command: &mut Command, action: impl Fn() -> rustix::io::Result<()> + Send + Sync + 'static) {
    // SAFETY: between fork and exec only async-signal-safe calls are sound. Every action of this module makes only
    // system calls through rustix: no allocation, no lock, no panic.
    unsafe { command.pre_exec(move || Ok(action()?)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    /// The pair, or `None` with the reason printed if this machine cannot make one.
    fn possible(pair: Result<Namespaces>) -> Option<Namespaces> {
        pair.inspect_err(|reason| eprintln!("not run: {reason:#}")).ok()
    }

    fn ip_inside(namespace: &Namespace, arguments: &[&str]) -> String {
        let mut ip = Command::new("ip");
        ip.args(arguments);
        namespace.enter(&mut ip).unwrap();
        String::from_utf8(ip.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn both_ends_have_their_address_and_the_mtu() {
        let Some(pair) = possible(Namespaces::veth_pair(9000)) else { return };
        for end in pair.pair() {
            let said = ip_inside(end, &["address", "show", "dev", INTERFACE]);
            let address = format!("inet {}/24", end.address());
            assert!(said.contains(&address) && said.contains("mtu 9000"), "{said}");
        }
    }

    #[test]
    fn data_crosses_the_veth_pair() {
        let Some(pair) = possible(Namespaces::veth_pair(1500)) else { return };
        let [source, target] = pair.pair();
        if source.is_unprivileged() {
            eprintln!("not run: a thread cannot enter a user namespace; run as root");
            return;
        }
        let (told, address) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                move_into_link_name_space(target.network.as_fd(), None).unwrap();
                let listener = TcpListener::bind((target.address(), 0)).unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                let (mut stream, from) = listener.accept().unwrap();
                assert_eq!(from.ip(), source.address());
                stream.write_all(b"across").unwrap();
            });
            let address = address.recv().unwrap();
            scope.spawn(move || {
                move_into_link_name_space(source.network.as_fd(), None).unwrap();
                let mut said = String::new();
                TcpStream::connect(address).unwrap().read_to_string(&mut said).unwrap();
                assert_eq!(said, "across");
            });
        });
    }

    #[test]
    fn a_closure_may_join_namespaces_and_its_result_is_dropped_with_them() {
        let joined = Namespaces::joined(2, |sides| {
            let [source, target] = [sides[0], sides[1]];
            // With other names than `veth_pair` gives, and a process, as a network in user space would have.
            let cable = format!("link add by0 type veth peer name by0 netns {}\n", target.process);
            source.namespace.configure(&cable)?;
            for Side { namespace, .. } in sides {
                let address = format!("{}/{PREFIX_LENGTH}", namespace.address());
                namespace.configure(&format!("address add {address} dev by0\nlink set by0 up\n"))?;
                assert!(namespace.path().exists());
            }
            let mut carrier = Command::new("sleep");
            source.namespace.enter(&mut carrier)?;
            let carrier = Killed(carrier.arg("600").spawn()?);
            Ok(NamespaceLink { name: "sleep", processes: vec![carrier.0.id()], kept: Box::new(carrier) })
        });
        let Some(pair) = possible(joined) else { return };
        assert_eq!(pair.link(), "sleep");
        let process = pair.link.kept.downcast_ref::<Killed>().unwrap().0.id();
        let inside = fs::read_link(format!("/proc/{process}/ns/net")).unwrap();
        assert_eq!(fs::read_link(pair.nodes[0].path()).unwrap(), inside);
        assert!(ip_inside(&pair.nodes[1], &["address", "show", "dev", "by0"]).contains("10.77.0.2/24"));
        drop(pair);
        assert!(fs::metadata(format!("/proc/{process}")).is_err(), "its process is gone");
    }

    #[test]
    fn the_error_of_a_join_is_returned() {
        let refused = Namespaces::joined(2, |_| bail!("no such fabric"));
        let said = format!("{:#}", refused.unwrap_err());
        let reasons = ["no such fabric", "cannot make a network namespace"];
        assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
    }

    #[test]
    fn dropped_namespaces_have_no_references_left() {
        let Some(pair) = possible(Namespaces::veth_pair(1500)) else { return };
        let identity = format!("net:[{}]", rustix::fs::fstat(&pair.nodes[0].network).unwrap().st_ino);
        let is_it = |path: PathBuf| fs::read_link(path).is_ok_and(|link| link.as_os_str() == &*identity);
        let count = |directory: &str, link: fn(PathBuf) -> PathBuf| {
            let entries = fs::read_dir(directory).unwrap().flatten();
            entries.filter(|entry| is_it(link(entry.path()))).count()
        };
        let references =
            || (count("/proc", |process| process.join("ns/net")), count("/proc/self/fd", |fd| fd));
        assert_eq!(references(), (0, 1), "no process is left inside; one descriptor holds it");
        // While this one is open, no other namespace gets its number.
        let own = pair.nodes[0].network.try_clone().unwrap();
        drop(pair);
        assert_eq!(references(), (0, 1));
        drop(own);
    }

    #[test]
    fn an_impossible_mtu_is_refused_in_one_line() {
        let error = Namespaces::veth_pair(67).unwrap_err().to_string();
        assert!(error.contains("68 to 65535"), "{error}");
    }

    #[test]
    fn every_node_reaches_every_other_through_the_bridge() {
        let Some(network) = possible(Namespaces::bridge(3, 9000, None)) else { return };
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            // No ping(8) is needed: a refused connection has found its host.
            let mut command = Command::new("bash");
            let address = network.nodes[to].address();
            command.args(["-c", &format!("exec 3<>/dev/tcp/{address}/9")]);
            network.nodes[from].enter(&mut command).unwrap();
            let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
            assert!(said.contains("refused"), "{said}");
        }
    }

    #[test]
    fn a_network_of_one_node_is_refused() {
        assert!(Namespaces::bridge(1, 1500, None).unwrap_err().to_string().contains("2 to 64"));
    }
}
