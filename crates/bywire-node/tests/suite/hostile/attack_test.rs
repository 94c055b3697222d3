//! Two machines with service processes and programs of the honest user. Measures the programs, and the memory and processor
//! time of the service under attack.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bywire_testing::Tier;
use bywire_testing::actor::Actor;
use bywire_testing::here::is_root;
use bywire_testing::test_network::usage::usage;
use bywire_testing::test_network::{Machine, TestNetwork};

use super::honest::MEASURED;
use crate::faults::ends::start;
use crate::faults::node::start_node;

/// The honest user, who is not in the user database, and the first attacking user. Neither is a subordinate user, because the
/// service counts all users of one range of `/etc/subuid` as one.
pub const HONEST: u32 = 54_321;
pub const ROGUE: u32 = 54_400;

/// Bounds of each step of the honest program, and of the median of each kind of step. Both were chosen after measurements of a
/// busy machine with two cores (1.2 s, with two rounds in 4 s), and say nothing about a quiet machine.
const LONGEST: Duration = Duration::from_secs(4);
const MEDIAN: Duration = Duration::from_secs(2);
/// The most KiB by which the service may grow in one attack.
const GROWTH_KIB: u64 = 48 << 10;
/// The ticks of the kernel's clock in a second.
const TICKS: f64 = 100.0;

/// The measured time of each attack.
pub fn attack_time() -> Duration {
    Duration::from_millis(Tier::current().pick([700, 700, 2000]))
}

/// Attacks on the service of the first machine.
pub struct AttackTest {
    honest: Actor,
    _echo: Actor,
    under_attack: Actor,
    _other: Actor,
    pub network: TestNetwork,
    /// Attacks during which a bound was broken.
    broken: Vec<String>,
}

impl AttackTest {
    /// Three machines, the third one without a service. `None` where this machine cannot make them, after the reason is printed.
    pub fn begin() -> Option<Self> {
        let network = TestNetwork::without_services(3)?;
        if !is_root() {
            return None;
        }
        for machine in &network.machines {
            admit_everyone(machine);
        }
        let [here, there, _] = &network.machines[..] else { unreachable!() };
        let (under_attack, other) = (start_node(here), start_node(there));
        let mut echo = start(there, "echo", &[]);
        echo.expect("ready");
        let mut honest = start(here, "honest", &[&HONEST.to_string()]);
        honest.expect("ready");
        Some(Self { honest, _echo: echo, under_attack, _other: other, network, broken: Vec::new() })
    }

    /// Measures the honest program during an attack, which `begin` starts and `end` ends. The service may use the given share of
    /// a core meanwhile.
    pub fn measure<Attack>(
        &mut self,
        name: &str,
        (duration, share_max): (Duration, f64),
        begin: impl FnOnce() -> Attack,
        end: impl FnOnce(Attack) -> u64,
    ) {
        let (memory, _) = usage(self.under_attack.pid().as_raw_pid());
        let attack = begin();
        // Ticks count from where the honest program begins, as the time does; an attack has begun before.
        let (_, ticks) = usage(self.under_attack.pid().as_raw_pid());
        self.honest.tell(&duration.as_millis().to_string());
        let began = std::time::Instant::now();
        let told = self.honest.expect("");
        let took = began.elapsed();
        let (memory_after, ticks_after) = usage(self.under_attack.pid().as_raw_pid());
        let attacks = end(attack);
        let numbers: Vec<u64> = told.split(' ').map(|number| number.parse().expect("a number")).collect();
        let share = (ticks_after - ticks) as f64 / TICKS / took.as_secs_f64();
        let grown = memory_after.saturating_sub(memory);
        let mut line = format!("{name}: {attacks} attacks in {took:.1?}; {} rounds", numbers[0]);
        for (kind, times) in MEASURED.iter().zip(numbers[1..].chunks_exact(2)) {
            let [longest, median] = [0, 1].map(|at| Duration::from_micros(times[at]));
            line += &format!("; {kind} {median:.1?}, at most {longest:.1?}");
        }
        println!(
            "{line}; the service: {:.0} % of a core, {memory_after} KiB, {grown} KiB more",
            100.0 * share
        );
        let is_late = |times: &[u64]| {
            let [longest, median] = [0, 1].map(|at| Duration::from_micros(times[at]));
            longest > LONGEST || median > MEDIAN
        };
        if numbers[1..].chunks_exact(2).any(is_late) || grown > GROWTH_KIB || share > share_max {
            self.broken.push(name.to_owned());
        }
    }

    /// Fails if a bound was broken.
    pub fn end(self) {
        assert!(self.broken.is_empty(), "out of bounds, as printed above: {:?}", self.broken);
    }
}

/// Opens the runtime directory to all users, as in `/run`.
fn admit_everyone(machine: &Machine) {
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    open(machine.directory.path(), 0o755);
    open(&machine.runtime(), 0o1777);
}
