//! Clusters of PostgreSQL as Debian has them. `pg_ctlcluster` starts the server in an environment of its own, so the drop-in
//! makes the server the unit's program.

use std::path::{Path, PathBuf};

use super::sandbox::Exception;
use super::start_line::word;

/// Debian's launcher.
pub const LAUNCHER: &str = "pg_ctlcluster";

/// The facts of a cluster that the drop-in needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// The language of the server's messages.
    pub language: Option<String>,
    /// The directory for statistics, which servers before version 15 have.
    pub statistics: Option<PathBuf>,
    /// `pg_ctl.conf` has options for the launcher.
    pub has_launcher_options: bool,
}

/// The version and the name of the cluster that a unit is for.
pub fn of_unit(unit: &str) -> Option<(&str, &str)> {
    let (version, name) = unit.strip_prefix("postgresql@")?.strip_suffix(".service")?.split_once('-')?;
    // Both become part of a command line for a shell.
    (is_plain(version) && is_plain(name)).then_some((version, name))
}

fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
}

/// Returns whether a word is a locale, such as `de_DE.UTF-8@euro`.
pub fn is_locale(word: &str) -> bool {
    is_plain(&word.replace('@', "_"))
}

/// The reason why the owner of the data must not become the unit's user. `author` owns the cluster's settings, which name the
/// data, and could otherwise become whoever owns some directory. `pg_ctlcluster` checks this, too.
pub fn distrust(owner: u32, author: u32) -> Option<&'static str> {
    match (owner, author) {
        (0, _) => Some("belongs to root, and the server does not run as root: give it to the cluster's user"),
        (_, 0) => None,
        _ if owner == author => None,
        _ => Some("belongs to another user than this file: give both to the cluster's user"),
    }
}

/// The path of a cluster's file of this name.
pub fn configuration(version: &str, name: &str, file: &str) -> PathBuf {
    ["/etc/postgresql", version, name, file].iter().collect()
}

/// The value of a setting in a file of settings. The last line with it counts. `None`: it is not set, or empty.
pub fn setting<'a>(settings: &'a str, name: &str) -> Option<&'a str> {
    let mut values = settings.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix(name)?;
        let value = rest.trim_start_matches(['=', ' ', '\t']);
        if value.len() == rest.len() {
            return None;
        }
        match value.strip_prefix('\'') {
            Some(quoted) => quoted.split_once('\'').map(|(value, _)| value),
            None => value.split(['#', ' ', '\t']).next(),
        }
    });
    values.next_back().filter(|value| !value.is_empty())
}

/// Settings that make the server the program of the unit.
pub fn settings(cluster: &Cluster, command: &Path) -> Vec<Exception> {
    let Cluster { version, name, data, user, .. } = cluster;
    let configuration = |file| word(&configuration(version, name, file));
    let server = format!(
        "/usr/lib/postgresql/{version}/bin/postgres -D {} -c config_file={}",
        word(data),
        configuration("postgresql.conf")
    );
    // systemd would open the file as root, which the kernel refuses in a sticky directory (`fs.protected_regular`).
    let logged = cluster.log.as_ref().map_or_else(String::new, |log| {
        format!("/bin/sh -c 'exec \"$$0\" \"$$@\" >>{} 2>&1' ", log.display())
    });
    let start = format!("{} run -- {logged}{server}", word(command));
    let language = cluster.language.as_ref().map_or_else(String::new, |language| format!(" LANG={language}"));
    let reason = "pg_ctlcluster clears the environment, and with it what `bywire run` sets. The server is the unit's program \
                  instead, and logs to the file that pg_ctlcluster gives it.";
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
    found.push(Exception::new(
        format!(
            "Environment=PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj{language}\nEnvironmentFile=-{}",
            configuration("environment")
        ),
        "pg_ctlcluster gives the server this environment.",
    ));
    if let Some(statistics) = &cluster.statistics {
        found.push(Exception::new(
            format!("ExecStartPre=-/usr/bin/install -d -m 0750 {}", word(statistics)),
            "pg_ctlcluster makes this directory, which a reboot removes.",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_cluster_are_read() {
        let settings = "#data_directory = 'no'\ndata_directory = '/var/lib/postgresql/15/main'\t# use data\n";
        assert_eq!(setting(settings, "data_directory"), Some("/var/lib/postgresql/15/main"));
        assert_eq!(setting("data_directory='/a b'\ndata_directory '/c'", "data_directory"), Some("/c"));
        assert_eq!(setting("listen_addresses = '*'", "data_directory"), None);
        assert_eq!(setting("lc_messages = C.UTF-8 # locale", "lc_messages"), Some("C.UTF-8"));
        assert_eq!(setting("pg_ctl_options = ''", "pg_ctl_options"), None);
        assert_eq!(setting("data_directory_mode = 0700", "data_directory"), None);
        assert_eq!(of_unit("postgresql@15-main.service"), Some(("15", "main")));
        assert_eq!(of_unit("postgresql@15-my-own.service"), Some(("15", "my-own")));
        for other in [
            "postgresql.service",
            "postgresql@15.service",
            "postgresql@15-a\\x27b.service",
            "postgresql@15-.service",
        ] {
            assert_eq!(of_unit(other), None, "{other}");
        }
        assert!(is_locale("de_DE.UTF-8@euro") && !is_locale("C LD_PRELOAD=/tmp/x") && !is_locale("%h"));
    }

    #[test]
    fn a_cluster_runs_as_the_owner_of_its_data_if_that_is_no_other_than_its_settings_owner() {
        for (owner, author, is_refused) in
            [(100, 100, false), (100, 0, false), (0, 0, true), (0, 100, true), (200, 100, true)]
        {
            assert_eq!(distrust(owner, author).is_some(), is_refused, "{owner} {author}");
        }
    }

    #[test]
    fn a_server_of_an_earlier_version_has_its_directory_for_statistics() {
        let cluster = Cluster {
            user: "postgres".into(),
            statistics: Some("/var/run/postgresql/14-main.pg_stat_tmp".into()),
            ..Cluster::default()
        };
        let expected = "ExecStartPre=-/usr/bin/install -d -m 0750 /var/run/postgresql/14-main.pg_stat_tmp";
        let found = settings(&cluster, Path::new("/usr/bin/bywire"));
        assert!(found.iter().any(|exception| exception.line == expected), "{found:?}");
    }
}
