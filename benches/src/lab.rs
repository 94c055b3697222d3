//! The laboratory's own measurements as contestants.

use anyhow::{Result, ensure};
use bywire_analysis::statistics::median;
use bywire_measure::measure::{Measurement, PAIRS, Places, Request};

use crate::contest::{Contestant, Taken};

/// Messages of up to this are counted as well as their bytes.
pub const SHORT_BYTES: u64 = 64;

/// `request` under the series `name`; a latency also yields `name mean`, a stream of short messages
/// `name messages`, per second. Each pair measures for `pair_seconds`.
///
/// # Errors
/// A request that makes no sense here.
pub fn contestant(name: &str, request: Request, pair_seconds: f64) -> Result<Contestant> {
    let request = Request { time_seconds: Some(pair_seconds * f64::from(PAIRS)), ..request };
    let command = command(&request);
    let mut measurement = Measurement::prepare(request, &mut Places::default())?;
    let series = name.to_owned();
    Ok(Contestant { name: name.to_owned(), command, take: Box::new(move || take(&mut measurement, &series)) })
}

fn take(measurement: &mut Measurement, series: &str) -> Result<Taken> {
    let pair = measurement.pairs_taken();
    measurement.take_pair()?;
    let cell = measurement.cell()?;
    let blocks: Vec<_> = cell.blocks.iter().filter(|block| block.pair == pair).collect();
    ensure!(!blocks.is_empty(), "this pair has no value");
    let middle = |of: &dyn Fn(&bywire_results::cell::Block) -> f64| {
        median(&blocks.iter().map(|block| of(block)).collect::<Vec<_>>())
    };
    let mut values = vec![(series.to_owned(), middle(&|block| block.value))];
    match cell.test.as_str() {
        "latency" => {
            let mean = middle(&|block| 1e9 * block.seconds / block.operations as f64 / 2.0);
            values.push((format!("{series} mean"), mean));
        }
        "stream" if cell.size_bytes.is_some_and(|bytes| bytes <= SHORT_BYTES) => {
            let size = cell.size_bytes.unwrap_or(1) as f64;
            values.push((format!("{series} messages"), middle(&|block| block.value / size)));
        }
        _ => {}
    }
    Ok(Taken {
        values,
        blocks: blocks.len() as u64,
        blocks_disturbed: blocks.iter().filter(|block| !block.disturbed.is_empty()).count() as u64,
    })
}

/// The command line that measures the same.
pub fn command(request: &Request) -> String {
    let mut words = vec![format!("bywire measure {} {}", request.level, request.test)];
    let mut say = |flag: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("--{flag} {value}").trim_end().to_owned()));
    };
    say("link", request.link.clone());
    say("protocol", request.protocol.clone());
    say("mtu", request.mtu_bytes.map(|bytes| bytes.to_string()));
    say("size", request.size_bytes.map(|bytes| bytes.to_string()));
    say("lines", request.lines.map(|lines| lines.to_string()));
    say("nodes", request.nodes.map(|nodes| nodes.to_string()));
    say("integrity", request.integrity.map(|on| if on { "on" } else { "off" }.to_owned()));
    say("lent", request.lent.then(String::new));
    say("nagle", request.nagle.map(|on| if on { "on" } else { "off" }.to_owned()));
    say("congestion", request.congestion.clone());
    say("socket-buffer", request.socket_buffer_bytes.map(|bytes| bytes.to_string()));
    say("epoll", request.epoll.then(String::new));
    say("untouched", request.untouched.then(String::new));
    say("spin", request.spin.filter(|spin| *spin).map(|_| String::new()));
    say("no-spin", request.spin.filter(|spin| !*spin).map(|_| String::new()));
    say("time", request.time_seconds.map(|seconds| seconds.to_string()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_says_all_that_was_asked() {
        let request = Request {
            size_bytes: Some(8),
            integrity: Some(true),
            spin: Some(false),
            time_seconds: Some(2.0),
            ..Request::new("msg", "latency")
        };
        assert_eq!(
            command(&request),
            "bywire measure msg latency --size 8 --integrity on --no-spin --time 2"
        );
        let request = Request { lines: Some(256), ..Request::new("memory", "cacheline") };
        assert_eq!(command(&request), "bywire measure memory cacheline --lines 256");
    }
}
