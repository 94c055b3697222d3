//! The MPI implementation and the link that a request asks for.

use std::time::Duration;

use anyhow::{Result, ensure};
use bywire_command::exit_status::Misuse;
use serde::{Deserialize, Serialize};

use crate::bounds::bounded;
use crate::ethernet::FrameLink;
use crate::options::{MTU_BYTES, Request};
use crate::registry::{Level, Test};
use crate::size;

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
    /// The number of ranks.
    pub ranks: u32,
    /// Receives of each rank that wait for other messages meanwhile.
    pub unmatched: u32,
}

const RANKS: std::ops::RangeInclusive<u32> = 2..=64;
/// The most receives that wait meanwhile.
const UNMATCHED_MAX: u32 = 1 << 16;
/// The numbers that a sum adds up have this length.
const NUMBER_BYTES: u64 = 8;
/// The most bytes that a rank keeps for an operation of all ranks, in each direction.
const COLLECTIVE_BYTES_MAX: u64 = 256 << 20;

impl Choice {
    /// `None` if `request` is for another level. Fails if the implementation, the link or the test does not exist, or if an
    /// option does not apply here.
    pub(crate) fn asked(request: &Request) -> Result<Option<Self>> {
        if request.level != Level::Mpi.name() {
            request.refuse_inapplicable()?;
            return Ok(None);
        }
        let implementation: Implementation =
            request.mpi.as_deref().map_or(Ok(Implementation::OpenMpi), str::parse)?;
        let link: Link = request.link.as_deref().map_or(Ok(Link::Shm), str::parse)?;
        Level::Mpi.check_test(&request.level, &request.test)?;
        ensure!(
            implementation == Implementation::Mpich || link.libfabric_provider().is_none(),
            Misuse(format!("--link {link} is of MPICH: add --mpi mpich"))
        );
        let places: &[&str] = match link {
            Link::Shm | Link::OfiShm | Link::OfiSm2 | Link::Tcp => &["processes"],
            Link::Veth | Link::Eth => &["namespaces"],
            Link::Bywire => &["processes", "namespaces"],
        };
        ensure!(
            request.between.as_deref().is_none_or(|asked| places.contains(&asked)),
            Misuse(match places {
                ["processes"] => format!(
                    "--link {link} joins processes of one machine: leave out --between, or give --link bywire, veth or eth"
                ),
                places => format!("--link {link} joins {}: leave out --between", places.join(" or ")),
            })
        );
        let is_apart = link.ethernet().is_some() || request.joins_nodes();
        for (name, is_given) in
            [("mtu", request.mtu_bytes.is_some()), ("security", request.security.is_some())]
        {
            ensure!(
                !is_given || is_apart || link != Link::Bywire,
                Misuse(format!("--{name} applies to the link between namespaces: add --between namespaces"))
            );
        }
        request.refuse_inapplicable()?;
        let ranks = bounded("ranks", request.ranks.unwrap_or(*RANKS.start()), RANKS, "")?;
        ensure!(
            request.ranks.is_none() || !is_apart,
            Misuse("--ranks is for ranks of one machine, and of two namespaces there is one in each: leave it out".to_owned())
        );
        let unmatched = bounded("unmatched", request.unmatched.unwrap_or(0), 0..=UNMATCHED_MAX, "")?;
        let size_bytes = request.size_bytes.unwrap_or(NUMBER_BYTES);
        ensure!(
            request.test != Test::Allreduce.name() || size_bytes.is_multiple_of(NUMBER_BYTES),
            Misuse(format!(
                "allreduce adds numbers of {NUMBER_BYTES} bytes: give a --size that is a multiple of {NUMBER_BYTES}"
            ))
        );
        let longest = COLLECTIVE_BYTES_MAX / u64::from(ranks);
        ensure!(
            request.test != Test::Alltoall.name() || size_bytes <= longest,
            Misuse(format!(
                "{ranks} ranks with messages of {} for each other would keep too much memory: give a --size of up to {longest} \
                 bytes, or fewer --ranks",
                size::show(size_bytes)
            ))
        );
        Ok(Some(Self { implementation, link, ranks, unmatched }))
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

    #[test]
    fn options_that_mpi_lacks_are_refused_in_one_line_with_the_valid_ones() {
        for (words, part) in [
            ("mpi latency --mpi mvapich", "choose one of open-mpi, mpich"),
            ("mpi latency --link loopback", "choose one of shm, ofi-shm, ofi-sm2, tcp, veth, eth, bywire"),
            ("mpi latency --between threads", "leave out --between"),
            ("mpi latency --link ofi-shm", "add --mpi mpich"),
            ("mpi latency --no-spin", "--no-spin does not apply"),
            ("mpi latency --security plain", "--security does not apply"),
            ("mpi latency --link bywire --security plain", "add --between namespaces"),
            ("mpi latency --ranks 4", "--ranks does not apply to mpi latency"),
            ("mpi alltoall --ranks 1", "give 2 to 64"),
            ("mpi latency --unmatched 65537", "give 0 to 65536"),
            ("mpi stream --unmatched 1", "--unmatched does not apply to mpi stream"),
            ("mpi allreduce --size 12", "a multiple of 8"),
            ("mpi alltoall --size 64M --ranks 5", "fewer --ranks"),
            ("mpi alltoall --ranks 4 --link bywire --between namespaces", "for ranks of one machine"),
            ("mpi latency --untouched", "--untouched does not apply"),
            ("mpi latency --mtu 9000", "--mtu does not apply"),
            ("tcp latency --mpi mpich", "--mpi does not apply"),
        ] {
            let request = Request::of_words(words).unwrap();
            let refusal = format!("{:#}", Choice::asked(&request).unwrap_err());
            assert!(refusal.contains(part) && !refusal.contains('\n'), "{words}: {refusal}");
        }
    }

    #[test]
    fn only_links_between_namespaces_have_a_frame_link() {
        let joined = |link| {
            let choice = Choice { implementation: Implementation::Mpich, link, ranks: 2, unmatched: 0 };
            choice.frame_link(Some(9000)).map(|joined| (joined.link, joined.mtu_bytes))
        };
        assert_eq!((joined(Link::Shm), joined(Link::Tcp)), (None, None));
        assert_eq!(joined(Link::Veth), Some((crate::ethernet::Link::Veth, 9000)));
        assert_eq!(joined(Link::Eth), Some((crate::ethernet::Link::OneProcess, 9000)));
    }
}
