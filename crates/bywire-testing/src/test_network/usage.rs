//! Memory and processor time of a process.

/// Memory of the process with this id in KiB, and its processor time in clock ticks.
pub fn usage(process: i32) -> (u64, u64) {
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).expect("it runs");
    let status = file("status");
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
    let memory = memory.trim().trim_end_matches(" kB").parse().expect("a number");
    let stat = file("stat");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks = |place: usize| fields[place].parse::<u64>().expect("a number");
    (memory, ticks(11) + ticks(12))
}
