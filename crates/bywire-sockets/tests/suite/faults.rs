//! Whatever a service, a machine or a program lacks, every byte arrives, by TCP if necessary.
//!
//! The service is absent, stopped, of another version or out of reach. There are no descriptors, no memory, no
//! mappings, a file size limit, a full disk, `chroot`, exits by a signal, invalid settings, paired ends that moved no
//! bytes, and a user with small limits (as root). The log counts kernel bytes.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::test_service::calls::{duplicate, set_limit, signal};
use crate::test_service::{self, Running, TestService};
use bywire_pairing::service::Service;
use bywire_pairing::user::Scope;
use bywire_sys::listener::Listener;
use bywire_sys::socket::Received;

/// A user that owns nothing, on every system.
const NOBODY: u32 = 65534;
const ROUNDS: u8 = 200;

/// This test as a program with the library, in the given role.
fn program(pairing: &TestService, role: &str) -> Command {
    pairing.program(role, Some(4))
}

/// Sends bytes both ways between two ends of this process.
fn talk((client, server): (RawFd, RawFd)) {
    for round in 0..ROUNDS {
        for (from, to) in [(client, server), (server, client)] {
            assert_eq!(test_service::send(from, &[round], 0), 1, "round {round}: {}", test_service::errno());
            assert!(test_service::poll_for(to, 20_000), "round {round} is not heard");
            assert_eq!(test_service::receive(to, 1, 0), (1, vec![round]));
        }
    }
}

/// The behaviour of a program without faults of its own.
fn say_right() {
    let ends = test_service::pair();
    talk(ends);
    // Waits for however long the service takes.
    if test_service::role().as_deref() == Some("carry") {
        test_service::carry(ends);
    }
    test_service::say("right");
}

/// The roles of a program without faults of its own.
const RIGHT: [(&str, fn()); 2] = [("talk", say_right), ("carry", say_right)];

fn is_right(mut command: impl std::borrow::BorrowMut<Command>) {
    let mut running = Running::start(command.borrow_mut());
    assert_eq!(running.hear(), "right");
    drop(running.child.stdin.take());
    assert!(running.end().success());
}

#[test]
fn a_missing_service_has_no_cost() {
    if test_service::plays(&RIGHT) {
        return;
    }
    let pairing = TestService::without_service();
    is_right(program(&pairing, "talk"));
    // A socket name without a service, as a killed one leaves it.
    drop(Listener::bind(&pairing.service).expect("bound"));
    is_right(program(&pairing, "talk"));
}

/// The service, as a role.
fn serve() {
    let path = std::path::PathBuf::from(test_service::told("BYWIRE_TEST_SERVICE"));
    let mut service = Service::start(&path, Scope::User).expect("a service");
    test_service::say("listens");
    service.serve(Duration::from_secs(600)).expect("served");
}

fn start_service(pairing: &TestService) -> Running {
    let mut service = program(pairing, "serve");
    let mut service =
        Running::start(service.env_remove("LD_PRELOAD").env("BYWIRE_TEST_SERVICE", &pairing.service));
    assert_eq!(service.hear(), "listens");
    service
}

#[test]
fn a_stopped_service_delays_nobody() {
    if test_service::plays(&[("serve", serve), ("talk", say_right), ("carry", say_right)]) {
        return;
    }
    let pairing = TestService::without_service();
    let service = start_service(&pairing);
    signal(service.child.id(), libc::SIGSTOP);
    is_right(program(&pairing, "talk"));
    signal(service.child.id(), libc::SIGCONT);
    test_service::eventually("it goes on", || bywire_pairing::status::query(&pairing.service).ok());
    is_right(program(&pairing, "carry"));
    assert_eq!(pairing.status().carried_ever, 1, "the one that came later was carried");
}

#[test]
fn a_service_of_another_version_is_not_used() {
    if test_service::plays(&RIGHT) {
        return;
    }
    assert_eq!(hello_to_another_version(false), Some((bywire_pairing::protocol::PACKET_BYTES, 2)));
}

#[test]
fn the_greeting_reaches_a_service_that_accepts_before_it_takes_descriptors() {
    if test_service::plays(&RIGHT) {
        return;
    }
    match hello_to_another_version(true) {
        None => println!("not run: this kernel refuses no descriptors (SO_PASSRIGHTS, Linux 6.16)"),
        said => assert_eq!(said, Some((bywire_pairing::protocol::PACKET_BYTES, 2))),
    }
}

/// What a program sends to a service of another version, which then hangs up. The service takes descriptors only from
/// programs that it has accepted, or from all. `None`: this kernel cannot make that difference.
fn hello_to_another_version(is_guarded: bool) -> Option<(usize, usize)> {
    let pairing = TestService::without_service();
    let listener = Listener::bind(&pairing.service).expect("bound");
    if is_guarded && !listener.guard(true) {
        return None;
    }
    let other = std::thread::spawn(move || {
        let caller = test_service::eventually("somebody calls", || listener.accept().expect("accept"));
        let mut buffer = [0; 64];
        test_service::eventually("says hello", || match caller.receive(&mut buffer) {
            Ok(Received::Packet(length, descriptors)) => Some((length, descriptors.len())),
            _ => None,
        })
    });
    is_right(program(&pairing, "talk"));
    Some(other.join().expect("it was called"))
}

#[test]
fn without_permission_to_reach_the_service_it_is_tcp() {
    if test_service::plays(&RIGHT) || !test_service::is_root() {
        return;
    }
    // Root's own service, which is for root only.
    let pairing = TestService::new();
    pairing.open_to_all();
    is_right(pairing.user(NOBODY, "talk"));
    assert_eq!(pairing.status().carried_ever, 0);
}

#[test]
fn without_descriptors_it_is_tcp() {
    if test_service::role().is_some() {
        let ends = test_service::pair();
        set_limit(libc::RLIMIT_NOFILE, 64);
        while duplicate(ends.0) >= 0 {}
        talk(ends);
        return test_service::say("right");
    }
    let pairing = TestService::new();
    is_right(program(&pairing, "talk"));
    assert_eq!(pairing.status().carried_ever, 0);
}

#[test]
fn a_service_short_of_descriptors_serves_some_programs() {
    match test_service::role().as_deref() {
        Some("serve") => {
            set_limit(libc::RLIMIT_NOFILE, 64);
            return serve();
        }
        Some(role) => {
            let ends = test_service::pair();
            talk(ends);
            if role == "carry" {
                test_service::carry(ends);
            }
            let before = test_service::kernel_sent(ends.0);
            talk(ends);
            test_service::say(if test_service::kernel_sent(ends.0) == before {
                "carried"
            } else {
                "not carried"
            });
            let _told = std::io::stdin().read(&mut [0]);
            return talk(ends);
        }
        None => {}
    }
    let pairing = TestService::without_service();
    let mut service = start_service(&pairing);
    let mut first = Running::start(&mut program(&pairing, "carry"));
    assert_eq!(first.hear(), "carried");
    let mut programs: Vec<_> = (1..20).map(|_| Running::start(&mut program(&pairing, "talk"))).collect();
    // Asked before the first one ends, which frees a slot.
    let carried = programs.iter_mut().filter_map(|program| (program.hear() == "carried").then_some(()));
    assert!(carried.count() < programs.len(), "there was room for all");
    programs.push(first);
    programs.iter_mut().for_each(|program| drop(program.child.stdin.take()));
    programs.iter_mut().for_each(|program| assert!(program.end().success()));
    // One slot is free for any caller.
    let found =
        test_service::eventually("it answers", || bywire_pairing::status::query(&pairing.service).ok());
    assert!(found.carried_ever >= 1, "{found:?}");
    let mut last = Running::start(&mut program(&pairing, "talk"));
    last.hear();
    drop(last.child.stdin.take());
    assert!(last.end().success());
    assert!(service.child.try_wait().expect("ours").is_none());
}

#[test]
fn without_memory_it_is_tcp() {
    if let Some(kind) = test_service::role() {
        let ends = test_service::pair();
        // The address space in use stays. Files may not become longer than a segment.
        set_limit(if kind == "files" { libc::RLIMIT_FSIZE } else { libc::RLIMIT_AS }, 1 << 20);
        talk(ends);
        return test_service::say("right");
    }
    for kind in ["space", "files"] {
        let pairing = TestService::new();
        let mut command = program(&pairing, kind);
        command.env("BYWIRE_LOG", pairing.path("log"));
        is_right(command);
        assert_eq!(pairing.status().carried_ever, 0, "{kind}");
    }
}

#[test]
fn attempts_without_memory_leave_no_descriptors_open() {
    if test_service::role().is_some() {
        let ends = test_service::pair();
        set_limit(libc::RLIMIT_FSIZE, 0);
        let open = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
        let before = open();
        talk(ends);
        assert_eq!(open(), before);
        return test_service::say("right");
    }
    let pairing = TestService::new();
    is_right(program(&pairing, "talk"));
    assert_eq!(pairing.status().carried_ever, 0);
}

unsafe extern "C" {
    fn closefrom(first: RawFd);
}

#[test]
fn an_older_kernel_carries_as_well() {
    if test_service::role().is_some() {
        let ends = test_service::pair();
        talk(ends);
        test_service::carry(ends);
        // SAFETY: no pointers.
        let copies = [100, 200].map(|number| unsafe { libc::fcntl(ends.0, libc::F_DUPFD, number) });
        // SAFETY: no pointers. Nothing else of this process is open from there on.
        unsafe { closefrom(copies[0]) };
        // SAFETY: no pointers.
        assert_eq!(copies.map(|copy| unsafe { libc::fcntl(copy, libc::F_GETFD) }), [-1; 2]);
        test_service::carry(ends);
        return test_service::say("right");
    }
    let pairing = TestService::new();
    let Some(older) = pairing.compiled("older.c", "older.so", &["-shared", "-fPIC"]) else { return };
    let mut command = program(&pairing, "carry");
    let library = TestService::library();
    is_right(command.env("LD_PRELOAD", format!("{} {}", library.display(), older.display())));
    assert_eq!(pairing.status().carried_ever, 1, "{:?}", pairing.status());
}

/// More mappings than a connection with both ends in one process takes, and its epoll sets and doorbells.
const MAPPINGS_LEFT_MAX: usize = 24;

#[test]
fn without_mappings_it_is_tcp() {
    if test_service::role().is_some() {
        // What the program needs by itself is there before.
        talk(test_service::pair());
        let mut pages = Vec::with_capacity(1 << 20);
        while let Some(page) = map_page(pages.len()) {
            pages.push(page);
        }
        for left in 0..MAPPINGS_LEFT_MAX {
            let before = mappings();
            // A pair for each step of the way into memory that may fail.
            let ends = test_service::pair();
            talk(ends);
            [ends.0, ends.1].into_iter().for_each(test_service::close);
            let after = mappings();
            assert!(after <= before + 1, "{left} left: {before} mappings before, {after} after");
            unmap_page(pages.pop().expect("one more"));
        }
        pages.into_iter().for_each(unmap_page);
        let ends = test_service::pair();
        test_service::carry(ends);
        return test_service::say("right");
    }
    let pairing = TestService::new();
    is_right(program(&pairing, "talk"));
    assert!(pairing.status().carried_ever >= 1, "{:?}", pairing.status());
}

/// A mapping that does not merge with its neighbours; `None`: there may be no more.
fn map_page(number: usize) -> Option<usize> {
    let protection = if number.is_multiple_of(2) { libc::PROT_READ } else { libc::PROT_NONE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
    (page != libc::MAP_FAILED).then_some(page as usize)
}

fn unmap_page(page: usize) {
    // SAFETY: one of `map_page`, which nobody uses.
    assert_eq!(unsafe { libc::munmap(page as *mut libc::c_void, 4096) }, 0);
}

/// The number of this process's mappings.
fn mappings() -> usize {
    // Read in place: a longer buffer might need another mapping.
    let mut file = std::fs::File::open("/proc/self/maps").expect("mappings");
    let (mut piece, mut lines) = ([0; 1 << 14], 0);
    while let Ok(length @ 1..) = file.read(&mut piece) {
        lines += piece[..length].iter().filter(|byte| **byte == b'\n').count();
    }
    lines
}

#[test]
fn a_program_is_carried_after_chroot() {
    if test_service::role().is_some() {
        let empty = std::path::PathBuf::from(test_service::told("BYWIRE_TEST_ROOT"));
        let empty = std::ffi::CString::new(empty.into_os_string().into_encoded_bytes()).expect("a path");
        // SAFETY: a live string.
        assert_eq!(unsafe { libc::chroot(empty.as_ptr()) }, 0);
        return say_right();
    }
    if !test_service::is_root() {
        return;
    }
    let pairing = TestService::new();
    let empty = tempfile::tempdir().expect("a directory");
    let mut command = program(&pairing, "talk");
    command.env("BYWIRE_TEST_ROOT", empty.path());
    is_right(command);
    assert_eq!(pairing.status().carried_ever, 1);
}

#[test]
fn a_full_disk_disables_only_the_log_and_spinning() {
    if test_service::plays(&RIGHT) || !test_service::is_root() {
        return;
    }
    let pairing = TestService::new();
    let full = tempfile::tempdir().expect("a directory");
    let inner = program(&pairing, "carry");
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=4k tmpfs \"$0\" && head -c 4096 /dev/zero > \"$0/file\" || exit 77
        echo >> \"$0/file\" && exit 77
        LD_PRELOAD=$1 BYWIRE_SOCKETS_CORES=$0/cores BYWIRE_LOG=$0/log; export LD_PRELOAD BYWIRE_SOCKETS_CORES BYWIRE_LOG
        shift; exec \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(full.path()).arg(TestService::library());
    command.arg(inner.get_program()).args(inner.get_args()).stderr(Stdio::null());
    for (name, value) in inner.get_envs() {
        if let Some(value) = value
            && name != "LD_PRELOAD"
        {
            command.env(name, value);
        }
    }
    let mut running = Running::start(&mut command);
    assert_eq!(running.hear(), "right");
    assert!(running.end().success());
    assert_eq!(pairing.status().carried_ever, 1, "{:?}", pairing.status());
}

#[test]
fn termination_by_a_signal_resets_connections_and_an_orderly_exit_does_not() {
    if test_service::plays(&[("serve", serve_until_the_end), ("talk", talk_until_told)]) {
        return;
    }
    for (number, end) in [(None, "end"), (Some(libc::SIGTERM), "reset"), (Some(libc::SIGKILL), "reset")] {
        let pairing = TestService::new();
        let mut server = Running::start(&mut program(&pairing, "serve"));
        let port = server.hear();
        let mut client = program(&pairing, "talk");
        let mut client = Running::start(client.env("BYWIRE_TEST_PORT", port));
        assert_eq!(client.hear(), "right");
        let found = pairing.status();
        assert_eq!((found.carried, found.carried_ever), (1, 1), "{found:?}");
        match number {
            Some(number) => signal(client.child.id(), number),
            None => drop(client.child.stdin.take()),
        }
        assert_eq!(server.hear(), end, "{number:?}");
        client.end();
        let cut = if number.is_some() { 1 } else { 0 };
        test_service::eventually("both are gone", || pairing.status().processes == 0);
        assert_eq!(pairing.status().cut, cut, "{number:?}");
    }
}

fn serve_until_the_end() {
    let mut peer = test_service::first_caller();
    let mut byte = [0];
    loop {
        match peer.read(&mut byte) {
            Ok(1) => peer.write_all(&byte).expect("an answer"),
            Ok(_) => return test_service::say("end"),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return test_service::say("reset");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends and receives until the service reports a carried connection.
fn talk_until_told() {
    let mut peer = test_service::connected();
    for _ in 0..400 {
        peer.write_all(b"!").expect("sent");
        peer.read_exact(&mut [0]).expect("an answer");
    }
    test_service::until_carried(peer.as_raw_fd(), || test_service::converse(&mut peer, 1));
    test_service::say("right");
    let _told = std::io::stdin().read(&mut [0]);
}

#[test]
fn ends_that_moved_no_bytes_in_memory_are_reported_separately() {
    if let Some(role) = test_service::role() {
        let ends = test_service::pair();
        if role.starts_with("used") {
            test_service::carry(ends);
        } else {
            talk_until_paired(ends);
        }
        if role.ends_with("closes") {
            [ends.0, ends.1].into_iter().for_each(test_service::close);
        }
        return test_service::say("right");
    }
    for (role, unused) in [("used, closes", 0), ("used, leaves", 0), ("closes", 2), ("leaves", 2)] {
        let pairing = TestService::new();
        is_right(program(&pairing, role));
        test_service::eventually("it is gone", || pairing.status().processes == 0);
        let found = pairing.status();
        assert_eq!((found.carried_ever, found.unused, found.cut), (1, unused, 0), "{role}: {found:?}");
        assert_eq!(found.bytes > 0, unused == 0, "{role}: {found:?}");
    }
}

/// Makes no further call: the next ones would go through memory.
fn talk_until_paired((client, server): (RawFd, RawFd)) {
    let service = std::path::PathBuf::from(test_service::told("BYWIRE_SOCKETS_SERVICE"));
    let status = || test_service::eventually("it answers", || bywire_pairing::status::query(&service).ok());
    let is_paired = || status().carried_ever > 0;
    for (from, to) in [(client, server), (server, client)].into_iter().cycle().take(2000) {
        assert_eq!(test_service::send(from, b"!", 0), 1);
        if is_paired() {
            return;
        }
        assert!(test_service::poll_for(to, 20_000));
        assert_eq!(test_service::receive(to, 1, 0).0, 1);
        if is_paired() {
            return;
        }
    }
    panic!("never paired");
}

#[test]
fn invalid_settings_are_not_reported_in_a_programs_output() {
    if test_service::plays(&RIGHT) {
        return;
    }
    let pairing = TestService::new();
    let mut command = program(&pairing, "carry");
    command.env("BYWIRE_LOG", pairing.path("no/such/log")).env("BYWIRE_SOCKETS_SPIN", "perhaps");
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("said right") && !said.contains("perhaps"), "{said}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(pairing.status().carried_ever, 1);
}

#[test]
fn returned_bytes_are_logged_as_kernel_bytes() {
    if let Some(role) = test_service::role() {
        let (client, server) = test_service::pair();
        test_service::carry((client, server));
        assert_eq!(test_service::send(client, &[7; 50_000], 0), 50_000);
        let given = test_service::kernel_given(client);
        match role.as_str() {
            "closes" => test_service::close(client),
            _ => assert_eq!(test_service::pass(server), 1),
        }
        let given = test_service::kernel_received(server) - given;
        // The kernel may count the end of the stream as a byte.
        assert!((50_000..=50_001).contains(&given), "{given} bytes were given back");
        return test_service::say(&test_service::kernel_received(server).to_string());
    }
    for role in ["closes", "passes"] {
        let pairing = TestService::new();
        let mut running = Running::start(program(&pairing, role).env("BYWIRE_LOG", pairing.path("log")));
        let received: u64 = running.hear().parse().expect("a number");
        assert!(running.end().success());
        let log = std::fs::read_to_string(pairing.path("log")).expect("a log");
        let through_kernel = |line: &str| {
            let words: Vec<u64> =
                line.split(' ').skip(4).map(|word| word.parse().expect("a number")).collect();
            (words[0] >= 50_000).then(|| words[0] - words[2])
        };
        let through_kernel: Vec<u64> = log.lines().filter_map(through_kernel).collect();
        assert_eq!(through_kernel.len(), 1, "one end has sent that much: {log}");
        assert!((through_kernel[0]..=through_kernel[0] + 1).contains(&received), "{received}: {log}");
    }
}

/// Limits of open files, of locked memory, of the length of files, and all of them.
#[test]
fn a_user_with_small_limits_continues_over_tcp_with_a_report() {
    if let Some(role) = test_service::role() {
        let ends = test_service::pair();
        for (name, kind, most) in [
            ("files", libc::RLIMIT_NOFILE, 12),
            ("memory", libc::RLIMIT_MEMLOCK, 0),
            ("length", libc::RLIMIT_FSIZE, 4096),
        ] {
            if role == name || role == "all" {
                set_limit(kind, most);
                while name == "files" && duplicate(ends.0) >= 0 {}
            }
        }
        talk(ends);
        [ends.0, ends.1].into_iter().for_each(test_service::close);
        return test_service::say("right");
    }
    if !test_service::is_root() {
        return;
    }
    let pairing = TestService::of_machine(bywire_pairing::space::Spaces::new(Vec::new()).expect("spaces"));
    for role in ["files", "memory", "length", "all"] {
        let log = pairing.path(role);
        std::fs::write(&log, "").expect("a log");
        std::os::unix::fs::chown(&log, Some(NOBODY), Some(NOBODY)).expect("given away");
        let mut command = pairing.user(NOBODY, role);
        command.env("BYWIRE_LOG", &log).stdin(Stdio::piped());
        is_right(command);
        let log = std::fs::read_to_string(&log).expect("a log");
        let fates: Vec<&str> = log.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        // Memory that is not locked is not limited.
        let is_carried = |fate: &&str| *fate == "carried";
        assert!(fates.len() >= 2 || role == "files" || role == "all", "{role}: {log}");
        assert!(role == "memory" || !fates.iter().any(is_carried), "{role}: {log}");
    }
}
