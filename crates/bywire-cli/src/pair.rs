//! `bywire pair`: the pairing service of the whole machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bywire_command::exit_status::Misuse;
use bywire_pairing::launch;
use bywire_pairing::service::{Service, StartError};
use bywire_pairing::space::{JoinError, Spaces};
use bywire_pairing::user::Scope;
use bywire_sys::namespace::NamespaceName;
use bywire_sys::{activation, directory, process};
use clap::Args;
use serde::Deserialize;

use crate::run::{IDLE, MACHINE_SOCKET};

/// The configuration file that is read by default, if it exists.
const DEFAULT_CONFIG: &str = "/etc/bywire.toml";
/// The longest configuration file.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// A service whose socket systemd keeps ends after this time without programs. Other services stay.
const EVER: Duration = Duration::from_secs(u64::MAX / 4);

/// The arguments: where to listen, and which namespaces are joined.
#[derive(Args, Debug)]
#[command(before_help = "\
Examples:
  systemctl enable --now bywire-pairing.socket
  bywire pair
  bywire pair --socket /run/pod/pairing --config pod.toml
  BYWIRE_PAIRING=/run/pod/pairing bywire run -- PROGRAM", after_help = format!("\
Under systemd it takes the socket of bywire-pairing.socket, and ends half a minute after it was last used. As root it \
serves all users, and `bywire status` shows each of them their own connections. Otherwise it serves its own user only.

Network namespaces with one address space, such as those of containers on one bridge, are joined by a file. Without \
--config root's service reads {DEFAULT_CONFIG} if it exists:
  [sockets]
  one-address-space = [[\"web\", \"/run/netns/database\"], [\"pid:4711\", \"-\"]]"))]
pub struct PairArgs {
    /// Listen here [default: the socket of systemd, else as root /run/bywire-pairing/socket; others must name one]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Join the namespaces of this file, which others must not be able to write [default: as root /etc/bywire.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A whole configuration file. Other parts of Bywire have tables of their own in it.
#[derive(Debug, Default, Deserialize)]
struct File {
    #[serde(default)]
    sockets: Settings,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Settings {
    /// Lists of network namespaces in which an address names the same host.
    one_address_space: Vec<Vec<String>>,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
enum SettingsError {
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    #[error("{0} can be written by others: run `chmod go-w` on it, and make root or this user its owner")]
    WritableByOthers(PathBuf),
    #[error("{0}, line {1}: {2}")]
    Syntax(PathBuf, usize, String),
    #[error("{0:?} is not a network namespace: give a name, pid:N, a path, or - for this one")]
    Namespace(String),
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl PairArgs {
    /// Serves.
    pub fn run(self) -> Result<()> {
        let is_root = process::user() == 0;
        let default = Some(PathBuf::from(DEFAULT_CONFIG)).filter(|path| is_root && path.exists());
        let settings = self.config.or(default).map(|path| read(&path)).transpose().map_err(Misuse::of)?;
        let spaces = settings.unwrap_or_default().spaces().map_err(Misuse::of)?;
        for (name, error) in spaces.absent() {
            bywire_command::exit_status::complain(
                "bywire",
                format!("the namespace {name} cannot be opened: {error}"),
            );
        }
        let handed_over = match self.socket {
            None => activation::socket().map_err(StartError::Socket)?,
            Some(_) => None,
        };
        let (mut service, idle) = match handed_over {
            Some(socket) => (Service::adopt(socket)?, IDLE),
            None => {
                let scope = if is_root { Scope::Machine } else { Scope::User };
                let started = Service::start(&place(self.socket, is_root)?, scope);
                (started.map_err(refused)?, EVER)
            }
        };
        service.join(spaces);
        bywire_command::output::print(launch::READY)?;
        Ok(service.serve(idle)?)
    }
}

/// An existing file that is not a socket was named by mistake.
fn refused(error: StartError) -> anyhow::Error {
    match error {
        StartError::Occupied(_) => Misuse::of(error),
        error => error.into(),
    }
}

/// The socket to listen on. Only its user may be able to replace it.
fn place(named: Option<PathBuf>, is_root: bool) -> Result<PathBuf> {
    let Some(path) = named else {
        if !is_root {
            return Err(Misuse(
                "name a --socket: only root's service is found where no place is named".to_owned(),
            )
            .into());
        }
        let path = PathBuf::from(MACHINE_SOCKET);
        let directory = path.parent().context("the path has no directory")?;
        let cannot = || format!("cannot make {}, so name a --socket elsewhere", directory.display());
        fs::create_dir_all(directory).with_context(cannot)?;
        directory::set_access(directory, 0o755, None)?;
        return Ok(path);
    };
    let path = std::path::absolute(path)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    // Unlike the directory in which programs meet, this one must not be writable for every user.
    if fs::create_dir(directory).is_ok() {
        directory::set_access(directory, if is_root { 0o755 } else { 0o700 }, None)?;
    }
    directory::prepare(directory).map_err(|error| {
        Misuse(format!(
            "{} cannot be used: {error}; others must not be able to replace what is in it",
            directory.display()
        ))
    })?;
    Ok(path)
}

fn read(path: &Path) -> Result<Settings, SettingsError> {
    use std::io::Read;
    let unreadable = |error| SettingsError::Unreadable(path.to_owned(), error);
    let file = fs::File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    let is_trusted = found.uid() == 0 || found.uid() == process::user();
    if !is_trusted || found.mode() & 0o022 != 0 {
        return Err(SettingsError::WritableByOthers(path.to_owned()));
    }
    let mut text = String::new();
    file.take(CONFIG_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    let parsed: Result<File, _> = toml::from_str(&text);
    let syntax = |error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let message = error.message().lines().collect::<Vec<_>>().join("; ");
        SettingsError::Syntax(path.to_owned(), before.matches('\n').count() + 1, message)
    };
    Ok(parsed.map_err(syntax)?.sockets)
}

impl Settings {
    fn spaces(&self) -> Result<Spaces, SettingsError> {
        let name =
            |text: &String| text.parse::<NamespaceName>().map_err(|_| SettingsError::Namespace(text.clone()));
        let lists = self.one_address_space.iter().map(|list| list.iter().map(name).collect());
        Ok(Spaces::new(lists.collect::<Result<_, _>>()?)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn parse(text: &str) -> Result<Settings, SettingsError> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bywire.toml");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
        read(&path)
    }

    #[test]
    fn spaces_are_parsed_strictly_and_other_tables_are_ignored() {
        let text = "[ethernet]\nmtu = 9000\n[sockets]\none-address-space = [[\"a\", \"/run/netns/b\"], [\"pid:7\"]]\n";
        let settings = parse(text).expect("settings");
        assert_eq!(settings.one_address_space, [vec!["a", "/run/netns/b"], vec!["pid:7"]]);
        assert!(settings.spaces().is_ok());
        assert_eq!(parse("").expect("an empty file"), Settings::default());
        let wrong = parse("[sockets]\none-adress-space = []\n").expect_err("a slip");
        assert!(matches!(&wrong, SettingsError::Syntax(_, 2, _)), "{wrong}");
        for text in [
            "[sockets]\none-address-space = [[\"a/b\"]]",
            "[sockets]\none-address-space = [[\"a\"], [\"a\"]]",
        ] {
            assert!(parse(text).expect("it is one").spaces().is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bywire.toml");
        fs::write(&path, "").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).expect("chmod");
        assert!(matches!(read(&path), Err(SettingsError::WritableByOthers(_))));
    }
}
