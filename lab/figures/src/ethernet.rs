//! Ways of carrying Ethernet between two namespaces, measured by the laboratory and, for reference, by iperf3
//! and sockperf.

use std::cell::RefCell;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_measure::cpu;
use bywire_measure::ethernet::FrameLink;
use bywire_measure::interrupt::Leader;
use bywire_measure::namespaces::{Namespace, Namespaces};
use bywire_measure::pin;
use bywire_measure::segments::Segments;
use bywire_results::cell::Unit;
use serde_json::Value;

use crate::contestant::{Contestant, Samples};
use crate::series::Metric;

/// A program that has not ended by then is given up.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Attempts are repeated for this long.
const CROSSING: Duration = Duration::from_secs(15);

/// A server listens by then, else the attempt fails and is repeated.
const LISTENING: Duration = Duration::from_millis(150);

/// Datagrams of one length, at several offered rates.
#[derive(Clone, Copy)]
pub struct Datagrams {
    bytes: u32,
    /// In Gb/s. 0 is as fast as the sender can.
    offered_gbits: [u32; 4],
}

/// Datagrams of 8 KiB.
pub const LONG_DATAGRAMS: Datagrams = Datagrams { bytes: 8192, offered_gbits: [3, 6, 12, 0] };
/// Datagrams that a packet of every tunnel takes whole.
pub const SHORT_DATAGRAMS: Datagrams = Datagrams { bytes: 1200, offered_gbits: [1, 2, 4, 0] };

/// After this a network has ended its own greetings, such as those of neighbour discovery.
const SETTLE: Duration = Duration::from_secs(15);

/// How long an idle network is watched.
const WATCH: Duration = Duration::from_secs(2);

/// How two namespaces become joined.
pub type Join = Rc<dyn Fn() -> Result<Rc<Namespaces>>>;

/// One TCP connection of iperf3: received bytes per second.
pub fn iperf3_stream(join: Join) -> Contestant {
    joined("iperf3 -c TARGET -t 1", "iperf3", Unit::BytesPerSecond, join, |namespaces| {
        let client = ["iperf3", "-c", &target(namespaces), "-t", "1", "-J"];
        received(&converse(namespaces, &["iperf3", "-s"], &client)?)
    })
}

/// Datagrams by iperf3, received at the best of several offered rates: bytes per second.
pub fn iperf3_datagrams(join: Join, datagrams: Datagrams) -> Contestant {
    let (length, offered) = (datagrams.bytes.to_string(), datagrams.offered_gbits);
    let rates = offered.map(|rate| format!("{rate}G")).join(", ");
    let command = format!("iperf3 -c TARGET -u -l {length} -t 1 -b each of {rates} (0G: no limit)");
    joined(&command, "iperf3", Unit::BytesPerSecond, join, move |namespaces| {
        let mut best: f64 = 0.0;
        for rate in offered {
            let (target, rate) = (target(namespaces), format!("{rate}G"));
            let client = ["iperf3", "-c", &target, "-u", "-l", &length, "-t", "1", "-b", &rate, "-J"];
            best = best.max(received(&converse(namespaces, &["iperf3", "-s"], &client)?)?);
        }
        Ok(best)
    })
}

/// A ping-pong of sockperf over TCP: half-RTT in ns. Its port is not iperf3's, which the connections of an
/// ended server keep for a while.
pub fn sockperf(join: Join) -> Contestant {
    joined("sockperf pp --tcp -i TARGET -t 1 -m 14", "sockperf", Unit::Nanoseconds, join, |namespaces| {
        let target = target(namespaces);
        let server = ["sockperf", "sr", "--tcp", "-i", &target, "-p", "11111"];
        let client = ["sockperf", "pp", "--tcp", "-i", &target, "-p", "11111", "-t", "1", "-m", "14"];
        half_rtt_ns(&converse(namespaces, &server, &client)?)
    })
}

/// One TCP connection of iperf3 by CUBIC, from the source or back to it: received bytes per second, and in µs of CPU per KB
/// [`Metric::Demand`], all cores of this machine, with what the kernel does for nobody; [`Metric::Source`] and
/// [`Metric::Target`], the two ends; and [`Metric::Between`], the processes between them.
pub fn costed_stream(join: Join, is_back: bool) -> Contestant {
    let back: &[&str] = if is_back { &["-R"] } else { &[] };
    let options = [&["-C", "cubic", "-t", "2"][..], back].concat();
    let command = format!("iperf3 -c TARGET {}", options.join(" "));
    taken_by(&command, "iperf3", Unit::BytesPerSecond, move || {
        let namespaces = join()?;
        let address = target(&namespaces);
        let client = [&["iperf3", "-c", &address, "-J"][..], &options].concat();
        let spent = || -> Result<[f64; 2]> {
            Ok([cpu::machine_seconds()?, cpu::processes_seconds(namespaces.carriers())])
        };
        let before = spent()?;
        let printed = converse(&namespaces, &["iperf3", "-s"], &client)?;
        let after = spent()?;
        let rate = received(&printed)?;
        let us_per_kb = |seconds: f64| 1e6 * 1024.0 * seconds / (rate * COSTED_SECONDS);
        let [machine, between] = [0, 1].map(|account| us_per_kb(after[account] - before[account]));
        let [source, target] = ends_shares(&printed)?.map(|share| us_per_kb(share * COSTED_SECONDS));
        Ok(vec![
            (Metric::Value, rate),
            (Metric::Demand, machine),
            (Metric::Source, source),
            (Metric::Target, target),
            (Metric::Between, between),
        ])
    })
}

/// How long such a connection runs.
const COSTED_SECONDS: f64 = 2.0;

/// The same namespaces for this many measurements, and then fresh ones.
pub fn reused(join: Join, uses: u32) -> Join {
    let kept: RefCell<Option<(Rc<Namespaces>, u32)>> = RefCell::default();
    Rc::new(move || {
        let mut kept = kept.borrow_mut();
        // Worn out ones end before fresh ones begin.
        *kept = kept.take().filter(|(_, left)| *left > 0);
        let (namespaces, left) = match kept.take() {
            Some(kept) => kept,
            None => (join()?, uses),
        };
        *kept = Some((Rc::clone(&namespaces), left - 1));
        Ok(namespaces)
    })
}

/// How long several connections run.
const FLOWS_SECONDS: u32 = 2;

/// So many TCP connections of iperf3 at once, or so many each way: received bytes per second, [`Metric::Again`],
/// [`Metric::AgainShare`], and as [`Metric::Demand`] the CPU of the carriers.
pub fn flows(join: Join, count: u32, both_ways: bool) -> Contestant {
    let (time, number) = (FLOWS_SECONDS.to_string(), count.to_string());
    let both: &[&str] = if both_ways { &["--bidir"] } else { &[] };
    let command = format!("iperf3 -c TARGET -t {time} -P {number} {}", both.join(""));
    let both = both.to_vec();
    Contestant::adapter(command, Unit::BytesPerSecond, move || {
        let namespaces = join()?;
        let address = target(&namespaces);
        let client = [&["iperf3", "-c", &address, "-t", &time, "-P", &number, "-J"][..], &both].concat();
        let ends = [&namespaces.source, &namespaces.target];
        let spent = || cpu::processes_seconds(namespaces.carriers());
        let (spent_before, before) = (spent(), Segments::of(ends)?);
        let printed = converse(&namespaces, &["iperf3", "-s"], &client)?;
        let (spent_after, after) = (spent(), Segments::of(ends)?);
        let rate = received(&printed)? + if both.is_empty() { 0.0 } else { received_back(&printed)? };
        let counted = after - before;
        let [sent, again] = [counted.sent, counted.again].map(|count| count as f64);
        let demand_us_per_kb = 1e9 * (spent_after - spent_before) / (rate * f64::from(FLOWS_SECONDS));
        Ok(vec![
            (Metric::Value, rate),
            (Metric::Again, again.max(1.0)),
            (Metric::AgainShare, again / sent.max(1.0)),
            (Metric::Demand, demand_us_per_kb),
        ])
    })
}

/// The cost of idle carriers: ns of CPU per second.
pub fn idle(frame_link: FrameLink) -> Contestant {
    let mut opened: Option<(Namespaces, Instant)> = None;
    let take = move || {
        if opened.is_none() {
            let namespaces = frame_link.open()?;
            for end in [&namespaces.source, &namespaces.target] {
                ask_for_no_routers(end)?;
            }
            opened = Some((namespaces, Instant::now()));
        }
        let (namespaces, since) = opened.as_ref().context("just opened")?;
        std::thread::sleep(SETTLE.saturating_sub(since.elapsed()));
        let spent = || cpu::processes_seconds(namespaces.carriers());
        let before = spent();
        std::thread::sleep(WATCH);
        Ok(1e9 * (spent() - before) / WATCH.as_secs_f64())
    };
    let command = format!("bywire eth up, without traffic, watched for {} s", WATCH.as_secs());
    Contestant::of_value(command, Unit::NanosecondsPerSecond, take)
}

/// Has a kernel send no router solicitations, which IPv6 repeats forever where nobody answers: they are traffic, and
/// carrying them is no idling.
fn ask_for_no_routers(end: &Namespace) -> Result<()> {
    const NEVER: &str = "for name in /proc/sys/net/ipv6/conf/*/router_solicitations; do echo 0 > $name; done";
    let status = inside(end, None, &["sh", "-c", NEVER])?.status()?;
    ensure!(status.success(), "router solicitations cannot be switched off");
    Ok(())
}

fn joined(
    command: &str,
    program: &'static str,
    unit: Unit,
    join: Join,
    measure: impl Fn(&Namespaces) -> Result<f64> + 'static,
) -> Contestant {
    program_contestant(command, program, unit, move || {
        let namespaces = join()?;
        measure(&namespaces)
    })
}

/// Another program's measurement, where `program` is installed.
pub fn program_contestant(
    command: &str,
    program: &'static str,
    unit: Unit,
    measure: impl Fn() -> Result<f64> + 'static,
) -> Contestant {
    taken_by(command, program, unit, move || Ok(vec![(Metric::Value, measure()?)]))
}

/// Another program's measurement with several figures.
fn taken_by(
    command: &str,
    program: &'static str,
    unit: Unit,
    measure: impl Fn() -> Result<Samples> + 'static,
) -> Contestant {
    Contestant::adapter(command, unit, move || {
        let looked =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        looked.with_context(|| format!("{program} is not installed: apt-get install {program}"))?;
        measure()
    })
}

fn target(namespaces: &Namespaces) -> String {
    namespaces.target.address().to_string()
}

fn converse(namespaces: &Namespaces, server: &[&str], client: &[&str]) -> Result<String> {
    Ends::of(namespaces).converse(server, client)
}

/// Where a server and its client run.
pub struct Ends<'a> {
    namespaces: Option<&'a Namespaces>,
    /// Where the server is reached.
    pub address: String,
}

impl<'a> Ends<'a> {
    /// In the machine's own network.
    pub fn of_this_machine() -> Self {
        Self { namespaces: None, address: "127.0.0.1".to_owned() }
    }

    /// Each in its own.
    pub fn of(namespaces: &'a Namespaces) -> Self {
        Self { namespaces: Some(namespaces), address: target(namespaces) }
    }

    fn command(&self, of: fn(&Namespaces) -> &Namespace, core: u32, words: &[&str]) -> Result<Command> {
        match self.namespaces {
            Some(namespaces) => inside(of(namespaces), Some(core), words),
            None => Ok(alone(core, words)),
        }
    }

    /// What the client prints. The server is new for each attempt: some end by themselves, and the way to it may still
    /// be closed.
    ///
    /// # Errors
    /// It printed nothing of use for a while.
    pub fn converse(&self, server: &[&str], client: &[&str]) -> Result<String> {
        let (source_core, target_core) = pin::two_cores();
        let started = Instant::now();
        loop {
            let mut command = self.command(|namespaces| &namespaces.target, target_core, server)?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let _server =
                Leader::start(&mut command).with_context(|| format!("cannot start {}", server[0]))?;
            std::thread::sleep(LISTENING);
            let mut command = self.command(|namespaces| &namespaces.source, source_core, client)?;
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let asking =
                Leader::start(&mut command).with_context(|| format!("cannot start {}", client[0]))?;
            match asking.printed(client[0], TIMEOUT) {
                Ok(printed) => return Ok(printed),
                Err(error) if started.elapsed() > CROSSING => return Err(error),
                Err(_) => {}
            }
        }
    }
}

/// A command that runs inside, on that core, and is killed with this program.
///
/// # Errors
/// No descriptors left.
pub fn inside(namespace: &Namespace, core: Option<u32>, words: &[&str]) -> Result<Command> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(core) = core {
        command.args(["taskset", "-c", &core.to_string()]);
    }
    command.args(words).stdin(Stdio::null());
    namespace.enter(&mut command)?;
    Ok(command)
}

/// The received bytes per second in iperf3's JSON.
///
/// # Errors
/// It is not valid JSON, or lacks the figure.
pub fn received(printed: &str) -> Result<f64> {
    let said: Value = serde_json::from_str(printed).context("iperf3 prints no JSON")?;
    let number = |pointer: &str| said.pointer(pointer).and_then(Value::as_f64);
    let bits = number("/end/sum_received/bits_per_second").or_else(|| {
        let arrived = 1.0 - number("/end/sum/lost_percent")? / 100.0;
        Some(number("/end/sum/bits_per_second")? * arrived)
    });
    let bits = bits.with_context(|| format!("iperf3: {}", said["error"]))?;
    ensure!(bits.is_finite() && bits > 0.0, "iperf3 says that {bits} bits a second arrived");
    Ok(bits / 8.0)
}

/// The shares of a core that iperf3's client and its server took.
fn ends_shares(printed: &str) -> Result<[f64; 2]> {
    let said: Value = serde_json::from_str(printed).context("iperf3 prints no JSON")?;
    let share = |end: &str| -> Result<f64> {
        let percent = said.pointer(&format!("/end/cpu_utilization_percent/{end}_total"));
        Ok(percent.and_then(Value::as_f64).context("iperf3 tells nothing of its CPU")? / 100.0)
    };
    Ok([share("host")?, share("remote")?])
}

/// The received bytes per second of the other direction at the same time.
fn received_back(printed: &str) -> Result<f64> {
    let said: Value = serde_json::from_str(printed).context("iperf3 prints no JSON")?;
    let bits = said.pointer("/end/sum_received_bidir_reverse/bits_per_second").and_then(Value::as_f64);
    Ok(bits.context("iperf3 tells nothing of the way back")? / 8.0)
}

/// Sockperf's median half-RTT, in ns.
///
/// # Errors
/// It has printed none.
pub fn half_rtt_ns(printed: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.split_once("percentile 50.000 ="));
    let last =
        || printed.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("nothing").to_owned();
    let (_, figure) =
        line.with_context(|| format!("sockperf prints no median; its last line is: {}", last()))?;
    let us: f64 = figure.trim().parse().context("sockperf's median is not a number")?;
    ensure!(us.is_finite() && us > 0.0, "sockperf says {us} µs");
    Ok(1e3 * us)
}

/// A command on that core that is killed with this program.
fn alone(core: u32, words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "taskset", "-c", &core.to_string()]).args(words);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_counts_are_parsed_and_other_output_is_refused() {
        let printed = r#"{"end":{"sum":{"bits_per_second":9e9},"sum_received":{"bits_per_second":8e9}}}"#;
        assert_eq!(received(printed).unwrap(), 1e9);
        let lossy = r#"{"end":{"sum":{"bits_per_second":16e9,"lost_percent":50}}}"#;
        assert_eq!(received(lossy).unwrap(), 1e9);
        for other in [
            "",
            "{}",
            r#"{"error":"unable to connect"}"#,
            r#"{"end":{"sum_received":{"bits_per_second":0}}}"#,
        ] {
            assert!(received(other).is_err(), "{other}");
        }
    }

    #[test]
    fn round_trips_are_parsed() {
        let printed = r#"{"end":{"sum_received_bidir_reverse":{"bits_per_second":8e9}}}"#;
        assert_eq!(received_back(printed).unwrap(), 1e9);
        assert!(received_back(r#"{"end":{}}"#).is_err());
        let printed = r#"{"end":{"cpu_utilization_percent":{"host_total":50.0,"remote_total":75.0}}}"#;
        assert_eq!(ends_shares(printed).unwrap(), [0.5, 0.75]);
        assert!(ends_shares(r#"{"end":{}}"#).is_err());
    }

    #[test]
    fn namespaces_are_used_as_often_as_asked() {
        let opened = Rc::new(RefCell::new(0));
        let count = Rc::clone(&opened);
        let join = reused(
            Rc::new(move || {
                *count.borrow_mut() += 1;
                Ok(Rc::new(Namespaces::veth_pair(1500)?))
            }),
            2,
        );
        for opened_then in [1, 1, 2] {
            if let Err(reason) = join() {
                println!("not run: {reason:#}");
                return;
            }
            assert_eq!(*opened.borrow(), opened_then);
        }
    }

    #[test]
    fn the_median_is_parsed_instead_of_the_mean() {
        let printed =
            "sockperf: Summary: Latency is 7.436 usec\nsockperf: ---> percentile 50.000 =    6.870\n";
        assert_eq!(half_rtt_ns(printed).unwrap(), 6870.0);
        assert!(half_rtt_ns("sockperf: Summary: Latency is 7.436 usec").is_err());
    }
}
