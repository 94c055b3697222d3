//! OpenSSH's server, which closes a sandbox around each login, with `ssh`, `scp` and `rsync` over it.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

use super::packages::have;
use super::{Fabric, Running, SLOW_SERVER, await_listener, ended, eventually, port, row, start, text, write};

/// Longer than any buffer on the way.
const FILE_BYTES: usize = 20 << 20;

/// A server for one test, with keys of its own.
struct Server {
    fabric: Fabric,
    port: u16,
    is_carried: bool,
    _running: Running,
}

impl Server {
    /// `None`, said: it cannot be run here.
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
        // Where the unprivileged part of the server sees nothing; packages make it when the service starts.
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

    /// What clients are told of themselves and of the server.
    fn options(&self) -> [String; 5] {
        [
            format!("-oIdentityFile={}", self.fabric.place("user")),
            "-oStrictHostKeyChecking=no".to_owned(),
            format!("-oUserKnownHostsFile={}", self.fabric.place("known")),
            "-oBatchMode=yes".to_owned(),
            format!("-oPort={}", self.port),
        ]
    }

    /// A program on the server's way of carrying.
    fn command(&self, words: &[&str]) -> Command {
        if self.is_carried { self.fabric.carried(words) } else { self.fabric.plain(words) }
    }

    fn client(&self, program: &str, words: &[&str]) -> Command {
        let options = self.options();
        let options = options.iter().map(String::as_str).collect::<Vec<_>>();
        self.command(&[&[program], &options[..], words].concat())
    }

    /// It has come to a good end.
    fn goes(&self, command: &mut Command) -> Vec<u8> {
        let output = ended(command);
        let log = fs::read_to_string(self.fabric.place("log")).unwrap_or_default();
        assert!(output.status.success(), "{command:?}: {output:?}\n{log}");
        output.stdout
    }
}

/// The server wants to be called by its whole name.
fn program(name: &str) -> String {
    let found =
        ["/usr/sbin", "/usr/bin", "/usr/local/sbin"].iter().map(|directory| Path::new(directory).join(name));
    let found = found.into_iter().find(|path| path.exists()).expect("it is there");
    found.display().to_string()
}

/// So many steps have an outcome each.
const STEPS: usize = 8 + LOGINS;
/// So many logins at once.
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
    // A command's end is the client's, and a terminal is one.
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
        // Once more with a change in the middle.
        let mut changed = bytes.clone();
        changed[FILE_BYTES / 2..][..1000].fill(b'!');
        write(&from, changed);
    }
}

/// Over a server that the tunnel ends at: what is in front of the tunnel and behind it are connections of their own.
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
