//! A wake-up that many processes may ring and only its owner may hear.
//!
//! A pipe, not an eventfd: a holder of the writing end of a pipe cannot drain it, unless it runs as
//! the same user and reopens it through `/proc`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// The owner's end.
#[derive(Debug)]
pub struct Bell {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// A ringer's end.
#[derive(Debug)]
pub struct Ringer {
    writer: OwnedFd,
}

impl Bell {
    /// # Errors
    /// What `pipe2` said (out of descriptors).
    pub fn new() -> Result<Self, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { reader, writer })
    }

    /// The end to hand to those who may ring.
    pub fn ringing_end(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }

    /// Takes what has been rung so far.
    pub fn silence(&self) {
        let mut rung = [0u8; 256];
        // A full buffer means that more may be there; level-triggered polling comes back for it.
        let _ = rustix::io::read(&self.reader, &mut rung);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

impl Ringer {
    /// Takes over a descriptor that a peer sent, made non-blocking so that a full pipe cannot hold us.
    ///
    /// # Errors
    /// [`Errno::INVAL`] when it is not the writing end of a pipe.
    pub fn accept(writer: OwnedFd) -> Result<Self, Errno> {
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&writer)?.st_mode);
        if kind != rustix::fs::FileType::Fifo {
            return Err(Errno::INVAL);
        }
        let flags = rustix::fs::fcntl_getfl(&writer)?;
        // O_NONBLOCK belongs to the open file that the owner shares, and the owner could clear it; so
        // a peer that does can stall our write on its full pipe. `RWF_NOWAIT` closes that hole below.
        rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self { writer })
    }

    /// Rings once. A full pipe has been rung already; a closed one has no listener left.
    pub fn ring(&self) {
        let byte = [rustix::io::IoSlice::new(b"!")];
        let result = rustix::io::pwritev2(&self.writer, &byte, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT);
        if matches!(result, Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)) {
            let _ = rustix::io::write(&self.writer, b"!");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_heard_and_a_full_bell_does_not_hold_the_ringer() {
        let bell = Bell::new().expect("pipe");
        let ringer = Ringer::accept(bell.ringing_end().try_clone_to_owned().expect("dup")).expect("pipe end");
        // The owner turns blocking on, as a hostile one would.
        rustix::fs::fcntl_setfl(bell.ringing_end(), rustix::fs::OFlags::empty()).expect("fcntl");
        for _ in 0..200_000 {
            ringer.ring();
        }
        let mut poller = crate::poller::Poller::new().expect("epoll");
        poller.add(&bell, 7).expect("add");
        assert_eq!(poller.wait(None).expect("wait").collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn only_pipes_can_be_rung() {
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        assert_eq!(Ringer::accept(file).err(), Some(Errno::INVAL));
    }
}
