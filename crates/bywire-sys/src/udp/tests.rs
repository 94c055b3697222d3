//! Tests of the sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::*;
use crate::option;

const LOOPBACKS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

fn pair(ip: IpAddr) -> [UdpSocket; 2] {
    let [a, b] = [(); 2].map(|()| UdpSocket::bind(SocketAddr::new(ip, 0)).expect("bound"));
    a.connect(b.local_address().expect("its address")).expect("connected");
    b.connect(a.local_address().expect("its address")).expect("connected");
    [a, b]
}

/// The result of a receive once a packet has arrived.
fn eventually<T>(mut receive: impl FnMut() -> Result<Option<T>, ReceiveError>) -> Result<T, ReceiveError> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match receive() {
            Ok(None) => assert!(Instant::now() < deadline, "timed out"),
            Ok(Some(found)) => return Ok(found),
            Err(error) => return Err(error),
        }
        std::thread::yield_now();
    }
}

#[test]
fn packets_cross_over_both_families_to_addresses_and_to_peers() {
    let everywhere = UdpSocket::bind_everywhere(0).expect("bound");
    let port = everywhere.local_address().expect("its address").port();
    let mut buffer = [0; 64];
    for ip in LOOPBACKS {
        let [a, b] = pair(ip);
        assert_eq!(b.receive(&mut buffer), Ok(None));
        a.send(None, b"one").expect("sent");
        assert_eq!((eventually(|| b.receive(&mut buffer)), &buffer[..3]), (Ok(3), &b"one"[..]));
        // An empty packet is a packet.
        b.send(None, b"").expect("sent");
        assert_eq!(eventually(|| a.receive(&mut buffer)), Ok(0));
        // An unconnected socket knows the sender, and answers.
        let one = UdpSocket::bind(SocketAddr::new(ip, 0)).expect("bound");
        one.send(Some(SocketAddr::new(ip, port)), b"two").expect("sent");
        let (length, from) = eventually(|| everywhere.receive_from(&mut buffer)).expect("it came");
        assert_eq!((length, from), (3, one.local_address().expect("its address")));
        everywhere.send(Some(from), b"three").expect("sent");
        assert_eq!(eventually(|| one.receive(&mut buffer)), Ok(5));
    }
}

#[test]
fn a_port_in_use_is_an_error_and_a_free_one_is_found() {
    let one = UdpSocket::bind_everywhere(0).expect("bound");
    let port = one.local_address().expect("its address").port();
    assert!(port != 0);
    assert_eq!(UdpSocket::bind_everywhere(port).err(), Some(Errno::ADDRINUSE));
}

#[test]
fn a_batch_arrives_as_packets_with_and_without_kernel_segmentation() {
    let batch: Vec<u8> = (0..10_u8).flat_map(|number| vec![number; 1000]).chain([10; 100]).collect();
    let mut buffer = vec![0; RECEIVE_BYTES];
    for (ip, gso) in LOOPBACKS.into_iter().flat_map(|ip| [(ip, true), (ip, false)]) {
        let [a, b] = pair(ip);
        a.set_gso(gso);
        for to in [None, Some(b.local_address().expect("its address"))] {
            assert_eq!(a.send_batch(to, &batch, 1000), Ok(batch.len()));
            for number in 0..=10 {
                let expected = if number == 10 { 100 } else { 1000 };
                assert_eq!(eventually(|| b.receive(&mut buffer)), Ok(expected));
                assert!(buffer[..expected].iter().all(|byte| *byte == number));
            }
            assert_eq!(b.receive(&mut buffer), Ok(None));
        }
        assert_eq!(a.uses_gso(), gso, "loopback segments");
    }
}

#[test]
fn a_batch_that_the_kernel_refuses_to_segment_arrives_packet_by_packet() {
    // From asm-generic/socket.h and include/uapi/linux/udp.h. Without checksums the kernel calls a segmented send invalid.
    const SO_NO_CHECK: i32 = 11;
    const UDP_NO_CHECK6_TX: i32 = 101;
    const UDP_NO_CHECK6_RX: i32 = 102;
    let mut buffer = [0; 2000];
    for ip in LOOPBACKS {
        let [a, b] = pair(ip);
        option::set(&a.file, libc::SOL_SOCKET, SO_NO_CHECK, 1).expect("set");
        if ip.is_ipv6() {
            option::set(&a.file, libc::SOL_UDP, UDP_NO_CHECK6_TX, 1).expect("set");
            option::set(&b.file, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1).expect("set");
        }
        for _ in 0..2 {
            assert_eq!(a.send_batch(None, &[7; 3500], 1000), Ok(3500));
            for expected in [1000, 1000, 1000, 500] {
                assert_eq!(eventually(|| b.receive(&mut buffer)), Ok(expected));
            }
            assert!(!a.uses_gso(), "it is not tried again");
        }
    }
}

#[test]
fn a_batch_of_packets_longer_than_the_mtu_is_too_long_and_segmentation_goes_on() {
    let Ok(namespace) = crate::namespace::Namespace::fresh() else {
        return println!("not run: no network namespace can be made here: run as root");
    };
    let check = || {
        let done = Command::new("ip").args(["link", "set", "lo", "up", "mtu", "1500"]).status();
        assert!(done.expect("`ip` runs").success());
        let [a, b] = pair(LOOPBACKS[0]);
        assert_eq!(a.send_batch(None, &[7; 6000], 2000), Err(SendError::TooLong));
        assert_eq!(a.send_batch(None, &[7; 2000], 1000), Ok(2000));
        assert!(a.uses_gso() && eventually(|| b.receive(&mut [0; 2000])) == Ok(1000));
    };
    namespace.run(check).expect("it is a namespace");
}

#[test]
fn packets_of_a_batch_are_coalesced_on_request() {
    let batch = vec![7; 12_000];
    for ip in LOOPBACKS {
        let [a, b] = pair(ip);
        assert!(b.enable_gro());
        assert_eq!(a.send_batch(None, &batch, 1200), Ok(batch.len()));
        let joined = Datagrams { bytes: batch.len(), bytes_each: 1200 };
        assert_eq!(eventually(|| b.receive_joined(&mut vec![0; RECEIVE_BYTES])), Ok(joined));
        a.send(None, &[1; 100]).expect("sent");
        let single = Datagrams { bytes: 100, bytes_each: 100 };
        assert_eq!(eventually(|| b.receive_joined(&mut vec![0; RECEIVE_BYTES])), Ok(single));
    }
}

#[test]
fn a_packet_is_answered_from_the_address_to_which_it_was_sent() {
    let second = IpAddr::from([127, 0, 0, 2]);
    for service in [UdpSocket::bind_everywhere(0), UdpSocket::bind(([0, 0, 0, 0], 0).into())] {
        let service = service.expect("bound");
        service.report_local_addresses().expect("the kernel reports them");
        let port = service.local_address().expect("its address").port();
        for ip in [LOOPBACKS[0], second, LOOPBACKS[1]] {
            let Ok(client) = UdpSocket::bind(SocketAddr::new(
                if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
                0,
            )) else {
                continue;
            };
            if ip.is_ipv6() && !service.is_v6 {
                continue;
            }
            let target = SocketAddr::new(ip, port);
            client.send(Some(target), b"?").expect("sent");
            let arrival = eventually(|| service.receive_arrival(&mut [0; 8])).expect("it came");
            assert_eq!((arrival.bytes, arrival.local), (1, Some(ip)));
            service.send_from(arrival.local, arrival.from, b"!!").expect("sent");
            assert_eq!(eventually(|| client.receive_from(&mut [0; 8])), Ok((2, target)));
            // Segmentation and a source address go together.
            service.send_batch_from(Some(ip), arrival.from, &[0; 250], 100).expect("sent");
            for bytes in [100, 100, 50] {
                assert_eq!(eventually(|| client.receive_from(&mut [0; 200])), Ok((bytes, target)));
            }
            // A socket for this client alone has the address as well.
            let own = service.connected_to(arrival.from, arrival.local).expect("connected");
            client.send(Some(target), b"???").expect("sent");
            assert_eq!(eventually(|| own.receive(&mut [0; 8])), Ok(3));
        }
        // An address that this machine does not have.
        let client = UdpSocket::bind(([127, 0, 0, 1], 0).into()).expect("bound");
        let to = client.local_address().expect("its address");
        service.send_from(Some([192, 0, 2, 1].into()), to, b"!").expect("sent from another one");
        let from = SocketAddr::new(LOOPBACKS[0], port);
        assert_eq!(eventually(|| client.receive_from(&mut [0; 8])), Ok((1, from)));
        for gso in [true, false] {
            service.set_gso(gso);
            let sent = service.send_batch_from(Some([192, 0, 2, 1].into()), to, b"!!!", 2);
            assert_eq!(sent, Ok(3), "sent from another one");
            for bytes in [2, 1] {
                assert_eq!(eventually(|| client.receive_from(&mut [0; 8])), Ok((bytes, from)));
            }
            assert_eq!(service.uses_gso(), gso);
        }
    }
}

#[test]
fn a_batch_above_the_limit_is_refused_and_one_at_the_limit_is_sent() {
    let [a, b] = pair(LOOPBACKS[0]);
    let invalid = Err(SendError::System(Errno::INVAL));
    assert_eq!(a.send_batch(None, &[0; 10], 0), invalid);
    assert_eq!(a.send_batch(None, &[0; BATCH_PACKETS_MAX + 1], 1), invalid);
    assert_eq!(a.send_batch(None, &[0; BATCH_BYTES_MAX + 1], 2000), invalid);
    let longest = BATCH_BYTES_MAX.div_ceil(BATCH_PACKETS_MAX);
    assert_eq!(a.send_batch(None, &[0; BATCH_BYTES_MAX], longest), Ok(BATCH_BYTES_MAX));
    let received = (0..BATCH_PACKETS_MAX).map(|_| eventually(|| b.receive(&mut [0; 2000])).expect("it came"));
    assert_eq!(received.sum::<usize>(), BATCH_BYTES_MAX);
}

#[test]
fn a_packet_that_does_not_fit_is_an_error_with_its_length() {
    for ip in LOOPBACKS {
        let [a, b] = pair(ip);
        let from = a.local_address().expect("its address");
        let truncated = ReceiveError::Truncated { length_bytes: 300 };
        a.send(None, &[1; 300]).expect("sent");
        assert_eq!(eventually(|| b.receive(&mut [0; 299])), Err(truncated));
        a.send(None, &[1; 300]).expect("sent");
        assert_eq!(eventually(|| b.receive_from(&mut [0; 299])), Err(truncated));
        a.send(None, &[1; 300]).expect("sent");
        assert_eq!(eventually(|| b.receive_from(&mut [0; 300])), Ok((300, from)));
    }
}

#[test]
fn a_packet_too_long_for_the_path_is_refused_and_not_fragmented() {
    for ip in LOOPBACKS {
        let [a, _b] = pair(ip);
        let whole = vec![0; usize::from(a.payload_bytes().expect("it is connected"))];
        a.send(None, &whole).expect("it fits");
        assert_eq!(a.send(None, &vec![0; BATCH_BYTES_MAX + 30]), Err(SendError::TooLong));
        // The MTU of loopback is 64 KiB, so for batches this shows only that the longest packets are sent.
        let half = whole.len() / 2;
        assert_eq!(a.send_batch(None, &whole[..2 * half], half), Ok(2 * half));
    }
    let route = route(SocketAddr::new(LOOPBACKS[0], 9)).expect("loopback");
    assert_eq!((route.local, usize::from(route.payload_bytes)), (LOOPBACKS[0], BATCH_BYTES_MAX));
}

#[test]
fn packets_that_overflow_a_queue_are_counted_and_waiting_ones_are_seen_through_a_duplicate() {
    let [a, b] = pair(LOOPBACKS[0]);
    let buffers = b.request_buffers(8192).expect("set");
    assert_eq!((buffers.wanted_bytes, buffers.receive_bytes), (8192, 8192));
    let copy = b.as_fd().try_clone_to_owned().expect("a copy");
    assert_eq!(has_v6(&copy), Ok(false));
    assert_eq!(backlog(&copy).map(|backlog| (backlog.waiting_bytes, backlog.dropped)), Ok((0, 0)));
    const SENT: u32 = 100;
    for _ in 0..SENT {
        a.send(None, &[0; 1000]).expect("sent");
    }
    let full = backlog(&copy).expect("a socket");
    assert!(full.waiting_bytes > 0 && full.dropped > 0, "{full:?}");
    let received = std::iter::from_fn(|| b.receive(&mut [0; 1000]).expect("no error")).count();
    assert_eq!(received, (SENT - full.dropped) as usize, "each packet is received or counted");
    assert_eq!(b.backlog().expect("a socket").dropped, full.dropped);
}

#[test]
fn an_icmp_error_is_reported_by_receive_and_stops_no_packet() {
    for ip in LOOPBACKS {
        let [a, b] = pair(ip);
        drop(b);
        a.send(None, b"lost").expect("sent");
        let refused = Err(ReceiveError::Reported(Errno::CONNREFUSED));
        assert_eq!(eventually(|| a.receive(&mut [0; 8])), refused);
        assert_eq!(a.receive(&mut [0; 8]), Ok(None));
        // The report about one packet has arrived when the next one is sent.
        for _ in 0..8 {
            assert_eq!(a.send(None, b"lost"), Ok(()));
        }
    }
}

#[test]
fn an_address_without_a_route_is_an_error_of_its_own() {
    let socket = UdpSocket::bind(SocketAddr::new(LOOPBACKS[0], 0)).expect("bound");
    // A packet from a loopback address cannot leave the machine.
    let outside = SocketAddr::from(([192, 0, 2, 1], 9));
    let error = socket.send(Some(outside), b"?").expect_err("no route");
    assert!(matches!(error, SendError::Unreachable(_) | SendError::System(Errno::INVAL)), "{error:?}");
}

#[test]
fn a_connected_socket_shares_the_port_and_receives_its_peers_packets() {
    for ip in LOOPBACKS {
        let common = UdpSocket::bind_everywhere(0).expect("bound");
        let port = common.local_address().expect("its address").port();
        let [peer, other] = [(); 2].map(|()| UdpSocket::bind(SocketAddr::new(ip, 0)).expect("bound"));
        let own = common.connected_to(peer.local_address().expect("its address"), None).expect("connected");
        assert_eq!(own.local_address().expect("its address").port(), port);
        for sender in [&peer, &other] {
            sender.send(Some(SocketAddr::new(ip, port)), b"!").expect("sent");
        }
        assert_eq!(eventually(|| own.receive(&mut [0; 8])), Ok(1));
        assert_eq!(own.receive(&mut [0; 8]), Ok(None));
        let from = eventually(|| common.receive_from(&mut [0; 8])).map(|(_, from)| from);
        assert_eq!(from, Ok(other.local_address().expect("its address")));
        own.send(None, b"!").expect("sent");
        let from = eventually(|| peer.receive_from(&mut [0; 8])).map(|(_, from)| from);
        assert_eq!(from, Ok(SocketAddr::new(ip, port)));
    }
}

#[test]
fn a_socket_that_is_retired_without_a_route_takes_nothing_once_there_is_one() {
    use crate::namespace::Namespace;
    let Ok(here) = Namespace::fresh() else {
        println!("not run: no network namespace can be made here: run as root");
        return;
    };
    let there = Namespace::fresh().expect("another one");
    let ip = |namespace: &Namespace, arguments: &str| {
        let run = || std::process::Command::new("ip").args(arguments.split(' ')).status();
        let status = namespace.run(run).expect("inside").expect("`ip` runs");
        assert!(status.success(), "ip {arguments}");
    };
    let path = format!("/proc/{}/fd/{}", std::process::id(), there.as_fd().as_raw_fd());
    ip(&here, &format!("link add eth0 type veth peer name eth0 netns {path}"));
    for (namespace, address) in [(&here, "10.79.0.1/24"), (&there, "10.79.0.2/24")] {
        ip(namespace, &format!("address add {address} dev eth0"));
        ip(namespace, "link set eth0 up");
    }
    let bind = || UdpSocket::bind_everywhere(0).expect("bound");
    let (common, peer) = (here.run(bind).expect("inside"), there.run(bind).expect("inside"));
    let port = |socket: &UdpSocket| socket.local_address().expect("its address").port();
    let address = SocketAddr::from(([10, 79, 0, 2], port(&peer)));
    let connect = move || (common.connected_to(address, None), common);
    let (own, common) = here.run(connect).expect("inside");
    let own = own.expect("connected");
    let copy = own.as_fd().try_clone_to_owned().expect("a copy, as a forked child has it");
    ip(&here, "link set eth0 down");
    own.retire(address);
    drop(own);
    ip(&here, "link set eth0 up");
    let target = SocketAddr::from(([10, 79, 0, 1], port(&common)));
    let received = eventually(|| {
        // The first ones may be lost, as the devices are not ready yet.
        let _ = peer.send(Some(target), b"!");
        std::thread::sleep(Duration::from_millis(10));
        common.receive(&mut [0; 8])
    });
    assert_eq!(received, Ok(1));
    drop(copy);
}

#[test]
fn other_files_than_udp_sockets_are_recognised() {
    let six = UdpSocket::bind(SocketAddr::new(LOOPBACKS[1], 0)).expect("bound");
    assert_eq!(has_v6(&six), Ok(true));
    let (unix, _other) = std::os::unix::net::UnixDatagram::pair().expect("pair");
    assert_eq!(has_v6(&unix), Err(Errno::PROTOTYPE));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    assert_eq!(has_v6(&listener), Err(Errno::PROTOTYPE));
    let file = std::fs::File::open("/dev/null").expect("open");
    assert_eq!(has_v6(&file), Err(Errno::NOTSOCK));
    assert_eq!(backlog(&file).err(), Some(Errno::NOTSOCK));
}
