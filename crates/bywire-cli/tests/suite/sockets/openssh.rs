//! OpenSSH's server, which sandboxes each login, plain and under `bywire run`: logins, commands, terminals, `scp`,
//! `rsync` and a tunnel. Needs root, which installs them.

use std::fs;
use std::path::Path;
use std::process::Command;

use bywire_testing::eventually;
use rustix::process::geteuid;

use super::{Fabric, Running, SLOW_SERVER, await_listener, ended, port, row, start, text, write};
use crate::packages::have;

/// Longer than any buffer on the path.
const FILE_BYTES: usize = 20 << 20;

/// A server for one test, with its own keys.
struct Server {
    fabric: Fabric,
    port: u16,
    is_carried: bool,
    _running: Running,
}

impl Server {
    /// `None`, with a message: it cannot be run here.
    fn start(is_carried: bool) -> Option<Self> {
        if !geteuid().is_root() {
            println!("not run: OpenSSH's server logs in others as root alone");
            return None;
        }
        if !have(&[
            ("sshd", "openssh-server"),
            ("ssh", "openssh-client"),
            ("scp", "openssh-client"),
            ("rsync", "rsync"),
        ]) {
            return None;
        }
        let fabric = Fabric::new();
        for key in ["host", "user"] {
            let place = fabric.place(key);
            let made =
                ended(&mut fabric.plain(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &place]));
            assert!(made.status.success(), "{made:?}");
        }
        // The empty directory of the server's unprivileged part. Packages make it when the service starts.
        fs::create_dir_all("/run/sshd").expect("a directory");
        let port = port();
        let settings = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
             UsePAM no\nLogLevel VERBOSE\nSubsystem sftp internal-sftp\n",
            fabric.place("host"),
            fabric.place("user.pub")
        );
        write(fabric.place("settings"), settings);
        let program = program("sshd");
        let words = [program.as_str(), "-D", "-E", &fabric.place("log"), "-f", &fabric.place("settings")];
        let mut command = if is_carried { fabric.carried(&words) } else { fabric.plain(&words) };
        let running = start(&mut command);
        await_listener(port);
        Some(Self { fabric, port, is_carried, _running: running })
    }

    /// What clients need to know of themselves and of the server.
    fn options(&self) -> [String; 5] {
        [
            format!("-oIdentityFile={}", self.fabric.place("user")),
            "-oStrictHostKeyChecking=no".to_owned(),
            format!("-oUserKnownHostsFile={}", self.fabric.place("known")),
            "-oBatchMode=yes".to_owned(),
            format!("-oPort={}", self.port),
        ]
    }

    /// A program that is carried like the server.
    fn command(&self, words: &[&str]) -> Command {
        if self.is_carried { self.fabric.carried(words) } else { self.fabric.plain(words) }
    }

    fn client(&self, program: &str, words: &[&str]) -> Command {
        let options = self.options();
        let options = options.iter().map(String::as_str).collect::<Vec<_>>();
        self.command(&[&[program], &options[..], words].concat())
    }

    /// The command must succeed.
    fn goes(&self, command: &mut Command) -> Vec<u8> {
        let output = ended(command);
        let log = fs::read_to_string(self.fabric.place("log")).unwrap_or_default();
        assert!(output.status.success(), "{command:?}: {output:?}\n{log}");
        output.stdout
    }
}

/// The server must be called by its whole path.
fn program(name: &str) -> String {
    let found =
        ["/usr/sbin", "/usr/bin", "/usr/local/sbin"].iter().map(|directory| Path::new(directory).join(name));
    let found = found.into_iter().find(|path| path.exists()).expect("it is there");
    found.display().to_string()
}

/// The number of steps with an outcome.
const STEPS: usize = 8 + LOGINS;
/// The number of simultaneous logins.
const LOGINS: usize = 8;

#[test]
fn logins_commands_and_files_work_over_opensshs_server() {
    for is_carried in [false, true] {
        let Some(server) = Server::start(is_carried) else { return };
        let bytes = text(7, FILE_BYTES);
        write(server.fabric.place("from"), &bytes);
        commands_end_as_they_do(&server);
        files_arrive_whole(&server, bytes);
        files_come_through_a_tunnel(&server);
        many_log_in_at_once(&server);
        if is_carried {
            eventually("sandboxes were noticed", || {
                server.fabric.status()["not_carried"]["Sandbox"].as_u64().filter(|count| *count >= 8)
            });
            let version =
                ended(server.fabric.plain(&["ssh", "-V"]).stdin(std::process::Stdio::null())).stderr;
            let version = String::from_utf8_lossy(&version).into_owned();
            row(version.split(',').next().unwrap_or(""), STEPS, server.fabric.carried_ever());
        }
    }
}

fn commands_end_as_they_do(server: &Server) {
    let said =
        server.goes(&mut server.client("ssh", &["root@127.0.0.1", "echo $((6 * 7)); cat /proc/self/comm"]));
    assert_eq!(String::from_utf8_lossy(&said), "42\ncat\n");
    // The client exits with the command's status, and a terminal works.
    let failed = ended(&mut server.client("ssh", &["root@127.0.0.1", "exit 5"]));
    assert_eq!(failed.status.code(), Some(5), "{failed:?}");
    let said = server.goes(&mut server.client("ssh", &["-tt", "root@127.0.0.1", "tty"]));
    assert!(String::from_utf8_lossy(&said).starts_with("/dev/pts/"), "{said:?}");
}

fn files_arrive_whole(server: &Server, bytes: Vec<u8>) {
    let [from, copied, back, synced] =
        ["from", "copied", "back", "synced/from"].map(|name| server.fabric.place(name));
    server.goes(&mut server.client("scp", &["-q", &from, &format!("root@127.0.0.1:{copied}")]));
    server.goes(&mut server.client("scp", &["-q", &format!("root@127.0.0.1:{copied}"), &back]));
    for place in [&copied, &back] {
        assert!(fs::read(place).expect("a file") == bytes, "{place} is not what was sent");
    }

    fs::create_dir(server.fabric.place("synced")).expect("a directory");
    let shell = format!("ssh {}", server.options().join(" "));
    for round in 0..2 {
        let target = format!("root@127.0.0.1:{}", server.fabric.place("synced/"));
        server.goes(&mut server.command(&["rsync", "-ac", "-e", &shell, &from, &target]));
        assert!(fs::read(&synced).expect("a file") == fs::read(&from).expect("a file"), "round {round}");
        // Again with a change in the middle.
        let mut changed = bytes.clone();
        changed[FILE_BYTES / 2..][..1000].fill(b'!');
        write(&from, changed);
    }
}

/// Through a server at which a tunnel ends: the tunnel has separate connections before and after it.
fn files_come_through_a_tunnel(server: &Server) {
    if !have(&[("python3", "python3"), ("curl", "curl")]) {
        return;
    }
    fs::create_dir(server.fabric.place("www")).expect("a directory");
    write(server.fabric.place("www/file"), text(9, 300_000));
    let (target, tunnel) = (port(), port());
    let serve = ["python3", "-c", SLOW_SERVER, &target.to_string(), &server.fabric.place("www")];
    let _target = start(&mut server.command(&serve));
    await_listener(target);
    let forward = format!("{tunnel}:127.0.0.1:{target}");
    let _tunnel = start(&mut server.client("ssh", &["-N", "-L", &forward, "root@127.0.0.1"]));
    await_listener(tunnel);
    let url = format!("http://127.0.0.1:{tunnel}/file");
    let found = server.goes(&mut server.command(&[&["curl", "-sS"][..], &[url.as_str(); 10]].concat()));
    assert!(found == text(9, 300_000).repeat(10), "{} bytes came through the tunnel", found.len());
}

/// None of them hangs.
fn many_log_in_at_once(server: &Server) {
    let logins: Vec<_> = (0..LOGINS)
        .map(|_| {
            Running::new(
                server
                    .client("ssh", &["root@127.0.0.1", "head -c 3000000 /dev/zero"])
                    .stdout(std::process::Stdio::null())
                    .spawn()
                    .expect("it starts"),
            )
        })
        .collect();
    for mut login in logins {
        assert!(login.end("a login ends").success());
    }
}
