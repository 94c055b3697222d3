//! Clusters of PostgreSQL as Debian has them. `pg_ctlcluster` starts the server in an environment of its own, so the drop-in
//! makes the server the unit's program.

use std::path::{Path, PathBuf};

use super::sandbox::Exception;
use super::start_line::word;

/// Debian's launcher.
pub const LAUNCHER: &str = "pg_ctlcluster";

/// The facts of a cluster that the drop-in needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its version, such as `15`.
    pub version: String,
    /// Its name, such as `main`.
    pub name: String,
    /// The directory of its data.
    pub data: PathBuf,
    /// The user that owns it.
    pub user: String,
    /// The file that the launcher has the server log to, if it exists.
    pub log: Option<PathBuf>,
}

/// The version and the name of the cluster that a unit is for.
pub fn of_unit(unit: &str) -> Option<(&str, &str)> {
    unit.strip_prefix("postgresql@")?.strip_suffix(".service")?.split_once('-')
}

/// The path of a cluster's file of settings.
pub fn configuration(version: &str, name: &str) -> PathBuf {
    ["/etc/postgresql", version, name, "postgresql.conf"].iter().collect()
}

/// The directory of the data, as the file of settings names it. The last line counts.
pub fn data_directory(settings: &str) -> Option<PathBuf> {
    let values = settings.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("data_directory")?.trim_start();
        let rest = rest.strip_prefix('=').unwrap_or(rest).trim_start().strip_prefix('\'')?;
        rest.split_once('\'').map(|(path, _)| PathBuf::from(path))
    });
    values.last()
}

/// Settings that make the server the program of the unit.
pub fn settings(cluster: &Cluster, command: &Path) -> Vec<Exception> {
    let Cluster { version, name, data, user, log } = cluster;
    let configuration = configuration(version, name);
    let start = format!(
        "{} run -- /usr/lib/postgresql/{version}/bin/postgres -D {} -c config_file={}",
        word(command),
        word(data),
        word(&configuration)
    );
    let reason = "pg_ctlcluster clears the environment, and with it what `bywire run` sets. The server is the unit's program \
                  instead.";
    let mut found = vec![
        Exception::new(format!("ExecStart=\nExecStart={start}\nType=notify\nUser={user}"), reason),
        Exception::new(
            "ExecReload=\nExecReload=/bin/kill -HUP $MAINPID",
            "The server reloads its settings on SIGHUP.",
        ),
        Exception::new(
            "ExecStop=\nKillMode=mixed\nKillSignal=SIGINT",
            "SIGINT is the fast shutdown, which pg_ctlcluster asks for.",
        ),
    ];
    if let Some(log) = log {
        found.push(Exception::new(
            format!("StandardOutput=append:{0}\nStandardError=append:{0}", log.display()),
            "The server logs to the file that pg_ctlcluster gives it.",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_the_data_is_read() {
        let settings = "#data_directory = 'no'\ndata_directory = '/var/lib/postgresql/15/main'\t# use data\n";
        assert_eq!(data_directory(settings), Some("/var/lib/postgresql/15/main".into()));
        assert_eq!(data_directory("data_directory='/a b'\ndata_directory '/c'"), Some("/c".into()));
        assert_eq!(data_directory("listen_addresses = '*'"), None);
        assert_eq!(of_unit("postgresql@15-main.service"), Some(("15", "main")));
        assert_eq!(of_unit("postgresql.service"), None);
    }
}
