//! The process between the launcher and a rank. It does for the rank what a worker does for itself.
//!
//! A launcher starts this process in place of the rank's program. It starts that program, reads its CPU account between
//! blocks, and talks to the parent over a Unix socket, which crosses network namespaces. It ends with that socket.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;

use crate::clock::{Clock, monotonic_ns};
use crate::cpu::{Snapshot, processes_seconds_by};
use crate::mpi::Link;
use crate::namespaces::{Killed, end_with_this_thread};
use crate::pin::pin;
use crate::plan::{Assignment, Details, End, Job, Outcome, Part, Plan, Role, Test, WorkerMessage};
use crate::workload::block_loop::Record;

/// The hidden subcommand that a launcher runs: `__mpi-rank SOCKET PROGRAM`.
pub const COMMAND: &str = "__mpi-rank";
/// A link in the directory of a job to the parent's `/proc`, for ranks that have another one.
pub(super) const OUR_PROC: &str = "proc";
/// The most round trips that a rank reports of one block. With more, the rank ends the block itself.
const SAMPLES_MAX: usize = 8 << 20;
/// The most foreign lines that are skipped at once, and the longest line.
const COMPLAINTS_MAX: usize = 64;
const LINE_BYTES_MAX: u64 = 4096;
/// A mapping that every process with a port has.
const PORT_MEMORY: &str = "/memfd:bywire-port";
/// The environment variables by which launchers tell a rank its number.
const RANK_VARIABLES: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"];

/// When the last block ended, by the machine's monotonic clock.
static PROGRESS_NS: AtomicU64 = AtomicU64::new(0);

/// Plays one rank for the parent at `socket`. Fails if there is no parent, or if the rank has no number. Other errors are
/// reported to the parent, and the launcher then ends the other rank.
pub fn run(socket: &Path, program: &Path) -> Result<()> {
    let number = RANK_VARIABLES.iter().find_map(|name| env::var(name).ok()?.parse::<u32>().ok());
    let number = number.context("this is not a rank of an MPI job: it is started by `bywire measure mpi`")?;
    let mut parent = UnixStream::connect(socket).context("the measurement is gone")?;
    writeln!(parent, "{number}")?;
    let mut line = String::new();
    let mut input = BufReader::new(parent.try_clone()?);
    input.read_line(&mut line)?;
    let assignment: Assignment = serde_json::from_str(&line).context("a rank's assignment is not valid")?;
    let (plan, end, core) = match (&assignment.job, &assignment.role) {
        (Job::Messages(plan), Role::Target { core }) => (plan, End::Target, *core),
        (Job::Messages(plan), Role::Source { core, .. }) => (plan, End::Source, *core),
        _ => bail!("a rank's assignment is not valid"),
    };
    let (to_parent, patience) = (parent.try_clone()?, assignment.job.deadline());
    PROGRESS_NS.store(monotonic_ns(), Ordering::Relaxed);
    std::thread::spawn(move || end_with_parent(input, &to_parent, end, patience));
    let outcome = play(socket, program, plan, number, end, core).inspect_err(|error| {
        say(&parent, &WorkerMessage::Failed { end, reason: format!("{error:#}") });
    })?;
    say(&parent, &WorkerMessage::Outcome(outcome));
    Ok(())
}

/// Writes one line to the parent. An error means that the parent has ended.
fn say(mut parent: &UnixStream, message: &WorkerMessage) {
    if let Ok(line) = serde_json::to_string(message) {
        let _gone = parent.write_all((line + "\n").as_bytes());
    }
}

/// Ends this process, and the rank with it, when the parent has ended, or when no block has ended for as long as a whole job
/// may take. Ranks that poll on a busy machine get on slowly, and those that hang do not.
fn end_with_parent(mut input: BufReader<UnixStream>, parent: &UnixStream, end: End, patience: Duration) {
    let remaining = || {
        let progress_ns = PROGRESS_NS.load(Ordering::Relaxed);
        patience.saturating_sub(Duration::from_nanos(monotonic_ns() - progress_ns))
    };
    let mut is_late = true;
    while is_late && !remaining().is_zero() {
        let _waits_for_ever =
            input.get_ref().set_read_timeout(Some(remaining().max(Duration::from_millis(1))));
        is_late = input.read(&mut [0]).is_err();
    }
    if is_late {
        let reason = "the MPI job has not finished in time".to_owned();
        say(parent, &WorkerMessage::Failed { end, reason });
    }
    std::process::exit(3);
}

/// The block loop of a rank, in step with [`crate::workload::block_loop::BlockLoop`]. Rank 0 is the source, all others play
/// the target's part.
fn play(
    socket: &Path,
    program: &Path,
    plan: &Plan,
    number: u32,
    end: End,
    core: Option<u32>,
) -> Result<Outcome> {
    pin(core)?;
    // Ports of this job meet in its own directory, or in that of this end's node.
    let directory = socket.parent().context("the socket is in no directory")?;
    let of_node = plan.runtime_directories.as_ref().map(|directories| Path::new(directories.of(end)));
    let mut rank = Rank::start(plan, program, of_node.unwrap_or(directory))?;
    let introduced = rank.line("rank")?;
    let mut words = introduced.trim_end().splitn(4, ' ').skip(1);
    let (own_number, thread) = (words.next(), words.next().unwrap_or_default());
    let own_number = own_number.and_then(|number| number.parse().ok());
    ensure!(own_number == Some(number), "the rank says that it is another one: {introduced}");
    let version = words.next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    if plan.mpi.is_some_and(|choice| choice.link == Link::Bywire) {
        rank.check_port()?;
    }
    // The thread as this process's `/proc` names it, and the carriers' processes as the parent's does.
    let thread = format!("/proc/{thread}");
    let snapshot = |cpu_ns: u64| Snapshot::of_thread_that_ran(&thread, core, cpu_ns as f64 * 1e-9);
    let parents = socket.with_file_name(OUR_PROC);
    let proc = if parents.join("self").exists() { parents } else { PathBuf::from("/proc") };
    let carriers_seconds = || match end {
        End::Source => processes_seconds_by(&proc, &plan.carriers),
        End::Target => 0.0,
    };
    let mut record = Record::new(plan);
    let halves = if plan.test.kind().is_collective { 1.0 } else { 2.0 };
    for _ in 0..plan.warmup_blocks + plan.blocks {
        let [cpu_ns] = numbers(&rank.line("ready")?)?;
        let (before, carriers_before) = (snapshot(cpu_ns), carriers_seconds());
        rank.input.write_all(b"\n").context("the rank ended in the middle of the test")?;
        let (mut part, cpu_ns, samples) = rank.block()?;
        // The account is read before the samples, because receiving them takes CPU time of this process on the rank's
        // core.
        let after = snapshot(cpu_ns);
        part.carriers_cpu_seconds = carriers_seconds() - carriers_before;
        rank.samples(samples, &mut record.round_trips)?;
        PROGRESS_NS.store(monotonic_ns(), Ordering::Relaxed);
        let median = || record.round_trips.value_at_quantile(0.5) as f64 / halves;
        part.reading = (!record.round_trips.is_empty()).then(median);
        record.add(part, before, after)?;
    }
    let mut details = Details::default();
    if end == End::Source {
        details.insert("mpi_version".to_owned(), version.replace(" Version:", "").into());
    }
    let status = rank.child.0.wait()?;
    ensure!(status.success(), "the rank ended with {status}");
    Ok(record.outcome(end, details))
}

struct Rank {
    child: Killed,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(plan: &Plan, program: &Path, runtime_directory: &Path) -> Result<Self> {
        let test = match plan.test {
            Test::Latency | Test::Rr => "latency",
            Test::Bidir | Test::Alltoall | Test::Allreduce => plan.test.name(),
            _ => "stream",
        };
        let counter = Clock::shared().source() == "tsc";
        let numbers = [
            plan.size_bytes,
            plan.response_bytes,
            plan.block_us,
            u64::from(plan.warmup_blocks + plan.blocks),
            plan.request.verify.into(),
            counter.into(),
            plan.mpi.map_or(0, |choice| choice.unmatched).into(),
        ];
        let mut command = Command::new(program);
        command.arg(test).args(numbers.map(|number| number.to_string()));
        command.env("BYWIRE_RUNTIME_DIR", runtime_directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        end_with_this_thread(&mut command);
        let mut child = Killed(command.spawn().context("cannot start a rank's program")?);
        let input = child.0.stdin.take().context("a rank has no input")?;
        let output = child.0.stdout.take().context("a rank has no output")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// The next line that begins with `word`. Other lines are skipped, as libraries may complain on the same output.
    fn line(&mut self, word: &str) -> Result<String> {
        let mut complaint = None;
        for _ in 0..COMPLAINTS_MAX {
            let mut line = String::new();
            (&mut self.output).take(LINE_BYTES_MAX).read_line(&mut line)?;
            if let Some(reason) = line.strip_prefix("failed ") {
                bail!("{}", reason.trim_end());
            }
            if line.is_empty() {
                break;
            }
            if line.ends_with('\n') && line.split(' ').next() == Some(word) {
                return Ok(line);
            }
            complaint.get_or_insert(line);
        }
        let said = complaint.map_or_else(String::new, |line| format!("; it said: {}", line.trim_end()));
        bail!("the rank ended in the middle of the test{said}")
    }

    /// The report on a block, with the CPU time of the rank's thread so far, in ns, and the number of samples that
    /// follow.
    fn block(&mut self) -> Result<(Part, u64, u64)> {
        let [began_ns, took_ns, operations, sent_bytes, received_bytes, cpu_ns, ran_ns, samples] =
            numbers(&self.line("block")?)?;
        ensure!(samples <= SAMPLES_MAX as u64, "the rank reports too many round trips: {samples}");
        let part = Part {
            began_ns,
            seconds: took_ns as f64 * 1e-9,
            operations,
            sent_bytes,
            received_bytes,
            cpu_seconds: cpu_ns as f64 * 1e-9,
            ..Part::default()
        };
        Ok((part, ran_ns, samples))
    }

    fn samples(&mut self, count: u64, round_trips: &mut Histogram<u64>) -> Result<()> {
        let mut bytes = [0; 4];
        for _ in 0..count {
            self.output.read_exact(&mut bytes)?;
            round_trips.saturating_record(u32::from_ne_bytes(bytes).into());
        }
        Ok(())
    }

    /// Checks that the rank has a port, so that its messages crossed the fabric.
    fn check_port(&self) -> Result<()> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.0.id()))?;
        ensure!(maps.contains(PORT_MEMORY), "the rank has no port: its messages did not cross the fabric");
        Ok(())
    }
}

fn numbers<const COUNT: usize>(line: &str) -> Result<[u64; COUNT]> {
    let said = || format!("the rank said: {}", line.trim_end());
    let numbers: Vec<u64> =
        line.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>().with_context(said)?;
    numbers.try_into().ok().with_context(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_all_numbers_or_is_quoted_in_the_error() {
        assert_eq!(numbers("block 1 2 3\n").unwrap(), [1, 2, 3]);
        for line in ["block 1 2\n", "block 1 2 3 4\n", "block 1 2 x\n", ""] {
            let error = format!("{:#}", numbers::<3>(line).unwrap_err());
            assert!(error.contains(&format!("the rank said: {}", line.trim_end())), "{error}");
        }
    }
}
