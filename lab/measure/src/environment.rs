//! The facts about a machine that are needed to judge a result. Stored with every result, without names of hosts and
//! users.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use crate::clock::Clock;
pub use crate::clock::cpu_flag;
use crate::pin;

/// Sysctls that affect results of network tests.
const SYSCTLS: [(&str, &str); 2] = [
    (
        "net.core.",
        "rmem_default rmem_max wmem_default wmem_max busy_poll busy_read default_qdisc netdev_max_backlog",
    ),
    ("net.ipv4.", "tcp_rmem tcp_wmem tcp_congestion_control tcp_mtu_probing"),
];

/// Describes this machine now. `cores` are measured on. Facts that the kernel does not report are `null`.
pub fn describe(cores: &[u32]) -> Value {
    let kernel = rustix::system::uname();
    json!({
        "package": { "version": env!("CARGO_PKG_VERSION"), "revision": option_env!("BYWIRE_REVISION") },
        "command": command(std::env::args()),
        "kernel": {
            "release": kernel.release().to_string_lossy(),
            "version": kernel.version().to_string_lossy(),
            "machine": kernel.machine().to_string_lossy(),
        },
        "boot": boot_identity(),
        "cpu": cpu(),
        "cores": cores.iter().map(describe_core).collect::<Vec<_>>(),
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

fn describe_core(&core: &u32) -> Value {
    let at = |file: &str| read(format!("/sys/devices/system/cpu/cpu{core}/{file}"));
    json!({
        "core": core,
        "physical_core": at("topology/core_id"),
        "package": at("topology/physical_package_id"),
        "governor": at("cpufreq/scaling_governor"),
        "frequency_max_khz": at("cpufreq/scaling_max_freq"),
        "caches": caches(core),
    })
}

/// A cache as the kernel describes it.
#[derive(Serialize)]
struct Cache {
    level: String,
    kind: String,
    size: String,
    cores: Vec<u32>,
}

fn caches(core: u32) -> Vec<Cache> {
    let cache = |index: u32| {
        let at = |file: &str| read(format!("/sys/devices/system/cpu/cpu{core}/cache/index{index}/{file}"));
        Some(Cache {
            level: at("level")?,
            kind: at("type")?.to_lowercase(),
            size: at("size").unwrap_or_default(),
            cores: pin::core_list(&at("shared_cpu_list")?),
        })
    };
    (0..8).filter_map(cache).collect()
}

/// The things that all of `cores` share, closest first: `core` (hardware threads of one), `L1`, `L2`, `L3`, `package`.
/// Empty for fewer than two cores, or if the kernel does not report it.
pub fn shared(cores: &[u32]) -> Vec<String> {
    let Some((&first, others)) = cores.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Vec::new();
    };
    let all_in = |group: &[u32]| others.iter().all(|core| group.contains(core));
    let caches = caches(first).into_iter().filter(|cache| cache.kind != "instruction");
    let caches = caches.map(|cache| (format!("L{}", cache.level), cache.cores));
    let package = read(format!("/sys/devices/system/cpu/cpu{first}/topology/package_cpus_list"));
    let package = package.map(|list| ("package".to_owned(), pin::core_list(&list)));
    let groups = std::iter::once(("core".to_owned(), pin::siblings(first))).chain(caches).chain(package);
    groups.filter(|(_, group)| all_in(group)).map(|(name, _)| name).collect()
}

fn mitigations() -> BTreeMap<String, String> {
    let directory = fs::read_dir("/sys/devices/system/cpu/vulnerabilities");
    let files = directory.into_iter().flatten().flatten();
    files.filter_map(|file| Some((file.file_name().into_string().ok()?, read(file.path())?))).collect()
}

/// Returns whether the hypervisor has ever taken a core away since boot.
fn steal_seen() -> Option<bool> {
    let stat = read("/proc/stat")?;
    Some(stat.lines().next()?.split_ascii_whitespace().nth(8)? != "0")
}

fn memory_total_bytes() -> Option<u64> {
    let info = read("/proc/meminfo")?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

fn sysctls() -> BTreeMap<String, Option<String>> {
    let names =
        SYSCTLS.into_iter().flat_map(|(group, names)| names.split(' ').map(move |name| (group, name)));
    let value = |(group, name): (&str, &str)| {
        let path = format!("/proc/sys/{}{name}", group.replace('.', "/"));
        (format!("{group}{name}"), read(path).map(|value| value.replace('\t', " ")))
    };
    names.map(value).collect()
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
