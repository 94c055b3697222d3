//! TAP devices with virtio-net headers: the kernel's end of an Ethernet interface whose frames we carry.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The header in front of every frame that is read or written: `struct virtio_net_hdr`.
pub const HEADER_BYTES: usize = 10;
/// The longest name of an interface.
pub const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;
/// The most queues that the kernel gives one device.
pub const QUEUES_MAX: usize = 256;

/// Work that the kernel may leave to the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums.
    pub checksum: bool,
    /// Cutting of TCP superframes.
    pub tcp_segmentation: bool,
    /// Cutting of UDP superframes (Linux 6.2).
    pub udp_segmentation: bool,
}

/// A TAP device of this process. It ends when every queue is dropped.
#[derive(Debug)]
pub struct Tap {
    /// The name that the kernel gave it.
    pub name: String,
    /// The offloads that the kernel accepted.
    pub offloads: Offloads,
    /// Its queues, each a non-blocking descriptor.
    pub queues: Vec<Queue>,
}

/// One queue of a TAP device.
#[derive(Debug)]
pub struct Queue {
    file: OwnedFd,
}

impl Tap {
    /// Makes the device `name` (a `%d` in it stands for a free number) in this thread's network namespace, with
    /// `queues` queues and as much of `wanted` as the kernel accepts.
    ///
    /// # Errors
    /// [`Errno::NOENT`] and [`Errno::NODEV`] without `/dev/net/tun`, [`Errno::PERM`] without CAP_NET_ADMIN,
    /// [`Errno::BUSY`] and [`Errno::EXIST`] if the name is taken, [`Errno::INVAL`] for a bad name or number of
    /// queues.
    pub fn create(name: &str, queues: usize, wanted: Offloads) -> Result<Self, Errno> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !(1..=QUEUES_MAX).contains(&queues) {
            return Err(Errno::INVAL);
        }
        let first = Queue::open()?;
        let name = first.attach(name, libc::IFF_TUN_EXCL)?;
        let offloads = first.offer(wanted)?;
        let mut tap = Self { name, offloads, queues: vec![first] };
        while tap.queues.len() < queues {
            let queue = Queue::open()?;
            queue.attach(&tap.name, 0)?;
            // The mask belongs to the device: the last call of any queue wins.
            queue.set_offloads(offloads)?;
            tap.queues.push(queue);
        }
        Ok(tap)
    }
}

impl Queue {
    /// A queue that another process has attached and passed on.
    pub fn from_descriptor(file: OwnedFd) -> Self {
        Self { file }
    }

    /// Reads one header and frame. A frame that does not fit into `buffer` is silently cut off.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if there is no frame, [`Errno::BADFD`] if the device has gone.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.file, buffer)
    }

    /// Writes one header and frame.
    ///
    /// # Errors
    /// [`Errno::IO`] while the interface is down, [`Errno::INVAL`] if the kernel rejects the frame, [`Errno::AGAIN`]
    /// or [`Errno::NOMEM`] without room, [`Errno::BADFD`] if the device has gone.
    #[inline]
    pub fn write(&self, frame: &[u8]) -> Result<(), Errno> {
        rustix::io::write(&self.file, frame).map(drop)
    }

    /// Writes one header and frame, gathered from pieces.
    ///
    /// # Errors
    /// As [`Queue::write`].
    #[inline]
    pub fn write_pieces(&self, pieces: &[std::io::IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::writev(&self.file, pieces).map(drop)
    }

    fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map(|file| Self { file })
    }

    /// Makes this a queue of `name`, and returns the name that the kernel gave the device.
    fn attach(&self, name: &str, exclusive: i32) -> Result<String, Errno> {
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE | exclusive;
        // SAFETY: an ifreq is plain data, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            // C's characters have a sign on some architectures.
            *to = from as libc::c_char;
        }
        // The field has sixteen bits, and IFF_TUN_EXCL is the highest.
        request.ifr_ifru.ifru_flags = (flags as u16).cast_signed();
        // SAFETY: TUNSETIFF reads and writes one ifreq.
        unsafe { self.control(libc::TUNSETIFF, (&raw mut request).cast()) }?;
        let named = request.ifr_name.map(|byte| byte as u8);
        let named = CStr::from_bytes_until_nul(&named).map_err(|_| Errno::INVAL)?;
        Ok(named.to_string_lossy().into_owned())
    }

    /// Offers `wanted`, then less until the kernel agrees.
    fn offer(&self, wanted: Offloads) -> Result<Offloads, Errno> {
        let without_udp = Offloads { udp_segmentation: false, ..wanted };
        let checksum = Offloads { tcp_segmentation: false, ..without_udp };
        for offloads in [wanted, without_udp, checksum, Offloads::default()] {
            match self.set_offloads(offloads) {
                Ok(()) => return Ok(offloads),
                Err(Errno::INVAL) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::INVAL)
    }

    fn set_offloads(&self, offloads: Offloads) -> Result<(), Errno> {
        /// `TUN_F_USO4` and `TUN_F_USO6` of linux/if_tun.h. The kernel takes them only together.
        const UDP_SEGMENTATION: libc::c_uint = 0x20 | 0x40;
        let mut mask = 0;
        if offloads.checksum {
            mask |= libc::TUN_F_CSUM;
        }
        if offloads.checksum && offloads.tcp_segmentation {
            mask |= libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        }
        if offloads.checksum && offloads.udp_segmentation {
            mask |= UDP_SEGMENTATION;
        }
        // SAFETY: TUNSETOFFLOAD takes its argument by value and touches no memory of ours.
        unsafe { self.control(libc::TUNSETOFFLOAD, std::ptr::without_provenance_mut(mask as usize)) }
    }

    /// # Safety
    /// `argument` must be valid for `request`.
    unsafe fn control(&self, request: libc::Ioctl, argument: *mut libc::c_void) -> Result<(), Errno> {
        // SAFETY: the descriptor is ours; the caller vouches for the argument.
        let status = unsafe { libc::ioctl(self.file.as_raw_fd(), request, argument) };
        if status >= 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<Queue> for OwnedFd {
    fn from(queue: Queue) -> Self {
        queue.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Offloads = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };

    /// Runs the test in a namespace of its own, or not at all if this machine cannot make one.
    fn in_fresh_namespace(test: impl FnOnce() + Send) {
        match crate::namespace::Namespace::fresh() {
            Ok(namespace) => namespace.run(test).expect("a thread inside"),
            Err(error) => println!("not run: no network namespace can be made here ({error}): run as root"),
        }
    }

    #[test]
    fn a_device_is_made_with_its_queues_offloads_and_name() {
        in_fresh_namespace(|| {
            let tap = Tap::create("bytap%d", 3, ALL).expect("a device");
            assert_eq!((tap.name.as_str(), tap.queues.len()), ("bytap0", 3));
            assert!(tap.offloads.checksum && tap.offloads.tcp_segmentation);
            assert_eq!(tap.queues[0].read(&mut [0; 64]), Err(Errno::AGAIN), "it does not block");
            assert_eq!(Tap::create("bytap0", 1, ALL).err(), Some(Errno::BUSY));
            drop(tap);
            // A child process of a concurrent test has copies of all descriptors until its `exec`.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            let mut again = Tap::create("bytap0", 1, Offloads::default());
            while again.as_ref().err() == Some(&Errno::BUSY) && std::time::Instant::now() < deadline {
                again = Tap::create("bytap0", 1, Offloads::default());
            }
            again.expect("the name is free again");
        });
    }

    #[test]
    fn impossible_requests_are_refused() {
        assert_eq!(Tap::create("", 1, ALL).err(), Some(Errno::INVAL));
        assert_eq!(Tap::create("sixteen-letters-", 1, ALL).err(), Some(Errno::INVAL));
        assert_eq!(Tap::create("a", 257, ALL).err(), Some(Errno::INVAL));
    }
}
