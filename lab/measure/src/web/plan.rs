//! The plans that the server and the client of a pair receive.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use bywire_results::level::SIZE_BYTES_MAX;
use serde::{Deserialize, Serialize};

use crate::bounds::bounded;
use crate::budget::PAIRS;
use crate::options::Request;
use crate::size;

pub use bywire_results::web::{LEVEL, Link, Rank, SHARES, Server, Test};

/// Default measuring time of a cell.
pub const TIME_SECONDS: f64 = 5.0;
/// The shortest time of a cell. With less, its open loops would have too few requests.
pub const TIME_SECONDS_MIN: f64 = 0.25;
/// The most connections that may stay open.
pub const CONNECTIONS: std::ops::RangeInclusive<u32> = 1..=256;
/// The most documents that a Zipf trace may be drawn from.
pub const DOCUMENTS: std::ops::RangeInclusive<u32> = 9..=100_000;
/// The largest α. With it the first document has 92 % of all requests.
const ALPHA_MAX: f64 = 4.0;
/// The share of a pair's time that the closed loop takes. The open loops divide the rest equally.
const CLOSED_SHARE: f64 = 0.4;
/// About the length of a block of the closed loop.
const BLOCK_US: u64 = 100_000;
/// The time in which its connections warm up.
const WARMUP_US_MAX: u64 = 50_000;
/// The additional time in which connections on link `sock` move into memory.
const CUT_OVER_US: u64 = 100_000;

/// Everything that server and client must know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The test.
    pub test: Test,
    /// The server.
    pub server: Server,
    /// The link.
    pub link: Link,
    /// Length of the file (`web-file`).
    pub size_bytes: u64,
    /// The exponent of popularity (`web-zipf`).
    pub alpha: f64,
    /// Which documents are popular (`web-zipf`).
    pub rank: Rank,
    /// The seed of the trace and of the times of open loops.
    pub seed: u64,
    /// The number of this pair in its cell, from 0. Each pair has its own times.
    pub pair: u32,
    /// The number of documents (`web-zipf`).
    pub documents: u32,
    /// Connections that stay open.
    pub connections: u32,
    /// Compare every byte of every response.
    pub verify: bool,
    /// Length of a block of the closed loop.
    pub block_us: u64,
    /// Blocks of the closed loop.
    pub blocks: u32,
    /// The length of the warm-up before the first block.
    pub warmup_us: u64,
    /// Length of each open loop.
    pub open_us: u64,
    /// Processes that carry the packets between the two ends.
    pub carriers: Vec<u32>,
    /// The address that the server listens on.
    pub bind: IpAddr,
    /// The name of this pair.
    pub cookie: String,
    /// A client that has not finished by then ends itself.
    pub deadline_seconds: u64,
}

impl Plan {
    /// The plan for a request. Placement, carriers and the pair are still to be filled in. Fails with one line that says what
    /// is invalid.
    pub fn of(request: &Request) -> Result<Self> {
        let test: Test = request.test.parse()?;
        request.refuse_inapplicable()?;
        let server: Server = request.server.as_deref().map_or(Ok(Server::Nginx), str::parse)?;
        let link: Link = request.link.as_deref().map_or(Ok(Link::Tcp), str::parse)?;
        ensure!(
            !(server == Server::Apache && link == Link::Unix),
            "Apache listens on no Unix-domain socket: take --link tcp, veth, eth or sock, or --server nginx"
        );
        let alpha = bounded("alpha", request.alpha.unwrap_or(0.9), 0.0..=ALPHA_MAX, "")?;
        let documents = bounded("documents", request.documents.unwrap_or(1000), DOCUMENTS, "")?;
        let connections = bounded("connections", request.connections.unwrap_or(16), CONNECTIONS, "")?;
        let size_bytes = request.size_bytes.unwrap_or(1024);
        ensure!(
            (1..=SIZE_BYTES_MAX).contains(&size_bytes),
            "a file of {size_bytes} bytes is out of bounds: give a --size of 1 to {}",
            size::show(SIZE_BYTES_MAX)
        );
        let seconds = request.time_seconds.unwrap_or(TIME_SECONDS);
        let seconds = bounded("time", seconds, TIME_SECONDS_MIN..=3600.0, "")?;
        let pair_us = (seconds * 1e6 / f64::from(PAIRS)) as u64;
        let closed_us = (pair_us as f64 * CLOSED_SHARE) as u64;
        let blocks = (closed_us / BLOCK_US).max(1);
        Ok(Self {
            test,
            server,
            link,
            size_bytes,
            alpha,
            rank: request.rank.as_deref().map_or(Ok(Rank::SmallFirst), str::parse)?,
            seed: request.seed.unwrap_or(1),
            pair: 0,
            documents,
            connections,
            verify: request.verify,
            block_us: closed_us / blocks,
            blocks: blocks as u32,
            warmup_us: (closed_us / 4).min(WARMUP_US_MAX) + if link == Link::Sock { CUT_OVER_US } else { 0 },
            open_us: (pair_us - closed_us) / SHARES.len() as u64,
            carriers: Vec::new(),
            bind: [127, 0, 0, 1].into(),
            cookie: String::new(),
            deadline_seconds: 60 + 6 * pair_us / 1_000_000,
        })
    }

    /// About how long a pair takes, in µs.
    pub fn pair_us(&self) -> u64 {
        // The time in which server and client start, and in which the server ends.
        const START_US: u64 = 50_000;
        let open_us = self.open_us * SHARES.len() as u64;
        START_US + self.warmup_us + self.block_us * u64::from(self.blocks) + open_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_combinations_are_refused_in_one_line_with_valid_ones() {
        let plan = |words: &str| Plan::of(&Request::of_words(&format!("web {words}")).unwrap());
        for (words, part) in [
            ("latency", "choose one of web-file, web-zipf"),
            ("web-file --server iis", "choose one of nginx, apache"),
            ("web-file --link udp", "choose one of tcp, unix, veth, eth, sock"),
            ("web-file --link unix --server apache", "Apache listens on no Unix-domain socket"),
            ("web-file --alpha 1", "--alpha does not apply to web web-file"),
            ("web-zipf --alpha NaN", "--alpha NaN is out of bounds"),
            ("web-file --connections 0", "give 1 to 256"),
            ("web-file --size 0", "a --size of 1 to"),
            ("web-file --time 0.2", "--time 0.2 is out of bounds: give 0.25"),
            ("web-file --mtu 9000", "--mtu does not apply"),
            ("web-file --segmentation off", "--segmentation does not apply"),
            ("web-file --link unix --segmentation on", "--segmentation does not apply"),
            ("web-file --mpi mpich", "--mpi does not apply to web web-file"),
            ("web-file --untouched", "--untouched does not apply to web web-file"),
        ] {
            let refusal = format!("{:#}", plan(words).expect_err(words));
            assert!(refusal.contains(part) && !refusal.contains('\n'), "{words}: {refusal}");
        }
        // Interfaces may cut there, or not.
        for link in ["veth", "eth"] {
            plan(&format!("web-file --link {link} --segmentation off")).unwrap();
        }
    }

    #[test]
    fn a_pair_fills_its_time() {
        let plan = Plan::of(&Request::new(LEVEL, "web-file")).unwrap();
        assert_eq!((plan.blocks, plan.block_us, plan.open_us), (4, 100_000, 200_000));
    }
}
