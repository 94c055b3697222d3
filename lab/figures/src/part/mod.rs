//! The parts of `./x figures`.

mod accuracy;
mod comparison;
mod engine;
mod engine_between;
mod ethernet;
mod ethernet_between;
mod links;
mod loops;
mod messages;
mod mpi;
mod mpi_sizes;
mod rivals;
mod sockets;
mod web;

use anyhow::Result;
use bywire_command::exit_status::Misuse;
use clap::Parser;

use crate::figures::Figures;
use crate::page::{self, Part, requirements};
use crate::run::Arguments;

/// The parts with requirements.
static PARTS: [Part; 8] = [
    messages::PART,
    links::PART,
    sockets::PART,
    engine::PART,
    engine_between::PART,
    ethernet::PART,
    ethernet_between::PART,
    mpi::PART,
];

/// Figures in one run, as Markdown tables
#[derive(Parser)]
struct Plain {
    #[command(flatten)]
    arguments: Arguments,
}

/// Runs the part that the first word names, with the other words as its options.
pub fn run(words: &[String]) -> Result<()> {
    match words.first().map_or("", String::as_str) {
        "accuracy" => accuracy::Accuracy::parse_from(words).run(),
        "bare" => loops::Bare::parse_from(words).run(),
        "bare-ring" => loops::BareRing::parse_from(words).run(),
        "comparison" => comparison::Agreement::parse_from(words).run(),
        "connection" => loops::connection(),
        "mpi-sizes" => {
            Plain::parse_from(words).arguments.run("mpi-sizes", mpi_sizes::contestants, mpi_sizes::page)
        }
        "rivals" => Plain::parse_from(words).arguments.run("rivals", rivals::contestants, rivals::page),
        "web" => web::Web::parse_from(words).run(),
        name => {
            let part = PARTS.iter().find(|part| part.name == name);
            let part =
                part.ok_or_else(|| Misuse(format!("there is no part {name:?}: see lab/figures/parts")))?;
            let requirements = requirements(name)?;
            let page = |figures: &Figures| page::required(part, &requirements, figures);
            Plain::parse_from(words).arguments.run(name, part.contestants, page)
        }
    }
}

#[cfg(test)]
mod tests {
    use bywire_measure::measure::Topology;

    use super::*;
    use crate::contestant::NO_REQUEST;
    use crate::figures::without;

    #[test]
    fn every_figure_has_its_contestant_and_every_request_is_one() {
        let accuracy = [false, true].map(|knobs| accuracy::contestants(&accuracy::ways(), knobs, 0.1));
        let others = accuracy
            .into_iter()
            .chain([rivals::contestants(0.1), mpi_sizes::contestants(0.1)])
            .map(|contest| ("", contest));
        for (name, contest) in others.chain(PARTS.iter().map(|part| (part.name, (part.contestants)(0.1)))) {
            let requirements = requirements(name).unwrap();
            assert_eq!(requirements.is_empty(), name.is_empty(), "{name}");
            for requirement in requirements {
                for series in &requirement.series {
                    let is_yielded = contest.0.iter().any(|(name, _)| name == series.contestant);
                    assert!(is_yielded, "{}: nobody yields {series}", requirement.measure);
                }
            }
            for (name, contestant) in &contest.0 {
                let reason = contestant.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
                assert!(!reason.contains(NO_REQUEST), "{name}: {reason}");
            }
        }
    }

    #[test]
    fn every_contestant_of_messages_can_be_prepared() {
        let entries = (messages::PART.contestants)(0.1).entries().into_iter();
        for entry in entries.filter(|entry| entry.subject.level != "ucx") {
            let prepared = (entry.prepare)(&mut Topology::default());
            assert!(prepared.is_ok(), "{}: {:?}", entry.subject.level, prepared.err());
        }
    }

    #[test]
    fn a_contestant_that_did_not_run_has_a_reason_and_the_others_have_results() {
        type Case = (&'static str, fn(&Figures) -> String, &'static [&'static str]);
        let cases: [Case; 7] = [
            ("ucx", |figures| page(&messages::PART, figures), &["| not measured: not there |"]),
            (
                "iperf3 vde",
                |figures| page(&ethernet::PART, figures),
                &["| vde | 1500 | not run: not there | not run: not taken |"],
            ),
            (
                "tcp nebula",
                |figures| page(&ethernet_between::PART, figures),
                &["| nebula | 1300 | yes | not run: not there | not run: not taken |"],
            ),
            ("mpi", rivals::page, &["not measured", "not there"]),
            ("latency 8 mpich --link veth", mpi_sizes::page, &["| 4MiB | not measured |", "not there"]),
            ("ours nginx 64", web::page, &["| nginx | 64 | not run: not there |"]),
            (
                "iperf3 veth",
                |figures| accuracy::page(&accuracy::ways(), false, figures),
                &["not run: not there", "| loopback |"],
            ),
        ];
        for (contestant, page, expected) in cases {
            let page = page(&Figures::of(&without(contestant, "not there")));
            assert!(expected.iter().all(|part| page.contains(part)), "{contestant}: {page}");
        }
    }

    fn page(part: &Part, figures: &Figures) -> String {
        page::required(part, &requirements(part.name).unwrap(), figures)
    }
}
