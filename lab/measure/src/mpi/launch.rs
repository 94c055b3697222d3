//! Starts a job by the implementation's own launcher, and removes everything that the job leaves.
//!
//! As root the job gets a PID namespace, so that all of it ends with the launcher, and a mount namespace, so that its
//! shared memory ends with it. Without privileges the ranks end with their parent's socket, and the shared files of
//! Open MPI are in the job's directory.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_command::provider;

use super::choice::{Choice, Implementation, Link};
use super::installation::Installation;
use super::rank::{COMMAND, OUR_PROC};
use crate::conversation::Conversation;
use crate::interrupt::{self, Leader, awaited};
use crate::isolation;
use crate::namespaces::{self, Namespace, end_with_this_thread};
use crate::placement::{Cores, Placement};
use crate::plan::{Assignment, End, Job, Outcomes, Plan, Role, WorkerMessage};
use crate::process::{Event, listen};
use crate::scratch_directory::{self, ScratchDirectory};

/// The socket in the directory of a job by which its ranks find the parent.
const SOCKET: &str = "ranks";
const MEMORY: &str = "/dev/shm";
/// How much longer than a job's own deadline the parent waits for the ranks to begin. A launcher takes a second or two to start.
const GRACE: Duration = Duration::from_secs(20);
/// How long a job may take to end by itself after both ranks have reported.
const ENDING: Duration = Duration::from_secs(10);
/// How long a connected process may take to say which rank it is.
const GREETING: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The variables without which Open MPI does not run as root.
pub const AS_ROOT: [(&str, &str); 2] =
    [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];

/// The most bytes of the launcher's error output that are kept.
const COMPLAINTS_BYTES_MAX: u64 = 64 << 10;

/// The first commands of a job with namespaces of its own. They mount a `/proc` of the job's processes, keep ours at
/// the path in the first argument, and mount shared memory that ends with the job.
const PREPARE: &str = r#"mount --bind /proc "$0" && mount -t proc bywire /proc &&
mount -t tmpfs -o mode=1777 bywire /dev/shm && exec "$@""#;

/// The commands before them at the source of two hosts: a host name, by which launchers tell hosts apart, and a wait until
/// the interfaces have a carrier. The kernel reports that of a new one a second late, and MPI passes over interfaces
/// without. [`Installation::agent`] does so for the other rank's host.
const PREPARE_SOURCE: &str = r#"echo bywire-source >/proc/sys/kernel/hostname &&
timeout 5 sh -c 'while ip link | grep -q NO-CARRIER; do sleep 0.02; done'
"#;

/// The namespaces of a job besides its PID namespace, and the commands that it runs there.
const ISOLATED: [&str; 4] = ["--mount", "--uts", "sh", "-c"];

/// Runs one fresh job according to its plan. Fails if the implementation is not installed, or with the error of the first
/// end that failed. The whole job has ended by then.
pub(crate) fn run(plan: &Plan, choice: Choice, placement: &Placement, cores: Cores) -> Result<Outcomes> {
    let installation = Installation::of(choice.implementation)?;
    let namespaces = placement.ends();
    ensure!(
        namespaces.is_none_or(|[source, _]| !source.is_unprivileged() && may_isolate()),
        "level mpi enters namespaces with its launcher: run as root for --link {}",
        choice.link
    );
    let directory = directory(&plan.cookie);
    let _scratch_directory = ScratchDirectory::make(directory.clone(), scratch_directory::PREFIX)?;
    let socket = directory.join(SOCKET);
    fs::create_dir(directory.join(OUR_PROC))?;
    let listener = UnixListener::bind(&socket).context("cannot listen for MPI's ranks")?;
    listener.set_nonblocking(true)?;
    let provider = (choice.link == Link::Bywire).then(provider::directory).transpose()?;
    let provider = provider.as_deref();
    let launch = Launch { installation: &installation, choice, namespaces, directory: &directory, provider };
    let mut job = Running::start(launch.command(&socket)?)?;
    // The ranks end when it is dropped.
    let mut ranks = Ranks::new(listener, plan, cores);
    match ranks.outcomes(&mut job) {
        Ok(outcomes) => job.finish().map(|()| outcomes),
        // The launcher's message explains more than the end of a rank does.
        Err(error) if interrupt::requested() => Err(error),
        Err(error) => Err(match job.end() {
            Some(said) => error.context(format!("{}: {said}", choice.implementation)),
            None => error,
        }),
    }
}

/// The directory of the job's files. It is in memory if the ranks' shared files are there.
fn directory(cookie: &str) -> PathBuf {
    let usual = scratch_directory::directory(cookie);
    match usual.file_name() {
        Some(name) if !may_isolate() && Path::new(MEMORY).is_dir() => Path::new(MEMORY).join(name),
        _ => usual,
    }
}

struct Launch<'a> {
    installation: &'a Installation,
    choice: Choice,
    namespaces: Option<[&'a Namespace; 2]>,
    directory: &'a Path,
    /// The directory of the provider, for the link that uses it.
    provider: Option<&'a Path>,
}

impl Launch<'_> {
    fn command(&self, socket: &Path) -> Result<Command> {
        let mut words: Vec<OsString> = vec![self.installation.launcher.clone().into()];
        words.extend(self.options().into_iter().map(OsString::from));
        // The path of the running program in `/proc`, as its file may have been replaced since. A launcher has a path
        // of its own.
        let this = self.our_proc().join(format!("{}/exe", std::process::id()));
        words.extend([this.into(), COMMAND.into(), socket.into(), self.installation.program.clone().into()]);
        let mut command;
        if may_isolate() {
            let source = if self.namespaces.is_some() { PREPARE_SOURCE } else { "" };
            command = isolation::command();
            command.args(ISOLATED).arg(format!("{source}{PREPARE}")).arg(self.our_proc()).args(words);
            command.env("TMPDIR", MEMORY);
        } else {
            command = Command::new(&words[0]);
            command.args(&words[1..]).env("TMPDIR", self.directory);
            // Otherwise its segments would outlive an interrupted job.
            for component in ["vader", "sm"] {
                command.env(format!("OMPI_MCA_btl_{component}_backing_directory"), self.directory);
            }
        }
        // Settings of the shell that would change what the link is.
        provider::names().for_each(|name| _ = command.env_remove(name));
        command.envs(self.variables());
        if let Some([source, _]) = self.namespaces {
            source.enter(&mut command)?;
        }
        Ok(command)
    }

    /// The path of this process's `/proc` as the job sees it.
    fn our_proc(&self) -> PathBuf {
        if may_isolate() { self.directory.join(OUR_PROC) } else { PathBuf::from("/proc") }
    }

    /// The interface by which the ranks reach each other.
    fn interface(&self) -> &'static str {
        match self.choice.link {
            Link::Bywire if self.namespaces.is_none() => "lo",
            Link::Shm | Link::OfiShm | Link::OfiSm2 | Link::Tcp => "lo",
            Link::Veth | Link::Bywire => namespaces::INTERFACE,
            Link::Eth => crate::ethernet::INTERFACE,
        }
    }

    fn options(&self) -> Vec<String> {
        let Choice { implementation, link, ranks, .. } = self.choice;
        let interface = self.interface();
        let hosts = self.namespaces.map(|ends| ends.map(Namespace::address));
        let link = match link {
            // Its shared memory has another name since version 5.
            Link::Shm if self.installation.is_prrte => "--mca pml ob1 --mca btl self,sm".to_owned(),
            Link::Shm => "--mca pml ob1 --mca btl self,vader".to_owned(),
            Link::Bywire => provider::options().join(" "),
            _ => format!("--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include {interface}"),
        };
        // There are two slots, as there are two cores. With more ranks Open MPI has them yield.
        let yielding = match self.installation.is_prrte {
            _ if ranks <= 2 => "",
            true => " --map-by :OVERSUBSCRIBE",
            false => " --oversubscribe",
        };
        let [interfaces, agent_option] = match self.installation.is_prrte {
            true => ["--prtemca prte_if_include", "--prtemca plm_ssh_agent"],
            false => ["--mca oob_tcp_if_include", "--mca plm_rsh_agent"],
        };
        let words = match (implementation, hosts) {
            (Implementation::OpenMpi, None) => {
                format!("-n {ranks} --bind-to none{yielding} {link} --host localhost:2")
            }
            (Implementation::OpenMpi, Some([source, target])) => format!(
                "-n {ranks} --bind-to none{yielding} {link} --host {source}:1,{target}:1 \
                 {interfaces} {interface} {agent_option}"
            ),
            (Implementation::Mpich, None) => format!("-n {ranks} -hosts localhost"),
            (Implementation::Mpich, Some([source, target])) => format!(
                "-n {ranks} -hosts {source},{target} -localhost {source} -iface {interface} -launcher ssh -launcher-exec"
            ),
        };
        let agent = hosts.map(|_| self.installation.agent.display().to_string());
        words.split(' ').map(str::to_owned).chain(agent).collect()
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables: Vec<_> = self.provider.into_iter().flat_map(provider::variables).collect();
        if self.choice.implementation == Implementation::OpenMpi {
            variables.extend(AS_ROOT.map(|(name, value)| (name, value.to_owned())));
        } else if ![Link::Shm, Link::Bywire].contains(&self.choice.link) {
            // The ranks use libfabric even if both are on one machine.
            let provider = self.choice.link.libfabric_provider();
            let settings = [
                ("MPIR_CVAR_NOLOCAL", "1"),
                ("MPIR_CVAR_CH4_NETMOD", "ofi"),
                ("FI_PROVIDER", provider.unwrap_or("tcp")),
            ];
            let interface = provider.is_none().then(|| ("FI_TCP_IFACE", self.interface()));
            let settings = settings.into_iter().chain(interface);
            variables.extend(settings.map(|(name, value)| (name, value.to_owned())));
        }
        let network = self.namespaces.map(|[_, target]| target.path());
        // The path as the job sees it, which has another `/proc`.
        let network = network.and_then(|path| Some(self.our_proc().join(path.strip_prefix("/proc").ok()?)));
        variables.extend(network.map(|path| ("BYWIRE_MPI_NETWORK", path.display().to_string())));
        variables
    }
}

/// Returns whether a job may have a PID and a mount namespace of its own. Tried once.
fn may_isolate() -> bool {
    static TRIED: LazyLock<bool> = LazyLock::new(|| {
        isolation::succeeds(isolation::command().args(ISOLATED).args([PREPARE, MEMORY, "true"]))
    });
    *TRIED
}

/// A running launcher in a process group of its own. Dropping it ends the group.
struct Running {
    leader: Leader,
    complaints: JoinHandle<String>,
}

impl Running {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        end_with_this_thread(&mut command);
        let mut leader = Leader::start(&mut command).context("cannot start MPI's launcher")?;
        let said = leader.child.stderr.take().context("MPI's launcher has no standard error")?;
        Ok(Self { leader, complaints: std::thread::spawn(move || read_some(said)) })
    }

    fn is_gone(&mut self) -> bool {
        !matches!(self.leader.child.try_wait(), Ok(None))
    }

    fn finish(mut self) -> Result<()> {
        let gone = awaited(LOOK_AGAIN, ENDING, || match self.is_gone() {
            true => Ok(Some(())),
            false => interrupt::check().map(|()| None),
        })?;
        gone.context("the MPI job does not end once it is done")
    }

    /// Ends the job. Returns the most telling line of the launcher's error output.
    fn end(mut self) -> Option<String> {
        // It may be about to print the reason.
        let _slow = awaited(LOOK_AGAIN, Duration::from_secs(1), || Ok(self.is_gone().then_some(())));
        self.leader.end();
        telling_line(&self.complaints.join().ok()?)
    }
}

fn read_some(mut from: impl Read) -> String {
    let mut kept = Vec::new();
    let _cut_short = (&mut from).take(COMPLAINTS_BYTES_MAX).read_to_end(&mut kept);
    let _ended = std::io::copy(&mut from, &mut std::io::sink());
    String::from_utf8_lossy(&kept).into_owned()
}

/// The first line with a sentence in it, as launchers draw frames around their messages.
pub fn telling_line(said: &str) -> Option<String> {
    let lines = || said.lines().map(str::trim).filter(|line| line.chars().any(char::is_alphabetic));
    let line = lines().find(|line| line.to_lowercase().contains("error")).or_else(|| lines().next())?;
    Some(line.chars().take(300).collect())
}

/// The parent's side of the conversation with the ranks.
struct Ranks<'a> {
    listener: UnixListener,
    plan: &'a Plan,
    cores: Cores,
    conversation: Conversation,
    /// The ranks that have said their number. A rank ends with its socket.
    ranks: Vec<(u32, UnixStream)>,
    /// All of them have to be here by then.
    until: Instant,
}

impl<'a> Ranks<'a> {
    fn new(listener: UnixListener, plan: &'a Plan, cores: Cores) -> Self {
        let each_block = Duration::from_secs(plan.deadline_seconds);
        let until = Instant::now() + each_block + GRACE;
        // A rank that has its assignment ends by itself if it does not get on, unless its process is stopped.
        let last = until + each_block * (plan.warmup_blocks + plan.blocks + 1);
        let conversation = Conversation::until(last, LOOK_AGAIN);
        Self { listener, plan, cores, conversation, ranks: Vec::new(), until }
    }

    fn outcomes(&mut self, job: &mut Running) -> Result<Outcomes> {
        while self.ranks.len() < self.plan.mpi.map_or(2, |choice| choice.ranks) as usize {
            interrupt::check()?;
            ensure!(Instant::now() < self.until, "the MPI job has not begun in time");
            // What a rank has said explains more than the launcher's end.
            let is_gone = job.is_gone();
            self.conversation.check()?;
            ensure!(!is_gone, "MPI's launcher ended in the middle of the test");
            self.accept()?;
            std::thread::sleep(LOOK_AGAIN);
        }
        self.conversation.outcomes(true)
    }

    fn accept(&mut self) -> Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("cannot listen for MPI's ranks"),
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GREETING))?;
        let mut input = BufReader::new(stream.try_clone()?);
        let mut number = String::new();
        (&mut input).take(16).read_line(&mut number).context("a rank has not said its number")?;
        let number: u32 =
            number.trim().parse().with_context(|| format!("there is no rank `{}`", number.trim()))?;
        ensure!(
            !self.ranks.iter().any(|(known, _)| *known == number),
            "two ranks say that they are rank {number}"
        );
        let core = if number.is_multiple_of(2) { self.cores.source } else { self.cores.target };
        let (end, role) = match number {
            0 => (End::Source, Role::Source { core, address: String::new() }),
            _ => (End::Target, Role::Target { core }),
        };
        stream.set_read_timeout(None)?;
        let assignment = Assignment { job: Job::Messages(self.plan.clone()), role };
        (&stream).write_all((serde_json::to_string(&assignment)? + "\n").as_bytes())?;
        let sender = self.conversation.sender.clone();
        if number < 2 {
            std::thread::spawn(move || listen(end, input, &sender));
        } else {
            std::thread::spawn(move || listen_to_other(input, &sender));
        }
        self.ranks.push((number, stream));
        Ok(())
    }
}

/// Forwards the failure of a rank whose outcome does not count: ranks 0 and 1 speak for the others of their cores. Its end
/// makes the others fail, or is that of the job.
fn listen_to_other(output: impl BufRead, sender: &Sender<Event>) {
    for line in output.lines().map_while(Result::ok) {
        if let Ok(message @ WorkerMessage::Failed { .. }) = serde_json::from_str(&line) {
            let _gone = sender.send(Event { end: End::Target, message: Some(message) });
        }
    }
}

impl Drop for Ranks<'_> {
    fn drop(&mut self) {
        for (_, stream) in &self.ranks {
            let _gone = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(implementation: Implementation, link: Link) -> String {
        options_of(implementation, link, false)
    }

    fn options_of(implementation: Implementation, link: Link, is_prrte: bool) -> String {
        let [launcher, program, agent] = ["mpiexec", "rank", "agent"].map(PathBuf::from);
        let installation = &Installation { launcher, program, agent, is_prrte };
        let choice = Choice { implementation, link, ranks: 2, unmatched: 0 };
        let provider = (link == Link::Bywire).then_some(Path::new("/provider"));
        let directory = Path::new("/tmp");
        let launch = Launch { installation, choice, namespaces: None, directory, provider };
        let variables = launch.variables().into_iter().map(|(name, value)| format!("{name}={value}"));
        variables.chain(launch.options()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_link_is_passed_to_the_launcher() {
        assert!(options(Implementation::OpenMpi, Link::Shm).contains("btl self,vader"));
        assert!(options_of(Implementation::OpenMpi, Link::Shm, true).contains("btl self,sm"));
        let tcp = options(Implementation::OpenMpi, Link::Tcp);
        assert!(tcp.contains("btl self,tcp") && tcp.contains("if_include lo"), "{tcp}");
        assert!(!options(Implementation::Mpich, Link::Tcp).contains("--mca"));
        let bywire = options(Implementation::OpenMpi, Link::Bywire);
        assert!(bywire.contains("OMPI_MCA_pml=cm") && bywire.contains("-x FI_PROVIDER"), "{bywire}");
        assert!(!bywire.contains("ob1"), "{bywire}");
        let bywire = options(Implementation::Mpich, Link::Bywire);
        assert!(bywire.contains("FI_PROVIDER=bywire") && bywire.contains("MPIR_CVAR_NOLOCAL=1"), "{bywire}");
    }

    #[test]
    fn the_most_informative_line_of_an_error_is_found() {
        let said = "-----\nThere are not enough slots\n  an error came up: 5\n----\n";
        assert_eq!(telling_line(said).as_deref(), Some("an error came up: 5"));
        assert_eq!(telling_line("-----\nno slots\n").as_deref(), Some("no slots"));
        assert_eq!(telling_line("-----\n\n"), None);
    }

    #[test]
    fn a_launcher_that_exits_without_a_rank_is_reported_with_its_output() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("ranks")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such device >&2; exit 1"]);
        let mut job = Running::start(command).unwrap();
        let plan = crate::resolution::tests::plan_of("mpi latency");
        let mut ranks = Ranks::new(listener, &plan, Cores { source: None, target: None });
        let error = format!("{:#}", ranks.outcomes(&mut job).unwrap_err());
        assert!(error.contains("launcher ended"), "{error}");
        assert_eq!(job.end().as_deref(), Some("no such device"));
    }
}
