//! docs/tutorial.md runs from its first command to its last, each as printed, on two machines that have nothing of
//! Bywire yet: what the page prints after a command appears, a file arrives whole, a database answers, a removed
//! machine reaches nothing, and nothing stays behind. Needs root, and installs Redis, OpenSSH and ping.
//!
//! A machine is a set of namespaces: host name, network, processes, and a view of the file system with an `/etc`,
//! `/run`, `/srv`, `/usr/local` and home directory of its own.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bywire_testing::here::has_taps;

use crate::packages::{self, Service};

const PAGE: &str = include_str!("../../../../docs/tutorial.md");
/// The machines of the page, with their addresses.
const MACHINES: [(&str, &str); 2] = [("web1", "10.0.0.1"), ("web2", "10.0.0.2")];
/// Whatever is waited for comes within this time, also in a debug build on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Makes the machine `$1` out of its namespaces, with the directory `$2` and the command `$3`. Beside that directory are the
/// keys of the user who may log in on the other machine.
const MACHINE: &str = r#"set -e
hostname "$1"
ip link set lo up
cp -a /etc/. "$2/etc"
rm -rf "$2/etc/bywire" "$2/etc/bywire.toml" "$2/etc/ssh"
mount --bind "$2/etc" /etc
mount -t tmpfs none /run
mount -t tmpfs none /srv
mount -t tmpfs none /usr/local
mkdir -p /run/sshd /etc/ssh /usr/local/bin
touch /usr/local/bin/bywire
mount --bind "$3" /usr/local/bin/bywire
cp "$2/../user" /etc/ssh/identity
cp "$2/../user.pub" /etc/ssh/authorized_keys
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
cat >/etc/ssh/ssh_config <<'END'
IdentityFile /etc/ssh/identity
StrictHostKeyChecking accept-new
UserKnownHostsFile /etc/ssh/known
END
cat >/etc/ssh/sshd_config <<'END'
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
END
echo ready
exec sleep infinity
"#;

/// A block of commands, and what the page says that one sees.
#[derive(Debug, Default)]
struct Step {
    machine: String,
    commands: Vec<String>,
    expected: Vec<String>,
    /// What serves was interrupted before.
    is_after_interrupt: bool,
}

/// The steps of the page.
fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let parts: Vec<&str> = PAGE.split("```").collect();
    for pair in parts.chunks_exact(2) {
        let [prose, block] = pair else { unreachable!() };
        let (language, text) = block.split_once('\n').expect("a language");
        let lines = text.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect();
        match language {
            "sh" => {
                // The lead ends with the machine's name and a colon.
                let quoted =
                    prose.trim_end().rsplit('`').find(|word| MACHINES.iter().any(|it| it.0 == *word));
                steps.push(Step {
                    machine: quoted.expect("the lead names a machine").to_owned(),
                    commands: lines,
                    expected: Vec::new(),
                    is_after_interrupt: prose.contains("Press Ctrl-C"),
                });
            }
            "text" => steps.last_mut().expect("a command before it").expected = lines,
            "toml" => {}
            other => panic!("a block in {other:?}"),
        }
    }
    steps
}

/// The settings of the page.
fn settings() -> &'static str {
    PAGE.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block")
}

/// Does a line look like this one, in which `…` stands for anything?
fn is_like(line: &str, pattern: &str) -> bool {
    let mut pieces = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        match rest.split_once(piece) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The first line of the page that does not appear, in the order of the page.
fn missing<'a>(printed: &str, expected: &'a [String]) -> Option<&'a str> {
    // What shows progress begins a line again and again.
    let mut lines = printed.split(['\n', '\r']).map(str::trim_end);
    let missing = expected.iter().find(|pattern| !lines.any(|line| is_like(line, pattern)));
    missing.map(String::as_str)
}

#[test]
fn lines_are_compared_with_their_pattern() {
    for (line, pattern) in
        [("a b c", "a b c"), ("a b c", "a …"), ("a b c", "… c"), ("abcbc", "a…b…c"), ("", "…")]
    {
        assert!(is_like(line, pattern), "{line:?} {pattern:?}");
    }
    for (line, pattern) in [("a b c", "a b"), ("a b c", "… b"), ("abc", "a…c…c"), ("x a", "a…")] {
        assert!(!is_like(line, pattern), "{line:?} {pattern:?}");
    }
    let expected = ["one".to_owned(), "t…".to_owned()];
    assert_eq!(missing("zero\rone\ntwo\n", &expected), None);
    assert_eq!(missing("two\none\n", &expected), Some("t…"));
}

/// Both fail only when it has ended.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// A machine, which ends when dropped, with all its processes and mounts.
struct Machine {
    name: &'static str,
    holder: Child,
    home: PathBuf,
    path: String,
    libraries: PathBuf,
    /// The commands that serve.
    serving: Vec<Child>,
    logs_count: Cell<u32>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        kill(&mut self.holder);
        self.serving.iter_mut().for_each(kill);
    }
}

impl Machine {
    fn new(name: &'static str, directory: &Path, redis: &Service) -> Self {
        let place = directory.join(name);
        let home = place.join("home");
        fs::create_dir_all(place.join("etc")).expect("made");
        fs::create_dir_all(&home).expect("made");
        let mut command = Command::new("unshare");
        command.args([
            "-m",
            "-n",
            "-u",
            "-p",
            "-f",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            MACHINE,
            "sh",
        ]);
        command.arg(name).arg(&place).arg(env!("CARGO_BIN_EXE_bywire"));
        let mut holder =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("`unshare` starts");
        let mut line = String::new();
        let mut printed = BufReader::new(holder.stdout.take().expect("piped"));
        printed.read_line(&mut line).expect("read");
        assert_eq!(line, "ready\n", "the machine {name} cannot be made");
        let programs = redis.program.parent().expect("a directory").display();
        let path = format!("/usr/local/bin:{programs}:/usr/sbin:/usr/bin:/sbin:/bin");
        Self {
            name,
            holder,
            home,
            path,
            libraries: redis.libraries.clone(),
            serving: Vec::new(),
            logs_count: Cell::new(0),
        }
    }

    /// A shell in the home directory of the machine.
    fn shell(&self, script: &str) -> Command {
        let process = self.holder.id();
        let mut command = Command::new("nsenter");
        command.args(["--target", &process.to_string(), "--mount", "--uts", "--net"]);
        // The holder itself is outside: only its children are in the namespace.
        command.arg(format!("--pid=/proc/{process}/ns/pid_for_children"));
        command.args(["sh", "-c", &format!("cd\n{script}")]);
        command.env_clear().env("PATH", &self.path).env("HOME", &self.home).env("LC_ALL", "C.UTF-8");
        if self.libraries != Path::new("") {
            command.env("LD_LIBRARY_PATH", &self.libraries);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Starts commands, whose output goes to a log.
    fn start(&self, script: &str) -> (Child, PathBuf) {
        let number = self.logs_count.replace(self.logs_count.get() + 1);
        let log = self.home.with_file_name(format!("log{number}"));
        let file = File::create(&log).expect("made");
        let mut command = self.shell(script);
        command.stdout(file.try_clone().expect("a copy")).stderr(file).process_group(0);
        (command.spawn().expect("it starts"), log)
    }

    /// Runs commands to their end. Returns how they ended, and what they printed.
    fn run(&self, script: &str) -> (ExitStatus, String) {
        let (mut child, log) = self.start(script);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let printed = fs::read_to_string(&log).unwrap_or_default();
            match child.try_wait().expect("waited for") {
                Some(status) => return (status, fs::read_to_string(&log).unwrap_or_default()),
                None if Instant::now() > deadline => {
                    kill(&mut child);
                    panic!("{}: never ends: {script}\n{printed}", self.name);
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn succeeds(&self, script: &str) -> String {
        let (status, printed) = self.run(script);
        assert!(status.success(), "{}: {script}\n{printed}", self.name);
        printed
    }

    /// Runs commands that serve until Ctrl-C, and waits for what the page prints.
    fn serve(&mut self, script: &str, expected: &[String]) -> String {
        let (mut child, log) = self.start(&format!("exec {script}"));
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let printed = fs::read_to_string(&log).unwrap_or_default();
            let Some(line) = missing(&printed, expected) else {
                self.serving.push(child);
                return printed;
            };
            let has_ended = child.try_wait().expect("waited for").is_some();
            if has_ended || Instant::now() > deadline {
                kill(&mut child);
                panic!("{}: {script}: {line:?} is not printed:\n{printed}", self.name);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Presses Ctrl-C in every terminal in which something serves.
    fn interrupt(&mut self) {
        for mut child in self.serving.drain(..) {
            // To the whole foreground group, as a terminal does it.
            let group = format!("-{}", child.id());
            let done = Command::new("kill").args(["-INT", "--", &group]).status().expect("`kill` runs");
            assert!(done.success());
            child.wait().expect("waited for");
        }
        // The end of a program in a namespace is not seen from outside, and what it removes is.
        let is_clean = "until test ! -e /run/bywire/node && ! pgrep -x redis-server; do sleep 0.1; done";
        self.succeeds(is_clean);
        self.succeeds("! ip link show by0");
    }
}

/// Does the page show the state of something, which a reader would look at again?
fn is_look(command: &str) -> bool {
    ["bywire status", "bywire eth status", "bywire ping ", "ping "]
        .iter()
        .any(|words| command.starts_with(words))
}

/// Does a command stay in the foreground?
fn is_serving(command: &str) -> bool {
    command.ends_with(" --up") || command.starts_with("redis-server ")
}

/// The invitation in place of the page's, which must have the same form.
fn with_invitation(command: &str, invitation: &str) -> String {
    let line = invitation.lines().last().expect("a line");
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words.len(), 7, "{line}");
    let form = line.replace(words[3], "KEY").replace(words[4], "SECRET");
    assert_eq!(format!("{form} --up"), command);
    format!("{line} --up")
}

/// Two machines on one cable, with a server for logins on the first one. `None`, with a message: they cannot be made here.
fn machines(directory: &Path) -> Option<[Machine; 2]> {
    let tried = Command::new("unshare").args(["-m", "-n", "-u", "-p", "-f", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        println!("not run: no namespaces can be made here: run as root");
        return None;
    }
    if !has_taps() {
        return None;
    }
    let programs = [
        ("ping", "iputils-ping"),
        ("sshd", "openssh-server"),
        ("scp", "openssh-client"),
        ("pgrep", "procps"),
    ];
    if !packages::have(&programs) {
        return None;
    }
    let redis = Service::find("redis-server", "redis-server")?;
    let key = directory.join("user");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
    assert!(made.expect("`ssh-keygen` runs").success());
    let machines = MACHINES.map(|(name, _)| Machine::new(name, directory, &redis));
    let [one, other] = machines.each_ref().map(|machine| machine.holder.id().to_string());
    let cable = [
        "-t", &one, "-n", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
        &other,
    ];
    assert!(Command::new("nsenter").args(cable).status().expect("`nsenter` runs").success());
    for (machine, (_, address)) in machines.iter().zip(MACHINES) {
        machine.succeeds(&format!("ip address add {address}/24 dev eth0; ip link set eth0 up"));
    }
    machines[0].succeeds("/usr/sbin/sshd");
    Some(machines)
}

#[test]
fn the_tutorial_works_from_its_first_command_to_its_last() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut machines) = machines(directory.path()) else { return };
    let mut invitation = String::new();
    let steps = steps();
    assert!(steps.len() >= 15, "{}", steps.len());
    for step in &steps {
        println!("{}: {}", step.machine, step.commands.join("; "));
        if step.is_after_interrupt {
            // The file for a service manager, while there still is a fabric.
            fs::write(directory.path().join("web1/etc/bywire.toml"), settings()).expect("written");
            machines[0].succeeds("bywire eth up --background --config /etc/bywire.toml\nbywire eth down");
            machines.iter_mut().for_each(Machine::interrupt);
        }
        let machine = machines.iter_mut().find(|machine| machine.name == step.machine).expect("there is one");
        let script = match &step.commands[..] {
            [command] if command.contains("KEY SECRET") => with_invitation(command, &invitation),
            commands => commands.join("\n"),
        };
        if is_serving(&script) {
            machine.serve(&script, &step.expected);
        } else if is_look(&script) {
            let deadline = Instant::now() + TIMEOUT;
            while let (_, printed) = machine.run(&script)
                && let Some(line) = missing(&printed, &step.expected)
            {
                assert!(Instant::now() < deadline, "{}: {script}: no {line:?} in\n{printed}", step.machine);
            }
        } else {
            let printed = machine.succeeds(&format!("set -e\n{script}"));
            let line = missing(&printed, &step.expected);
            assert_eq!(line, None, "{}: {script}\n{printed}", step.machine);
            if script.starts_with("bywire invite ") {
                invitation = printed;
            }
        }
    }
    for machine in &machines {
        machine.succeeds("test ! -e /etc/bywire");
    }
}
