//! What a request comes to: a plan for both ends, or the reason why it makes no sense.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use bywire_results::parameter::ADAPTIVE;
use serde_json::Value;

use crate::budget::{Blocks, CROWD_SECONDS, time};
use crate::crowd;
use crate::ending::Misuse;
use crate::ethernet;
use crate::load::THREADS_MAX;
use crate::pair::{Cores, Place};
use crate::plan::{Level, Plan, SIZE_BYTES_MAX, Test};
use crate::request::{MTU_BYTES, Request};
use crate::workload::{nhalf, overhead};
use crate::{breakdown, burden, pin, preset, size};

/// Connections of a test with several unless asked otherwise.
pub(crate) const CONNECTIONS: u32 = 4;

/// Where both ends are on this machine.
const HERE: [&str; 3] = ["processes", "threads", "namespaces"];

/// The message layer's links.
const MSG_LINKS: [&str; 1] = ["shm"];

/// A connection of `sock` leaves the kernel while it warms up, once two programs and a service that share two cores have
/// talked about it.
const CUT_OVER_BLOCKS: u32 = 8;

/// Idle peers may not be more.
pub const NODES_MAX: u32 = 10_000;

pub(crate) fn unknown_level(name: &str) -> Misuse {
    Misuse(format!("unknown level `{name}`: choose one of memory, {}", preset::ALL_LEVELS.join(", ")))
}

pub(crate) fn refuse_what_means_nothing(request: &Request, level: Level, test: Test) -> Result<()> {
    let socket = level != Level::Msg;
    let here = request.between.as_deref().is_none_or(|between| HERE.contains(&between));
    request.refuse(&[
        ("lines", request.lines.is_some()),
        ("both-cores", request.both_cores),
        (
            "link",
            request.link.is_some()
                && ![Level::Msg, Level::Mpi].contains(&level)
                && request.level != ethernet::LEVEL,
        ),
        ("protocol", request.protocol.is_some() && request.level != ethernet::LEVEL),
        ("coalesce", request.coalesce.is_some() && request.level != ethernet::LEVEL),
        ("nodes", request.nodes.is_some() && if socket { !test.is_crowd() } else { test.is_crowd() }),
        ("connections", request.connections.is_some() && !test.is_crowd()),
        ("integrity", request.integrity.is_some() && socket),
        ("lent", request.lent && socket),
        ("segmentation", request.segmentation.is_some() && level != Level::Tcp),
        ("untouched", request.untouched && (request.verify || test == Test::Breakdown)),
        ("verify", request.verify && test == Test::Breakdown),
        ("socket-buffer", request.socket_buffer_bytes.is_some() && !socket),
        ("nagle", request.nagle.is_some() && !matches!(level, Level::Tcp | Level::Sock)),
        ("congestion", request.congestion.is_some() && !matches!(level, Level::Tcp | Level::Sock)),
        ("epoll", request.epoll && !matches!(level, Level::Unix | Level::Tcp | Level::Sock)),
        // Who asks the kernel again and again waits for nothing.
        ("spin", request.spin == Some(true) && request.epoll && level != Level::Sock),
        ("response-size", request.response_bytes.is_some() && test != Test::Rr),
        ("size", request.size_bytes.is_some() && test == Test::Nhalf),
        ("no-spin", request.spin == Some(false) && test == Test::Interleave),
        ("load", request.load.is_some() && !here),
    ])?;
    if let Some(link) = request.link.as_deref().filter(|link| !socket && !MSG_LINKS.contains(link)) {
        bail!("unknown link `{link}`: level msg has {}", MSG_LINKS.join(", "));
    }
    ensure!(
        request.nodes.is_none_or(|nodes| nodes <= NODES_MAX),
        "--nodes is out of bounds: give up to {NODES_MAX}"
    );
    ensure!(
        request.connections.is_none_or(|connections| crowd::CONNECTIONS.contains(&connections)),
        "--connections is out of bounds: give {} to {}",
        crowd::CONNECTIONS.start(),
        crowd::CONNECTIONS.end()
    );
    ensure!(
        request.load.is_none_or(|threads| (1..=THREADS_MAX).contains(&threads)),
        "--load is out of bounds: give 1 to {THREADS_MAX}"
    );
    let connections = request.connections.unwrap_or(CONNECTIONS);
    ensure!(
        !test.is_crowd() || request.spin != Some(true) || connections == 1,
        "{connections} ends that poll would take turns on one core, and what is measured would be the scheduler's time slice: \
         leave out --spin, or give --connections 1"
    );
    ensure!(
        here || !test.is_crowd(),
        "{test} takes place on one machine: give --between {}",
        HERE.join(" or ")
    );
    ensure!(
        request.socket_buffer_bytes.is_none_or(|bytes| bytes <= SIZE_BYTES_MAX),
        "--socket-buffer is out of bounds: give up to {}",
        size::show(SIZE_BYTES_MAX)
    );
    Ok(())
}

pub(crate) fn choose_cores(asked: Option<(u32, u32)>, place: &Place) -> Result<Cores> {
    let (source, target) = match asked {
        Some((source, target)) => {
            let allowed = pin::allowed_cores();
            for core in [source, target] {
                ensure!(
                    allowed.contains(&core),
                    "core {core} is not among those that this process may use: choose from {allowed:?}"
                );
            }
            ensure!(
                source != target,
                "both ends would take turns on core {source}: name two different ones of {allowed:?}, as in --cores 0,1"
            );
            (source, target)
        }
        None => pin::two_cores(),
    };
    Ok(Cores { source: Some(source), target: (!matches!(place, Place::Host(_))).then_some(target) })
}

pub(crate) fn plan(request: &Request, level: Level, test: Test, place: &Place) -> Result<Plan> {
    let longest = level.longest();
    let size_bytes = request.size_bytes.unwrap_or(match (test, level) {
        (Test::Stream | Test::Bidir | Test::Streams | Test::Fanin | Test::Fanout, Level::Udp) => 8192,
        (Test::Stream | Test::Bidir | Test::Streams | Test::Fanin | Test::Fanout, _) => 64 << 10,
        (Test::Rr | Test::Hotspot, _) => 1,
        _ => 8,
    });
    let response_bytes = match test {
        Test::Overhead => 1,
        _ if test.is_one_way() => 1,
        _ => request.response_bytes.unwrap_or(size_bytes),
    };
    for bytes in [size_bytes, response_bytes] {
        ensure!(
            (1..=longest).contains(&bytes),
            "a message of {bytes} bytes is out of bounds at level {level}: give a --size of 1 to {longest} bytes"
        );
    }
    let connections = u64::from(request.connections.unwrap_or(CONNECTIONS));
    let longest_of_many = crowd::BYTES_MAX / connections.max(1);
    ensure!(
        !test.is_crowd() || size_bytes.max(response_bytes) <= longest_of_many,
        "{connections} connections with messages of {} would keep too much memory: give a --size of up to {longest_of_many} \
         bytes, or fewer --connections, so that one message of each has no more than {} together",
        size::show(size_bytes),
        size::show(crowd::BYTES_MAX)
    );
    ensure!(
        test != Test::Overhead || size_bytes <= overhead::BURST_BYTES_MAX,
        "overhead is measured up to {}: give a --size within that",
        size::show(overhead::BURST_BYTES_MAX)
    );
    let streams = match test {
        Test::Nhalf => nhalf::sizes(longest).len() as u32,
        Test::Breakdown => breakdown::VARIANTS,
        _ => 1,
    };
    let blocks = match test.is_crowd() {
        true => Blocks::whole(time(Some(request.time_seconds.unwrap_or(CROWD_SECONDS)), 1)?),
        false => Blocks::within(time(request.time_seconds, streams)? / f64::from(streams)),
    };
    Ok(Plan {
        level,
        test,
        link: request.link.clone(),
        mpi: None,
        size_bytes,
        response_bytes,
        block_us: blocks.block_us,
        warmup_blocks: if level == Level::Sock { blocks.warmup + CUT_OVER_BLOCKS } else { blocks.warmup },
        blocks: blocks.kept,
        // MPI polls; at level sock it is the library that spins, except where the test itself does.
        spin: request
            .spin
            .filter(|_| level != Level::Sock)
            .unwrap_or(test == Test::Interleave || level == Level::Mpi),
        sleep: request.spin == Some(false),
        epoll: request.epoll,
        verify: request.verify,
        untouched: request.untouched,
        nagle: request.nagle.unwrap_or(false),
        congestion: request.congestion.clone(),
        socket_buffer_bytes: request.socket_buffer_bytes,
        integrity: request.integrity,
        lent: request.lent,
        // Whoever shares a core with many others needs no idle peers besides.
        nodes: if test.is_crowd() { Some(0) } else { request.nodes },
        mtu_bytes: request.mtu_bytes,
        carriers: place.carriers().to_vec(),
        begin_ns: None,
        spoke: None,
        burden_percent: request.burden_percent.unwrap_or(0).min(burden::PERCENT_MAX),
        bind: place.target_address(),
        source: None,
        // Each pair gets one of its own.
        cookie: String::new(),
        deadline_seconds: blocks.deadline_seconds(),
    })
}

pub(crate) fn link(request: &Request, level: Level, place: &Place) -> Option<String> {
    let link = match (level, place) {
        (Level::Msg, _) => request.link.as_deref().unwrap_or("shm"),
        (Level::Unix, _) => "unix",
        (Level::Sock, _) => "shm",
        (Level::Mpi, _) => request.link.as_deref().unwrap_or("shm"),
        (_, Place::Processes | Place::Threads) => "loopback",
        (_, Place::Namespaces(namespaces)) => namespaces.link(),
        (_, Place::Nodes { star, .. }) => star.link(),
        (_, Place::Host(_)) => "network",
    };
    Some(link.to_owned())
}

/// What was chosen, in the words of the command line.
pub(crate) fn parameters(request: &Request, plan: &Plan, place: &Place) -> BTreeMap<String, Value> {
    let mut parameters = BTreeMap::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            parameters.insert(name.to_owned(), value);
        }
    };
    let adaptive = matches!(plan.level, Level::Msg | Level::Sock) && !plan.spin && !plan.sleep;
    set("spin", Some(if adaptive { ADAPTIVE.into() } else { plan.spin.into() }));
    set("blocks", Some(plan.blocks.into()));
    set("block_us", Some(plan.block_us.into()));
    set("epoll", plan.epoll.then(|| true.into()));
    set("nagle", matches!(plan.level, Level::Tcp | Level::Sock).then(|| on_off(plan.nagle)));
    set("congestion", plan.congestion.clone().map(Value::from));
    let mtu_bytes = request
        .mtu_bytes
        .or_else(|| matches!(place, Place::Namespaces(_) | Place::Nodes { .. }).then_some(MTU_BYTES));
    set("protocol", (request.level == ethernet::LEVEL).then(|| plan.level.name().into()));
    set("mpi", plan.mpi.map(|choice| choice.implementation.name().into()));
    set("coalesce", request.coalesce.map(on_off));
    set("mtu", mtu_bytes.map(Value::from));
    set("segmentation", request.segmentation.map(on_off));
    set("integrity", request.integrity.map(on_off));
    set("lent", request.lent.then(|| true.into()));
    set("untouched", request.untouched.then(|| true.into()));
    set("verify", request.verify.then(|| true.into()));
    set("nodes", request.nodes.map(Value::from));
    set("connections", plan.test.is_crowd().then(|| request.connections.unwrap_or(CONNECTIONS).into()));
    set("socket-buffer", request.socket_buffer_bytes.map(Value::from));
    set("burden", request.burden_percent.map(Value::from));
    set("load", request.load.map(Value::from));
    set("response-size", request.response_bytes.map(Value::from));
    parameters
}

pub(crate) fn on_off(on: bool) -> Value {
    Value::from(if on { "on" } else { "off" })
}
