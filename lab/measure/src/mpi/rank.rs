//! The process between the launcher and a rank. It does for the rank what a worker does for itself.
//!
//! A launcher starts this process in place of the rank's program. It starts that program, reads its CPU account between
//! blocks, and talks to the parent over a Unix socket, which crosses network namespaces. It ends with that socket.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;

use crate::clock::Clock;
use crate::cpu::{Snapshot, processes_seconds_by};
use crate::disturbance;
use crate::mpi::Link;
use crate::namespaces::end_with_this_thread;
use crate::pin;
use crate::plan::{Assignment, Details, End, Job, Outcome, Part, Plan, Role, Test, WorkerMessage};
use crate::workload::block_loop::{buckets, histogram};

/// The hidden subcommand that a launcher runs: `__mpi-rank SOCKET PROGRAM`.
pub const COMMAND: &str = "__mpi-rank";

/// A link in the directory of a job to the parent's `/proc`, for ranks that have another one.
pub(super) const OUR_PROC: &str = "proc";

/// The most round trips that a rank reports of one block. With more, the rank ends the block itself.
const SAMPLES_MAX: usize = 8 << 20;

/// The most foreign lines that are skipped at once, and the longest line.
const COMPLAINTS_MAX: usize = 64;
const LINE_BYTES_MAX: u64 = 4096;

/// What a process with a port has mapped.
const PORT_MEMORY: &str = "/memfd:bywire-port";

/// The environment variables by which launchers tell a rank its number.
const RANK_VARIABLES: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"];

/// Plays one rank for the parent at `socket`.
///
/// # Errors
/// There is no parent, or the rank has no number. Other errors are reported to the parent, and the launcher then ends
/// the other rank.
pub fn run(socket: &Path, program: &Path) -> Result<()> {
    let number = RANK_VARIABLES.iter().find_map(|name| env::var(name).ok()?.parse::<u32>().ok());
    let number = number.context("this is not a rank of an MPI job: it is started by `bywire measure mpi`")?;
    let mut parent = UnixStream::connect(socket).context("the measurement is gone")?;
    writeln!(parent, "{number}")?;
    let mut line = String::new();
    let mut input = BufReader::new(parent.try_clone()?);
    input.read_line(&mut line)?;
    let assignment: Assignment = serde_json::from_str(&line).context("a rank's assignment is not valid")?;
    let (end, core) = match assignment.role {
        Role::Target { core } => (End::Target, core),
        Role::Source { core, .. } => (End::Source, core),
        _ => bail!("a rank's assignment is not valid"),
    };
    let (to_parent, patience) = (parent.try_clone()?, assignment.job.deadline());
    let progress = Arc::new(Mutex::new(Instant::now()));
    let watched = Arc::clone(&progress);
    std::thread::spawn(move || end_with_parent(input, to_parent, end, &watched, patience));
    let Job::Messages(plan) = &assignment.job else { bail!("a rank's assignment is not valid") };
    let own = socket.with_file_name(OUR_PROC);
    let parents_proc = if own.join("self").exists() { own } else { PathBuf::from("/proc") };
    let directory = socket.parent().context("the socket is in no directory")?;
    let block_loop = BlockLoop {
        plan,
        end,
        number,
        core,
        directory,
        parents_proc,
        thread: String::new(),
        progress: &progress,
    };
    let outcome = block_loop.play(program).inspect_err(|error| {
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
fn end_with_parent(
    mut input: BufReader<UnixStream>,
    parent: UnixStream,
    end: End,
    progress: &Mutex<Instant>,
    patience: Duration,
) {
    let remaining = || patience.saturating_sub(last_progress(progress).elapsed());
    let mut is_late = true;
    while is_late && !remaining().is_zero() {
        let _waits_for_ever =
            input.get_ref().set_read_timeout(Some(remaining().max(Duration::from_millis(1))));
        is_late = input.read(&mut [0]).is_err();
    }
    if is_late {
        say(
            &parent,
            &WorkerMessage::Failed { end, reason: "the MPI job has not finished in time".to_owned() },
        );
    }
    std::process::exit(3);
}

/// When the last block ended.
fn last_progress(progress: &Mutex<Instant>) -> Instant {
    *progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The block loop of a rank, in step with [`crate::workload::block_loop::BlockLoop`].
struct BlockLoop<'a> {
    plan: &'a Plan,
    end: End,
    /// The number of the rank. Rank 0 is the source, all others play the target's part.
    number: u32,
    core: Option<u32>,
    /// The directory of the job.
    directory: &'a Path,
    /// The parent's `/proc`, which has the carriers' processes.
    parents_proc: PathBuf,
    /// The rank's thread, as this process's `/proc` names it.
    thread: String,
    /// When the last block ended.
    progress: &'a Mutex<Instant>,
}

impl BlockLoop<'_> {
    fn play(mut self, program: &Path) -> Result<Outcome> {
        if let Some(core) = self.core {
            pin::pin_to(core).with_context(|| format!("cannot run on core {core}"))?;
        }
        let mut rank = Rank::start(self.plan, program, &self.runtime_directory())?;
        let introduced = rank.line("rank")?;
        let mut words = introduced.trim_end().splitn(4, ' ').skip(1);
        let (number, thread) = (words.next(), words.next().unwrap_or_default());
        let number = number.and_then(|number| number.parse().ok());
        ensure!(number == Some(self.number), "the rank says that it is another one: {introduced}");
        self.thread = format!("/proc/{thread}");
        let version = words.next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        if self.plan.mpi.is_some_and(|choice| choice.link == Link::Bywire) {
            rank.check_port()?;
        }
        let mut outcome = self.run(&mut rank)?;
        if self.end == End::Source {
            outcome.details.insert("mpi_version".to_owned(), version.replace(" Version:", "").into());
        }
        rank.finish()?;
        Ok(outcome)
    }

    /// Where ports of this job meet: its own directory, or that of this end's node.
    fn runtime_directory(&self) -> PathBuf {
        let of_node =
            self.plan.runtime_directories.as_ref().map(|directories| directories.of(self.end).as_path());
        of_node.unwrap_or(self.directory).to_owned()
    }

    fn run(&self, rank: &mut Rank) -> Result<Outcome> {
        let (mut warmup, mut blocks) = (Vec::new(), Vec::new());
        let (mut all, mut block) = (histogram(), histogram());
        let (mut first, mut last) = (None, None);
        for index in 0..self.plan.warmup_blocks + self.plan.blocks {
            let kept = index >= self.plan.warmup_blocks;
            let [cpu_ns] = numbers(&rank.line("ready")?)?;
            let before = self.snapshot(cpu_ns);
            let carriers_before = self.carriers_seconds();
            let began = Instant::now();
            rank.go()?;
            block.clear();
            let (mut part, cpu_ns, samples) = rank.block()?;
            // The account is read before the samples, because receiving them takes CPU time of this process on the
            // rank's core.
            let (ended, after) = (Instant::now(), self.snapshot(cpu_ns));
            part.carriers_cpu_seconds = self.carriers_seconds() - carriers_before;
            rank.samples(samples, &mut block)?;
            *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            part.disturbed = disturbance::reasons(&before, &after);
            let halves = if self.plan.test.kind().is_collective { 1.0 } else { 2.0 };
            part.reading = (!block.is_empty()).then(|| block.value_at_quantile(0.5) as f64 / halves);
            if kept {
                all.add(&block)?;
                first.get_or_insert((began, before));
                last = Some((ended, after));
                blocks.push(part);
            } else {
                warmup.push(part);
            }
        }
        let (cpu, cpu_seconds) = match (first, last) {
            (Some(first), Some(last)) => (first.1.until(&last.1), (last.0 - first.0).as_secs_f64()),
            _ => Default::default(),
        };
        let (end, round_trips) = (self.end, buckets(&all));
        Ok(Outcome { end, blocks, warmup, round_trips, cpu, cpu_seconds, details: Details::default() })
    }

    fn snapshot(&self, cpu_ns: u64) -> Snapshot {
        Snapshot::of_thread_that_ran(&self.thread, self.core, cpu_ns as f64 * 1e-9)
    }

    /// The counters that [`crate::workload::block_loop::BlockLoop`] reads.
    fn carriers_seconds(&self) -> f64 {
        match self.end {
            End::Source => processes_seconds_by(&self.parents_proc, &self.plan.carriers),
            End::Target => 0.0,
        }
    }
}

/// The running program. Dropping it ends it.
struct Rank {
    child: Child,
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
        let mut child = command.spawn().context("cannot start a rank's program")?;
        let input = child.stdin.take().context("a rank has no input")?;
        let output = child.stdout.take().context("a rank has no output")?;
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
        match complaint {
            Some(line) => bail!("the rank ended in the middle of the test; it said: {}", line.trim_end()),
            None => bail!("the rank ended in the middle of the test"),
        }
    }

    fn go(&mut self) -> Result<()> {
        self.input.write_all(b"\n").context("the rank ended in the middle of the test")
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

    /// The round trips of the reported block.
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
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id()))?;
        ensure!(maps.contains(PORT_MEMORY), "the rank has no port: its messages did not cross the fabric");
        Ok(())
    }

    /// Waits until the program has left the job.
    fn finish(&mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "the rank ended with {status}");
        Ok(())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// The numbers of a line, without its first word.
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
