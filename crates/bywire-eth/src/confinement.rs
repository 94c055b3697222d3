//! The carrying process handles bytes from untrusted peers. Before the first frame, it gives up everything that it
//! could do harm with: all capabilities, all files and sockets outside the directory of ports, all network sockets but
//! UDP ones for other machines, and all system calls that its work does not need.

use std::collections::BTreeMap;
use std::path::Path;

use bywire_sys::{Errno, process};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The newest version of Landlock that is requested. Older kernels enforce the part that they know.
const LANDLOCK: ABI = ABI::V6;

/// The path of the directory of ports in a confined process.
pub const ROOT: &str = "/";

/// The networks that a confined process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// None: ports of this machine are Unix sockets.
    Machine,
    /// UDP, for ports of other machines.
    Fabric,
}

/// Why a process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// The capabilities could not be given up.
    #[error("cannot give up capabilities: {0}")]
    Capabilities(Errno),
    /// The directory of ports could not be made the root, so other sockets stay within reach.
    #[error("cannot shut itself into the directory of ports: {0}; this needs CAP_SYS_CHROOT")]
    Root(Errno),
    /// Landlock failed, so files stay within reach.
    #[error("cannot give up files: {0}")]
    Files(#[from] landlock::RulesetError),
    /// The directory of ports cannot be opened.
    #[error("cannot open the directory of ports: {0}")]
    Directory(#[from] landlock::PathFdError),
    /// The system call filter could not be installed.
    #[error("cannot give up system calls: {0}")]
    Calls(String),
}

/// Gives up everything except what carrying frames needs and the ports in `directory`. Returns a description of what
/// this kernel could not enforce.
///
/// `directory` becomes the root of the file system. The process still runs as root. Neither Landlock nor missing
/// capabilities keep root from connecting to the socket of a service that trusts root, such as a container engine's.
///
/// # Errors
/// [`ConfinementError`]. The process must not continue after an error.
pub fn confine(directory: &Path, reach: Reach) -> Result<Option<String>, ConfinementError> {
    process::make_root(directory).map_err(ConfinementError::Root)?;
    let directory = Path::new(ROOT);
    process::give_up_privileges().map_err(ConfinementError::Capabilities)?;
    let unenforced = give_up_files(directory)?;
    // No thread can be started from here on. Only processes of the same user reach the directory of ports.
    bywire_sys::deferred::forgo();
    give_up_calls(reach)?;
    Ok(unenforced)
}

fn give_up_files(directory: &Path) -> Result<Option<String>, ConfinementError> {
    let sockets: BitFlags<AccessFs> =
        AccessFs::ReadDir | AccessFs::MakeSock | AccessFs::RemoveFile | AccessFs::ReadFile;
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?;
    let rules = rules.create()?.add_rule(PathBeneath::new(PathFd::new(directory)?, sockets))?;
    Ok(match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => None,
        RulesetStatus::PartiallyEnforced => Some("this kernel's Landlock enforces a part only".to_owned()),
        RulesetStatus::NotEnforced => {
            let refused = process::landlock_version().err().unwrap_or(Errno::NOSYS);
            let reason = unenforced_because(refused, process::has_call_filter());
            Some(format!("{reason}: files are guarded by their modes only"))
        }
    })
}

/// Why there is no Landlock, if the question for its version is answered with this error.
fn unenforced_because(error: Errno, is_filtered: bool) -> String {
    match error {
        Errno::OPNOTSUPP => "Landlock is not turned on in this kernel".to_owned(),
        // Filters answer so too.
        Errno::NOSYS if is_filtered => {
            "this kernel has no Landlock, or a filter of system calls, as of a container, hides it".to_owned()
        }
        Errno::NOSYS => "this kernel has no Landlock".to_owned(),
        error => format!("a filter of system calls, as of a container, refuses Landlock ({error})"),
    }
}

fn give_up_calls(reach: Reach) -> Result<(), ConfinementError> {
    let failed = |error: String| ConfinementError::Calls(error);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    rules.extend(OLDER_CALLS.iter().map(|call| (*call, Vec::new())));
    let equals = |argument, value: u64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
            .map_err(|error| failed(error.to_string()))
    };
    let mut sockets = vec![equals(0, libc::AF_UNIX as u64)?];
    if reach == Reach::Fabric {
        rules.extend(UDP_CALLS.iter().map(|call| (*call, Vec::new())));
        sockets.extend(udp_sockets().map_err(|error| failed(error.to_string()))?);
    }
    rules.insert(libc::SYS_socket, sockets);
    rules.insert(libc::SYS_ioctl, vec![equals(1, libc::FIONBIO)?]);
    // For this process only: root may lower the limits of every other process of root.
    rules.insert(libc::SYS_prlimit64, vec![equals(0, 0)?]);
    // F_SETOWN and F_SETSIG are missing: with them, a descriptor can kill any process.
    let commands = DESCRIPTOR_COMMANDS.iter().map(|command| equals(1, u64::from(command.cast_unsigned())));
    rules.insert(libc::SYS_fcntl, commands.collect::<Result<_, _>>()?);
    let architecture =
        TargetArch::try_from(std::env::consts::ARCH).map_err(|error| failed(error.to_string()))?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture)
        .map_err(|error| failed(error.to_string()))?;
    let program: seccompiler::BpfProgram = filter.try_into().map_err(|error| failed(format!("{error}")))?;
    seccompiler::apply_filter(&program).map_err(|error| failed(error.to_string()))
}

/// UDP sockets, and no other ones of their families.
fn udp_sockets() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    /// The kernel's `SOCK_TYPE_MASK`: the other bits are flags.
    const TYPES: u64 = 0xF;
    let is =
        |argument, operator, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
    let families = [libc::AF_INET, libc::AF_INET6];
    families
        .map(|family| {
            SeccompRule::new(vec![
                is(0, SeccompCmpOp::Eq, family as u64)?,
                is(1, SeccompCmpOp::MaskedEq(TYPES), libc::SOCK_DGRAM as u64)?,
                is(2, SeccompCmpOp::Eq, libc::IPPROTO_UDP as u64)?,
            ])
        })
        .into_iter()
        .collect()
}

/// Commands of `fcntl`: copies, flags, sizes of pipes, seals.
const DESCRIPTOR_COMMANDS: [i32; 7] = [
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETPIPE_SZ,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// The `libc` crate does not have it yet. The number is the same on every architecture.
const SYS_CACHESTAT: i64 = 451;

/// The system calls for carrying frames and connecting to other ports.
const CALLS: [i64; 62] = [
    // Reading and writing frames.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    // Waiting, and waking other processes.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_getrusage,
    libc::SYS_nanosleep,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pwritev2,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    // Connecting to other ports.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmodat,
    libc::SYS_flock,
    libc::SYS_getdents64,
    libc::SYS_getpid,
    libc::SYS_getsockopt,
    libc::SYS_geteuid,
    libc::SYS_gettid,
    libc::SYS_listen,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pidfd_open,
    libc::SYS_recvmsg,
    libc::SYS_renameat2,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_statx,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    // Private and shared memory.
    libc::SYS_brk,
    SYS_CACHESTAT,
    libc::SYS_fallocate,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_getrandom,
    libc::SYS_madvise,
    libc::SYS_memfd_create,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Ending.
    libc::SYS_close,
    libc::SYS_exit_group,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
];

/// The system calls for UDP sockets.
const UDP_CALLS: [i64; 5] = [
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
];

/// Older forms of some of these calls, which older architectures have. The C library still makes them there.
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: [i64; 10] = [
    libc::SYS_access,
    libc::SYS_chmod,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_rename,
    libc::SYS_stat,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CALLS: [i64; 1] = [libc::SYS_renameat];

#[cfg(test)]
mod tests {
    use super::*;

    /// The reason for which files stay within reach of a thread whose filter answers a question for Landlock so.
    fn reason_under_a_filter(error: i32) -> String {
        let directory = tempfile::tempdir().expect("a directory");
        let restricted = move || {
            let rules = BTreeMap::from([(libc::SYS_landlock_create_ruleset, Vec::new())]);
            let architecture = TargetArch::try_from(std::env::consts::ARCH).expect("it is known");
            let refuse = SeccompAction::Errno(error as u32);
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture);
            let program: seccompiler::BpfProgram = filter.expect("a filter").try_into().expect("a program");
            seccompiler::apply_filter(&program).expect("this thread may restrict itself");
            give_up_files(directory.path()).expect("it goes on without").expect("nothing is enforced")
        };
        std::thread::spawn(restricted).join().expect("it ends")
    }

    #[test]
    fn a_filter_that_refuses_landlock_is_told_from_a_kernel_without_it() {
        let refused = reason_under_a_filter(libc::EPERM);
        assert!(
            refused.starts_with("a filter of system calls, as of a container, refuses Landlock"),
            "{refused}"
        );
        let hidden = reason_under_a_filter(libc::ENOSYS);
        assert!(hidden.starts_with("this kernel has no Landlock, or a filter of system calls"), "{hidden}");
        let off = reason_under_a_filter(libc::EOPNOTSUPP);
        assert!(off.starts_with("Landlock is not turned on in this kernel: files"), "{off}");
        assert_eq!(unenforced_because(Errno::NOSYS, false), "this kernel has no Landlock");
    }
}
