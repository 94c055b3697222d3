//! Programs that install a seccomp filter in any way lose no byte. The library then makes no further call in them,
//! their children and threads. Programs started behind the container's filters are carried.

use bywire_pairing::filters;
use bywire_pairing::reason::Reason;

use crate::test_service::{Running, TestService, filters_here};

/// Runs the program in one variant beside an echo program, and checks that it succeeds. `filters` is the number of
/// filters that `bywire run` was behind. Returns the number of carried connections; `None`, with a message: there is no
/// compiler.
fn ends_well(way: &str, filters: u32) -> Option<u64> {
    let (pairing, program) = TestService::with_program("sandbox.c")?;
    let mut server = Running::start(pairing.command(&program, Some(8)).arg("serve"));
    let port = server.hear();
    // Without the library it must succeed, or the test requires what is not supported here.
    let plain = pairing.command(&program, None).args([way, &port]).status().expect("it starts");
    assert!(plain.success(), "plain {way}: {plain}");
    let mut command = pairing.command(&program, Some(8));
    let mut running = Running::start(command.env(filters::VARIABLE, filters.to_string()).args([way, &port]));
    let end = running.end();
    assert!(end.success(), "{way}: {end}");
    let status = pairing.status();
    let told = status.not_carried.iter().find(|(reason, _)| *reason == Reason::Sandbox);
    assert_eq!(told.map(|(_, count)| *count), Some(1), "{way}: {status:?}");
    Some(status.carried_ever)
}

/// Promises for programs that install a filter while they have carried connections, each with the way to do so.
const CLOSES: [(&str, &str); 9] = [
    ("strict mode leaves reading and writing", "strict"),
    ("a filter that kills is installed by prctl", "kill"),
    ("a filter that refuses is installed by prctl", "refuse"),
    ("a filter is installed as by libseccomp", "syscall"),
    ("bytes in flight both ways arrive before a filter", "full"),
    ("epoll sets and polls work behind a filter", "waits"),
    ("no page is probed behind a filter", "fresh"),
    ("handlers and children make no library calls behind a filter", "children"),
    ("a filter for all threads finds them in their own calls", "threads"),
];

#[test]
fn programs_that_restrict_themselves_work_as_without_the_library() {
    for (what, way) in CLOSES {
        println!("{what}");
        let carried = ends_well(way, filters_here());
        assert!(carried.is_none_or(|carried| carried >= 1), "{what}: {carried:?}");
    }
}

#[test]
fn a_program_started_behind_another_programs_filter_is_not_carried() {
    let carried = ends_well("behind", filters_here());
    assert!(carried.is_none_or(|carried| carried == 0), "{carried:?}");
}

#[test]
fn a_program_behind_the_filters_of_its_container_is_carried() {
    let carried = ends_well("tolerated", filters_here() + 1);
    assert!(carried.is_none_or(|carried| carried == 1), "{carried:?}");
}
