//! An interface in a network namespace: made, addressed, set up, and maintained.
//!
//! The device is made in an empty namespace of this process and moved into its target namespace. So it has its final
//! name from the start, no service on the machine tries to configure it as hardware, and our descriptors do not keep
//! the target namespace alive when its container ends.

use std::io;
use std::os::fd::AsFd;

use bywire_sys::Errno;
use bywire_sys::namespace::{Namespace, NamespaceName};
use bywire_sys::tap::{self, Offloads, Queue, Tap};
use bywire_sys::udp::BATCH_BYTES_MAX;

use crate::address::MacAddress;
use crate::rtnetlink::{Change, Cidr, Link, Links, SUPERFRAME_BYTES_MAX};

/// The MTUs that a TAP device accepts, in bytes: from Linux's own minimum to 64 KiB less an Ethernet header.
pub const MTU_BYTES: std::ops::RangeInclusive<u32> = 68..=65_521;
/// The minimum MTU for IPv6 (RFC 8200).
const IPV6_MTU_BYTES: u32 = 1280;
/// The bytes of a packet to another machine that are not part of the frame's packet: an Ethernet header, a descriptor, and the
/// packet's own header, frame and tag.
const PACKET_OVERHEAD_BYTES: u32 = 14 + 8 + 16 + 11 + 16;

/// The wanted state of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The namespace.
    pub namespace: NamespaceName,
    /// The name of the interface.
    pub name: String,
    /// Its hardware address.
    pub mac: MacAddress,
    /// Its IP addresses. With none, DHCP or the system assigns them.
    pub addresses: Vec<Cidr>,
    /// The longest packet.
    pub mtu_bytes: u32,
    /// A bridge in the same namespace to attach it to.
    pub bridge: Option<String>,
    /// The number of queues of the device, over all carrying processes.
    pub queues_count: usize,
    /// Do its frames cross to other machines?
    pub reaches_machines: bool,
}

/// Why an interface could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// There is no such namespace.
    #[error(
        "there is no network namespace {0}: `ip netns list` shows the named ones, `pid:N` takes a process's"
    )]
    NoNamespace(NamespaceName),
    /// The process that stood for the namespace has ended. Its process id means nothing any more.
    #[error("the process of {0} has ended: name another process, or a namespace")]
    NoProcess(NamespaceName),
    /// The namespace cannot be entered.
    #[error("cannot enter the network namespace {0}: {1}; this needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")]
    Entry(NamespaceName, Errno),
    /// The kernel has no TAP devices.
    #[error("there is no /dev/net/tun: `modprobe tun`, or give the container that device")]
    NoTap,
    /// The process lacks the permission.
    #[error("making {0} is not permitted: run as root, or with CAP_NET_ADMIN")]
    NotPermitted(String),
    /// The name is taken.
    #[error("the name {0} is taken already: choose another name, or end what holds it by `bywire eth down`")]
    NameTaken(String),
    /// There is no such bridge.
    #[error(
        "there is no bridge {bridge} in the namespace of {interface}: `ip link add {bridge} type bridge` makes one"
    )]
    NoBridge {
        /// The bridge that was asked for.
        bridge: String,
        /// The interface.
        interface: String,
    },
    /// IPv6 over an MTU that is too small for it.
    #[error("{0} cannot have an IPv6 address at an MTU of {1} bytes: IPv6 needs at least {IPV6_MTU_BYTES}")]
    MtuForIpv6(String, u32),
    /// Another error of the kernel.
    #[error("cannot {action} {interface}: {cause}")]
    Kernel {
        /// The failed action.
        action: &'static str,
        /// The interface.
        interface: String,
        /// The error of the kernel.
        cause: io::Error,
    },
}

/// An existing interface.
#[derive(Debug)]
pub struct Interface {
    /// The current state of the interface, as planned.
    pub plan: Plan,
    /// The offloads that the kernel granted to the device.
    pub offloads: Offloads,
}

impl Interface {
    /// Makes the interface of `plan`. The device is made in `workshop`, an empty namespace. The interface disappears
    /// when the returned queues are closed.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub fn build(plan: Plan, workshop: &Namespace) -> Result<(Self, Vec<Queue>), InterfaceError> {
        plan.check()?;
        let namespace = open(&plan.namespace)?;
        let made = workshop.run(|| plan.make_device(&namespace));
        let tap = made.map_err(|cause| InterfaceError::Entry(NamespaceName::Current, cause))??;
        plan.inside(&namespace, || plan.configure())??;
        Ok((Self { plan, offloads: tap.offloads }, tap.queues))
    }

    /// The interface's current state in the kernel.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub fn look(&self) -> Result<Link, InterfaceError> {
        let namespace = open(&self.plan.namespace)?;
        self.plan.inside(&namespace, || {
            let found = Links::open().and_then(|mut links| links.find(&self.plan.name));
            found.map_err(|cause| self.plan.failed("look at", cause))
        })?
    }

    /// Changes the MTU and the addresses of the interface to those of `wanted`. Nothing else of an existing interface
    /// can be changed. After a failure, `plan` holds what was changed up to then.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub fn adapt(&mut self, wanted: Plan) -> Result<(), InterfaceError> {
        // The namespace stays the same, even if the process id in `wanted` belongs to another process by now.
        let wanted = Plan { namespace: self.plan.namespace.clone(), ..wanted };
        wanted.check()?;
        let namespace = open(&wanted.namespace)?;
        let before = self.plan.clone();
        let now = &mut self.plan;
        wanted.inside(&namespace, || {
            let failed = |cause| wanted.failed("change", cause);
            let mut links = Links::open().map_err(failed)?;
            let index = links.find(&wanted.name).map_err(failed)?.index;
            if wanted.mtu_bytes != before.mtu_bytes {
                let change = Change {
                    mtu_bytes: Some(wanted.mtu_bytes),
                    superframe_segments_max: wanted.superframe_segments_max(),
                    ..Change::default()
                };
                links.change(index, change).map_err(failed)?;
                now.mtu_bytes = wanted.mtu_bytes;
            }
            for old in before.addresses.iter().filter(|cidr| !wanted.addresses.contains(cidr)) {
                // Another program may have removed it already.
                let _ = links.remove_address(index, *old);
                now.addresses.retain(|cidr| cidr != old);
            }
            for new in wanted.addresses.iter().filter(|cidr| !before.addresses.contains(cidr)) {
                links.add_address(index, *new).map_err(failed)?;
                now.addresses.push(*new);
            }
            Ok(())
        })??;
        self.plan = wanted;
        Ok(())
    }
}

impl Plan {
    /// Finds errors that the kernel would report only half-way.
    fn check(&self) -> Result<(), InterfaceError> {
        let needs_more = |cidr: &&Cidr| cidr.address.is_ipv6() && self.mtu_bytes < IPV6_MTU_BYTES;
        match self.addresses.iter().find(needs_more) {
            Some(cidr) => {
                Err(InterfaceError::MtuForIpv6(format!("{} ({cidr})", self.label()), self.mtu_bytes))
            }
            None => Ok(()),
        }
    }

    /// The most segments of a superframe. One to another machine leaves as one batch of packets, by one call of the kernel.
    /// Longer ones would take a second call, and a second receive there.
    fn superframe_segments_max(&self) -> Option<u32> {
        let packets = BATCH_BYTES_MAX as u32 / (self.mtu_bytes + PACKET_OVERHEAD_BYTES);
        self.reaches_machines.then_some(packets.max(1))
    }

    /// The label of the interface: `NETNS:NAME`.
    pub fn label(&self) -> String {
        format!("{}:{}", self.namespace, self.name)
    }

    /// Makes the device in this thread's namespace and moves it to the target namespace.
    fn make_device(&self, target: &Namespace) -> Result<Tap, InterfaceError> {
        let wanted = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };
        let tap = Tap::create(&self.name, self.queues_count, wanted).map_err(|error| match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => InterfaceError::NoTap,
            Errno::PERM | Errno::ACCESS => InterfaceError::NotPermitted(self.label()),
            Errno::BUSY | Errno::EXIST => InterfaceError::NameTaken(self.label()),
            error => self.failed("make", error.into()),
        })?;
        let mut links = Links::open().map_err(|cause| self.failed("make", cause))?;
        let index = links.find(&self.name).map_err(|cause| self.failed("make", cause))?.index;
        links.hand_over(index, target.as_fd()).map_err(|cause| {
            match cause.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::EXIST) => InterfaceError::NameTaken(self.label()),
                Some(Errno::PERM) => InterfaceError::NotPermitted(self.label()),
                _ => self.failed("hand over", cause),
            }
        })?;
        Ok(tap)
    }

    /// Sets the addresses of the device and sets it up, in this thread's namespace.
    fn configure(&self) -> Result<(), InterfaceError> {
        let failed = |cause| self.failed("set up", cause);
        let mut links = Links::open().map_err(failed)?;
        let index = links.find(&self.name).map_err(failed)?.index;
        let bridge =
            match &self.bridge {
                Some(name) => Some(links.find(name).map_err(|_| InterfaceError::NoBridge {
                    bridge: name.clone(),
                    interface: self.label(),
                })?),
                None => None,
            };
        let change = Change {
            mac: Some(self.mac),
            mtu_bytes: Some(self.mtu_bytes),
            superframe_bytes_max: Some(SUPERFRAME_BYTES_MAX),
            superframe_segments_max: self.superframe_segments_max(),
            bridge: bridge.map(|link| link.index),
            up: Some(true),
        };
        links.change(index, change).map_err(failed)?;
        for cidr in &self.addresses {
            links.add_address(index, *cidr).map_err(|cause| self.failed("give an address to", cause))?;
        }
        Ok(())
    }

    fn inside<T: Send>(
        &self,
        namespace: &Namespace,
        action: impl FnOnce() -> T + Send,
    ) -> Result<T, InterfaceError> {
        namespace.run(action).map_err(|cause| InterfaceError::Entry(self.namespace.clone(), cause))
    }

    fn failed(&self, action: &'static str, cause: io::Error) -> InterfaceError {
        InterfaceError::Kernel { action, interface: self.label(), cause }
    }
}

/// True if the kernel accepts this name for an interface.
pub fn is_name(text: &str) -> bool {
    let good =
        |letter: char| !letter.is_whitespace() && !letter.is_control() && !matches!(letter, '/' | ':' | '%');
    (1..=tap::NAME_BYTES_MAX).contains(&text.len()) && text != "." && text != ".." && text.chars().all(good)
}

fn open(name: &NamespaceName) -> Result<Namespace, InterfaceError> {
    Namespace::open(name).map_err(|error| match error {
        Errno::SRCH | Errno::NOENT if matches!(name, NamespaceName::Process(_)) => {
            InterfaceError::NoProcess(name.clone())
        }
        Errno::NOENT | Errno::SRCH => InterfaceError::NoNamespace(name.clone()),
        error => InterfaceError::Entry(name.clone(), error),
    })
}
