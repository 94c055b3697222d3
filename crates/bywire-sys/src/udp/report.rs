//! Errors of a call that concern an earlier packet.

use rustix::io::Errno;

/// Returns whether this is the error of a network report (ICMP), or of a missing route.
pub(super) fn is_report(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNREFUSED
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::PROTO
            | Errno::OPNOTSUPP
            | Errno::NETDOWN
            | Errno::ADDRNOTAVAIL
            | Errno::MSGSIZE
    )
}
