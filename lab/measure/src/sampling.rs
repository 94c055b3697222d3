//! Shows where the time of a core goes: at each tick of a fine clock the kernel records the code that the core
//! executes.
//!
//! The clock is the kernel's own (`cpu-clock` of perf_event_open), which virtual machines without a cycle counter have
//! too. Code that runs with interrupts disabled is recorded when they are enabled again. Functions count towards the
//! purpose that their name shows, and otherwise as "the kernel otherwise".

use std::collections::BTreeMap;
use std::fs;
use std::io;

use anyhow::{Context, Result, ensure};
use bywire_results::breakdown::{CARRIER, IDLE, OTHERS, PROGRAM};
use perf_event2::data::Record;
use perf_event2::events::Software;
use perf_event2::{Builder, Clock, SampleFlag, Sampler};

pub use bywire_results::breakdown::{KINDS, OTHERWISE, UNSAMPLED};

/// The shortest time between two samples of a core.
const PERIOD_NS_MIN: u64 = 100_000;

/// The most samples of a core that its buffer holds, and the most bytes of each.
const SAMPLES_MAX: u64 = 16_384;
const SAMPLE_BYTES: u64 = 48;

/// The lowest address of the kernel. Programs are below it.
const KERNEL: u64 = 1 << 63;

/// Kinds of kernel functions, by parts of their names. The first match counts.
#[rustfmt::skip]
const NAMES: [(&str, &[&str]); 10] = [
    (IDLE, &["safe_halt", "default_idle", "mwait_idle", "acpi_idle", "cpuidle_enter", "haltpoll"]),
    ("checksums", &["csum", "checksum"]),
    ("copies", &["copy_from_iter", "copy_to_iter", "copy_user", "rep_movs", "copy_page", "copy_datagram", "skb_copy", "memcpy", "memmove", "copyin", "copyout", "_copy_from", "_copy_to", "iov_iter"]),
    ("link", &["veth", "loopback_xmit", "tun_", "tap_", "netif_rx", "netif_receive", "net_rx_action", "process_backlog", "dev_queue_xmit", "dev_hard_start", "sch_direct", "napi", "gro_", "_gro", "qdisc", "eth_type_trans", "validate_xmit", "gso", "softirq", "local_bh", "br_handle", "br_forward", "enqueue_to_backlog", "netdev", "pfifo", "noqueue", "tpacket", "ptr_ring"]),
    ("sleeping and waking", &["schedule", "wake", "ttwu", "enqueue_", "dequeue_", "update_curr", "pick_", "finish_task_switch", "switch_mm", "switch_to", "prepare_to_wait", "finish_wait", "def_readable", "sched_", "hrtimer", "tick_", "do_idle", "cpuidle", "send_call_func", "smp_call", "smp_send", "smp_queue", "select_task", "select_idle", "idle_cpu", "set_next", "put_prev", "place_entity", "reweight", "update_load", "update_rq", "update_se", "futex", "ep_poll", "ep_send", "epoll", "eventpoll", "poll_wait", "do_poll", "do_sys_poll", "pollwait", "wait_for_more", "wait_data", "wait_woken", "unlock_irqrestore", "resched", "rcu_", "ct_", "context_switch", "cpuacct", "entity", "nohz", "kvm_", "x2apic", "apic", "call_function", "flush_smp", "menu_", "ktime", "clock", "pv_native"]),
    ("local sockets", &["unix_", "pipe_"]),
    ("TCP and IP", &["tcp", "udp", "ip_", "ip4_", "ip6_", "ipv4", "ipv6", "inet", "nf_", "fib_", "dst_", "icmp", "sk_reset_timer", "neigh", "xfrm", "flow_dissect", "rt_", "lock_sock", "release_sock", "sock_wfree", "sock_rfree", "skb_clone", "skb_push", "skb_pull", "skb_put", "bpf", "siphash", "ping_"]),
    ("memory of packets", &["kmem", "kmalloc", "kfree", "slab", "page_frag", "alloc_page", "free_page", "free_unref", "get_page", "put_page", "rmqueue", "alloc_skb", "skb_release", "skb_free", "alloc_send", "folio", "free_frozen", "alloc_frozen", "obj_cgroup", "memcg", "mem_cgroup", "mod_memcg", "zone", "skb_page", "consume_skb", "build_skb", "refill", "drain"]),
    ("system calls", &["SYSCALL", "syscall", "__x64_sys", "_sys_", "__sys", "sys_", "sockfd", "fdget", "fget", "fput", "security_", "apparmor", "sock_send", "sock_recv", "sendmsg", "recvmsg", "move_addr", "import_", "entry_", "exit_to_user", "vfs_", "ksys", "rw_verify", "new_sync", "fsnotify", "audit", "seccomp", "sock_write", "sock_read"]),
    ("TCP and IP", &["sk_", "_sk", "sock_", "skb", "dev_", "net_", "__fib", "timer", "lock_timer"]),
];

/// Samples cores until it is dropped.
pub struct Sampling {
    cores: Vec<(u32, Sampler)>,
    period_ns: u64,
}

/// The number of samples of one core, by kind.
pub type Profile = BTreeMap<&'static str, u64>;

impl Sampling {
    /// Begins to sample each of `cores`, for about `expected_ns`, if this user is allowed to and the kernel has the
    /// clock.
    pub fn start(cores: &[u32], expected_ns: u64) -> Result<Self> {
        let period_ns = PERIOD_NS_MIN.max(expected_ns / (SAMPLES_MAX / 2));
        let start = |&core: &u32| -> io::Result<(u32, Sampler)> {
            let mut event = Builder::new(Software::CPU_CLOCK);
            event.any_pid().one_cpu(core as usize).include_kernel().clockid(Clock::MONOTONIC);
            event.sample(SampleFlag::IP | SampleFlag::TID | SampleFlag::TIME).sample_period(period_ns);
            let sampler = event.enabled(true).build()?.sampled((SAMPLES_MAX * SAMPLE_BYTES) as usize)?;
            Ok((core, sampler))
        };
        let cores = cores.iter().map(start).collect::<io::Result<_>>();
        let cores = cores.context(
            "both cores cannot be sampled: run as root, or set the sysctl kernel.perf_event_paranoid to -1",
        )?;
        Ok(Self { cores, period_ns })
    }

    /// The time between two samples.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// The samples of each core within `spans` (begin and end in ns of the monotonic clock).
    pub fn within(
        mut self,
        spans: &[(u64, u64)],
        processes: &Processes,
        symbols: &Symbols,
    ) -> Vec<(u32, Profile)> {
        let profile = |(core, sampler): &mut (u32, Sampler)| {
            let mut profile = Profile::new();
            while let Some(record) = sampler.next_record() {
                let Ok(Record::Sample(sample)) = record.parse_record() else { continue };
                let is_within = |time_ns: &u64| spans.iter().any(|&(from, to)| (from..to).contains(time_ns));
                let kind = sample.time().filter(is_within).and_then(|_| match sample.ip()? {
                    address @ KERNEL.. => Some(symbols.kind(address)),
                    _ => Some(processes.kind(sample.pid()?)),
                });
                if let Some(kind) = kind {
                    *profile.entry(kind).or_default() += 1;
                }
            }
            (*core, profile)
        };
        self.cores.iter_mut().map(profile).collect()
    }
}

/// The processes, by their part in the measurement: the two ends, and those that carry the messages.
pub struct Processes {
    pub ends: Vec<u32>,
    pub carriers: Vec<u32>,
}

impl Processes {
    fn kind(&self, process: u32) -> &'static str {
        match process {
            end if self.ends.contains(&end) => PROGRAM,
            carrier if self.carriers.contains(&carrier) => CARRIER,
            _ => OTHERS,
        }
    }
}

/// The kernel's functions by their addresses, each with its kind.
pub struct Symbols(Vec<(u64, &'static str)>);

impl Symbols {
    /// The functions of the running kernel, unless it hides them from this user.
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/kallsyms");
        let symbols = Self::parse(&text.context("the kernel's functions have no names here")?);
        ensure!(
            symbols.0.iter().any(|symbol| symbol.0 >= KERNEL),
            "the kernel hides where its functions are: run as root, or set the sysctl kernel.kptr_restrict to 0"
        );
        Ok(symbols)
    }

    fn parse(text: &str) -> Self {
        let function = |line: &str| {
            let mut fields = line.split_ascii_whitespace();
            let address = u64::from_str_radix(fields.next()?, 16).ok()?;
            let is_code = fields.next().is_some_and(|sort| "tTwW".contains(sort));
            is_code.then_some((address, kind_of(fields.next()?)))
        };
        let mut symbols: Vec<_> = text.lines().filter_map(function).collect();
        symbols.sort_by_key(|symbol| symbol.0);
        Self(symbols)
    }

    fn kind(&self, address: u64) -> &'static str {
        let after = self.0.partition_point(|symbol| symbol.0 <= address);
        after.checked_sub(1).map_or(OTHERWISE, |at| self.0[at].1)
    }
}

fn kind_of(name: &str) -> &'static str {
    let fits = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    NAMES.iter().find(|(_, parts)| fits(parts)).map_or(OTHERWISE, |(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_any_address_inside() {
        let symbols = Symbols::parse(
            "ffffffff81000300 T tcp_sendmsg\nffffffff81000100 t rep_movs_alternative\nffffffff81000000 D data\n\
             ffffffff81000200 T csum_partial\nnonsense\nffffffff81000400 T frobnicate\n",
        );
        let kinds =
            [0x100, 0x1ff, 0x200, 0x3ff, 0x400, 0x0].map(|at| symbols.kind(0xffff_ffff_8100_0000 + at));
        assert_eq!(kinds, ["copies", "copies", "checksums", "TCP and IP", OTHERWISE, OTHERWISE]);
    }

    #[test]
    fn every_kind_has_a_row_in_the_tables() {
        assert_eq!(NAMES.into_iter().find(|(kind, _)| !KINDS.contains(kind)), None);
    }

    #[test]
    fn a_busy_core_is_not_idle() {
        let core = crate::pin::allowed_cores()[0];
        let both = Symbols::read().and_then(|symbols| Ok((symbols, Sampling::start(&[core], 100_000_000)?)));
        let Ok((symbols, sampling)) = both.inspect_err(|reason| eprintln!("not run: {reason:#}")) else {
            return;
        };
        let busy = std::thread::spawn(move || {
            crate::pin::pin_to(core).unwrap();
            let began_ns = crate::clock::monotonic_ns();
            let (began, began_seconds) = (std::time::Instant::now(), crate::cpu::thread_seconds());
            // It may hardly run in that time, or not at all.
            while began.elapsed().as_millis() < 300 || crate::cpu::thread_seconds() - began_seconds < 0.05 {}
            (began_ns, crate::clock::monotonic_ns())
        });
        let span = busy.join().unwrap();
        let processes = Processes { ends: vec![std::process::id()], carriers: Vec::new() };
        let profiles = sampling.within(&[span], &processes, &symbols);
        let [own, idle] = [PROGRAM, IDLE].map(|kind| profiles[0].1.get(kind).copied().unwrap_or(0));
        // Some idle time is normal: a process with a share of a core is stopped at times.
        assert!(own > 100 && idle < own, "{profiles:?}");
    }
}
