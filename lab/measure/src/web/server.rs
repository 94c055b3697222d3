//! A real server: a private configuration in a directory of its own, and a process group.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::WaitOptions;

use super::plan::{Link, Plan, Server};
use crate::interrupt::{Leader, awaited};
use crate::namespaces::end_with_this_thread;
use crate::{isolation, process};

/// How long a server may take to listen.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
/// How often a starting server is checked. A check costs next to nothing.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Attempts to start. Another program may take the port between the look for a free one and the server's start.
const TRIES: u32 = 5;
/// The fewest threads of Apache's process: its default.
const THREADS_MIN: u32 = 25;

/// A server that listens. Dropping it ends all its processes.
pub struct Running {
    /// The server, or `unshare` with the server as its child.
    leader: Leader,
    is_isolated: bool,
    /// The address on which it listens: `IP:PORT`, or `unix:PATH`.
    pub address: String,
    /// The name and version that it prints.
    pub version: String,
}

impl Running {
    /// Starts the server that `plan` asks for, with the documents in `directory/site`. Waits until it listens or until
    /// `is_wanted` fails. Fails if the server is not installed, or with its error message.
    pub fn start(plan: &Plan, directory: &Path, is_wanted: fn() -> Result<()>) -> Result<Self> {
        let found = find(plan.server)?;
        for _ in 1..TRIES {
            match Self::run(plan, &found, directory, is_wanted) {
                Err(error) if is_taken(&error) => {}
                result => return result,
            }
        }
        Self::run(plan, &found, directory, is_wanted)
    }

    fn run(plan: &Plan, found: &Found, directory: &Path, is_wanted: fn() -> Result<()>) -> Result<Self> {
        let (program, version) = found;
        let address = if plan.link == Link::Unix {
            let path = directory.join("socket");
            let _left_by_a_try_before = fs::remove_file(&path);
            format!("unix:{}", path.display())
        } else {
            let free = TcpListener::bind(SocketAddr::new(plan.bind, 0));
            let free = free.and_then(|listener| listener.local_addr());
            free.with_context(|| format!("cannot listen on {}", plan.bind))?.to_string()
        };
        let configuration = directory.join("configuration");
        let text = match plan.server {
            Server::Nginx => nginx(&address, directory),
            Server::Apache => apache(&address, directory, plan.connections),
        };
        fs::write(&configuration, text).context("cannot write the server's configuration")?;
        let said = directory.join("said");
        // As root its workers change to another user. Without a PID namespace of their own they would survive if the guard
        // and its parent were killed together, as they get no signal then.
        let is_isolated = isolation::succeeds(isolation::command().arg("true"));
        let mut command = if is_isolated { isolation::command() } else { Command::new(program) };
        command.args(is_isolated.then_some(program));
        match plan.server {
            Server::Nginx => {
                command.arg("-p").arg(directory).arg("-e").arg(directory.join("errors")).arg("-c")
            }
            Server::Apache => command.arg("-DFOREGROUND").arg("-d").arg(directory).arg("-f"),
        };
        command.arg(&configuration).current_dir(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
        end_with_this_thread(&mut command);
        let leader = Leader::start(&mut command);
        let leader = leader.with_context(|| format!("cannot run {}", program.display()))?;
        let mut running = Self { leader, is_isolated, address, version: version.clone() };
        running
            .await_listening(&[said, directory.join("errors")], is_wanted)
            .with_context(|| format!("{} cannot be started", plan.server.title()))?;
        Ok(running)
    }

    pub fn processes(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let group = self.leader.child.id();
        let is_its_own =
            |process: &u32| group_of(*process) == Some(group) && !(self.is_isolated && *process == group);
        processes.filter(is_its_own).collect()
    }

    fn await_listening(&mut self, complaints: &[PathBuf], is_wanted: fn() -> Result<()>) -> Result<()> {
        let listening = awaited(LOOK_AGAIN, TIMEOUT, || {
            if let Some(status) = self.leader.child.try_wait()? {
                let said = complaints.iter().find_map(|path| {
                    let said = fs::read_to_string(path).ok()?;
                    said.lines().find(|line| !line.trim().is_empty()).map(str::to_owned)
                });
                bail!("it ended with {status}: {}", said.unwrap_or_else(|| "it said nothing".to_owned()));
            }
            is_wanted()?;
            // The process that answers is a child of the process that was started.
            Ok((self.processes().len() > 1 && is_listening(&self.address)).then_some(()))
        })?;
        listening.with_context(|| format!("it does not listen after {} s", TIMEOUT.as_secs()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.leader.end();
        // Its children became ours when it ended. All are reaped here.
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::empty()) {}
    }
}

/// The program of a server, and the version that it prints.
type Found = (PathBuf, String);

fn find(server: Server) -> Result<Found> {
    let (names, package): (&[&str], _) = match server {
        Server::Nginx => (&["nginx"], "nginx-light"),
        Server::Apache => (&["apache2", "httpd"], "apache2-bin"),
    };
    let Some(path) = names.iter().find_map(|name| process::find(name, [])) else {
        bail!("{} is not installed: `apt-get install {package}`", server.title());
    };
    let output = Command::new(&path).arg("-v").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {}", path.display()))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let version = said.lines().find_map(|line| Some(line.split_once("version: ")?.1.trim().to_owned()));
    Ok((path, version.unwrap_or_else(|| "unknown".to_owned())))
}

/// Debian's configuration, but with one process whose threads suffice for all connections.
fn apache(listen: &str, directory: &Path, connections: u32) -> String {
    let directory = directory.display();
    let threads = connections.max(THREADS_MIN);
    let modules = ["/usr/lib/apache2/modules", "/usr/lib64/httpd/modules", "/usr/lib/httpd/modules"];
    let modules = modules.into_iter().find(|modules| Path::new(modules).is_dir()).unwrap_or("modules");
    let load = ["mpm_event", "authz_core", "unixd"].map(|name| {
        format!("<IfModule !{name}_module>\nLoadModule {name}_module {modules}/mod_{name}.so\n</IfModule>\n")
    });
    let user =
        unprivileged().map(|(user, group)| format!("User {user}\nGroup {group}\n")).unwrap_or_default();
    format!(
        "ServerRoot \"{directory}\"\nDefaultRuntimeDir \"{directory}\"\nPidFile \"{directory}/pid\"\n{}\
         Listen {listen}\nServerName laboratory\n{user}ErrorLog \"{directory}/errors\"\nLogLevel crit\n\
         DocumentRoot \"{directory}/site\"\n<Directory \"{directory}/site\">\nRequire all granted\n\
         AllowOverride None\n</Directory>\nKeepAlive On\nKeepAliveTimeout 3600\nMaxKeepAliveRequests 0\n\
         EnableSendfile On\nStartServers 1\nServerLimit 1\nThreadLimit {threads}\nThreadsPerChild {threads}\n\
         MaxRequestWorkers {threads}\nMinSpareThreads 1\nMaxSpareThreads {threads}\nMaxConnectionsPerChild 0\n",
        load.concat()
    )
}

/// Debian's configuration, but with one process, without an access log, and with connections that stay open.
fn nginx(listen: &str, directory: &Path) -> String {
    let user = unprivileged().map(|(user, group)| format!("user {user} {group};\n")).unwrap_or_default();
    let directory = directory.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path \"{directory}/{kind}\";\n"));
    format!(
        "daemon off;\nmaster_process on;\nworker_processes 1;\n{user}pid \"{directory}/pid\";\n\
         error_log \"{directory}/errors\" crit;\nevents {{ worker_connections 1024; }}\nhttp {{\n{}\
         access_log off;\nsendfile on;\ntcp_nopush on;\nkeepalive_timeout 3600s;\nkeepalive_requests 1000000000;\n\
         default_type application/octet-stream;\nserver {{ listen {listen}; root \"{directory}/site\"; }}\n}}\n",
        temporary.concat()
    )
}

/// The group number of the workers, if they would be root otherwise.
pub(super) fn group_that_answers() -> Option<u32> {
    let (_, name) = unprivileged()?;
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let mut groups = groups.lines().map(|line| line.split(':'));
    groups.find_map(|mut fields| (fields.next()? == name).then(|| fields.nth(1)?.parse().ok()).flatten())
}

/// The user and the group of the workers, if they would be root otherwise.
fn unprivileged() -> Option<(&'static str, &'static str)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    // A user namespace of this user alone has no other user to change to.
    let users = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if users.split_ascii_whitespace().nth(2) == Some("1") {
        return Some(("root", "root"));
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let group = if groups.lines().any(|line| line.starts_with("nogroup:")) { "nogroup" } else { "nobody" };
    Some(("nobody", group))
}

fn is_taken(error: &anyhow::Error) -> bool {
    format!("{error:#}").to_lowercase().contains("address already in use")
}

fn is_listening(address: &str) -> bool {
    match address.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(path).is_ok(),
        None => TcpStream::connect(address).is_ok(),
    }
}

/// The process group of a process, from its `stat`, in which the name in parentheses may contain any character.
fn group_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_by_their_group() {
        let own = rustix::process::getpgrp().as_raw_nonzero().get() as u32;
        assert_eq!(group_of(std::process::id()), Some(own));
    }

    #[test]
    fn a_port_in_use_is_recognised() {
        let taken = anyhow::anyhow!("bind() to 127.0.0.1:80 failed (98: Address already in use)");
        assert!(is_taken(&taken.context("nginx cannot be started")));
        assert!(!is_taken(&anyhow::anyhow!("unknown directive")));
    }
}
