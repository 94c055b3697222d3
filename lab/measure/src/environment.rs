//! The facts about a machine that are needed to judge a result. Stored with every result, without names of hosts and
//! users.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use serde_json::{Value, json};

use crate::clock::Clock;
use crate::pin;

/// Sysctls that affect results of network tests.
const SYSCTLS: [&str; 12] = [
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.netdev_max_backlog",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_mtu_probing",
];

/// Describes this machine now. `cores` are measured on. Facts that the kernel does not report are `null`.
pub fn describe(cores: &[u32]) -> Value {
    json!({
        "package": { "version": env!("CARGO_PKG_VERSION"), "revision": option_env!("BYWIRE_REVISION") },
        "command": command(std::env::args()),
        "kernel": kernel(),
        "boot": boot_identity(),
        "cpu": cpu(),
        "cores": cores.iter().map(|&core| describe_core(core)).collect::<Vec<_>>(),
        "shared": shared(cores),
        "clock": {
            "kernel": read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            "blocks": Clock::shared().source(),
        },
        "mitigations": mitigations(),
        "hypervisor": cpu_flag("hypervisor"),
        "steal_seen": steal_seen(),
        "memory_total_bytes": memory_total_bytes(),
        "sysctls": sysctls(),
    })
}

/// The full command line. The program's directory is left out, because it may contain a user's name.
fn command(mut arguments: impl Iterator<Item = String>) -> Vec<String> {
    let program = arguments.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default().to_owned();
    std::iter::once(name).chain(arguments).collect()
}

fn kernel() -> Value {
    let name = rustix::system::uname();
    json!({
        "release": name.release().to_string_lossy(),
        "version": name.version().to_string_lossy(),
        "machine": name.machine().to_string_lossy(),
    })
}

/// Equal for two processes of one booted machine. It reveals nothing else about the machine.
pub fn boot_identity() -> Option<String> {
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    // Fixed keys give the same hash in every run. The hashed value is random already, so the hash hides it.
    let mut hasher = DefaultHasher::new();
    ("bywire", boot).hash(&mut hasher);
    Some(format!("{:016x}", hasher.finish()))
}

fn cpu() -> Value {
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
    };
    json!({
        "model": field("model name"),
        "vendor": field("vendor_id"),
        "microcode": field("microcode"),
        "online": read("/sys/devices/system/cpu/online"),
        "smt_active": read("/sys/devices/system/cpu/smt/active").map(|active| active == "1"),
    })
}

fn describe_core(core: u32) -> Value {
    let at = |file: &str| read(format!("/sys/devices/system/cpu/cpu{core}/{file}"));
    json!({
        "core": core,
        "physical_core": at("topology/core_id"),
        "package": at("topology/physical_package_id"),
        "governor": at("cpufreq/scaling_governor"),
        "frequency_max_khz": at("cpufreq/scaling_max_freq"),
        "caches": caches(core).iter().map(|cache| cache.describe()).collect::<Vec<_>>(),
    })
}

/// A cache as the kernel describes it.
struct Cache {
    level: String,
    kind: String,
    size: String,
    cores: Vec<u32>,
}

impl Cache {
    fn describe(&self) -> Value {
        json!({ "level": self.level, "kind": self.kind, "size": self.size, "cores": self.cores })
    }
}

fn caches(core: u32) -> Vec<Cache> {
    let indexes = 0..8;
    let cache = |index: u32| {
        let at = |file: &str| read(format!("/sys/devices/system/cpu/cpu{core}/cache/index{index}/{file}"));
        Some(Cache {
            level: at("level")?,
            kind: at("type")?.to_lowercase(),
            size: at("size").unwrap_or_default(),
            cores: pin::core_list(&at("shared_cpu_list")?),
        })
    };
    indexes.filter_map(cache).collect()
}

/// What all of `cores` share, closest first: `core` (hardware threads of one), `L1`, `L2`, `L3`, `package`. Empty for
/// fewer than two cores, or if the kernel does not report it.
pub fn shared(cores: &[u32]) -> Vec<String> {
    let Some((&first, others)) = cores.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Vec::new();
    };
    let all_in = |group: &[u32]| others.iter().all(|core| group.contains(core));
    let mut shared = Vec::new();
    if all_in(&pin::siblings(first)) {
        shared.push("core".to_owned());
    }
    let data_caches = caches(first).into_iter().filter(|cache| cache.kind != "instruction");
    shared.extend(data_caches.filter(|cache| all_in(&cache.cores)).map(|cache| format!("L{}", cache.level)));
    let package = read(format!("/sys/devices/system/cpu/cpu{first}/topology/package_cpus_list"));
    if package.is_some_and(|list| all_in(&pin::core_list(&list))) {
        shared.push("package".to_owned());
    }
    shared
}

fn mitigations() -> BTreeMap<String, String> {
    let directory = fs::read_dir("/sys/devices/system/cpu/vulnerabilities");
    let files = directory.into_iter().flatten().flatten();
    files.filter_map(|file| Some((file.file_name().into_string().ok()?, read(file.path())?))).collect()
}

/// True when the processor has `flag`, such as `hypervisor` inside a virtual machine.
pub fn cpu_flag(flag: &str) -> bool {
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|word| word == flag))
}

/// True when the hypervisor has ever taken a core away since boot.
fn steal_seen() -> Option<bool> {
    let stat = read("/proc/stat")?;
    Some(stat.lines().next()?.split_ascii_whitespace().nth(8)? != "0")
}

fn memory_total_bytes() -> Option<u64> {
    let info = read("/proc/meminfo")?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

fn sysctls() -> BTreeMap<&'static str, Option<String>> {
    let value = |name: &str| Some(read(format!("/proc/sys/{}", name.replace('.', "/")))?.replace('\t', " "));
    SYSCTLS.into_iter().map(|name| (name, value(name))).collect()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_complete_without_the_host_name() {
        let environment = describe(&pin::allowed_cores());
        assert!(!environment["kernel"]["release"].as_str().unwrap().is_empty());
        assert!(environment["cpu"]["online"].is_string());
        assert!(environment["sysctls"]["net.core.rmem_max"].is_string());
        assert_eq!(environment["package"]["version"], env!("CARGO_PKG_VERSION"));
        assert!(environment["memory_total_bytes"].as_u64().unwrap() > 1 << 20);
        assert!(!environment["command"].as_array().unwrap().is_empty());
        assert!(environment.get("host").is_none() && environment["kernel"].get("nodename").is_none());
    }

    #[test]
    fn the_command_line_is_complete_except_the_programs_directory() {
        let arguments = ["/home/someone/bin/bywire", "measure", "--key", "/etc/key"].map(str::to_owned);
        assert_eq!(command(arguments.into_iter()), ["bywire", "measure", "--key", "/etc/key"]);
    }

    #[test]
    fn the_boot_is_identified_only_by_a_hash() {
        let identity = boot_identity().unwrap();
        assert_eq!(identity.len(), 16);
        assert_eq!(Some(&identity), boot_identity().as_ref());
        assert!(!read("/proc/sys/kernel/random/boot_id").unwrap().contains(&identity));
    }

    #[test]
    fn single_and_missing_cores_share_no_cache() {
        assert!(shared(&[0]).is_empty());
        assert!(shared(&[0, u32::MAX]).is_empty());
    }
}
