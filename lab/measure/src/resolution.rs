//! Resolves a request: a plan for both ends, or the reason why the request is invalid.

use anyhow::{Result, bail, ensure};
use bywire_results::message_link::Security;
use bywire_results::parameter::{ADAPTIVE, Domain, Parameters};

use crate::bounds::bounded;
use crate::budget::{Blocks, CROWD_SECONDS, VARIANTS, time, time_min};
use crate::ethernet::{self, Ethernet};
use crate::load::THREADS_MAX;
use crate::mpi::Choice;
use crate::options::{HERE, MTU_BYTES, Request};
use crate::placement::{Cores, Placement};
use crate::plan::{Level, Plan, SIZE_BYTES_MAX, Test};
use crate::workload::{nhalf, overhead};
use crate::{multi_connection, pin, size, web};

/// The default number of connections in tests with several.
pub(crate) const CONNECTIONS: u32 = 4;

/// The default length of a datagram in tests whose streams have longer messages.
const DATAGRAM_BYTES: u64 = 8192;

/// The warm-up of `sock`. A connection leaves the kernel in it, after two programs and the service have agreed while
/// they share two cores.
const CUT_OVER_BLOCKS: u32 = 8;

/// The minimum time for each connection in a preset.
const CROWD_SECONDS_EACH: f64 = 0.05;

/// The maximum number of connections at once.
const MANY_MAX: u32 = 64;

/// The maximum number of idle peers.
const NODES_MAX: u32 = 10_000;

pub(crate) fn check_bounds(request: &Request, level: Level, test: Test) -> Result<()> {
    let links: Vec<&str> = (level.carrier().links)().into_iter().map(|(name, _)| name).collect();
    if let Some(link) = request.link.as_deref().filter(|link| !links.is_empty() && !links.contains(link)) {
        bail!("unknown link `{link}`: level {level} has {}", links.join(", "));
    }
    level.check_test(&request.level, test.name())?;
    request.domain.as_deref().map(str::parse::<Domain>).transpose()?;
    bounded("nodes", request.nodes.unwrap_or(0), 0..=NODES_MAX, "")?;
    let connections = bounded("connections", request.connections.unwrap_or(CONNECTIONS), 1..=MANY_MAX, "")?;
    bounded("load", request.load.unwrap_or(1), 1..=THREADS_MAX, "")?;
    bounded("socket-buffer", request.socket_buffer_bytes.unwrap_or(0), 0..=SIZE_BYTES_MAX, " bytes")?;
    ensure!(
        !test.is_multi_connection() || request.spin != Some(true) || connections == 1,
        "{connections} ends that poll would take turns on one core, and what is measured would be the scheduler's time slice: \
         leave out --spin, or give --connections 1"
    );
    ensure!(
        request.is_here() || !test.is_multi_connection(),
        "{test} takes place on one machine: give --between {}",
        HERE.join(" or ")
    );
    Ok(())
}

pub(crate) fn choose_cores(asked: Option<(u32, u32)>, placement: &Placement) -> Result<Cores> {
    let (source, target) = asked.unwrap_or_else(pin::two_cores);
    if asked.is_some() {
        let allowed = pin::allowed_cores();
        if let Some(core) = [source, target].iter().find(|core| !allowed.contains(core)) {
            bail!("core {core} is not among those that this process may use: choose from {allowed:?}");
        }
        ensure!(
            source != target,
            "both ends would take turns on core {source}: name two different ones of {allowed:?}, as in --cores 0,1"
        );
    }
    Ok(Cores { source: Some(source), target: (!matches!(placement, Placement::Host(_))).then_some(target) })
}

pub(crate) fn plan(request: &Request, level: Level, test: Test, placement: &Placement) -> Result<Plan> {
    let (carrier, kind) = (level.carrier(), test.kind());
    let longest = carrier.longest_bytes;
    let longest_usual = if carrier.is_lossy { DATAGRAM_BYTES } else { u64::MAX };
    let size_bytes = request.size_bytes.unwrap_or(kind.size_bytes.min(longest_usual));
    let has_responses = test != Test::Overhead && !test.is_one_way();
    let response_bytes = if has_responses { request.response_bytes.unwrap_or(size_bytes) } else { 1 };
    if let Some(bytes) = [size_bytes, response_bytes].iter().find(|bytes| !(1..=longest).contains(*bytes)) {
        bail!(
            "a message of {bytes} bytes is out of bounds at level {level}: give a --size of 1 to {longest} bytes"
        );
    }
    let connections = u64::from(request.connections.unwrap_or(CONNECTIONS));
    let longest_of_many = multi_connection::BYTES_MAX / connections.max(1);
    ensure!(
        !test.is_multi_connection() || size_bytes.max(response_bytes) <= longest_of_many,
        "{connections} connections with messages of {} would keep too much memory: give a --size of up to {longest_of_many} \
         bytes, or fewer --connections, so that one message of each has no more than {} together",
        size::show(size_bytes),
        size::show(multi_connection::BYTES_MAX)
    );
    ensure!(
        test != Test::Overhead || size_bytes <= overhead::BURST_BYTES_MAX,
        "overhead is measured up to {}: give a --size within that",
        size::show(overhead::BURST_BYTES_MAX)
    );
    let streams = streams(test, longest);
    let blocks = if test.is_multi_connection() {
        Blocks::whole(time(request.time_seconds.or(Some(CROWD_SECONDS)), 1)?)
    } else {
        Blocks::within(time(request.time_seconds, streams)? / f64::from(streams))
    };
    Ok(Plan {
        request: Request {
            // Connections that share a core have no idle peers.
            nodes: if test.is_multi_connection() { Some(0) } else { request.nodes },
            ..request.clone()
        },
        level,
        test,
        mpi: None,
        size_bytes,
        response_bytes,
        block_us: blocks.block_us,
        warmup_blocks: if level == Level::Sock { blocks.warmup + CUT_OVER_BLOCKS } else { blocks.warmup },
        blocks: blocks.kept,
        // MPI polls. At level `sock` the library spins, unless the test itself does.
        runtime_directories: placement.runtime_directories().cloned(),
        spin: request.spin.filter(|_| level != Level::Sock).unwrap_or(kind.polls || carrier.polls),
        sleep: request.spin == Some(false),
        carriers: placement.carriers().to_vec(),
        begin_ns: None,
        peer_number: None,
        bind: placement.target_address(),
        source: None,
        // Each pair gets its own.
        cookie: String::new(),
        deadline_seconds: blocks.deadline_seconds(),
    })
}

pub(crate) fn link<'a>(request: &'a Request, level: Level, placement: &'a Placement) -> &'a str {
    match (level.carrier().own_link, placement) {
        (Some(own), _) => request.link.as_deref().unwrap_or(own),
        (None, Placement::Processes | Placement::Threads) => "loopback",
        (None, Placement::Namespaces { network, .. }) => network.link(),
        (None, Placement::Fabric(_)) => "udp",
        (None, Placement::Host(_)) => "network",
    }
}

/// The parameters of a cell: the given options in the words of the command line, and defaults for the others.
pub(crate) fn parameters(request: &Request, plan: &Plan, placement: &Placement) -> Parameters {
    let mut resolved = request.clone();
    // Cells of TCP are those of earlier versions, which had no domain.
    resolved.domain = request.domain.clone().filter(|_| request.is_unix());
    if matches!(plan.level, Level::Tcp | Level::Sock) && !request.is_unix() {
        resolved.nagle.get_or_insert(false);
    }
    if matches!(placement, Placement::Namespaces { .. } | Placement::Fabric(_)) {
        resolved.mtu_bytes.get_or_insert(MTU_BYTES);
    }
    if request.crosses_a_fabric() && !matches!(placement, Placement::Host(_)) {
        resolved.security.get_or_insert_with(|| Security::Encrypted.name().to_owned());
    }
    if request.level == ethernet::LEVEL {
        resolved.protocol = Some(plan.level.name().to_owned());
    }
    resolved.mpi = plan.mpi.map(|choice| choice.implementation.name().to_owned());
    resolved.ranks = plan.mpi.map(|choice| choice.ranks).filter(|_| plan.test.kind().is_collective);
    if plan.test.is_multi_connection() {
        resolved.connections.get_or_insert(CONNECTIONS);
    }
    let adaptive = plan.level.carrier().is_adaptive && !plan.spin && !plan.sleep;
    let mut parameters = resolved.parameters();
    parameters.insert("spin".to_owned(), if adaptive { ADAPTIVE.into() } else { plan.spin.into() });
    parameters.insert("blocks".to_owned(), plan.blocks.into());
    parameters.insert("block_us".to_owned(), plan.block_us.into());
    parameters
}

/// The parameters of a cell of a web server, with the server's configuration.
pub(crate) fn web_parameters(request: &Request, plan: &web::Plan) -> Parameters {
    let zipf = plan.test == web::Test::Zipf;
    let resolved = Request {
        server: Some(plan.server.name().to_owned()),
        connections: Some(plan.connections),
        alpha: zipf.then_some(plan.alpha),
        rank: zipf.then(|| plan.rank.name().to_owned()),
        documents: zipf.then_some(plan.documents),
        seed: Some(plan.seed),
        mtu_bytes: plan.link.frame_link().map(|_| request.mtu_bytes.unwrap_or(MTU_BYTES)),
        ..request.clone()
    };
    let mut parameters = resolved.parameters();
    parameters.insert("sendfile".to_owned(), "on".into());
    parameters.insert("blocks".to_owned(), plan.blocks.into());
    parameters.insert("block_us".to_owned(), plan.block_us.into());
    parameters
}

/// A request for the same messages between two processes, without namespaces or links that would have to be made first.
/// Fails if the request is not valid for the levels `eth` and `mpi`.
pub fn anywhere(request: &Request) -> Result<Request> {
    if request.level == web::LEVEL {
        let (link, mtu_bytes, coalesce, segmentation) = (None, None, None, None);
        return Ok(Request { link, mtu_bytes, coalesce, segmentation, ..request.clone() });
    }
    let ethernet = Ethernet::asked(request)?.map(|ethernet| ethernet.protocol.name());
    let mpi = Choice::asked(request)?.map(|_| "tcp");
    let level = ethernet.or(mpi).unwrap_or(&request.level);
    Ok(Request {
        link: request.link.clone().filter(|_| request.level == level && !request.joins_nodes()),
        security: None,
        nodes: request.nodes.filter(|_| request.level == Level::Msg.name()),
        level: level.to_owned(),
        // Ranks of all numbers are at level `mpi` alone.
        test: if request.is_collective() { Test::Latency.name().to_owned() } else { request.test.clone() },
        between: None,
        mtu_bytes: None,
        credential: None,
        protocol: None,
        coalesce: None,
        segmentation: None,
        loss_percent: None,
        rate_mbits: None,
        mpi: None,
        ranks: None,
        unmatched: None,
        ..request.clone()
    })
}

/// The minimum time of `request`, in seconds.
pub fn time_min_of(request: &Request) -> f64 {
    if request.level == web::LEVEL {
        return web::TIME_SECONDS_MIN;
    }
    // The ends of several connections take turns on a core. In each block, every end must have a turn.
    let turns = CROWD_SECONDS_EACH * f64::from(request.connections.unwrap_or(0));
    turns.max(time_min(request.test.parse().map_or(1, |test| streams(test, u64::MAX))))
}

/// The number of streams or variants that share the time of a cell, in messages of at most `longest` bytes.
pub(crate) fn streams(test: Test, longest: u64) -> u32 {
    match test {
        Test::Nhalf => nhalf::sizes(longest).len() as u32,
        Test::Breakdown => VARIANTS,
        _ => 1,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The plan of a request in words, between two processes.
    pub(crate) fn plan_of(words: &str) -> Plan {
        let request = Request::of_words(words).unwrap();
        let (level, test) = (request.level.parse().unwrap(), request.test.parse().unwrap());
        plan(&request, level, test, &Placement::Processes).unwrap()
    }

    #[test]
    fn a_cell_names_the_domain_of_carried_sockets_unless_it_is_that_of_earlier_versions() {
        let parameters = |words: &str| {
            let plan = plan_of(words);
            parameters(&plan.request, &plan, &Placement::Processes)
        };
        for words in ["sock rr", "sock rr --domain inet"] {
            let parameters = parameters(words);
            assert!(!parameters.contains_key("domain") && parameters.contains_key("nagle"), "{words}");
        }
        let unix = parameters("sock rr --domain unix");
        assert_eq!(unix.text("domain"), Some("unix"));
        assert!(!unix.contains_key("nagle"), "Unix sockets have no Nagle's algorithm");
    }
}
