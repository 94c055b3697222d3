//! The `bywire` command behaves in a shell: output, errors on one line, exit status.

use std::io::Read;
use std::process::{Command, Output, Stdio};

use bywire_measure::options::OPTIONS;
use bywire_measure::registry;

fn bywire(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bywire")).args(arguments).output().unwrap()
}

#[test]
fn doctor_finds_tools_that_every_linux_has() {
    let output = bywire(&["doctor", "--json"]);
    assert!(output.status.success());
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = said["findings"].as_array().unwrap();
    let works =
        |name: &str| findings.iter().any(|finding| finding["name"] == name && finding["works"] == true);
    for name in ["sealed memory", "peer process watch", "futex between cores", "message ports"] {
        assert!(works(name), "{name}: {said:#}");
    }
    for finding in findings.iter().filter(|finding| finding["works"] == false) {
        assert!(finding["remedy"].is_string() && finding["found"].is_string(), "{finding}");
    }
}

#[test]
fn doctor_writes_plain_text_to_a_pipe() {
    let print = |arguments: &[&str]| {
        let output = bywire(arguments);
        assert!(output.status.success() && !output.stdout.contains(&b'\x1b'));
        String::from_utf8(output.stdout).unwrap()
    };
    let (first, all) = (print(&["doctor"]), print(&["doctor", "--all"]));
    assert!(first.lines().count() < 10 && first.contains(" bywire run "), "{first}");
    assert!(all.contains("two cores") && all.contains("To run the tests"), "{all}");
}

#[test]
fn unknown_arguments_are_usage_errors() {
    let output = bywire(&["frobnicate"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty() && !output.stderr.is_empty());
}

/// The one line that a command leaves on standard error, with its exit code.
fn complaint(arguments: &[&str]) -> (String, Option<i32>) {
    let output = bywire(arguments);
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("bywire: ") && said.lines().count() == 1, "{arguments:?}: {said}");
    (said, output.status.code())
}

#[test]
fn an_invalid_command_prints_one_line_and_exits_with_2() {
    let misuses = [
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'; see `bywire --help`"),
        (&["measure"], "<LEVEL> <TEST>; see `bywire measure --help`"),
        (&["measure", "tcp"], "<TEST>; see `bywire measure --help`"),
        (
            &["measure", "tcp", "latency", "--sise", "8"],
            "(a similar argument exists: '--size'); see `bywire measure --help`",
        ),
        (&["measure", "tcp", "latency", "--size", "1q"], "write it like 64, 8K or 1MiB, 1 to 64MiB"),
        (&["measure", "tcp", "latency", "--size", "-1"], "1 to 64MiB (65507 over UDP, 1GiB of memory)"),
        (&["measure", "tcp", "latency", "--size", "-1"], "see `bywire measure --help`"),
        (
            &["measure", "tcp", "latency", "--time", "-3"],
            "give 0.005 to 3600 seconds, like 0.5; see `bywire measure --help`",
        ),
        (
            &["measure", "tcp", "latency", "--time", "abc"],
            "give 0.005 to 3600 seconds, like 0.5; see `bywire measure --help`",
        ),
        (&["measure", "tcp", "latency", "--time", "0.001"], "give 0.005 to 3600 seconds"),
        (&["measure", "msg", "nhalf", "--time", "0.05"], "give 0.09 to 3600 seconds, so that 18 lengths"),
        (&["measure", "msg", "latency", "--spin", "--no-spin"], "cannot be used with '--no-spin'"),
        (
            &["measure", "msg", "latency", "--link", "udp", "--between", "namespaces", "--security", "none"],
            "unknown security `none`: choose one of encrypted, plain",
        ),
        (&["measure", "mpi", "latency", "--between", "namespaces"], "or give --link bywire, veth or eth"),
        (&["measure", "msg", "latency", "--cores", "0,0"], "take turns on core 0"),
        (&["measure", "msg", "latency", "--style", "netperf"], "netperf has no text for `msg latency`"),
        (&["measure", "tcp", "nhalf", "--style", "netperf"], "measure stream or rr of tcp, udp or eth"),
        (&["measure", "tcp", "latency", "--between", "nowhere.invalid"], "cannot resolve"),
        (&["measure", "tcp", "latency", "--between", "x", "--key", "/nowhere"], "cannot read the key file"),
        (&["serve", "--listen", "bad"], "`bad` is not an address to listen on"),
        (&["serve", "--listen", "203.0.113.1:1"], "cannot listen on 203.0.113.1:1"),
        (&["serve", "--key", "/nowhere"], "cannot read the key file"),
        (&["bench", "--time", "abc"], "see `bywire bench --help`"),
        (&["eth", "up", "--mtu", "x"], "see `bywire eth up --help`"),
        (&["measure", "tcp", "latency", "--style", "nestat"], "[possible values: netperf]"),
        (&["measure", "tcp", "latency", "--size", "1GiB"], "give a --size of 1 to 67108864 bytes"),
        (
            &["measure", "memory", "memcpy", "--size", "100GiB"],
            "is out of bounds: give 1 to 1073741824 bytes",
        ),
        (&["measure", "tcp", "latency", "--time", "0"], "give 0.005 to 3600 seconds"),
        (&["measure", "tcp", "latency", "--time", "nan"], "give 0.005 to 3600 seconds"),
        (&["measure", "tcp", "latency", "--cores", "0,4000"], "choose from ["),
        (&["measure", "wed", "latency"], "choose one of memory, msg, unix, tcp, sock, udp"),
        (&["measure", "web", "latency"], "choose one of web-file, web-zipf"),
        (&["measure", "mpi", "fanin"], "choose one of latency, stream, bidir, rr, nhalf"),
        (&["measure", "mpi", "web-file"], "choose one of latency, stream, bidir, rr, nhalf"),
        (
            &["measure", "web", "web-zipf", "--trace-out", "/nowhere/paths"],
            "cannot write the trace /nowhere/paths",
        ),
        (&["measure", "msg", "hotspot", "--connections", "9", "--spin"], "9 ends that poll would take turns"),
        (&["measure", "memory", "lag"], "choose one of cacheline"),
        (&["measure", "tcp", "lag"], "choose one of latency"),
        (&["measure", "unix", "latency", "--nagle", "on"], "--nagle does not apply"),
        (&["measure", "sock", "rr", "--domain", "unix", "--nagle", "on"], "--nagle does not apply"),
        (&["measure", "sock", "rr", "--domain", "unx"], "choose one of inet, unix"),
        (
            &["measure", "unix", "rr", "--domain", "unix"],
            "--domain does not apply to unix rr: leave it out, or measure sock",
        ),
        (
            &["measure", "sock", "rr", "--domain", "unix", "--style", "netperf"],
            "netperf has no text for `unix rr`",
        ),
        (
            &["measure", "msg", "latency", "--mtu", "9000"],
            "--mtu does not apply to msg latency: leave it out, or use --link udp",
        ),
        (
            &["measure", "tcp", "latency", "--connections", "2"],
            "--connections does not apply to tcp latency: leave it out, or measure tcp streams or hotspot or fanin",
        ),
        (&["bench", "qick"], "unknown preset `qick` (did you mean `quick`?)"),
        (&["measure", "tcp", "latency", "--between", "namespaces", "--mtu", "1"], "give 68 to 65535"),
        (&["bench", "fast"], "choose one of quick"),
        (&["bench", "--time", "0"], "give 0.005 to 3600 seconds"),
        (&["bench", "--levels", "xdp"], "choose one of memory, msg, unix, tcp, sock, udp"),
        (&["bench", "quick", "--levels", "mpi"], "has no cell of mpi"),
        (&["bench", "--output", "/proc/no/such"], "name another directory by --output"),
        (&["measure", "eth", "stream", "--mtu", "100000"], "--mtu 100000 is out of bounds: give 68 to 65521"),
        (
            &["measure", "eth", "stream", "--link", "veth", "--mtu", "10"],
            "--mtu 10 is out of bounds: give 68 to 65535",
        ),
        (&["capture", "--count", "0"], "give 1 or more"),
        (&["capture", "--count", "x"], "is not a number of frames"),
        (&["eth", "up", "--metrics", "1"], "write it like 127.0.0.1:9477"),
        (&["eth", "up"], "there is no interface to make"),
        (&["eth", "up", "--background"], "there is no interface to make"),
        (&["eth", "up", "--interface", "-:by0", "--mtu", "64"], "give 68 to 65521"),
        (&["eth", "up", "--interface", "-:by0", "--queues", "0"], "give 1 to 64"),
        (&["eth", "up", "--config", "/nowhere"], "cannot read /nowhere"),
        (&["report", "/nowhere"], "holds no session"),
    ];
    for (arguments, part) in misuses {
        let (said, code) = complaint(arguments);
        assert!(said.contains(part) && code == Some(2), "{arguments:?}: {code:?}: {said}");
    }
}

#[test]
fn a_directory_without_a_session_lists_existing_sessions() {
    let place = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        std::fs::create_dir(place.path().join(name)).unwrap();
        std::fs::write(place.path().join(name).join("session.json"), "{}").unwrap();
    }
    for wrong in [place.path().to_owned(), place.path().join("three")] {
        let (said, _) = complaint(&["report", wrong.to_str().unwrap()]);
        assert!(said.contains("/one") && said.contains("/two"), "{said}");
    }
    let (said, code) = complaint(&["report", place.path().join("one").to_str().unwrap()]);
    assert!(said.contains("session.json") && code == Some(1), "a session that is there and torn: {said}");
}

#[test]
fn the_help_lists_the_exit_codes() {
    let help = String::from_utf8(bywire(&["--help"]).stdout).unwrap();
    assert!(help.contains("Exit codes: 0 success; 1 something failed; 2 "), "{help}");
}

#[test]
fn an_unwritable_directory_is_reported_in_one_line() {
    let output = bywire(&["man", "--output", "/proc/no/such"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("bywire: cannot write manual pages") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bywire"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(said, "");
}

#[test]
fn completions_and_manual_pages_contain_every_subcommand() {
    for arguments in [&["completions", "bash"][..], &["man"]] {
        let output = bywire(arguments);
        assert!(output.status.success() && String::from_utf8(output.stdout).unwrap().contains("doctor"));
    }
}

#[test]
fn shells_complete_levels_tests_presets_and_links() {
    let script = String::from_utf8(bywire(&["completions", "bash"]).stdout).unwrap();
    for words in ["memory msg unix tcp sock udp eth", "nhalf", "gm-ethernet", "two-processes"] {
        assert!(script.contains(words), "{words}");
    }
}

#[test]
fn every_manual_page_belongs_to_the_program_and_refers_to_existing_pages() {
    let place = tempfile::tempdir().unwrap();
    assert!(bywire(&["man", "--output", place.path().to_str().unwrap()]).status.success());
    let pages: Vec<_> = std::fs::read_dir(place.path()).unwrap().flatten().collect();
    assert!(pages.len() > 10, "{pages:?}");
    for page in pages {
        let text = std::fs::read_to_string(page.path()).unwrap();
        let footer = concat!("\"bywire ", env!("CARGO_PKG_VERSION"), "\"");
        assert!(text.contains(footer) && !text.contains("help(1)"), "{page:?}: {text}");
    }
}

#[test]
fn a_session_whose_only_line_is_truncated_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let session = serde_json::json!({
        "schema": bywire_results::cell::SESSION_SCHEMA, "preset": "quick", "started": "", "seconds": 1.0, "command": [],
        "environment": {}, "absent": [], "complete": true,
    });
    std::fs::write(place.path().join("session.json"), session.to_string()).unwrap();
    std::fs::write(place.path().join("cells.jsonl"), "{\"schema\"").unwrap();
    let (said, code) = complaint(&["report", place.path().to_str().unwrap()]);
    assert!(said.contains("cells.jsonl, line 1: cut off; 0 cells read") && code == Some(1), "{said}");
}

#[test]
fn the_help_of_measure_lists_levels_and_that_of_a_level_lists_tests_links_and_defaults() {
    let help = |words: &[&str]| {
        let help = String::from_utf8(bywire(&[&["measure"], words, &["--help"]].concat()).stdout).unwrap();
        let plain = help.split_whitespace().collect::<Vec<_>>().join(" ");
        (help, plain)
    };
    let is_told = |help: &str, name: &str| help.lines().any(|line| line.starts_with(&format!("  {name} ")));
    let (general, _) = help(&[]);
    assert!(general.lines().count() < 80, "{general}");
    let examples = general.find("Examples:").expect("examples");
    assert!(examples < general.find("Options").unwrap_or(general.len()), "examples come first: {general}");
    let mut told = String::new();
    for level in registry::rows() {
        assert!(is_told(&general, level.name), "{}: {general}", level.name);
        let (help, plain) = help(&[level.name]);
        for (name, _) in level.tests.into_iter().chain(level.links) {
            assert!(is_told(&help, name), "{name}: {help}");
        }
        for option in plain.split(" --").skip(1).filter(|option| {
            let mut words = option.split(' ');
            words.next();
            words.next().is_some_and(|word| word.starts_with('<'))
        }) {
            assert!(option.contains("[default: "), "--{option}");
        }
        told += &plain;
    }
    for row in OPTIONS.iter().filter(|row| row.is_listed) {
        assert!(told.contains(&format!("--{}", row.name)), "no level tells of --{}", row.name);
    }
    let (msg, _) = help(&["msg"]);
    assert!(msg.contains("--key") && msg.contains("bywire measure msg latency --link udp"), "{msg}");
    let (memory, _) = help(&["memory"]);
    assert!(memory.contains("--both-cores") && !memory.contains("--mtu"), "{memory}");
    // Those that are measured between machines.
    for level in ["msg", "tcp", "udp"] {
        assert!(help(&[level]).1.contains(" --key <FILE> "), "{level}");
    }
    for (asked, default) in [
        ("cores", "the first two allowed, of different physical cores if possible"),
        ("time", "1; nhalf 5, several connections 2.5"),
        ("size", "8; rr and hotspot 1"),
    ] {
        assert!(told.contains(&format!("[default: {default}")), "{asked}: {told}");
    }
}

#[test]
fn the_help_of_bench_has_the_duration_of_each_preset() {
    let output = bywire(&["bench", "--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    for name in bywire_measure::preset::PRESETS.map(|preset| preset.name) {
        let line = help.lines().find(|line| line.starts_with(&format!("  {name} "))).expect(name);
        let minutes = line.split_once(" about ").and_then(|(_, rest)| rest.split_once(" min "));
        assert!(minutes.is_some_and(|(minutes, _)| minutes.parse::<u32>().is_ok()), "{line}");
    }
}

#[test]
fn doctor_asks_only_for_tools_that_are_used() {
    let said: serde_json::Value = serde_json::from_slice(&bywire(&["doctor", "--json"]).stdout).unwrap();
    assert!(said["findings"].as_array().unwrap().len() > 5, "{said:#}");
    for finding in said["findings"].as_array().unwrap() {
        let (name, used_by) = (finding["name"].as_str().unwrap(), finding["used_by"].as_str().unwrap());
        let words: Vec<&str> = used_by.split(|letter: char| !letter.is_alphanumeric()).collect();
        assert!(!words.contains(&"xdp"), "{name} is used by {used_by}, which does not exist yet");
    }
}

/// A terminal by `script`, for what is written to one alone.
#[test]
fn progress_is_shown_on_a_terminal_and_nowhere_else() {
    let arguments = "measure unix latency --time 0.5";
    let output = bywire(&arguments.split(' ').collect::<Vec<_>>());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let line = format!("{} {arguments} >/dev/null", env!("CARGO_BIN_EXE_bywire"));
    let Ok(output) = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output()
    else {
        println!("not run: there is no `script` of util-linux here");
        return;
    };
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(seen.contains(" left") && seen.contains('%'), "{seen:?}");
    assert!(!seen.contains('\n') || seen.matches('\n').count() <= 1, "one line that is rewritten: {seen:?}");
}

#[test]
fn the_help_of_run_status_and_pair_fills_its_lines() {
    for (name, columns) in ["run", "status", "pair"].map(|name| [(name, 80), (name, 100)]).concat() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
        command.args([name, "--help"]).env("COLUMNS", columns.to_string()).stdin(Stdio::null());
        let help = String::from_utf8(command.output().unwrap().stdout).unwrap();
        for (line, next) in help.lines().zip(help.lines().skip(1)) {
            let length = line.chars().count();
            assert!(length <= columns, "{name} at {columns}: {line}");
            let word = next.split(' ').next().unwrap_or_default();
            let is_sentence = !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
            assert!(
                !is_sentence || word.is_empty() || length + 1 + word.chars().count() > columns,
                "{name} at {columns}: {line}\n{next}"
            );
        }
    }
}
