//! Calls continue when a descriptor is closed meanwhile, or by `exec`, the same without the library and with it:
//! receives and sends whose number means another file, the peer of a socket that `exec` has closed, a poll after a
//! shutdown by another program, a one-shot registration that has fired.

use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use bywire_testing::eventually;

use crate::test_service::roles::{in_role, this_test};
use crate::test_service::same::{on_its_way, pair, same, tell};
use crate::test_service::{self, calls, child, close, epoll};

/// A call in its own thread.
struct Call {
    thread: libc::pid_t,
    result: mpsc::Receiver<i64>,
}

impl Call {
    fn begin(call: impl FnOnce() -> i64 + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        let (ends, result) = mpsc::channel();
        std::thread::spawn(move || {
            // SAFETY: no arguments.
            sender.send(unsafe { libc::gettid() }).expect("heard");
            let _nobody_waits = ends.send(call());
        });
        Self { thread: receiver.recv().expect("it has begun"), result }
    }

    /// Waits until it sleeps in one of these system calls.
    fn sleeps_in(&self, calls: &[libc::c_long]) {
        let path = format!("/proc/self/task/{}/syscall", self.thread);
        let number = || std::fs::read_to_string(&path).ok()?.split(' ').next()?.parse().ok();
        eventually("it sleeps", || number().is_some_and(|number| calls.contains(&number)));
    }

    fn end(self, text: &mut String) {
        let found = self.result.recv_timeout(Duration::from_secs(30));
        tell(text, "the call is over", found.is_ok().into());
        tell(text, "its result", found.unwrap_or(0));
    }
}

/// System calls in which a thread sleeps for a socket, without the library and with it.
#[cfg(target_arch = "x86_64")]
const WAITS: [libc::c_long; 4] = [libc::SYS_recvfrom, libc::SYS_sendto, libc::SYS_ppoll, libc::SYS_poll];
/// There is no older form of `poll`.
#[cfg(not(target_arch = "x86_64"))]
const WAITS: [libc::c_long; 3] = [libc::SYS_recvfrom, libc::SYS_sendto, libc::SYS_ppoll];

/// Closes a descriptor, and gives its number to another file.
fn replace(fd: RawFd, other: RawFd) {
    close(fd);
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::dup2(other, fd) }, fd);
}

#[test]
fn a_receive_continues_when_its_number_means_another_file() {
    same(|text| {
        let (client, server) = pair();
        let receive = Call::begin(move || test_service::receive(server, 5, 0).0);
        receive.sleeps_in(&[libc::SYS_recvfrom, libc::SYS_futex, 449]);
        // This returns it to the kernel, if it was not there before.
        let holder = on_its_way(server);
        receive.sleeps_in(&WAITS);
        replace(server, epoll());
        tell(text, "send", test_service::send(client, b"words", 0));
        receive.end(text);
        drop(holder);
    });
}

#[test]
fn a_send_continues_when_its_number_means_another_file() {
    same(|text| {
        let (client, server) = pair();
        let piece = [b'x'; 65536];
        let mut sent = 0;
        // SAFETY: so many bytes.
        let fill = || unsafe { libc::send(client, piece.as_ptr().cast(), piece.len(), libc::MSG_DONTWAIT) };
        while let found @ 1.. = fill() {
            sent += found;
        }
        // From here on there is no room before the receiver has taken most of it.
        calls::set_option(client, libc::SOL_SOCKET, libc::SO_SNDBUF, 1);
        // This makes the process owe the kernel what it has no room for.
        let holder = on_its_way(server);
        let send = Call::begin(move || test_service::send(client, b"words", 0));
        send.sleeps_in(&WAITS);
        let (other, far) = UnixStream::pair().expect("a pair");
        replace(client, other.as_raw_fd());
        let (mut taken, mut bytes) = (0, vec![0u8; 65536]);
        loop {
            // SAFETY: room for so many bytes.
            let found = unsafe { libc::recv(server, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            if found <= 0 {
                tell(text, "the end", found as i64);
                break;
            }
            taken += found;
        }
        tell(text, "all is received", i64::from(taken == sent + 5));
        send.end(text);
        far.set_nonblocking(true).expect("it does not wait");
        tell(text, "the other file has", test_service::receive(far.as_raw_fd(), 5, 0).0);
        drop(holder);
    });
}

#[test]
fn sending_to_a_socket_closed_by_exec_reports_a_reset() {
    same(|text| {
        let (client, server) = pair();
        let heir = child(|| {
            close(server);
            // SAFETY: no pointers but words that live until the call is over.
            unsafe {
                assert_eq!(libc::fcntl(client, libc::F_SETFD, libc::FD_CLOEXEC), 0);
                let words = [c"sleep".as_ptr(), c"60".as_ptr(), std::ptr::null()];
                libc::execvp(words[0], words.as_ptr());
            }
            1
        });
        close(client);
        // The child has executed another program by then.
        test_service::settle_end(server);
        calls::shut_down(server, libc::SHUT_RD);
        tell(text, "send", test_service::send(server, b"words", 0));
        let hears = || test_service::poll(server, 0).1 & libc::POLLHUP != 0;
        let found = (0..4000).any(|_| {
            hears() || {
                std::thread::sleep(Duration::from_millis(5));
                false
            }
        });
        tell(text, "it hears of the reset", found.into());
        tell(text, "send", test_service::send(server, b"words", 0));
        calls::signal(heir as u32, libc::SIGKILL);
        test_service::end_of(heir);
    });
}

#[test]
fn a_poll_reports_a_shutdown_by_another_program() {
    same(|text| {
        if let Some(server) = test_service::role().and_then(|role| role.strip_prefix("heir ")?.parse().ok()) {
            calls::shut_down(server, libc::SHUT_RDWR);
            return;
        }
        let (client, server) = pair();
        calls::shut_down(server, libc::SHUT_RD);
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::fcntl(server, libc::F_SETFD, 0) }, 0);
        tell(text, "poll", test_service::poll(server, libc::POLLIN).1.into());
        let mut heir = std::process::Command::new(std::env::current_exe().expect("this test"));
        in_role(&mut heir, &this_test(), &format!("heir {server}")).stdout(std::process::Stdio::null());
        assert!(heir.status().expect("it starts").success(), "it shuts it down");
        tell(text, "poll", test_service::poll(server, libc::POLLIN).1.into());
        close(client);
    });
}

/// A one-shot registration that has fired, of a connection that has ended since.
#[test]
fn a_fired_one_shot_registration_is_silent_when_its_number_is_closed() {
    same(|text| {
        let (client, server) = pair();
        let set = epoll();
        let once = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        tell(text, "add", test_service::control(set, libc::EPOLL_CTL_ADD, server, once));
        tell(text, "send", test_service::send(client, b"words", 0));
        test_service::settle(server, 5);
        tell(text, &format!("it tells {:?}", test_service::wait(set)), 0);
        tell(text, "receive", test_service::receive(server, 5, 0).0);
        close(client);
        calls::shut_down(server, libc::SHUT_WR);
        eventually("it has hung up", || test_service::poll(server, 0).1 & libc::POLLHUP != 0);
        tell(text, &format!("it tells {:?}", test_service::wait(set)), 0);
        let duplicate = calls::duplicate(server);
        close(server);
        for _ in 0..2 {
            tell(text, &format!("it tells {:?}", test_service::wait(set)), 0);
        }
        close(duplicate);
    });
}
