//! The alert rules and the dashboard: every metric that they or docs/operations.md name is served, promtool accepts the rules, and a
//! real Prometheus that scrapes `bywire up` and `bywire eth up` has data for every expression. An alert fires and ends. Needs
//! root and prometheus.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use bywire_node::{file, settings};
use bywire_sys::namespace::Namespace;
use bywire_testing::here::has_taps;
use bywire_testing::test_network::TestNetwork;
use bywire_testing::{Guarded, eventually};
use serde_json::{Value, json};

use crate::operations::{PAGE, block};
use crate::packages;
use crate::segment::{self, await_all};
use crate::up::{Up, inside};

/// The alert rules and the dashboard, which are beside the units.
const ALERTS: &str = include_str!("../../../../packaging/monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../../../packaging/monitoring/grafana.json");

/// The names in a text that begin with these letters.
fn names<'text>(text: &'text str, prefix: &str) -> Vec<&'text str> {
    let end = |rest: &str| rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    let places = text.match_indices(prefix).map(|(place, _)| &text[place..]);
    let names = places.map(|rest| &rest[..end(rest).unwrap_or(rest.len())]);
    names.filter(|name| name.len() > prefix.len()).collect()
}

#[test]
fn each_alert_has_an_expression_and_a_summary_and_each_panel_a_query() {
    let alerts: Vec<&str> = ALERTS.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 10, "{}", alerts.len());
    for alert in alerts {
        for field in ["\n        expr: ", "\n        labels: {severity: ", "\n          summary: "] {
            assert!(alert.contains(field), "{field}: {alert}");
        }
    }
    // The rules and the page alert on the same metrics.
    let all = [ALERTS, PAGE]
        .map(|text| ["bywire_node_", "bywire_eth_"].map(|prefix| BTreeSet::from_iter(names(text, prefix))));
    assert_eq!(all[0], all[1]);
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty() && panel["description"].is_string(), "{panel}");
        assert!(targets.iter().all(|target| !names(target["expr"].as_str().unwrap(), "bywire_").is_empty()));
    }
}

/// The address is in the settings of the service, as the page says.
#[test]
fn the_metrics_of_the_page_the_alerts_and_the_dashboard_are_served() {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    network.machines[1].start();
    let a = &network.machines[0];
    let file_of_settings = a.configuration().join(settings::FILE_NAME);
    file::make(&file_of_settings, 0o644, block("toml", "metrics = ")).expect("written");
    let (_service, _) = Up::start(a);
    eventually("a channel", || inside(a, &["ping", "b", "--count", "1"]).status.success());
    let served = get(&a.namespace, 9478, "/metrics").expect("it listens");
    let of = |prefix: &str| [PAGE, ALERTS, DASHBOARD].map(|text| names(text, prefix)).concat();
    let ours = of("bywire_node_");
    assert!(ours.len() >= 8, "{ours:?}");
    let is_served = |page: &str, name: &str| {
        page.lines()
            .any(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")))
    };
    for name in ours {
        assert!(is_served(&served, name), "{name} is not in\n{served}");
    }
    let interface = json!({ "interface": "-:by0", "state": "up", "drops": { "storm": 1 } });
    let peer = json!({ "node": "b", "held_back": 0, "packets": { "sent": 1, "lost": 0, "calls": 1 } });
    let status = json!({ "interfaces": [interface], "peers": [peer], "uptime_s": 1 });
    let ethernet = bywire_eth::metrics::page(&status);
    for name in of("bywire_eth_") {
        assert!(is_served(&ethernet, name), "{name} is not in\n{ethernet}");
    }
}

/// The answer to a request to a port of a namespace's loopback. `None`: nothing listens there yet.
fn get(within: &Namespace, port: u16, path: &str) -> Option<String> {
    let connect = || TcpStream::connect(("127.0.0.1", port));
    let mut caller = within.run(connect).expect("inside").ok()?;
    caller.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    caller.read_to_string(&mut answer).expect("read");
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

/// A Prometheus inside a namespace, which scrapes and evaluates four times a second.
struct Prometheus<'network> {
    within: &'network Namespace,
    _directory: tempfile::TempDir,
    _process: Guarded,
}

impl<'network> Prometheus<'network> {
    const PORT: u16 = 9090;

    /// One with the settings of the page and the alert rules, that scrapes these ports.
    fn start(within: &'network Namespace, ports: &[u16]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("alerts.yml"), ALERTS).expect("written");
        let targets: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let printed = block("yaml", "scrape_configs:");
        let line = printed.lines().find(|line| line.contains("- targets: ")).expect("targets");
        let settings = printed.replace(line, &format!("      - targets: {targets:?}"));
        let often = "global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}";
        std::fs::write(path("prometheus.yml"), format!("{often}\n{settings}")).expect("written");
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{}", Self::PORT))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(path("log")).expect("made"));
        let process = Guarded(within.run(|| command.spawn()).expect("inside").expect("it starts"));
        eventually("Prometheus is ready", || {
            get(within, Self::PORT, "/-/ready").is_some_and(|answer| answer.contains("Ready"))
        });
        Self { within, _directory: directory, _process: process }
    }

    fn ask(&self, path: &str) -> Value {
        let answer = get(self.within, Self::PORT, path).expect("it listens");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The series that an expression has now.
    fn series(&self, expression: &str) -> usize {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = self.ask(&format!("/api/v1/query?query={encoded}"));
        data["result"].as_array().expect("a list").len()
    }

    /// Whether an alert fires now.
    fn fires(&self, name: &str) -> bool {
        let data = self.ask("/api/v1/alerts");
        let mut alerts = data["alerts"].as_array().expect("a list").iter();
        alerts.any(|alert| alert["labels"]["alertname"] == name && alert["state"] == "firing")
    }
}

/// The expressions of the alerts, which have a series whether their condition holds or not.
fn without_conditions() -> Vec<String> {
    let expressions = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let unconditional = |expression: &str| {
        if let Some(inner) = expression.strip_prefix("absent(") {
            return inner.trim_end_matches(')').to_owned();
        }
        let words = expression.split(' ').map(|word| match word {
            "==" | "!=" | ">" | "<" => format!("{word} bool"),
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    expressions.map(unconditional).collect()
}

/// The expressions of the dashboard for all machines, that of its list of machines among them.
fn shown() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let targets = dashboard["panels"].as_array().expect("panels").iter();
    let targets = targets.filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions = targets.map(|target| target["expr"].as_str().expect("text").replace("$instance", ".*"));
    let lists = dashboard["templating"]["list"].as_array().expect("a list").iter();
    let lists = lists.filter_map(|variable| variable["query"]["query"].as_str()).map(|query| {
        let query = query.strip_prefix("label_values(").expect("a list of a label's values");
        query.strip_suffix(", instance)").expect("the machines").to_owned()
    });
    expressions.chain(lists).collect()
}

#[test]
fn promtool_accepts_the_alert_rules() {
    if !packages::are_installed(&[("promtool", "prometheus")]) {
        return;
    }
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/monitoring/alerts.yml");
    let done = Command::new("promtool").args(["check", "rules"]).arg(rules).output().expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_prometheus_has_data_for_every_expression_and_an_alert_fires_and_ends() {
    if !packages::are_installed(&[("prometheus", "prometheus")]) || !has_taps() {
        return;
    }
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    network.machines[1].start();
    let [a, b] = &network.machines[..] else { unreachable!() };
    let file_of_settings = a.configuration().join(settings::FILE_NAME);
    file::make(&file_of_settings, 0o644, block("toml", "metrics = ")).expect("written");
    let (service, _) = Up::start(a);
    let _ethernet = [segment::up(a, 1, &["--metrics", "127.0.0.1:9479"]), segment::up(b, 2, &[])];
    await_all(&network);
    let prometheus = Prometheus::start(&a.namespace, &[9478, 9479]);

    let expressions = [without_conditions(), shown()].concat();
    assert!(expressions.len() > 30, "{expressions:?}");
    // Each of them by itself, so that what has none is named.
    for expression in &expressions {
        eventually(&format!("data of {expression}"), || {
            // Packets that are lost are compared with those that are sent.
            let _pinged = inside(a, &["ping", "b", "--count", "1"]);
            prometheus.series(expression) > 0
        });
    }

    let name = "BywireFabricFileRejected";
    assert!(!prometheus.fires(name));
    let fabric = std::fs::read_to_string(a.configuration().join("fabric.toml")).expect("read");
    for (text, is_rejected) in [("nonsense", true), (&fabric, false)] {
        a.write_text(text);
        service.signal("-HUP");
        eventually(&format!("{name}: {is_rejected}"), || prometheus.fires(name) == is_rejected);
    }
}
