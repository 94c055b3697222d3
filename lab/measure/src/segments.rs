//! The kernel's counts of TCP segments in namespaces: all that were sent, and those that were retransmitted. A
//! namespace of a measurement has no other connections.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::namespaces::Namespace;

/// The names of both counts among a cell's details.
pub const DETAILS: [&str; 2] = ["segments_sent", "segments_sent_again"];

/// Segments of all connections of some namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// All segments sent.
    pub sent: u64,
    /// Retransmitted segments.
    pub again: u64,
}

impl Segments {
    /// The current counts of `namespaces`. Fails if the kernel does not report them.
    pub fn of<'a>(namespaces: impl IntoIterator<Item = &'a Namespace>) -> Result<Self> {
        let mut sum = Self::default();
        for namespace in namespaces {
            let mut command = Command::new("cat");
            command.arg("/proc/net/snmp").stdin(Stdio::null());
            namespace.enter(&mut command)?;
            let printed = command.output().context("cannot run `cat`")?.stdout;
            sum = sum.and(Self::read(&String::from_utf8_lossy(&printed))?);
        }
        Ok(sum)
    }

    /// These and `others`.
    pub fn and(self, others: Self) -> Self {
        Self { sent: self.sent + others.sent, again: self.again + others.again }
    }

    /// Those since `before`.
    pub fn since(self, before: Self) -> Self {
        Self { sent: self.sent - before.sent, again: self.again - before.again }
    }

    /// Parses `/proc/net/snmp`: a line of names, and a line of numbers.
    fn read(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, numbers) =
            lines.next().zip(lines.next()).context("/proc/net/snmp has no TCP counters")?;
        let number = |name: &str| -> Result<u64> {
            let mut pairs = names.split_whitespace().zip(numbers.split_whitespace());
            let found = pairs.find(|(known, _)| *known == name);
            let (_, number) = found.with_context(|| format!("/proc/net/snmp has no {name}"))?;
            Ok(number.parse()?)
        };
        Ok(Self { sent: number("OutSegs")?, again: number("RetransSegs")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_counters_are_read_by_name() {
        let text = "Ip: OutSegs\nIp: 7\nTcp: InSegs OutSegs RetransSegs\nTcp: 1 20 3\nUdp: OutSegs\nUdp: 9\n";
        assert_eq!(Segments::read(text).unwrap(), Segments { sent: 20, again: 3 });
        for other in ["", "Tcp: OutSegs\nTcp: 1\n", "Tcp: OutSegs RetransSegs\n"] {
            assert!(Segments::read(other).is_err(), "{other}");
        }
    }
}
