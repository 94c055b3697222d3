//! The report is one self-contained page that shows every stored cell, names each measured level in its answer,
//! compares at one length, claims no more than the least gain of what was disturbed, and keeps what was not measured
//! apart. Its picture and summary say the same. Sessions are stored and read.

use std::fs::{self, OpenOptions};
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bywire_report as report;
use bywire_report::merged::{by_preset, together};
use bywire_results::cell::DISTURBED;
use bywire_results::cell::{Cacheline, Cell, CpuEnd, Session, Unit};
use bywire_results::csv;
use bywire_results::moment::{MachineSpeed, Moment};
use bywire_results::store::{self, Store, StoreError};
use sha2::{Digest, Sha256};

use crate::generated::{self, cell, cells_at, generated_session};

#[test]
fn the_page_is_complete_in_itself() {
    let page = report::render(&generated_session());
    // For a person to open.
    fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/report.html"), &page).unwrap();
    for outside in ["src=\"", "href=\"http", "@import", "url(", "<link", "<iframe"] {
        // A bar may refer to a pattern of its own plot.
        let markup = without_scripts(&page).replace("url(#hatch-", "");
        assert!(!markup.contains(outside), "the page loads a resource: {outside}");
    }
}

#[test]
fn each_preset_has_its_own_page_in_the_file() {
    let mut other = generated_session();
    other.preset = "gm".into();
    let page = report::render_presets(&[generated_session(), other]);
    assert_eq!(page.matches("<!DOCTYPE html>").count(), 1);
    for place in ["all", "p1", "p2"] {
        assert!(
            page.contains(&format!("href=\"#{place}\"")) && page.contains(&format!("id=\"{place}\"")),
            "{place}"
        );
    }
    assert!(page.contains("id=\"p1-half-rtt\"") && page.contains("id=\"p2-half-rtt\""));
    assert!(page.contains("id=\"all-ladder-rate\"") && !page.contains("id=\"all-half-rtt\""));
    let markup = without_scripts(&page);
    let mut names: Vec<&str> =
        markup.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "an id is used twice");
    assert!(page.len() < PAGE_BYTES_MAX);
    assert_eq!(report::render_presets(&[generated_session()]), report::render(&generated_session()));
}

/// The rows of a comparison in plain text: the way in the laboratory's terms, how it waits, and its figures. The text names
/// a way once, above all its rows: in plain words first, and in the laboratory's terms last.
fn comparison_rows(text: &str, title: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        let mut row: Vec<String> =
            line.split("  ").map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect();
        if line.starts_with(' ') {
            row.insert(0, rows.last().expect("a way above")[0].clone());
        } else {
            row[0] = row.pop().expect("the way in the laboratory's terms");
        }
        rows.push(row);
    }
    assert!(!rows.is_empty(), "no {title}: {text}");
    rows
}

/// The row of a way with this kind of waiting, as one line.
fn row(text: &str, title: &str, way: &str, waits: &str) -> String {
    let rows = comparison_rows(text, title);
    let found = rows.iter().find(|row| row[0] == way && row[1] == waits);
    found.unwrap_or_else(|| panic!("no {way}, {waits}: {rows:#?}")).join("  ")
}

/// A generated session with other cells.
fn session_of(cells: Vec<Cell>) -> Session {
    Session { cells, ..generated_session() }
}

/// The line of a text that begins so.
fn line<'text>(text: &'text str, start: &str) -> &'text str {
    text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no {start}: {text}"))
}

/// The text behind `from` and before the next `to`.
fn between<'text>(text: &'text str, from: &str, to: &str) -> &'text str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("no {from}"));
    rest.split(to).next().unwrap_or(rest)
}

/// A session of one machine with the given half-RTTs and time of the kernel's hand-off, in ns.
fn machine(boot: &str, preset: &str, levels: &[(&'static str, f64)], hand_off_ns: f64) -> Session {
    let mut session = Session { preset: preset.into(), cells: Vec::new(), ..generated_session() };
    session.environment["boot"] = boot.into();
    session.environment["cpu"]["model"] = format!("Processor {boot}").into();
    for (level, ns) in levels {
        session.cells.extend(cells_at((level, "link", None, *ns, 1.0), 8));
    }
    let floor = cell(("memory", "", None, 0.0, 0.0), "futex", None, hand_off_ns, Unit::Nanoseconds);
    session.cells.push(floor);
    session
}

#[test]
fn several_machines_are_never_merged() {
    let fast = machine("one", "quick", &[("tcp", 20_000.0)], 60.0);
    let slow = machine("two", "gm", &[("unix", 15_000.0), ("tcp", 60_000.0)], 300.0);
    let presets = by_preset(vec![("fast".into(), fast.clone()), ("slow".into(), slow.clone())]);
    let text = report::summary_text(&together(&presets));
    let half_rtt = |way: &str| row(&text, "Half-RTT", way, "sleeping");
    assert!(
        half_rtt("unix · link · slow").contains("15.0 µs  4.00×"),
        "compared with TCP of the same machine: {text}"
    );
    assert!(half_rtt("tcp · link · fast").contains("20.0 µs  1×"), "{text}");
    assert!(half_rtt("tcp · link · slow").contains("60.0 µs  1×"), "{text}");
    assert!(!text.contains("futex") && text.contains("each machine stand in its own report"), "{text}");
    let page = report::render_presets(&presets);
    assert!(page.contains("fast") && page.contains("Processor one") && page.contains("Processor two"));
    assert!(page.contains("What these machines deliver"));
    let part = |place| between(&page, &format!("<div class=\"page\" id=\"{place}\">"), "<div class=\"page\"");
    let parts = ["all", "p1", "p2"].map(part);
    assert!(!parts[0].contains("× hand-off"), "a hand-off of one machine is no base for several");
    assert!(parts[1].contains("333× hand-off") && parts[2].contains("50.0× hand-off"));

    let same = machine("one", "gm", &[("unix", 15_000.0)], 60.0);
    let presets = by_preset(vec![("fast".into(), fast), ("again".into(), same)]);
    let text = report::summary_text(&together(&presets));
    assert!(
        row(&text, "Half-RTT", "unix · link", "sleeping").contains("1.33×") && text.contains("futex"),
        "{text}"
    );
}

#[test]
fn gains_of_unmodified_programs_compare_the_same_test() {
    let of = |level: &'static str, value: f64, spin: serde_json::Value| {
        let link = if level == "sock" { "shm" } else { "loopback" };
        let mut found =
            cell((level, link, None, 9000.0, 2.0), "rr", Some(1), value, Unit::TransactionsPerSecond);
        found.parameters.insert("spin".to_owned(), spin);
        found
    };
    let [adaptive, asleep, polling] = [serde_json::json!("adaptive"), false.into(), true.into()];
    let mut by_epoll = of("sock", 70_000.0, adaptive.clone());
    by_epoll.parameters.insert("epoll".to_owned(), true.into());
    let cells = vec![
        of("tcp", 10_000.0, asleep.clone()),
        of("tcp", 50_000.0, polling),
        of("sock", 90_000.0, adaptive),
        of("sock", 15_000.0, asleep),
        by_epoll,
    ];
    let session = session_of(cells);
    let page = report::render(&session);
    assert!(
        page.contains("What an unmodified program gains") && page.contains("9.00×"),
        "for ends that spin"
    );
    assert!(page.contains("1.50×") && page.contains("spinning forbidden"), "for ends that do not");
    assert!(!page.contains("7.00×"), "a cell with epoll has no rival with epoll");
}

#[test]
fn unmodified_programs_gain_over_the_sockets_that_they_use() {
    let of = |level: &'static str, link: &'static str, domain: Option<&str>, value: f64| {
        let way = (level, link, None, 9000.0, 2.0);
        let mut found = cell(way, "rr", Some(1), value, Unit::TransactionsPerSecond);
        let domain = domain.map(|domain| ("domain".to_owned(), domain.into()));
        found.parameters.extend(domain);
        found
    };
    let session = session_of(vec![
        of("tcp", "loopback", None, 10_000.0),
        of("unix", "unix", None, 20_000.0),
        of("sock", "shm", None, 90_000.0),
        of("sock", "shm", Some("unix"), 80_000.0),
    ]);
    let text = report::summary_text(&session);
    let of_table = |title: &str| -> Vec<&str> {
        let (_, table) = text.split_once(title).expect("the table");
        table.lines().take_while(|line| !line.is_empty()).filter(|line| line.starts_with("rr ")).collect()
    };
    let [over_tcp] = of_table("Unmodified programs over the fabric\n")[..] else { panic!("{text}") };
    assert!(over_tcp.contains(" 9.00× "), "{over_tcp}");
    let [over_unix] = of_table("Unmodified programs with Unix sockets over the fabric\n")[..] else {
        panic!("{text}")
    };
    assert!(over_unix.contains(" 4.00× "), "{over_unix}");
    // Both are ways of their own beside the kernel's.
    assert!(text.contains("sockets under bywire run, Unix"), "{text}");
    for way in ["sock · shm", "sock · shm · Unix", "tcp · loopback", "unix"] {
        row(&text, "Transactions per second", way, "sleeping");
    }
    // A domain alone is named, too.
    let alone = session_of(vec![of("sock", "shm", Some("unix"), 80_000.0)]);
    assert!(report::summary_text(&alone).contains("sockets under bywire run, Unix"));
}

#[test]
fn no_gain_of_an_unmodified_program_follows_from_a_disturbed_cell() {
    let of = |level: &'static str, size: u64, value: f64| {
        let link = if level == "sock" { "shm" } else { "loopback" };
        let way = (level, link, None, 9000.0, 2.0);
        cell(way, "rr", Some(size), value, Unit::TransactionsPerSecond)
    };
    let cells = vec![
        of("tcp", 64, 10_000.0),
        of("sock", 64, 90_000.0),
        of("tcp", 1, 10_000.0),
        of("sock", 1, 70_000.0),
    ];
    let mut session = session_of(cells);
    disturbed(&mut session, |cell| cell.level == "tcp" && cell.size_bytes == Some(1));
    let text = report::summary_text(&session);
    let (_, table) = text.split_once("Unmodified programs over the fabric\n").expect("the table");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("rr ")).collect();
    assert!(rows[0].contains(" 1 B ") && rows[1].contains(" 64 B "), "by length: {table}");
    assert!(
        rows[0].contains(" disturbed") && !rows[0].contains('×') && rows[1].contains(" 9.00× "),
        "{table}"
    );
    let page = report::render(&session);
    let table = between(&page, "id=\"gain\"", "</table>");
    assert_eq!(table.matches("<tr class=\"unusable\">").count(), 1, "{table}");
}

/// The limit of the file's size, with every cell of the longest preset several times.
const PAGE_BYTES_MAX: usize = 3_200_000;

#[test]
fn the_page_stays_small() {
    let mut session = generated_session();
    let once = session.cells.clone();
    for copy in 0..3u64 {
        session.cells.extend(once.iter().cloned().map(|mut cell| {
            cell.parameters.insert("mtu".to_owned(), (1500 + copy).into());
            cell
        }));
    }
    let cells = session.cells.len();
    let page = report::render(&session);
    assert!(cells > 1000 && page.len() < PAGE_BYTES_MAX, "{cells} cells, {} bytes", page.len());
}

#[test]
fn a_breakdown_shows_each_part_and_its_method() {
    let page = report::render(&generated_session());
    for told in [
        "Where a half-RTT goes, by differences",
        "Where both cores are during a half-RTT, by samples",
        "saves by itself",
        "-300 ns",
        "-5.00 %",
        "not explained",
        "by a formula for saves by itself",
        "lending saves",
        "byte order: not told apart",
    ] {
        assert!(page.contains(told), "{told}");
    }
}

#[test]
fn the_summary_contains_the_ladder_of_levels() {
    let page = report::render(&generated_session());
    let (ladder, plots) = (page.find("id=\"ladder-half-rtt\"").unwrap(), page.find("id=\"plots\"").unwrap());
    assert!(ladder < plots);
    let rows = [
        "memory: a cache line<",
        "messages in shared memory<",
        "Unix sockets<",
        "the kernel's TCP<",
        "the kernel's UDP<",
    ];
    let ladder = page[ladder..plots].split("</section>").next().unwrap();
    assert!(
        ladder.contains(">■</tspan> 200 ns<") && ladder.contains(">4.00 µs · 2.00×<"),
        "values at the marks"
    );
    let table = ladder.split("<tbody>").nth(1).unwrap();
    let places: Vec<usize> =
        rows.iter().map(|row| table.find(row).unwrap_or_else(|| panic!("{row}"))).collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn the_policy_admits_the_pages_own_scripts_and_no_other() {
    let page = report::render(&generated_session());
    let scripts: Vec<&str> =
        page.split("<script>").skip(1).map(|rest| rest.split("</script>").next().unwrap()).collect();
    assert_eq!(scripts.len(), 1);
    assert_eq!(page.matches("<script").count(), 2, "the script and the colours");
    assert!(page.contains("default-src 'none'"));
    for script in scripts {
        let hash = STANDARD.encode(Sha256::digest(script));
        assert!(page.contains(&format!("'sha256-{hash}'")), "a script is not admitted");
    }
}

#[test]
fn hostile_text_in_a_cell_is_escaped() {
    let hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>";
    let mut session = generated_session();
    for cell in &mut session.cells {
        cell.link = Some(hostile.into());
        cell.environment = hostile.into();
    }
    session.preset = hostile.into();
    session.command = vec![hostile.into()];
    session.environment = serde_json::json!({ hostile: hostile });
    session.absent[0].reason = hostile.into();
    let page = report::render(&session);
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!without_scripts(&page).contains("<img"));
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"), "the text is shown");
}

#[test]
fn the_summary_comes_first_and_compares_equal_parameters() {
    let page = report::render(&generated_session());
    let answer = page.find("Every way").unwrap();
    assert!(answer < page.find("id=\"plots\"").unwrap());
    let mut session = generated_session();
    for cell in session.cells.iter_mut().filter(|cell| cell.level == "tcp") {
        cell.parameters.insert("spin".into(), false.into());
    }
    let polling = ("tcp", "loopback", Some(true), 2500.0, 2.2);
    session.cells.extend(cells_at(polling, 8));
    let text = report::summary_text(&session);
    let half_rtt = |way: &str, waits: &str| row(&text, "Half-RTT, 8 bytes", way, waits);
    assert_eq!(half_rtt("msg · shm", "polling"), "msg · shm  polling  200 ns  12.5×  440 ns");
    assert_eq!(half_rtt("unix", "polling"), "unix  polling  2.00 µs  1.25×  4.40 µs");
    assert_eq!(half_rtt("msg · shm", "sleeping"), "msg · shm  sleeping  4.00 µs  2.00×  8.80 µs");
    assert_eq!(half_rtt("unix", "sleeping"), "unix  sleeping  6.00 µs  1.33×  13.2 µs");
    assert_eq!(half_rtt("tcp · loopback", "sleeping"), "tcp · loopback  sleeping  8.00 µs  1×  17.6 µs");
    assert_eq!(half_rtt("udp · loopback", "sleeping"), "udp · loopback  sleeping  7.60 µs  1.05×  16.7 µs");
    assert!(row(&text, "CPU of a message", "msg · shm", "polling").contains("50.0 ns"), "{text}");
    let cells = generated_session().cells.len();
    let session = generated_session();
    let blocks = session.cells.iter().flat_map(|cell| &cell.blocks);
    let disturbed = blocks.filter(|block| !block.disturbed.is_empty()).count();
    let text = report::summary_text(&session);
    let told = format!("{disturbed} of {} blocks were disturbed. {DISTURBED}", 5 * cells);
    assert!(disturbed > 0 && text.contains(&told), "{text}");
    assert!(page.contains(DISTURBED));
}

/// The comparisons of a session in which each level was measured with the given kinds of waiting.
fn summary_of(measured: &[(&'static str, &[&str])]) -> String {
    let mut session = session_of(Vec::new());
    for (level, waits) in measured {
        for wait in *waits {
            let mut cells = cells_at((level, "link", None, 1000.0, 1.0), 8);
            let spin = match *wait {
                "adaptive" => "adaptive".into(),
                wait => serde_json::Value::from(wait == "polling"),
            };
            for cell in &mut cells {
                cell.parameters.insert("spin".into(), spin.clone());
            }
            session.cells.extend(cells);
        }
    }
    report::summary_text(&session)
}

/// The first words of the titles of all comparisons.
const QUESTIONS: [&str; 5] =
    ["Half-RTT", "One-way rate", "Two-way rate", "Transactions per second", "CPU of a message"];

#[test]
fn each_mpi_is_named_and_has_its_own_row() {
    let mut session = session_of(Vec::new());
    for (mpi, start_ns) in [("open-mpi", 1000.0), ("mpich", 3000.0)] {
        let mut cells = cells_at(("mpi", "shm", Some(true), start_ns, 1.0), 8);
        for cell in &mut cells {
            cell.parameters.insert("mpi".into(), mpi.into());
        }
        session.cells.extend(cells);
    }
    session.cells.extend(cells_at(("unix", "unix", None, 9000.0, 1.0), 8));
    let text = report::summary_text(&session);
    for (mpi, value) in [("open-mpi", "1.00 µs"), ("mpich", "3.00 µs")] {
        let row = row(&text, "Half-RTT", &format!("mpi · shm · {mpi}"), "polling");
        assert!(row.contains(value) && row.contains("–"), "no rival polls: {row}");
    }
    assert!(
        row(&text, "Half-RTT", "unix", "sleeping").contains("1×"),
        "without TCP, Unix sockets are the base: {text}"
    );
}

/// A rate depends on the length of messages. So ways are compared at one length, and a row of another length says so.
#[test]
fn rates_are_compared_at_one_message_length() {
    let mut session = session_of(Vec::new());
    let formula = |level| (level, "link", None, 10_000.0, 10.0);
    for level in ["unix", "tcp"] {
        session
            .cells
            .extend([1024, 65_536, 1 << 20].into_iter().flat_map(|size| cells_at(formula(level), size)));
    }
    session.cells.extend([1024, 65_507].into_iter().flat_map(|size| cells_at(formula("udp"), size)));
    session.cells.extend(cells_at(formula("mpi"), 4096));
    let text = report::summary_text(&session);
    // All have the same formula, so all are equal at one length.
    assert!(row(&text, "One-way rate, 64 KiB", "unix · link", "sleeping").contains("1.00×"), "{text}");
    // The longest datagram is compared with 64 KiB.
    let udp = row(&text, "One-way rate, 64 KiB", "udp · link", "sleeping");
    assert!(udp.contains("at 65507 B  1.00×"), "{udp}");
    let mpi = row(&text, "One-way rate, 64 KiB", "mpi · link", "sleeping");
    assert!(mpi.contains("at 4 KiB  other length") && !mpi.contains('×'), "{mpi}");
    let verdict = line(&text, "Highest rate");
    assert!(verdict.contains("64 KiB") && verdict.matches("iB").count() == 1, "one length: {verdict}");
}

#[test]
fn every_measured_level_is_in_the_summary_of_each_test() {
    const WAITS: [&[&str]; 7] = [
        &["polling"],
        &["sleeping"],
        &["adaptive"],
        &["polling", "sleeping"],
        &["polling", "adaptive"],
        &["adaptive", "sleeping"],
        &["polling", "adaptive", "sleeping"],
    ];
    for msg in WAITS {
        for others in WAITS.iter().filter(|waits| !waits.contains(&"adaptive")) {
            let text = summary_of(&[("msg", msg), ("unix", others), ("tcp", &["sleeping"])]);
            for question in QUESTIONS {
                for (level, waits) in [("msg", msg), ("unix", *others), ("tcp", &["sleeping"][..])] {
                    for wait in waits {
                        let row = row(&text, question, &format!("{level} · link"), wait);
                        // A polling row has a base only if TCP polls as well, which it does not here.
                        assert_eq!(row.contains('×'), *wait != "polling", "{row}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_message_layers_default_is_compared_with_the_default_of_sockets() {
    let text = summary_of(&[("msg", &["adaptive"]), ("unix", &["sleeping"]), ("tcp", &["sleeping"])]);
    for question in QUESTIONS {
        let told = row(&text, question, "msg · link", "adaptive");
        assert!(told.contains("1.00×"), "{told}");
        let has_cpu = told.split("  ").count() == 5;
        assert_eq!(
            has_cpu,
            question != "CPU of a message",
            "only the comparison of CPU has no column of CPU: {told}"
        );
    }
    let both = summary_of(&[("msg", &["adaptive", "sleeping"]), ("tcp", &["sleeping"])]);
    assert!(row(&both, "Half-RTT", "msg · link", "sleeping").contains("1.00×"), "{both}");
    let rows = comparison_rows(&both, "Half-RTT");
    assert_eq!(rows[0][1], "adaptive", "the default comes first: {rows:?}");
}

#[test]
fn shares_and_n_half_name_their_base() {
    let mut session = generated_session();
    let text = report::summary_text(&session);
    assert!(text.contains("(readwrite) two ways") && text.contains("~"), "{text}");
    let page = report::render(&session);
    assert!(
        page.contains("% of readwrite") && page.contains("% of touched") && !page.contains("% of ceiling")
    );
    assert!(page.contains("off the curve") && !page.contains("by its sweep<"));
    session.cells.push(cell(("msg", "shm", Some(true), 1.0, 1.0), "nhalf", None, 933.0, Unit::Bytes));
    assert!(report::render(&session).contains("933 B<small>by its sweep"));
    assert!(report::summary_text(&session).contains(" 933 B"));
}

#[test]
fn ethernet_is_in_the_tables_of_the_documents() {
    let mut session = generated_session();
    assert!(!report::render(&session).contains("id=\"ethernet\""));
    session.cells.clear();
    for (link, demand) in [("veth", None), ("one-process", Some(0.5)), ("two-processes", Some(0.75))] {
        for mut cell in cells_at(("eth", link, None, 8000.0, 2.0), 8192) {
            cell.between = "namespaces".into();
            for (name, value) in [("protocol", "udp".into()), ("mtu", 9000.into()), ("spin", false.into())] {
                cell.parameters.insert(name.into(), value);
            }
            cell.details.insert("sent_bytes_per_second".into(), 5e8.into());
            cell.details.insert("received_bytes_per_second".into(), 4e8.into());
            cell.cpu.carriers = demand.map(|us| CpuEnd {
                attributed: Some(1.25),
                service_demand_us_per_kb: Some(us),
                ..CpuEnd::default()
            });
            session.cells.push(cell);
        }
    }
    let text = report::summary_text(&session);
    let words = |start: &str| line(&text, start).split_whitespace().collect::<Vec<_>>().join(" ");
    let ours = words("Ethernet, two processes  UDP");
    assert!(
        ours.contains("UDP 9000 8 KiB ") && ours.contains(" 3200 4000 ") && ours.ends_with(" 0.75"),
        "{ours}"
    );
    assert!(ours.contains("125 %"), "{ours}");
    // veth, the kernel's own, comes last and has no carrier.
    let veth = words("veth, the kernel's own");
    assert!(
        !veth.contains("125 %") && text.find("veth, the kernel's own") > text.find("Ethernet, two processes"),
        "{veth}"
    );
    for link in ["eth · veth", "eth · one-process", "eth · two-processes"] {
        let row = row(&text, "One-way rate", link, "sleeping");
        assert!(row.contains('×'), "compared with veth: {row}");
    }
    let page = report::render(&session);
    assert!(page.contains("id=\"ethernet\"") && page.contains("µs/KB carriers"));
    assert!(page.contains("carriers between them"), "the plot of CPU per KB has the carriers");
}

#[test]
fn the_cost_of_encryption_is_shown_for_cells_that_differ_in_nothing_else() {
    let mut session = generated_session();
    assert!(!report::render(&session).contains("id=\"encryption\""));
    session.cells.clear();
    for (security, mtu, rate) in
        [("plain", 1500, 4.0), ("encrypted", 1500, 3.0), ("encrypted", 9000, 3.5), ("encrypted", 1500, 2.0)]
    {
        for mut cell in cells_at(("eth", "udp", None, 8000.0, rate), 65_536) {
            cell.between = "namespaces".into();
            for (name, value) in
                [("security", security.into()), ("protocol", "tcp".into()), ("mtu", mtu.into())]
            {
                cell.parameters.insert(name.into(), value);
            }
            cell.cpu.carriers = Some(CpuEnd { service_demand_us_per_kb: Some(0.5), ..CpuEnd::default() });
            if cell.test == "stream" {
                cell.value = rate * 1e9;
            }
            session.cells.push(cell);
        }
    }
    let text = report::summary_text(&session);
    let (_, table) = text.split_once("Plain and encrypted packets between nodes\n").expect("the table");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("eth · udp")).collect();
    let streams: Vec<&&str> = rows.iter().filter(|row| row.contains(" stream ")).collect();
    // The last cell of each kind counts. MTU 9000 has no plain cell.
    assert_eq!(streams.len(), 1, "{table}");
    let row = streams[0].split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "eth · udp · TCP · MTU 1500 stream 64 KiB 4.00 GB/s 2.00 GB/s 50.0 %";
    assert!(row.starts_with(expected), "{row}");
    assert!(row.ends_with("/KB"), "{row}");
    for name in ["Ethernet between nodes, plain", "Ethernet between nodes, encrypted"] {
        assert!(text.contains(name), "{text}");
    }
    let page = report::render(&session);
    assert!(page.contains("id=\"encryption\"") && page.contains("speed kept"));
}

#[test]
fn a_wide_interval_is_shown_with_its_bounds() {
    let mut session = generated_session();
    for cell in session.cells.iter_mut().filter(|cell| cell.test == "latency" && cell.level == "msg") {
        cell.ci95 = Some([100.0, 100_000.0]);
    }
    let text = report::summary_text(&session);
    let told = row(&text, "Half-RTT", "msg · shm", "sleeping");
    assert!(told.contains("2.00×, 0.0776 to 82.4"), "{told}");
    let verdict = line(&text, "Lowest latency for 8 bytes");
    assert!(verdict.ends_with("which may be no difference: 2.00×, 0.0776 to 82.4."), "{verdict}");
    assert!(!verdict.contains("faster"), "{verdict}");
    assert!(report::render(&session).contains("<small>0.0776 to 82.4</small>"));
}

/// A way that spins is not praised with the time that its rival needs to wake up.
#[test]
fn the_verdict_also_compares_polling_with_polling() {
    let mut session = session_of(Vec::new());
    let adaptive = serde_json::Value::from("adaptive");
    for (level, spin, start_ns) in [
        ("msg", adaptive, 100.0),
        ("msg", true.into(), 90.0),
        ("tcp", false.into(), 30_000.0),
        ("tcp", true.into(), 4500.0),
    ] {
        let mut cells = cells_at((level, "link", None, start_ns, 0.0), 8);
        cells.iter_mut().for_each(|cell| drop(cell.parameters.insert("spin".into(), spin.clone())));
        session.cells.extend(cells);
    }
    let verdict = |session: &Session| {
        let text = report::summary_text(session);
        line(&text, "Lowest latency").to_owned()
    };
    let both = verdict(&session);
    assert!(both.ends_with("300× faster than the kernel's TCP over link, 50.0× when both poll."), "{both}");
    session.cells.retain(|cell| cell.level != "tcp" || cell.parameters["spin"] == false);
    let one = verdict(&session);
    assert!(one.ends_with("300× faster than the kernel's TCP over link."), "nothing polls beside it: {one}");
}

#[test]
fn no_gain_is_claimed_with_too_few_pairs_for_an_interval() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = generated_session();
    for cell in session.cells.iter_mut().filter(|cell| cell.test == "latency" && cell.level != "msg") {
        // An older version computed an interval from two pairs as well.
        cell.blocks.retain(|block| block.pair < 2);
    }
    let store = stored(&session, directory.path());
    let session = store::read(store.directory()).unwrap();
    let unix = session.cells.iter().find(|cell| cell.level == "unix" && cell.test == "latency").unwrap();
    assert_eq!(unix.ci95, None);
    let text = report::summary_text(&session);
    let told = row(&text, "Half-RTT", "unix", "sleeping");
    assert!(told.contains("6.00 µs  too few pairs"), "{told}");
    let verdict = line(&text, "Lowest latency for 8 bytes");
    assert!(!verdict.contains("faster"), "{verdict}");
    let told = row(&text, "Transactions", "unix", "sleeping");
    assert!(told.contains("1.33×"), "other comparisons are not affected: {told}");
    assert!(report::render(&session).contains("<td class=\"figure\">too few pairs</td>"));
    let line = csv::from_cells(std::slice::from_ref(unix));
    assert!(line.contains(",ns,,,"), "the fields of the interval are empty: {line}");
}

#[test]
fn every_plotted_point_is_in_a_table() {
    let session = generated_session();
    let page = report::render(&session);
    let plots: Vec<&str> = page.split("<section class=\"card\" id=\"").skip(1).collect();
    let plots: Vec<(&str, &str)> = plots.iter().filter_map(|section| section.split_once('"')).collect();
    let plots: Vec<(&str, &str)> =
        plots.into_iter().filter(|(_, section)| section.contains("data-plot")).collect();
    let named = |name: &str| plots.iter().any(|(id, _)| *id == name);
    for id in [
        "half-rtt",
        "one-way",
        "two-way",
        "cpu-per-kilobyte",
        "cpu-per-message",
        "transactions",
        "distribution",
    ] {
        assert!(named(id), "no plot {id}");
    }
    assert!(!named("interleave"), "a plot of a test that was not run");
    for (id, section) in plots {
        let section = section.split("</section>").next().unwrap();
        assert!(section.contains(&format!("data-download=\"{id}\"")), "{id}");
        let (drawn, table) = section.split_once("<details>").unwrap();
        let wide = drawn.split("<svg ").find(|svg| svg.contains("class=\"wide usual\"")).unwrap();
        // The tooltip of each point: the series, the position, and the value.
        let told = wide.split("<title>").skip(1).filter_map(|title| title.split("</title>").next());
        let told: Vec<Vec<&str>> = told.map(|told| told.lines().collect()).collect();
        let points: Vec<&Vec<&str>> = told.iter().filter(|told| told.len() > 1).collect();
        let has_lines = wide.contains("stroke-dasharray");
        assert!(!points.is_empty() || has_lines, "{id}: no tooltip");
        assert!(table.matches("<tr>").count() > points.len(), "the table of {id}");
        for point in points {
            let (place, value) = point[1].rsplit_once(": ").unwrap();
            let row =
                |row: &&str| [point[0], place, value].iter().all(|text| row.contains(&format!(">{text}<")));
            assert!(table.split("<tr>").any(|text| row(&text)), "{id}: {point:?}");
        }
    }
}

#[test]
fn cells_with_any_difference_have_separate_rows() {
    let mut session = session_of(Vec::new());
    for (name, value) in
        [("mtu", serde_json::json!(1500)), ("segmentation", "off".into()), ("machine", "other".into())]
    {
        for mut cell in cells_at(("eth", "veth", None, 8000.0, 2.0), 65_536) {
            cell.parameters.insert("protocol".into(), "tcp".into());
            cell.parameters.insert("mtu".into(), 1500.into());
            cell.parameters.insert(name.into(), value.clone());
            session.cells.push(cell);
        }
    }
    let text = report::summary_text(&session);
    for name in
        ["veth, the kernel's own  ", "veth, the kernel's own, not segmented", "veth, the kernel's own, other"]
    {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
    }
    let files = report::tables(&session);
    let (_, streams) = files.iter().find(|(name, _)| name == "ethernet-1.csv").expect("the streams");
    assert_eq!(streams.lines().count(), 4, "{streams}");
}

#[test]
fn the_command_of_a_web_cell_has_only_valid_arguments() {
    let mut session = generated_session();
    session.cells.truncate(1);
    let cell = &mut session.cells[0];
    (cell.level, cell.test) = ("web".into(), "web-file".into());
    (cell.link, cell.between, cell.size_bytes) = (Some("eth".into()), "namespaces".into(), Some(1024));
    cell.parameters =
        [("sendfile", "on"), ("server", "nginx")].map(|(name, value)| (name.into(), value.into())).into();
    let page = report::render(&session);
    assert!(
        page.contains("<code>bywire measure web web-file --link eth --size 1024 --server nginx</code>"),
        "{page}"
    );
}

#[test]
fn every_cell_is_listed_with_its_command() {
    let session = generated_session();
    let page = report::render(&session);
    assert_eq!(page.matches("<code>bywire measure ").count(), session.cells.len());
    assert!(page.contains("<code>bywire measure msg latency --link shm --size 1 --spin</code>"));
    assert!(page.contains("<code>bywire measure unix stream --size 1024 --no-spin</code>"));
    assert!(page.contains("<code>bywire measure memory read --size 67108864</code>"));
}

#[test]
fn absent_unstable_and_outlying_results_are_reported() {
    let mut session = generated_session();
    let outlier = session
        .cells
        .iter_mut()
        .find(|cell| cell.level == "tcp" && cell.test == "stream" && cell.size_bytes == Some(4096));
    outlier.unwrap().value /= 10.0;
    session.complete = false;
    let page = report::render(&session);
    assert!(page.contains("the kernel's TCP at 4 KiB"), "the outlier is listed");
    assert!(page.contains("no TUN device: load the tun module"));
    assert!(page.contains("interrupted"));
    assert!(!page.contains("changed by more than 5 %"));
    session.cells.last_mut().unwrap().value *= 1.2;
    assert!(report::render(&session).contains("changed by more than 5 %"));
}

#[test]
fn historic_figures_are_shown_beside_measured_ones() {
    let page = report::render(&generated_session());
    let then = page.split("Then and now").nth(1).unwrap();
    assert!(then.contains("GM performance measurements"));
    // GM 2.1's 5.05 µs against the generated 200 ns.
    assert!(then.contains("5.05 µs") && then.contains("25.2×"), "the factor is shown");
}

#[test]
fn names_of_commands_stand_in_no_backticks_that_a_page_would_show() {
    let mut session = generated_session();
    session.cells.extend(cells_at(("sock", "link", None, 50.0, 0.0), 8));
    let page = without_scripts(&report::render(&session));
    assert!(page.contains("with sockets under bywire run"), "no verdict about them");
    for shown in [page, report::picture(&session), report::markdown(&session)] {
        let line = shown.lines().find(|line| line.contains('`'));
        assert_eq!(line, None);
    }
}

#[test]
fn an_empty_session_makes_a_page() {
    let session = Session { cells: Vec::new(), absent: Vec::new(), ..generated_session() };
    assert!(report::render(&session).contains("Nothing was measured"));
    assert_eq!(report::summary_text(&session), "\n");
}

/// One of the plots that are stored as files.
fn drawing(session: &Session, name: &str) -> String {
    let mut files = report::drawings(session).into_iter();
    files.find(|(found, _)| found == name).expect("a plot").1
}

/// Marks every block as undisturbed.
fn quiet(session: &mut Session) {
    session.cells.iter_mut().flat_map(|cell| &mut cell.blocks).for_each(|block| block.disturbed.clear());
}

/// Marks every block of the matching cells as disturbed.
fn disturbed(session: &mut Session, is: impl Fn(&Cell) -> bool) {
    for cell in session.cells.iter_mut().filter(|cell| is(cell)) {
        cell.blocks.iter_mut().for_each(|block| block.disturbed = vec!["waited-for-core".into()]);
    }
}

/// The figures of a row's ratios in a table of the page.
fn gains(rows: &str) -> Vec<&str> {
    rows.split(['<', '>']).filter(|text| text.contains('×') && !text.ends_with("TCP")).collect()
}

#[test]
fn a_disturbed_session_is_reported_with_advice_and_claims_no_more_than_all_its_blocks_show() {
    let mut session = generated_session();
    session.command = ["/usr/bin/bywire", "bench", "quick", "--output", "taken"].map(str::to_owned).to_vec();
    disturbed(&mut session, |_| true);
    let page = report::render(&session);
    let (alarm, ladder) =
        (page.find("class=\"alarm\"").expect("an alarm"), page.find("id=\"ladder\"").unwrap());
    assert!(alarm < ladder, "it comes first");
    assert!(
        page.contains("100 % of the blocks were disturbed")
            && page.contains("The figures of this session cannot be used")
    );
    assert!(page.contains("Stop other programs, then take the session again: <kbd>bywire bench quick</kbd>"));
    let answer = &page[page.find("id=\"ways\"").unwrap()..page.find("id=\"plots\"").unwrap()];
    let rows = between(answer, "<tbody>", "</table>");
    assert_eq!(
        rows.matches("<tr class=\"unusable\">").count(),
        rows.matches("scope=\"row\"").count(),
        "all rows are grey"
    );
    let claims = gains(rows);
    assert!(!claims.is_empty() && !rows.contains("faster"), "{rows}");
    for claim in claims {
        let (_, bound) =
            claim.split_once("at least ").unwrap_or_else(|| panic!("a gain is claimed: {claim}"));
        let bound: f64 = bound.trim_end_matches('×').parse().unwrap();
        assert!(bound >= 1.0, "{claim}");
    }
    let text = report::summary_text(&session);
    assert!(text.starts_with("The machine was not quiet: 100 %") && !text.contains("faster than"), "{text}");
    for superlative in ["Lowest", "Highest", "faster"] {
        assert!(!text.contains(superlative), "{text}");
    }
    let latency = line(&text, "Latency for 8 bytes, compared with the kernel's TCP");
    assert!(latency.contains("messages in shared memory at least 1.88×"), "{latency}");
    let last = text.lines().next_back().unwrap();
    assert!(last.starts_with("The figures of this session cannot be used"), "where a terminal stops: {last}");
    let (picture, summary) = (report::picture(&session), report::markdown(&session));
    assert!(picture.contains("The machine was not quiet") && summary.contains("**The machine was not quiet"));
    assert!(picture.contains("at least 1.88×</text>"), "{picture}");
}

/// A disturbed cell may have been better or worse in blocks that the interval of its median leaves out.
#[test]
fn a_lower_bound_holds_for_every_block_of_a_disturbed_cell() {
    let mut session = generated_session();
    quiet(&mut session);
    let is_short = |cell: &Cell| cell.test == "latency" && cell.size_bytes == Some(8);
    disturbed(&mut session, |cell| cell.level == "msg" && is_short(cell));
    let polls = |cell: &Cell| cell.parameters.is_on("spin");
    for (slowest_ns, told) in [(4000.0, "at least 1.88×"), (6000.0, "at least 1.29×"), (9000.0, "disturbed")]
    {
        let cells = session.cells.iter_mut().filter(|cell| cell.level == "msg" && is_short(cell));
        for cell in cells.filter(|cell| !polls(cell)) {
            cell.blocks[0].value = slowest_ns;
        }
        let text = report::summary_text(&session);
        let row = row(&text, "Half-RTT", "msg · shm", "sleeping");
        assert!(row.contains(&format!("4.00 µs  {told}  ")), "{row}");
        let page = report::render(&session);
        let is_bound = page.contains("<span class=\"bound\">");
        assert_eq!(is_bound, told.starts_with("at least"), "{told}");
    }
}

#[test]
fn disturbed_cells_are_grey_and_bound_what_is_said_of_them() {
    let mut session = generated_session();
    quiet(&mut session);
    let is_short = |cell: &Cell| cell.test == "latency" && cell.size_bytes == Some(8);
    let verdict = |session: &Session| {
        let text = report::summary_text(session);
        text.lines().find(|line| line.contains("atency for 8 bytes")).expect("a verdict").to_owned()
    };
    assert!(verdict(&session).starts_with("Lowest latency for 8 bytes: "), "{}", verdict(&session));
    disturbed(&mut session, |cell| cell.level == "unix" && is_short(cell));
    let page = report::render(&session);
    assert!(!page.contains("class=\"alarm\"") && page.contains("cells cannot be used and are grey"));
    assert!(page.contains("disturbed: do not use"), "the tooltips of its points say so");
    let text = report::summary_text(&session);
    assert!(row(&text, "Half-RTT", "unix", "sleeping").contains("6.00 µs  at least 1.25×"), "{text}");
    assert!(row(&text, "Half-RTT", "msg · shm", "sleeping").contains("2.00×"), "{text}");
    // The best of what is left after disturbed figures is not called the best.
    let told = verdict(&session);
    assert_eq!(
        told,
        "Latency for 8 bytes: 4.00 µs with messages in shared memory, 2.00× faster than the kernel's TCP. No way is named \
         the best, because these were disturbed: Unix sockets."
    );
    disturbed(&mut session, |cell| cell.level == "tcp" && is_short(cell));
    let text = report::summary_text(&session);
    assert!(row(&text, "Half-RTT", "msg · shm", "sleeping").contains("at least 1.88×"), "{text}");
    assert!(row(&text, "Half-RTT", "udp · loopback", "sleeping").contains("rival disturbed"), "{text}");
    disturbed(&mut session, |cell| cell.level == "msg" && is_short(cell));
    let told = verdict(&session);
    let expected =
        "Latency for 8 bytes: 4.00 µs with messages in shared memory, disturbed, at least 1.88× faster than ";
    assert!(told.starts_with(expected), "{told}");
    // With two of five pairs disturbed, the median is a quiet pair.
    let mut session = generated_session();
    for block in session.cells.iter_mut().flat_map(|cell| &mut cell.blocks) {
        block.disturbed = if block.pair < 2 { vec!["steal".into()] } else { Vec::new() };
    }
    let page = report::render(&session);
    assert!(page.contains("class=\"alarm\"") && page.contains("No cell had half of its pairs disturbed"));
    assert!(!page.contains("class=\"unusable\""));
    // In a session of which more than a tenth was disturbed, gains are lower bounds.
    let text = report::summary_text(&session);
    assert!(row(&text, "Half-RTT", "msg · shm", "sleeping").contains("at least 1.88×"), "{text}");
    let told = line(&text, "Lowest latency for 8 bytes");
    assert!(told.ends_with(", at least 1.88× faster than the kernel's TCP."), "{told}");
}

#[test]
fn a_figure_is_grey_only_if_its_own_cell_was_disturbed() {
    let mut session = generated_session();
    quiet(&mut session);
    let polls = |cell: &Cell| cell.parameters.is_on("spin");
    let disturb = |wanted: bool| {
        let mut session = session.clone();
        disturbed(&mut session, |cell| cell.level == "unix" && cell.test == "rr" && polls(cell) == wanted);
        let page = report::render(&session);
        let table = between(&page, "Transactions per second, ", "</tbody>");
        let row = table.split("<tr").find(|row| row.contains(">Unix sockets<")).unwrap().to_owned();
        ["class=\"unusable\"", "small class=\"usable\"", "small class=\"unusable\""]
            .map(|class| row.matches(class).count())
    };
    let [row, usable, unusable] = disturb(false);
    assert!(
        row == 1 && usable > 1 && unusable == 0,
        "the way that sleeps is grey alone: {row} {usable} {unusable}"
    );
    let [row, usable, unusable] = disturb(true);
    assert!(
        row == unusable && usable == 0 && unusable > 1,
        "the one that polls is: {row} {usable} {unusable}"
    );
}

#[test]
fn messages_between_machines_are_compared_with_tcp_on_the_same_wire() {
    let mut session = generated_session();
    let on_wire = [("msg", "udp", Some(false), 5000.0, 1.2), ("tcp", "veth", None, 20_000.0, 1.0)];
    let cells = on_wire.into_iter().flat_map(|way| generated::cells_at(way, 8));
    session.cells.extend(cells.map(|cell| Cell { between: "namespaces".into(), ..cell }));
    quiet(&mut session);
    let text = report::summary_text(&session);
    assert!(row(&text, "Half-RTT", "msg · udp", "sleeping").contains("4.00×"), "{text}");
    // On one machine the rival is TCP over loopback, as before.
    assert!(row(&text, "Half-RTT", "msg · shm", "sleeping").contains("2.00×"), "{text}");
}

#[test]
fn processes_of_a_test_that_share_cores_do_not_count_as_a_disturbance() {
    let mut session = generated_session();
    session.cells.retain(|cell| cell.level == "tcp");
    for cell in &mut session.cells {
        cell.parameters.insert("connections".into(), 16.into());
    }
    disturbed(&mut session, |_| true);
    let page = report::render(&session);
    assert!(!page.contains("class=\"alarm\"") && !page.contains("class=\"unusable\""));
}

#[test]
fn figures_that_were_not_measured_are_kept_apart_from_measurements() {
    let page = report::render(&generated_session());
    let (measured, historic) =
        page.split_once("<details class=\"history\" id=\"historic\">").expect("a folded section");
    for name in ["Myrinet", "GM 2", "Trapeze", "as a model", "Then and now", "then and now"] {
        assert!(!measured.contains(name), "{name} is among the measured figures");
    }
    assert!(historic.contains("Then and now") && historic.contains("as a model"));
    assert!(historic.contains("id=\"then-half-rtt\"") && historic.contains("GM 2.1"));
}

/// The path of a dot around its place.
const DOT: &str = "m-6 0a6 6 0 1 0 12 0";

#[test]
fn a_plot_of_one_length_has_labelled_dots() {
    let mut session = generated_session();
    session.cells.retain(|cell| cell.size_bytes == Some(8) || cell.level == "memory");
    let drawing = drawing(&session, "half-rtt.svg");
    assert!(drawing.matches(DOT).count() >= 6, "{drawing}");
    assert!(!drawing.contains("v18h-"), "the length of a bar means nothing on a logarithmic axis");
    for value in ["200 ns", "4.00 µs", "8.00 µs"] {
        assert!(drawing.contains(&format!(">{value}</text>")), "{value}");
    }
}

#[test]
fn the_longest_datagram_is_a_dot_beside_those_of_64_kib() {
    let formula = |level| (level, "link", None, 10_000.0, 10.0);
    let cells = [("tcp", 65_536), ("unix", 65_536), ("udp", 65_507)];
    let cells = cells.into_iter().flat_map(|(level, size)| cells_at(formula(level), size));
    let session =
        Session { cells: cells.filter(|cell| cell.test == "bidir").collect(), ..generated_session() };
    let drawing = drawing(&session, "two-way.svg");
    assert_eq!(drawing.matches(DOT).count(), 4, "three dots, and that of the legend: {drawing}");
    assert!(drawing.contains("Measured at 64 KiB.") && drawing.contains("65507 B</text>"), "{drawing}");
}

#[test]
fn short_costs_are_visible_beside_a_very_long_one() {
    let mut session = generated_session();
    let slow = session.cells.iter_mut().filter(|cell| cell.level == "udp" && cell.test == "rr");
    for cell in slow {
        cell.cpu.source.service_demand_us_per_transaction = Some(2500.0);
    }
    let drawing = drawing(&session, "cpu-per-transaction.svg");
    // Each dot is at the end of a line from the start of its row.
    let lines = drawing.split("<path d=\"M").filter(|path| path.contains("stroke-dasharray=\"1 4\""));
    let widths: Vec<f64> = lines
        .map(|line| {
            let (start, rest) = line.split_once(' ').unwrap();
            let (_, end) = rest.split('"').next().unwrap().split_once('H').unwrap();
            end.parse::<f64>().unwrap() - start.parse::<f64>().unwrap()
        })
        .collect();
    assert_eq!(widths.len(), 6, "{widths:?}");
    assert!(widths.iter().all(|width| *width >= 10.0), "a dot is at the start of its row: {widths:?}");
    assert!(report::render(&session).contains("the table lists the parts of each bar"));
}

#[test]
fn a_long_legend_initially_shows_five_entries() {
    let mut session = generated_session();
    let once = session.cells.clone();
    for mtu in [576, 1500, 9000u64] {
        session.cells.extend(once.iter().filter(|cell| cell.level != "memory").cloned().map(|mut cell| {
            cell.parameters.insert("mtu".to_owned(), mtu.into());
            cell
        }));
    }
    let page = report::render(&session);
    let legend = between(&page, "<section class=\"card\" id=\"half-rtt\">", "</div>");
    assert!(legend.matches("data-shows").count() > 19, "{legend}");
    assert_eq!(legend.matches("aria-pressed=\"true\"").count(), 5, "{legend}");
    for level in ["msg · ", "unix · ", "tcp · ", "udp · "] {
        let shown =
            legend.split("<button").any(|button| button.contains("\"true\"") && button.contains(level));
        assert!(shown, "{level} is not shown at first: {legend}");
    }
    assert!(legend.contains("Show all"));
}

#[test]
fn ways_are_in_the_order_of_levels_and_links_whichever_was_measured_first() {
    let of = |level, link, spin| cells_at((level, link, spin, 4000.0, 2.0), 8);
    let taken = [
        of("tcp", "veth", Some(true)),
        of("msg", "udp", Some(false)),
        of("tcp", "loopback", Some(false)),
        of("msg", "shm", Some(true)),
        of("msg", "shm", Some(false)),
    ];
    let session = session_of(taken.concat());
    let rows = comparison_rows(&report::summary_text(&session), "Half-RTT");
    let names: Vec<String> = rows.iter().map(|row| format!("{}, {}", row[0], row[1])).collect();
    let expected = [
        "msg · shm, sleeping",
        "msg · shm, polling",
        "msg · udp, sleeping",
        "tcp · loopback, sleeping",
        "tcp · veth, polling",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_failed_breakdown_is_reported_and_not_drawn() {
    let mut session = generated_session();
    for cell in session.cells.iter_mut().filter(|cell| cell.test == "breakdown") {
        let value = cell.value;
        let account = cell.details.get_mut("breakdown").unwrap();
        let parts = account["parts"].as_array_mut().unwrap();
        parts[0]["ns"] = (900.0 * value).into();
        parts[1]["ns"] = (-900.0 * value).into();
    }
    let page = report::render(&session);
    assert!(page.contains("the breakdown failed") && page.contains("Where a half-RTT goes, by differences"));
    assert!(!page.contains("90000 %") && !page.contains("-180 µs"), "its parts are not shown");
    assert!(!report::drawings(&session).iter().any(|(name, _)| name == "breakdown.svg"));
}

#[test]
fn no_percentile_below_its_median_is_shown() {
    let mut session = generated_session();
    session.cells.retain(|cell| cell.level == "tcp" && cell.test == "latency" && cell.size_bytes == Some(8));
    let percentiles = session.cells[0].percentiles.as_mut().unwrap();
    (percentiles.p99, percentiles.p999) = (7777.0, 8888.0);
    let page = report::render(&session);
    assert!(!page.contains("7.78 µs") && page.contains("8.89 µs"));
}

#[test]
fn a_picture_and_a_summary_are_written_beside_the_page() {
    let session = generated_session();
    let files = report::files(&session);
    let endings: Vec<&str> = files.iter().map(|(ending, _)| &**ending).collect();
    assert_eq!(endings, ["html", "svg", "md"]);
    let (picture, summary) = (&files[1].1, &files[2].1);
    assert!(picture.starts_with("<svg xmlns") && picture.contains("width=\"1200\" height=\"630\""));
    assert!(!picture.contains("var(") && picture.contains(">4.00 µs · 2.00×</text>"));
    for line in [
        "## What this machine delivers",
        "| messages in shared memory (msg · shm · sleeping) | 4.00 µs | 2.00× | 8.80 µs |",
    ] {
        assert!(summary.contains(line), "{line}: {summary}");
    }
    let mut hostile = session;
    hostile.cells.iter_mut().for_each(|cell| cell.link = Some("a|b<img src=x>\n# `c`".into()));
    let summary = report::markdown(&hostile);
    assert!(!summary.contains("<img") && !summary.contains("\n# ") && !summary.contains("a|b"), "{summary}");
    assert!(!report::picture(&hostile).contains("<img"));
}

#[test]
fn a_stored_session_reads_back_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let session = generated_session();
    let store = stored(&session, directory.path());
    assert!(store::read(store.directory()).unwrap() == session);
    let again = Store::create(store.directory(), &session);
    assert!(matches!(again, Err(StoreError::Occupied(_))));
}

#[test]
fn a_truncated_last_line_loses_only_that_cell() {
    let directory = tempfile::tempdir().unwrap();
    let session = generated_session();
    let store = stored(&session, directory.path());
    let path = store.directory().join("cells.jsonl");
    let whole = fs::read(&path).unwrap();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    // Cut off within the two bytes of a µ.
    file.write_all(b"{\"schema\":\"bywire-cell/1\",\"level\":\"\xc2").unwrap();
    assert!(store::read(store.directory()).unwrap().cells == session.cells);
    fs::write(&path, [b"{\"torn\n".as_slice(), &whole].concat()).unwrap();
    let error = store::read(store.directory()).unwrap_err().to_string();
    assert!(error.contains("cells.jsonl, line 1"), "{error}");
}

#[test]
fn cells_of_a_running_session_are_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = generated_session();
    session.cells.truncate(2);
    for (cell, began_unix_seconds) in session.cells.iter_mut().zip([1.5, 2.5]) {
        let (before, after) = (MachineSpeed::default(), MachineSpeed::default());
        cell.moments.push(Moment { pair: 0, began_unix_seconds, before, after });
    }
    let mut store = Store::create(&directory.path().join("session"), &session).unwrap();
    let read = || store::read(&directory.path().join("session")).unwrap().cells;
    for (place, cell) in session.cells.iter().enumerate() {
        let early = Cell { blocks: cell.blocks[..1].to_vec(), ci95: None, ..cell.clone() };
        store.keep_running(place, &early).unwrap();
        store.keep_running(place, cell).unwrap();
    }
    store.keep_running(2, &Cell { value: f64::NAN, ..session.cells[0].clone() }).unwrap();
    assert!(read() == session.cells);
    // A machine that stops while it writes may leave an empty file.
    let torn = store.directory().join("running/0003.json");
    std::fs::write(&torn, "").unwrap();
    assert!(read() == session.cells);
    let said = store::cut_off(store.directory(), 2).unwrap().expect("a file was cut off");
    assert!(said.ends_with("running/0003.json: cut off; 2 cells read"), "{said}");
    for cell in &session.cells {
        store.append(cell).unwrap();
        assert!(read() == session.cells, "a cell that is in both places is read once");
    }
    store.forget_running().unwrap();
    store.forget_running().unwrap();
    assert!(read() == session.cells);
}

#[test]
fn control_characters_are_removed_from_stored_text() {
    let directory = tempfile::tempdir().unwrap();
    let hostile = "a\u{1b}[2J\nb\u{7}\u{9b}\u{202e}c";
    let mut session = generated_session();
    session.preset = hostile.into();
    session.environment = serde_json::json!({ hostile: [hostile] });
    session.cells.truncate(1);
    session.cells[0].level = hostile.into();
    session.cells[0].parameters.insert(hostile.into(), hostile.into());
    let store = stored(&session, directory.path());
    let read = store::read(store.directory()).unwrap();
    let plain = "a[2J bc";
    assert_eq!((&*read.preset, &*read.cells[0].level), (plain, plain));
    assert_eq!(read.environment, serde_json::json!({ plain: [plain] }));
    assert_eq!(read.cells[0].parameters[plain], plain);
    assert!(csv::from_cells(&read.cells).starts_with("level,"));
}

#[test]
fn a_directory_without_a_session_is_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let error = store::read(directory.path()).unwrap_err().to_string();
    assert!(error.ends_with("holds no session: name a directory that `bywire bench` wrote"), "{error}");
    let session = Session { schema: "bywire-session/0".into(), ..generated_session() };
    let store = Store::create(&directory.path().join("old"), &session).unwrap();
    let error = store::read(store.directory()).unwrap_err().to_string();
    assert!(error.contains("schema bywire-session/0"), "{error}");
}

#[test]
fn a_cell_without_a_value_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let session = generated_session();
    let mut store = Store::create(&directory.path().join("session"), &session).unwrap();
    let cell = Cell { value: f64::NAN, ..session.cells[0].clone() };
    assert!(matches!(store.append(&cell), Err(StoreError::Empty { .. })));
}

#[test]
fn csv_has_a_line_for_each_cell() {
    let session = generated_session();
    let text = csv::from_cells(&session.cells);
    let lines: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(lines.len(), session.cells.len() + 1);
    assert!(lines[1].starts_with("msg,latency,shm,processes,1,spin=true,"), "{}", lines[1]);
    let mut cell = session.cells[0].clone();
    cell.parameters.insert("spin".into(), "adaptive".into());
    cell.cacheline = Some(Cacheline { before_ns: 67.0, after_ns: Some(250.0) });
    let text = csv::from_cells(&[cell]);
    assert!(text.contains(",spin=adaptive,") && text.contains(",67,250,"), "{text}");
}

fn stored(session: &Session, parent: &std::path::Path) -> Store {
    let mut store = Store::create(&parent.join("session"), session).unwrap();
    for cell in &session.cells {
        store.append(cell).unwrap();
    }
    store
}

fn without_scripts(page: &str) -> String {
    page.split("<script").map(|part| part.split("</script>").last().unwrap()).collect()
}
