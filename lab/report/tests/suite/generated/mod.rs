//! A session of generated cells. Their figures come from formulas, and none was measured.

use bywire_results::breakdown::{self, Account, CoreAccount, REST, Share};
use bywire_results::cell::{
    Absence, Block, CELL_SCHEMA, Cell, CpuBothEnds, CpuEnd, Percentiles, SESSION_SCHEMA, Session, Unit,
};
use bywire_results::details::Details;

/// A session of formulas: a half-RTT is a start-up time plus the length divided by a rate.
pub fn generated_session() -> Session {
    let ways = [
        ("msg", "shm", Some(true), 200.0, 9.5),
        ("msg", "shm", Some(false), 4000.0, 9.5),
        ("unix", "unix", Some(true), 2000.0, 3.1),
        ("unix", "unix", Some(false), 6000.0, 3.0),
        ("tcp", "loopback", None, 8000.0, 2.2),
        ("udp", "loopback", None, 7600.0, 1.7),
    ];
    let mut cells = Vec::new();
    for way in ways {
        for exponent in 0..=20 {
            let size = 1u64 << exponent;
            if way.0 == "udp" && size > 65_507 {
                break;
            }
            cells.extend(cells_at(way, size));
        }
    }
    cells.extend([ways[0], ways[3], ways[4]].map(broken_down));
    cells.extend(ceilings());
    cells.extend(ceilings());
    Session {
        schema: SESSION_SCHEMA.into(),
        preset: "generated, not measured".into(),
        started: "2026-01-01T00:00:00Z".into(),
        seconds: 158.0,
        command: ["bywire", "bench", "quick"].map(str::to_owned).to_vec(),
        environment: serde_json::json!({
            "cpu": { "model": "A formula, not a processor" },
            "kernel": { "release": "0.0.0" },
            "cores": [0, 1],
            "sysctls": { "net.core.rmem_max": 212_992, "net.ipv4.tcp_rmem": "4096 131072 6291456" },
            "governor": null,
        }),
        absent: vec![Absence {
            level: "eth".into(),
            test: None,
            reason: "no TUN device: load the tun module".into(),
        }],
        complete: true,
        cells,
    }
}

pub type Formula = (&'static str, &'static str, Option<bool>, f64, f64);

pub fn cells_at(way: Formula, size: u64) -> Vec<Cell> {
    let (_, _, _, start_ns, bytes_per_ns) = way;
    let ns = start_ns + (size - 1) as f64 / bytes_per_ns;
    let rate = size as f64 / (start_ns / 8.0 + size as f64 / bytes_per_ns) * 1e9;
    let mut latency = cell(way, "latency", Some(size), ns, Unit::Nanoseconds);
    latency.value = if size == 8 { start_ns } else { ns };
    latency.ci95 = Some([latency.value * 0.97, latency.value * 1.03]);
    latency.percentiles = Some(Percentiles {
        p5: ns * 0.93,
        p50: ns,
        p90: ns * 1.1,
        p95: ns * 1.25,
        p99: ns * 1.8,
        p999: ns * 4.0,
    });
    latency.histogram = (0..60)
        .map(|step| {
            let distance = f64::from(step) / 8.0 - 1.0;
            (ns * (0.9 + f64::from(step) * 0.02), (1e6 * (-distance * distance).exp()) as u64 + 1)
        })
        .collect();
    let stream = cell(way, "stream", Some(size), rate, Unit::BytesPerSecond);
    let mut cells = vec![latency, stream, cell(way, "bidir", Some(size), rate * 1.7, Unit::BytesPerSecond)];
    if size == 8 {
        let mut overhead = cell(way, "overhead", Some(size), start_ns / 4.0, Unit::Nanoseconds);
        overhead.details = [("send_ns", start_ns / 9.0), ("receive_ns", start_ns * (0.25 - 1.0 / 9.0))]
            .map(|(key, value)| (key.to_owned(), value.into()))
            .into();
        cells.push(overhead);
        cells.push(cell(way, "rr", Some(size), 0.5e9 / start_ns, Unit::TransactionsPerSecond));
    }
    cells
}

pub fn ceilings() -> Vec<Cell> {
    let memory = ("memory", "", None, 0.0, 0.0);
    let rate = Unit::BytesPerSecond;
    let mut cells = vec![cell(memory, "cacheline", None, 92.0, Unit::Nanoseconds)];
    cells.push(cell(memory, "futex", None, 3300.0, Unit::Nanoseconds));
    for size in [4096, 65_536, 1 << 20] {
        cells.push(cell(memory, "touched", Some(size), 11e9, rate));
    }
    cells.push(cell(memory, "read", Some(1 << 26), 18e9, rate));
    cells.push(cell(memory, "readwrite", Some(1 << 26), 21e9, rate));
    cells
}

pub fn cell(way: Formula, test: &str, size_bytes: Option<u64>, value: f64, unit: Unit) -> Cell {
    let (level, link, spin, start_ns, _) = way;
    let end = |core| CpuEnd {
        core: Some(core),
        machine_busy: Some(0.99),
        steal: Some(0.0),
        attributed: Some(0.9),
        unattributed: Some(0.09),
        service_demand_us_per_kb: Some(0.9e6 / (value / 1024.0)),
        service_demand_us_per_transaction: Some(start_ns * 1.1e-3),
    };
    let spin = spin.map(|spin| ("spin".to_owned(), spin.into()));
    // One pair of five, at every third length: too few to call the session disturbed.
    let is_shaken = size_bytes.is_some_and(|size| size.trailing_zeros() % 3 == 2);
    Cell {
        schema: CELL_SCHEMA.into(),
        level: level.into(),
        test: test.into(),
        link: (!link.is_empty()).then(|| link.into()),
        between: "processes".into(),
        size_bytes,
        parameters: spin.into_iter().collect(),
        value,
        unit,
        ci95: Some([value * 0.97, value * 1.03]),
        mean: None,
        percentiles: None,
        histogram: Vec::new(),
        blocks: (0..5)
            .map(|pair| Block {
                pair,
                value,
                seconds: 0.02,
                operations: 1000,
                disturbed: if pair == 3 && is_shaken { vec!["steal".into()] } else { Vec::new() },
                outlier: false,
            })
            .collect(),
        moments: Vec::new(),
        cacheline: None,
        failure: None,
        cpu: CpuBothEnds { source: end(0), target: end(1), same_machine: true, ..CpuBothEnds::default() },
        details: Details::default(),
        environment: serde_json::Value::Null,
    }
}

/// A breakdown with a negative part, and with more parts than there are colours.
fn broken_down(way: Formula) -> Cell {
    let half_rtt_ns = way.3;
    let share = |name: &str, of_whole: f64| Share {
        name: name.to_owned(),
        ns: of_whole * half_rtt_ns,
        ci95_ns: Some([(of_whole - 0.02) * half_rtt_ns, (of_whole + 0.02) * half_rtt_ns]),
        how: format!("by a formula for {name}"),
    };
    let names =
        ["payload", "copies", "link", "waking", "TCP and IP", "system calls", "a line", "checks", "a tenth"];
    let mut parts: Vec<Share> = names.iter().map(|name| share(name, 0.1)).collect();
    parts.push(share("saves by itself", -0.05));
    parts.push(share(REST, 0.15));
    let cores = ["source", "target"].map(|end| CoreAccount {
        end: end.to_owned(),
        core: 0,
        samples: 1000,
        parts: vec![share("copies", 0.3), share("idle", 0.7)],
    });
    let account = Account {
        parts,
        beside: vec![share("lending saves", -0.1)],
        cores: cores.to_vec(),
        notes: vec!["byte order: not told apart".to_owned()],
    };
    let mut cell = cell(way, "breakdown", Some(8), half_rtt_ns, Unit::Nanoseconds);
    cell.details.insert(breakdown::NAME.to_owned(), serde_json::to_value(account).unwrap());
    cell
}
