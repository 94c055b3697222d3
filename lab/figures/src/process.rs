//! The processes that figures are taken of: other programs at two ends, each pinned to a core, and this program's own parts.

use std::fs;
use std::io::{self, BufRead, BufReader, Lines, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire_measure::clock::monotonic_ns;
use bywire_measure::interrupt::Leader;
use bywire_measure::namespaces::{INTERFACE, Namespace, Namespaces, PREFIX_LENGTH};
pub use bywire_measure::plan::End;
use bywire_measure::{pin, process};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The first argument of a process of this program that plays a part.
pub const PART: &str = "__part";
/// The ports of this program's own ends.
const OWN_PORTS: [(End, u16); 2] = [(End::Source, 7400), (End::Target, 7401)];
/// The time that own ends take besides measuring.
const OWN_TIMEOUT: Duration = Duration::from_secs(20);
/// A client of another program that has not ended by then is given up.
const RIVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Attempts are repeated for this long.
const CROSSING: Duration = Duration::from_secs(15);
/// A server listens by then, else the attempt fails and is repeated.
const LISTENING: Duration = Duration::from_millis(150);

/// The path of a program, also of PostgreSQL in Debian.
pub fn find(program: &str, package: &str) -> Result<String> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = process::find(program, versions.map(|version| version.path().join("bin")));
    let found = found.with_context(|| {
        format!("{program} is not installed: `./x figures` installs it as root, or apt-get install {package}")
    });
    Ok(found?.display().to_string())
}

/// The positive number that another program has printed.
pub fn positive(text: Option<&str>, otherwise: &'static str) -> Result<f64> {
    let number: f64 = text.context(otherwise)?.trim().parse().context(otherwise)?;
    ensure!(number.is_finite() && number > 0.0, "{otherwise}, but {number}");
    Ok(number)
}

/// The words of a line. Single quotes enclose a word with blanks, or an empty one.
fn words(line: &str) -> Vec<&str> {
    let parts = line.split('\'').enumerate();
    let words = parts.map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    });
    words.collect::<Vec<_>>().concat()
}

pub fn core(end: End) -> u32 {
    let (source, target) = pin::two_cores();
    if end == End::Source { source } else { target }
}

/// The command of a line, in `namespace` and on `core`, if there are any. It is killed with this program.
pub fn command(namespace: Option<&Namespace>, core: Option<u32>, line: &str) -> Result<Command> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(core) = core {
        command.args(["taskset", "-c", &core.to_string()]);
    }
    command.args(words(line)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    namespace.map_or(Ok(()), |namespace| namespace.enter(&mut command))?;
    Ok(command)
}

/// Starts a process, which is killed when it is dropped.
pub fn start(command: &mut Command) -> Result<Leader> {
    Leader::start(command).with_context(|| format!("cannot start {command:?}"))
}

/// Starts a process whose output [`Leader::printed`] returns.
pub fn start_piped(command: &mut Command) -> Result<Leader> {
    start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// The network of a client and its server: this machine's own, or that of two namespaces.
#[derive(Clone, Default)]
pub struct Place(pub Option<Arc<Namespaces>>);

impl Place {
    /// Two fresh namespaces in which TCP uses CUBIC, whatever this system's default is.
    pub fn wire() -> Result<Self> {
        let namespaces = Namespaces::veth_pair(1500)?;
        for side in &namespaces.nodes {
            let (address, network) = (side.address(), Ipv4Addr::from_bits(side.address().to_bits() & !0xff));
            side.configure(&format!(
                "route replace {network}/{PREFIX_LENGTH} dev {INTERFACE} src {address} congctl cubic\n"
            ))?;
        }
        Ok(Self(Some(Arc::new(namespaces))))
    }

    pub fn namespace(&self, end: End) -> Option<&Namespace> {
        self.0.as_ref().map(|namespaces| &namespaces.nodes[end as usize])
    }

    /// Both namespaces, if there are any.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.0.iter().flat_map(|namespaces| &namespaces.nodes)
    }

    pub fn address(&self, end: End) -> Ipv4Addr {
        self.namespace(end).map_or(Ipv4Addr::LOCALHOST, Namespace::address)
    }

    /// The processes that carry packets, unless the kernel alone does.
    pub fn carriers(&self) -> &[u32] {
        self.0.as_ref().map_or(&[], |namespaces| namespaces.carriers())
    }

    /// Returns the output of a client of `program`. Both ends have arguments, the server's first, and a `prefix` before the program.
    /// The server is new for each attempt: some end by themselves, and the way to it may still be closed.
    pub fn converse(&self, prefix: &str, program: &str, arguments: [&str; 2]) -> Result<String> {
        let [server, client] = arguments.map(|arguments| format!("{prefix} {program} {arguments}"));
        self.converse_by(program, [&server, &client])
    }

    /// The same for ends that have a line each, the server's first. `program` is the client's name.
    pub fn converse_by(&self, program: &str, [server, client]: [&str; 2]) -> Result<String> {
        let command = |end, line: &str| command(self.namespace(end), Some(core(end)), line);
        let started = Instant::now();
        loop {
            let _server = start(&mut command(End::Target, server)?)?;
            std::thread::sleep(LISTENING);
            let asking = start_piped(&mut command(End::Source, client)?)?;
            match asking.printed(program, RIVAL_TIMEOUT) {
                Ok(printed) => return Ok(printed),
                Err(error) if started.elapsed() > CROSSING => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// This program at an end, in a part that `words` name.
    pub fn own(&self, end: End, words: &[&str]) -> Result<Command> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(PART).args(words);
        self.namespace(end).map_or(Ok(()), |namespace| namespace.enter(&mut command))?;
        Ok(command)
    }

    /// The figure that the source of two fresh ends of this program prints. Both play `part`, and learn of it by [`Ends::of`].
    pub fn figure(&self, part: &str, words: &[&str], seconds: f64) -> Result<f64> {
        let [source, target] =
            OWN_PORTS.map(|(end, port)| SocketAddr::new(self.address(end).into(), port).to_string());
        let command = |end: End, greeting: &str| -> Result<Command> {
            let (core, seconds) = (core(end).to_string(), seconds.to_string());
            let common = [part, &end.to_string(), &core, &source, &target, &seconds, greeting];
            self.own(end, &[&common[..], words].concat())
        };
        let mut target = Player::start(&mut command(End::Target, "")?)?;
        let source = start_piped(&mut command(End::Source, &target.line()?)?)?;
        let printed = source.printed("the source", Duration::from_secs_f64(seconds) + OWN_TIMEOUT)?;
        Ok(printed.trim().parse()?)
    }
}

/// How an end of [`Place::figure`] is to play its part.
pub struct Ends<'a> {
    /// Whether it is the target.
    pub is_target: bool,
    /// The addresses of the source and the target.
    pub addresses: [SocketAddr; 2],
    /// The measuring time.
    pub duration: Duration,
    /// The first line that the target has printed, for the source.
    pub greeting: &'a str,
    /// The words of the part.
    pub words: &'a [String],
}

impl<'a> Ends<'a> {
    /// Reads the arguments of an end, and pins it to its core.
    pub fn of(arguments: &'a [String]) -> Result<Self> {
        let [end, core, source, target, seconds, greeting, words @ ..] = arguments else {
            bail!("an end has six words and those of its part")
        };
        pin::pin_to(core.parse()?)?;
        let is_target = *end == End::Target.to_string();
        let duration = Duration::from_secs_f64(seconds.parse()?);
        Ok(Self { is_target, addresses: [source.parse()?, target.parse()?], duration, greeting, words })
    }
}

/// A process of this program that plays a part, and the lines that it prints.
pub struct Player {
    running: Leader,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Player {
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut running = start_piped(command.stdin(Stdio::piped()))?;
        let output = running.child.stdout.take().context("a process without output")?;
        Ok(Self { running, lines: BufReader::new(output).lines() })
    }

    /// Waits until it is ready.
    pub fn ready(mut self) -> Result<Self> {
        self.expect("ready")?;
        Ok(self)
    }

    pub fn id(&self) -> u32 {
        self.running.child.id()
    }

    pub fn line(&mut self) -> Result<String> {
        if let Some(line) = self.lines.next() {
            return Ok(line?);
        }
        let errors = self.running.child.stderr.take().map(io::read_to_string).transpose()?;
        bail!("an end has died: {}", errors.unwrap_or_default().lines().last().unwrap_or("it said nothing"))
    }

    /// Fails unless this is its next line.
    pub fn expect(&mut self, expected: &str) -> Result<()> {
        let line = self.line()?;
        ensure!(line == expected, "an end said {line} instead of {expected}");
        Ok(())
    }

    /// Writes a line to it.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.running.child.stdin.as_mut().context("a process without input")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// Kills it. The thread returns the monotonic time of its end, in ns, as its pidfd shows.
    pub fn kill(&mut self) -> Result<JoinHandle<io::Result<u64>>> {
        let pid = Pid::from_raw(self.id() as i32).context("a process without an identity")?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let teardown = std::thread::spawn(move || {
            poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None)?;
            Ok(monotonic_ns())
        });
        self.running.child.kill()?;
        Ok(teardown)
    }
}

/// Waits until the process that started this one has ended, or wants it no longer.
pub fn await_dismissal() -> Result<()> {
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The CPU time of all threads of a process so far, in ns.
pub fn cpu_ns(process: u32) -> Result<f64> {
    let mut total = 0.0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let account = fs::read_to_string(thread?.path().join("schedstat"))
            .context("this kernel keeps no account of threads (CONFIG_SCHED_INFO)")?;
        total += account.split(' ').next().unwrap_or_default().parse::<f64>()?;
    }
    Ok(total)
}

/// The ns of CPU time per second that `spent_ns` counts during `watch`.
pub fn cpu_ns_per_second(watch: Duration, spent_ns: impl Fn() -> Result<f64>) -> Result<f64> {
    let (before, started) = (spent_ns()?, Instant::now());
    std::thread::sleep(watch);
    Ok((spent_ns()? - before) / started.elapsed().as_secs_f64())
}

/// The proportional set size of a process.
pub fn proportional_bytes(process: u32) -> Result<f64> {
    let account = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let line = account.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no account of memory")?;
    Ok(1024.0 * kib.parse::<f64>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_enclose_words() {
        assert_eq!(
            words("redis --save '' --dir '/a b' now"),
            ["redis", "--save", "", "--dir", "/a b", "now"]
        );
    }

    #[test]
    fn processor_time_grows_with_work_and_resident_memory_is_read() {
        let busy = start(Command::new("sh").args(["-c", "while :; do :; done"])).unwrap();
        // The account is brought up to date at ticks.
        while cpu_ns(busy.child.id()).unwrap() == 0.0 {
            std::thread::yield_now();
        }
        assert!(proportional_bytes(std::process::id()).unwrap() > 100_000.0);
        assert!(cpu_ns(u32::MAX).is_err() && proportional_bytes(u32::MAX).is_err());
    }
}
