//! CPU accounts: the processor time of the machine during a span of a measurement, and the thread's share of it.
//!
//! The kernel counts a core's time in ticks of 10 ms (`USER_HZ`), so a reading is wrong by up to one tick. Machine
//! figures are absent for spans under [`MACHINE_SPAN_SECONDS_MIN`]. The thread's own clock is exact to nanoseconds over
//! any span.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use bywire_results::cell::CpuEnd;
use rustix::time::{ClockId, clock_gettime};

/// The shortest span with machine figures. In a shorter one the tick alone would be over 2 %.
pub const MACHINE_SPAN_SECONDS_MIN: f64 = 0.5;

/// The time that a thread lost in a span of wall time.
pub(crate) struct LostTime {
    pub(crate) wall_seconds: f64,
    /// The core's time that the hypervisor took, in whole ticks.
    pub(crate) stolen_seconds: Option<f64>,
    /// How long the thread was ready to run while another one had the core.
    pub(crate) waited_seconds: Option<f64>,
}

/// Readings of every account at one moment, for the calling thread and one core.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    wall_seconds: f64,
    thread_seconds: f64,
    /// How long the thread was ready to run while another thread had its core.
    waited_seconds: Option<f64>,
    core: Option<u32>,
    core_times: Option<CoreTimes>,
}

impl Snapshot {
    /// Reads the accounts now. `core` is the core that the calling thread is pinned to. Without one there are no
    /// machine figures, because no core can be charged to this end.
    pub fn take(core: Option<u32>) -> Self {
        Self { thread_seconds: thread_seconds(), ..Self::of_thread("/proc/thread-self", core) }
    }

    /// Reads the accounts of another thread by its directory under `/proc`. Its own time is as of the last tick.
    pub fn of_thread(thread: &str, core: Option<u32>) -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        let account = read(&format!("{thread}/schedstat")).and_then(|account| thread_account(&account));
        Self {
            wall_seconds: seconds(ClockId::Monotonic),
            thread_seconds: account.map_or(0.0, |(ran, _)| ran),
            waited_seconds: account.map(|(_, waited)| waited),
            core,
            core_times: core.and_then(|core| CoreTimes::of_core(&read("/proc/stat")?, core)),
        }
    }

    /// Reads the accounts of all threads of several processes together. Their waiting time is unknown.
    pub fn of_processes(processes: &[u32], core: Option<u32>) -> Self {
        let thread_seconds = processes_seconds(processes);
        Self { thread_seconds, waited_seconds: None, ..Self::of_thread("/proc/thread-self", core) }
    }

    /// Reads the accounts of another thread that has reported its own CPU time.
    pub fn of_thread_that_ran(thread: &str, core: Option<u32>, thread_seconds: f64) -> Self {
        Self { thread_seconds, ..Self::of_thread(thread, core) }
    }

    /// The threads' own time between `earlier` and `self`, in seconds.
    pub fn thread_seconds_since(&self, earlier: &Self) -> f64 {
        self.thread_seconds - earlier.thread_seconds
    }

    /// The cost of the span from `self` to `later`, both read by one thread. Shares are of wall time, 0 to 1. Machine
    /// shares are absent for spans under [`MACHINE_SPAN_SECONDS_MIN`] and if `/proc/stat` has no such core.
    pub fn until(&self, later: &Self) -> CpuEnd {
        let LostTime { wall_seconds: wall, stolen_seconds: stolen, .. } = self.lost_until(later);
        if wall <= 0.0 {
            return CpuEnd { core: self.core, ..CpuEnd::default() };
        }
        let attributed = later.thread_seconds_since(self) / wall;
        let is_long = wall >= MACHINE_SPAN_SECONDS_MIN;
        let idle = self.core_times.zip(later.core_times).map(|(before, after)| after.idle - before.idle);
        let busy = idle.zip(stolen).filter(|_| is_long).map(|(idle, stolen)| wall - idle - stolen);
        let share = |seconds: f64| (seconds / wall).clamp(0.0, 1.0);
        CpuEnd {
            core: self.core,
            machine_busy: busy.map(share),
            steal: stolen.filter(|_| is_long).map(share),
            attributed: Some(attributed),
            unattributed: busy.map(|busy| share(busy) - attributed),
            ..CpuEnd::default()
        }
    }

    /// The time that the thread lost between `self` and `later`.
    pub(crate) fn lost_until(&self, later: &Self) -> LostTime {
        let lost = |after: Option<f64>, before: Option<f64>| Some(after? - before?);
        let stolen = |snapshot: &Self| Some(snapshot.core_times?.steal);
        LostTime {
            wall_seconds: later.wall_seconds - self.wall_seconds,
            stolen_seconds: lost(stolen(later), stolen(self)),
            waited_seconds: lost(later.waited_seconds, self.waited_seconds),
        }
    }
}

/// The calling thread's own CPU time.
pub fn thread_seconds() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

/// The time for which all cores of the machine were busy so far, with interrupts, in whole ticks. Fails if the kernel
/// does not report it.
pub fn machine_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let ticks = busy_ticks(&stat).context("/proc/stat has no line of all cores")?;
    Ok(ticks as f64 / ticks_per_second())
}

/// The busy time of all cores. `user` includes `guest`.
fn busy_ticks(stat: &str) -> Option<u64> {
    let ticks = ticks(stat, "cpu ")?;
    [0, 1, 2, 5, 6].into_iter().map(|field| ticks.get(field)).sum()
}

/// The CPU time of all threads of several processes so far. For a running thread it is as of the last tick. A process
/// that has ended adds nothing.
pub fn processes_seconds(processes: &[u32]) -> f64 {
    processes_seconds_by("/proc".as_ref(), processes)
}

/// As [`processes_seconds`], read below another mount of procfs, in whose namespace `processes` are numbers.
pub fn processes_seconds_by(proc: &Path, processes: &[u32]) -> f64 {
    let threads = processes.iter().flat_map(|process| fs::read_dir(proc.join(format!("{process}/task"))));
    let threads = threads.flatten().flatten();
    let accounts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
    accounts.filter_map(|account| thread_account(&account)).map(|(ran, _)| ran).sum()
}

/// One core's times in `/proc/stat`, in seconds. Busy time is wall time less these, because the idle counters are
/// exact under NO_HZ, the busy counters are sampled, and `user` includes `guest`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CoreTimes {
    /// Idle, also while a disk is awaited.
    idle: f64,
    steal: f64,
}

impl CoreTimes {
    fn of_core(stat: &str, core: u32) -> Option<Self> {
        let ticks = ticks(stat, &format!("cpu{core} "))?;
        let time = |field: usize| Some(*ticks.get(field)? as f64 / ticks_per_second());
        Some(Self { idle: time(IDLE)? + time(IDLE + 1)?, steal: time(STEAL)? })
    }
}

/// The fields of a line of `/proc/stat`: user nice system idle iowait irq softirq steal guest guest_nice.
fn ticks(stat: &str, name: &str) -> Option<Vec<u64>> {
    let fields = stat.lines().find_map(|line| line.strip_prefix(name))?;
    fields.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()
}

const IDLE: usize = 3;
const STEAL: usize = 7;

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// The seconds that a thread ran and the seconds that it waited for its core, from its `schedstat`.
fn thread_account(schedstat: &str) -> Option<(f64, f64)> {
    let mut fields = schedstat.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next_seconds = || Some(fields.next()?.ok()? as f64 * 1e-9);
    Some((next_seconds()?, next_seconds()?))
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  300 0 60 1000 10 0 4 20 50 0\n\
                        cpu1 100 0 20 400 10 0 2 5 50 0\n\
                        cpu11 200 0 40 600 0 0 2 15 0 0\n\
                        intr 1 2 3\n";

    fn snapshot(wall_seconds: f64, idle: f64, steal: f64, waited_seconds: f64) -> Snapshot {
        Snapshot {
            wall_seconds,
            thread_seconds: wall_seconds / 4.0,
            waited_seconds: Some(waited_seconds),
            core: Some(1),
            core_times: Some(CoreTimes { idle, steal }),
        }
    }

    #[test]
    fn a_core_is_matched_by_its_whole_name() {
        let times = CoreTimes::of_core(STAT, 1).unwrap();
        let ticks = [times.idle, times.steal].map(|time| (time * ticks_per_second()).round());
        assert_eq!(ticks, [410.0, 5.0]);
        assert_eq!(CoreTimes::of_core(STAT, 2), None);
        assert_eq!(CoreTimes::of_core("cpu1 1 2 3\n", 1), None);
        assert_eq!((busy_ticks(STAT), busy_ticks("cpu 1 2 3\n")), (Some(364), None));
    }

    #[test]
    fn busy_stolen_and_attributed_shares_are_consistent() {
        let cost = snapshot(10.0, 5.0, 0.0, 0.0).until(&snapshot(12.0, 5.5, 0.5, 0.0));
        assert_eq!(cost.machine_busy, Some(0.5), "2 s − 0.5 idle − 0.5 stolen");
        assert_eq!([cost.steal, cost.attributed, cost.unattributed], [Some(0.25); 3]);
    }

    #[test]
    fn short_intervals_have_no_machine_wide_figures() {
        let cost = snapshot(10.0, 5.0, 0.0, 0.0).until(&snapshot(10.02, 5.0, 0.0, 0.0));
        assert!(cost.machine_busy.is_none() && cost.attributed.is_some());
    }

    #[test]
    fn processor_time_of_a_thread_is_read_from_two_fields() {
        assert_eq!(thread_account("2000000000 500000000 7\n"), Some((2.0, 0.5)));
        assert_eq!(thread_account("2000000000"), None);
        assert_eq!(thread_account("a b c"), None);
    }

    #[test]
    fn the_thread_clock_counts_work_and_not_waiting() {
        // A thread may lose its core between its readings too, so wall time is read before and after them.
        let began = std::time::Instant::now();
        let before = Snapshot::take(Some(0));
        let mut sum = 0u64;
        while thread_seconds() - before.thread_seconds < 0.01 {
            sum = std::hint::black_box(sum + 1);
        }
        let after = Snapshot::take(Some(0));
        let spent = after.thread_seconds_since(&before);
        assert!((0.01..=began.elapsed().as_secs_f64() + 0.001).contains(&spent));
        assert!(before.waited_seconds.is_some() && before.core_times.is_some());
    }
}
