//! The MPI implementation and the link that a request asks for.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::ethernet::FrameLink;
use crate::exit_status::Misuse;
use crate::options::{MTU_BYTES, Request};
use crate::registry::Level;

pub use bywire_results::mpi::{Implementation, Link};
/// About how long a job takes to start and to end.
pub const LAUNCH: Duration = Duration::from_millis(200);

/// An MPI implementation and its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The implementation.
    pub implementation: Implementation,
    /// The link.
    pub link: Link,
}

/// Refuses a test that MPI has no calls for, even if another level has it.
fn check_test(name: &str) -> Result<(), Misuse> {
    let names: Vec<&str> = Level::Mpi.carrier().tests.iter().map(|test| test.name()).collect();
    match names.contains(&name) {
        true => Ok(()),
        false => Err(Misuse(format!("level mpi has no test `{name}`: choose one of {}", names.join(", ")))),
    }
}

impl Choice {
    /// `None` if `request` is for another level.
    ///
    /// # Errors
    /// An implementation, a link or a test that does not exist, or an option that does not apply here.
    pub(crate) fn asked(request: &Request) -> Result<Option<Self>> {
        if request.level != Level::Mpi.name() {
            request.refuse_inapplicable()?;
            return Ok(None);
        }
        let implementation: Implementation =
            request.mpi.as_deref().map_or(Ok(Implementation::OpenMpi), str::parse)?;
        let link: Link = request.link.as_deref().map_or(Ok(Link::Shm), str::parse)?;
        check_test(&request.test)?;
        let between = if link.ethernet().is_some() { "namespaces" } else { "processes" };
        ensure!(
            request.between.as_deref().is_none_or(|asked| asked == between),
            Misuse(format!("--link {link} joins {between}: leave out --between"))
        );
        request.refuse_inapplicable()?;
        Ok(Some(Self { implementation, link }))
    }

    /// The link that joins the namespaces of the two ranks, if they have any.
    pub(crate) fn frame_link(self, mtu_bytes: Option<u32>) -> Option<FrameLink> {
        let mtu_bytes = mtu_bytes.unwrap_or(MTU_BYTES);
        self.link.ethernet().map(|link| FrameLink::of(link, mtu_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Request)) -> String {
        let mut request = Request::new("mpi", "latency");
        change(&mut request);
        format!("{:#}", Choice::asked(&request).unwrap_err())
    }

    #[test]
    fn options_that_mpi_lacks_are_refused_in_one_line_with_the_valid_ones() {
        let refusals = [
            (refusal(|r| r.mpi = Some("mvapich".into())), "choose one of open-mpi, mpich"),
            (refusal(|r| r.link = Some("loopback".into())), "choose one of shm, tcp, veth, eth"),
            (refusal(|r| r.between = Some("threads".into())), "leave out --between"),
            (refusal(|r| r.spin = Some(false)), "--no-spin does not apply"),
            (refusal(|r| r.untouched = true), "--untouched does not apply"),
            (refusal(|r| r.mtu_bytes = Some(9000)), "--mtu does not apply"),
            (refusal(|r| (r.level, r.mpi) = ("tcp".into(), Some("mpich".into()))), "--mpi does not apply"),
        ];
        for (refusal, part) in refusals {
            assert!(refusal.contains(part), "{refusal}");
            assert!(!refusal.contains('\n'), "{refusal}");
        }
    }

    #[test]
    fn only_links_between_namespaces_have_a_frame_link() {
        let frame_link = |link| Choice { implementation: Implementation::Mpich, link }.frame_link(Some(9000));
        assert_eq!((frame_link(Link::Shm), frame_link(Link::Tcp)), (None, None));
        assert_eq!(
            frame_link(Link::Veth).map(|frame_link| frame_link.link),
            Some(crate::ethernet::Link::Veth)
        );
        assert_eq!(frame_link(Link::Eth).map(|frame_link| frame_link.mtu_bytes), Some(9000));
    }
}
