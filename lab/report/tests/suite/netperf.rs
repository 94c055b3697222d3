//! Netperf's classic text is reproduced byte for byte, against the raw output that Myricom published for GM-1.

use bywire_report::netperf::{End, Netperf, NetperfError, Test, service_demand_us};
use bywire_results::cell::{CELL_SCHEMA, Cell, CpuBothEnds, CpuEnd, Unit};

/// Eight runs, fourteen data rows, as published, right-trimmed.
const PUBLISHED: &str = include_str!("data/netperf.txt");

#[test]
fn the_fourteen_published_rows_reproduce_byte_for_byte() {
    let ours: Vec<String> = published_runs().iter().map(Netperf::to_string).collect();
    assert_eq!(ours.join("\n"), PUBLISHED);
    let rows = PUBLISHED.lines().filter(|line| is_data(line)).count();
    assert_eq!(rows, 14);
}

#[test]
fn the_sixteen_service_demands_follow_from_printed_utilisation_and_rate() {
    let mut checked = 0;
    for run in published_runs() {
        for (end, work_per_second) in ends(&run) {
            let derived = service_demand_us(end.utilisation_percent, 2, work_per_second);
            let off = (derived / end.service_demand_us - 1.0).abs();
            assert!(off < 0.0003, "{run}: {derived} is {off:.5} off");
            checked += 1;
        }
    }
    assert_eq!(checked, 16);
}

#[test]
fn a_cell_prints_as_netperf_would() {
    let text = Netperf::from_cell(&generated_cell("tcp", "stream", 125e6)).unwrap().to_string();
    assert!(text.starts_with("TCP STREAM TEST to 10.0.0.9\n"), "{text}");
    let row = text.lines().last().unwrap();
    // 1,000 Mb/s at 50 % of one core: 5,000 µs·10²/s over 122,070.3 KB/s.
    assert_eq!(row, "212992 425984   8192    10.00      1000.00   50.00    25.00    4.096   2.048");
}

#[test]
fn both_ends_on_one_machine_are_localhost() {
    let mut cell = generated_cell("tcp", "rr", 10_000.0);
    cell.between = "namespaces".into();
    let text = Netperf::from_cell(&cell).unwrap().to_string();
    assert!(text.starts_with("TCP REQUEST/RESPONSE TEST to localhost\n"), "{text}");
}

#[test]
fn lost_datagrams_count_against_the_receiver_only() {
    let mut cell = generated_cell("udp", "stream", 0.0);
    cell.details.insert("messages_received".into(), 500_000.into());
    let run = Netperf::from_cell(&cell).unwrap();
    assert_eq!(run.test, Test::UdpStream);
    assert_eq!(run.local.rate, 6553.6);
    assert_eq!(run.remote.rate, 3276.8);
    let sender_alone = service_demand_us(50.0, 1, 800_000.0);
    assert!((run.local.service_demand_us - sender_alone).abs() < 1e-9);
}

#[test]
fn failed_sends_are_printed_as_measured() {
    let mut cell = generated_cell("udp", "stream", 0.0);
    cell.details.insert("send_errors".into(), 17.into());
    let text = Netperf::from_cell(&cell).unwrap().to_string();
    assert!(text.contains(" 1000000     17 "), "{text}");
    cell.details.remove("send_errors");
    assert_eq!(Netperf::from_cell(&cell), Err(NetperfError::Missing("send_errors")));
}

#[test]
fn a_response_may_be_longer_than_its_request() {
    let mut cell = generated_cell("udp", "rr", 10_000.0);
    cell.parameters.insert("response-size".into(), 64_000.into());
    let text = Netperf::from_cell(&cell).unwrap().to_string();
    assert!(text.contains("\n425984 212992 8192    64000  10.00   10000.00   50.00 "), "{text}");
    assert!(text.ends_with("\n425984 212992\n"), "{text}");
}

#[test]
fn cells_without_a_netperf_form_are_refused() {
    let latency = generated_cell("msg", "latency", 200.0);
    assert_eq!(
        Netperf::from_cell(&latency),
        Err(NetperfError::NoCounterpart("msg".into(), "latency".into()))
    );
    let mut unix = generated_cell("sock", "stream", 1e9);
    assert!(Netperf::from_cell(&unix).is_ok());
    unix.parameters.insert("domain".into(), "unix".into());
    assert_eq!(Netperf::from_cell(&unix), Err(NetperfError::NoCounterpart("unix".into(), "stream".into())));
    let mut cell = generated_cell("tcp", "stream", 1e9);
    cell.details.remove("elapsed_seconds");
    let error = Netperf::from_cell(&cell).unwrap_err();
    assert_eq!(error, NetperfError::Missing("elapsed_seconds"));
    cell = generated_cell("tcp", "stream", 1e9);
    cell.cpu = CpuBothEnds::default();
    let text = Netperf::from_cell(&cell).unwrap().to_string();
    assert!(text.contains("% U      % U"), "{text}");
    assert!(text.contains("-1.00    -1.00    -1.000  -1.000"), "{text}");
}

/// A generated cell. Nothing in it was measured.
fn generated_cell(level: &str, test: &str, value: f64) -> Cell {
    let end = |share: f64| CpuEnd { machine_busy: Some(share), ..CpuEnd::default() };
    let details = [
        ("elapsed_seconds", serde_json::json!(10.0)),
        ("receive_socket_bytes", 212_992.into()),
        ("send_socket_bytes", 425_984.into()),
        ("messages_sent", 1_000_000.into()),
        ("messages_received", 1_000_000.into()),
        ("send_errors", 3.into()),
    ];
    Cell {
        schema: CELL_SCHEMA.into(),
        level: level.into(),
        test: test.into(),
        link: None,
        between: "10.0.0.9".into(),
        size_bytes: Some(8192),
        parameters: Default::default(),
        value,
        unit: Unit::BytesPerSecond,
        ci95: Some([value, value]),
        mean: None,
        percentiles: None,
        histogram: Vec::new(),
        blocks: Vec::new(),
        moments: Vec::new(),
        cacheline: None,
        failure: None,
        cpu: CpuBothEnds {
            source: end(0.5),
            target: end(0.25),
            same_machine: true,
            ..CpuBothEnds::default()
        },
        details: details.map(|(key, value)| (key.into(), value)).into(),
        environment: serde_json::Value::Null,
    }
}

/// A data row consists of numbers alone.
fn is_data(line: &str) -> bool {
    !line.is_empty() && line.chars().all(|c| c.is_ascii_digit() || c == '.' || c == ' ')
}

/// Both ends with the KB or transactions per second that each handled.
fn ends(run: &Netperf) -> [(End, f64); 2] {
    [run.local, run.remote].map(|end| match run.test {
        Test::TcpStream | Test::UdpStream => (end, end.rate * 1e6 / 8.0 / 1024.0),
        Test::TcpRequestResponse | Test::UdpRequestResponse => (end, end.rate),
    })
}

/// The figures of the published runs.
fn published_runs() -> Vec<Netperf> {
    let (c, b) = ("10.0.0.9", "10.0.1.9");
    vec![
        tcp_stream(c, 59.99, 1852.66, [50.41, 4.458], [74.36, 6.576]),
        udp_stream(c, 60.00, [1_796_374, 1_796_368], 1962.2, [41.94, 3.502], [45.83, 3.826]),
        rr(c, Test::TcpRequestResponse, TCP, 59.99, 15499.25, [[24.25, 31.287], [22.55, 29.100]]),
        rr(c, Test::UdpRequestResponse, UDP, 60.00, 16065.29, [[27.43, 34.146], [25.66, 31.943]]),
        tcp_stream(b, 60.00, 1771.09, [47.95, 4.436], [65.53, 6.062]),
        udp_stream(b, 59.99, [1_706_739, 1_706_739], 1864.4, [40.30, 3.542], [35.59, 3.128]),
        rr(b, Test::TcpRequestResponse, TCP, 59.99, 14687.71, [[23.47, 31.952], [20.03, 27.276]]),
        rr(b, Test::UdpRequestResponse, UDP, 60.00, 15442.63, [[26.58, 34.422], [20.11, 26.051]]),
    ]
}

const TCP: [u64; 2] = [16384, 87380];
const UDP: [u64; 2] = [65535, 65535];

fn end(socket_bytes: [u64; 2], rate: f64, [utilisation_percent, service_demand_us]: [f64; 2]) -> End {
    End { socket_bytes, messages: 0, rate, utilisation_percent, service_demand_us, method: 'S' }
}

/// A stream, whose messages go one way.
fn stream(test: Test, host: &str, message_bytes: u64, seconds: f64, [local, remote]: [End; 2]) -> Netperf {
    let (host, response_bytes, send_errors) = (host.into(), 0, 0);
    let elapsed_seconds = seconds;
    Netperf { test, host, message_bytes, response_bytes, elapsed_seconds, send_errors, local, remote }
}

fn tcp_stream(host: &str, seconds: f64, rate: f64, local: [f64; 2], remote: [f64; 2]) -> Netperf {
    let ends = [local, remote].map(|used| end([262_142; 2], rate, used));
    stream(Test::TcpStream, host, 262_142, seconds, ends)
}

fn udp_stream(
    host: &str,
    seconds: f64,
    [sent, received]: [u64; 2],
    rate: f64,
    local: [f64; 2],
    remote: [f64; 2],
) -> Netperf {
    let ends = [(sent, local), (received, remote)];
    let ends = ends.map(|(messages, used)| End { messages, ..end(UDP, rate, used) });
    stream(Test::UdpStream, host, 8192, seconds, ends)
}

fn rr(host: &str, test: Test, sockets: [u64; 2], seconds: f64, rate: f64, used: [[f64; 2]; 2]) -> Netperf {
    let ends = used.map(|used| end(sockets, rate, used));
    Netperf { response_bytes: 1, ..stream(test, host, 1, seconds, ends) }
}
