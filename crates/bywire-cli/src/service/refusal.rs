//! Why a service cannot be carried, and what to do.

/// Why no drop-in is made for a unit. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Refusal {
    #[error("there is no unit {name}: {hint}")]
    Absent { name: String, hint: String },
    #[error("{0} is masked: `systemctl unmask {0}` first")]
    Masked(String),
    #[error("systemd cannot read {name}: {cause}; `systemd-analyze verify {name}` shows where")]
    Broken { name: String, cause: String },
    #[error(
        "{name} is made from {source_file} by a generator, which starts its program by a script: write a unit for it first, with \
         the program in ExecStart="
    )]
    Generated { name: String, source_file: String },
    #[error(
        "{0} was made for one run (`systemd-run`), and no drop-in outlives that: start its program by `bywire run`"
    )]
    Transient(String),
    #[error("{0} is a template: name one of its instances, such as {1}")]
    Template(String, String),
    #[error("{0} is no service: name a unit that ends with .service")]
    NoService(String),
    #[error(
        "{0} is no name of a unit: those have letters, digits and :-_.\\@ only, and `systemd-escape` turns a path into one"
    )]
    NoName(String),
    #[error("{name} starts no program that stays (Type=oneshot): {hint}")]
    Oneshot { name: String, hint: String },
    #[error("{0} has no ExecStart=, so it starts no program")]
    NoStart(String),
    #[error(
        "{0} has several ExecStart=: wrap the server's by hand in a drop-in of your own (`systemctl edit {0}`)"
    )]
    SeveralStarts(String),
    #[error(
        "{0} is started by `bywire run` already, as `systemctl cat {0}` shows: leave it as it is, or remove that drop-in first"
    )]
    Carried(String),
    #[error(
        "{0} starts its program in an environment of its own, so `bywire run` has no effect there: name the program itself in \
         ExecStart=, with User= for its user"
    )]
    ClearedEnvironment(String),
    #[error("the program is started under the name {0} (ExecStart=@), which `bywire run` cannot give it")]
    OtherName(String),
    #[error(
        "the unit has a network of its own (PrivateNetwork=yes), in which no other program is: nothing of it would be carried"
    )]
    PrivateNetwork,
    #[error(
        "{path} is hidden from the unit by {setting}, and systemd has no exception below that: install Bywire elsewhere, for \
         instance by `./x install --prefix /usr/local`"
    )]
    Hidden { path: String, setting: String },
    #[error(
        "the user of the unit cannot read {0}: install Bywire where every user can, for instance in /usr/local"
    )]
    Unreadable(String),
    #[error(
        "{path} can be changed by {whom}, who would decide what the unit executes: install Bywire as root, for instance in \
         /usr/local"
    )]
    Changeable { path: String, whom: String },
    #[error("{0} is on a file system without the right to execute (noexec): install Bywire elsewhere")]
    NoExec(String),
    #[error(
        "the unit allows system calls of {0} only (SystemCallArchitectures=), and the library makes others"
    )]
    Architecture(String),
    #[error("the unit removes {0} from the environment (UnsetEnvironment=), and the library needs it")]
    Unset(String),
    #[error("the cluster of {unit} is not known: {cause}")]
    Cluster { unit: String, cause: String },
}
