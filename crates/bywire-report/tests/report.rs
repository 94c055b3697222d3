//! The report of a session, and the session's way through the store.

mod generated;

use std::fs::{self, OpenOptions};
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bywire_report as report;
use bywire_report::merged::{by_preset, together};
use bywire_results::cell::DISTURBED;
use bywire_results::cell::{Cacheline, Cell, CpuEnd, Session, Unit};
use bywire_results::csv;
use bywire_results::moment::{Gauge, Moment};
use bywire_results::store::{self, Store, StoreError};
use generated::{cell, cells_at, generated_session};
use sha2::{Digest, Sha256};

#[test]
fn the_page_is_complete_in_itself() {
    let page = report::render(&generated_session());
    // Written where a person can open it.
    fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/report.html"), &page).unwrap();
    for outside in ["src=\"", "href=\"http", "@import", "url(", "<link", "<iframe"] {
        // A pattern of the plot itself may fill a bar.
        let markup = without_scripts(&page).replace("url(#hatch-", "");
        assert!(!markup.contains(outside), "the page loads something: {outside}");
    }
}

#[test]
fn each_preset_has_a_page_of_its_own_in_the_one_file() {
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
    assert_eq!(names.len(), count, "a name stands twice");
    assert!(page.len() < PAGE_BYTES_MAX);
    assert_eq!(report::render_presets(&[generated_session()]), report::render(&generated_session()));
}

/// A session of one machine, whose half-RTTs take so many ns, as does the kernel's hand-off.
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
fn several_machines_are_never_one() {
    let fast = machine("one", "quick", &[("tcp", 20_000.0)], 60.0);
    let slow = machine("two", "gm", &[("unix", 15_000.0), ("tcp", 60_000.0)], 300.0);
    let presets = by_preset(vec![("fast".into(), fast.clone()), ("slow".into(), slow.clone())]);
    let text = report::summary_text(&together(&presets));
    let verdict =
        text.lines().find(|line| line.starts_with("Half-RTT of short messages")).expect("a verdict");
    for told in [
        "unix · link · slow with 15.0 µs",
        "1.33× shorter than tcp · link · fast",
        "4.00× shorter than tcp · link · slow",
    ] {
        assert!(verdict.contains(told), "{told}: {verdict}");
    }
    assert!(!text.contains("futex") && text.contains("each machine stand in its own report"), "{text}");
    let page = report::render_presets(&presets);
    assert!(page.contains("fast") && page.contains("Processor one") && page.contains("Processor two"));
    assert!(page.contains("What these machines deliver"));
    let parts: Vec<&str> = ["all", "p1", "p2"]
        .map(|place| {
            let from = page.split(&format!("<div class=\"page\" id=\"{place}\">")).nth(1).expect(place);
            from.split("<div class=\"page\"").next().unwrap()
        })
        .into();
    assert!(!parts[0].contains("hand-off floor"), "whose would it be?");
    assert!(parts[1].contains("333× the hand-off floor") && parts[2].contains("50.0× the hand-off floor"));

    let same = machine("one", "gm", &[("unix", 15_000.0)], 60.0);
    let presets = by_preset(vec![("fast".into(), fast), ("again".into(), same)]);
    let text = report::summary_text(&together(&presets));
    assert!(text.contains("1.33× shorter than tcp · link (") && text.contains("futex"), "{text}");
}

#[test]
fn what_an_unmodified_program_gains_is_told_of_the_same_question_alone() {
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
    let session = Session { cells, ..generated_session() };
    let page = report::render(&session);
    assert!(page.contains("What an unmodified program gains") && page.contains("9.00×"), "by spinning ends");
    assert!(page.contains("1.50×") && page.contains("spinning forbidden"), "without");
    assert!(!page.contains("7.00×"), "epoll is compared with epoll, which is not there");
}

/// What the file may come to with every cell of the longest preset many times over.
const PAGE_BYTES_MAX: usize = 3_000_000;

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
fn where_the_time_goes_is_told_part_by_part_with_how_it_was_found() {
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
fn the_ladder_stands_in_the_answer() {
    let page = report::render(&generated_session());
    let (ladder, plots) = (page.find("id=\"ladder-half-rtt\"").unwrap(), page.find("id=\"plots\"").unwrap());
    assert!(ladder < plots);
    let rows =
        ["memory: a cache line", "msg · shm · polling", "unix · polling", "tcp · loopback", "udp · loopback"];
    let table = &page[ladder..plots];
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
fn hostile_words_in_a_cell_stay_words() {
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
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"), "the words are shown");
}

#[test]
fn the_answer_comes_first_and_compares_like_with_like() {
    let page = report::render(&generated_session());
    let answer = page.find("What each level delivers").unwrap();
    assert!(answer < page.find("id=\"plots\"").unwrap());
    let text = report::summary_text(&generated_session());
    let polling = "Half-RTT of short messages, polling: msg · shm · polling with 200 ns at 440 ns of CPU a round trip; \
                   10.0× shorter than unix · polling (2.00 µs, CPU 4.40 µs)";
    assert!(text.contains(polling), "{text}");
    let sleeping = "Half-RTT of short messages, sleeping: msg · shm · sleeping with 4.00 µs at 8.80 µs of CPU a round trip; \
                    1.50× shorter than unix · sleeping (6.00 µs, CPU 13.2 µs), \
                    1.90× shorter than udp · loopback (7.60 µs, CPU 16.7 µs), \
                    2.00× shorter than tcp · loopback (8.00 µs, CPU 17.6 µs).";
    assert!(text.contains(sleeping), "{text}");
    assert!(text.contains("Host CPU per short message, polling: msg · shm · polling with 50.0 ns"), "{text}");
    assert!(!text.contains("polling: tcp"), "a sleeper among the pollers: {text}");
    let cells = generated_session().cells.len();
    assert!(text.contains(&format!("{cells} of {} blocks were disturbed. {DISTURBED}", 5 * cells)), "{text}");
    assert!(page.contains(DISTURBED));
}

/// The verdicts of a session in which each level was measured in the ways of waiting that are given.
fn verdicts_of(measured: &[(&'static str, &[&str])]) -> Vec<String> {
    let mut session = generated_session();
    session.cells.clear();
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
    let text = report::summary_text(&session);
    let companies = [", polling: ", ", sleeping: ", ", each waiting in its own way: "];
    let lines = text.lines().filter(|line| companies.iter().any(|company| line.contains(company)));
    lines.map(str::to_owned).collect()
}

#[test]
fn an_mpi_is_called_by_its_name_and_each_is_a_side_of_its_own() {
    let mut session = generated_session();
    session.cells.clear();
    for (mpi, start_ns) in [("open-mpi", 1000.0), ("mpich", 3000.0)] {
        let mut cells = cells_at(("mpi", "shm", Some(true), start_ns, 1.0), 8);
        for cell in &mut cells {
            cell.parameters.insert("mpi".into(), mpi.into());
        }
        session.cells.extend(cells);
    }
    session.cells.extend(cells_at(("unix", "unix", None, 9000.0, 1.0), 8));
    let text = report::summary_text(&session);
    let verdict = text.lines().find(|line| line.starts_with("Half-RTT of short messages, polling")).unwrap();
    assert!(verdict.contains("mpi · shm · open-mpi with 1.00 µs"), "{verdict}");
    assert!(verdict.contains("3.00× shorter than mpi · shm · mpich"), "{verdict}");
    let alone = text.lines().find(|line| line.starts_with("Half-RTT of short messages, sleeping")).unwrap();
    assert!(alone.ends_with("; no other level slept here."), "{alone}");
}

/// A rate grows with the size of a message: what only one of two was measured at is no advantage over the other.
#[test]
fn rates_are_compared_at_sizes_that_both_were_measured_at() {
    let mut session = generated_session();
    session.cells.clear();
    let formula = |level| (level, "link", None, 10_000.0, 10.0);
    session
        .cells
        .extend([1024, 65_536, 1 << 20].into_iter().flat_map(|size| cells_at(formula("unix"), size)));
    session.cells.extend([1024, 65_507].into_iter().flat_map(|size| cells_at(formula("udp"), size)));
    let text = report::summary_text(&session);
    let verdict = text.lines().find(|line| line.starts_with("Highest one-way rate")).expect("a verdict");
    // One formula for both, so that at one size nobody wins.
    assert!(verdict.contains(" at 1 MiB ") && verdict.contains(" at 65507 B"), "{verdict}");
    assert!(verdict.contains("no measurable difference from udp"), "{verdict}");
    assert!(verdict.contains(", against ") && verdict.contains(" at 64 KiB)"), "{verdict}");
}

#[test]
fn every_level_that_was_measured_stands_in_an_answer_to_each_question() {
    const WAITS: [&[&str]; 7] = [
        &["polling"],
        &["sleeping"],
        &["adaptive"],
        &["polling", "sleeping"],
        &["polling", "adaptive"],
        &["adaptive", "sleeping"],
        &["polling", "adaptive", "sleeping"],
    ];
    let questions = [
        "Half-RTT of short messages",
        "Highest one-way rate",
        "Highest two-way rate",
        "Short transactions per second",
        "Host CPU per short message",
    ];
    for msg in WAITS {
        for others in WAITS.iter().filter(|waits| !waits.contains(&"adaptive")) {
            let verdicts = verdicts_of(&[("msg", msg), ("unix", others), ("tcp", &["sleeping"])]);
            for question in questions {
                for level in ["msg · ", "unix · ", "tcp · "] {
                    let told = verdicts.iter().any(|line| line.starts_with(question) && line.contains(level));
                    assert!(told, "{msg:?} {others:?}: {question} without {level}: {verdicts:#?}");
                }
            }
        }
    }
}

#[test]
fn the_message_layers_default_is_compared_with_the_default_of_sockets() {
    let verdicts = verdicts_of(&[("msg", &["adaptive"]), ("unix", &["sleeping"]), ("tcp", &["sleeping"])]);
    assert_eq!(verdicts.len(), 5, "{verdicts:#?}");
    assert!(verdicts.iter().all(|line| line.contains(", each waiting in its own way: ")), "{verdicts:#?}");
    let costs = verdicts.iter().filter(|line| line.contains(" of CPU ") && line.contains(", CPU ")).count();
    assert_eq!(costs, 4, "all but the one about CPU itself: {verdicts:#?}");
    let both = verdicts_of(&[("msg", &["adaptive", "sleeping"]), ("unix", &["sleeping"])]);
    assert!(
        both.iter().any(|line| line.contains(", sleeping: ") && line.contains("msg · link · sleeping")),
        "{both:#?}"
    );
}

#[test]
fn shares_and_n_half_say_what_they_are_of() {
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
fn ethernet_stands_in_the_tables_of_the_documents() {
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
    let line = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start)).expect(start);
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let ours = line("Ethernet, two processes  UDP");
    assert!(
        ours.contains("UDP 9000 8 KiB ") && ours.contains(" 3200 4000 ") && ours.ends_with(" 0.75"),
        "{ours}"
    );
    assert!(ours.contains("125 %"), "{ours}");
    // The kernel's own cable stands last and has nobody between.
    let veth = line("veth, the kernel's own");
    assert!(
        !veth.contains("125 %") && text.find("veth, the kernel's own") > text.find("Ethernet, two processes"),
        "{veth}"
    );
    let verdict = text.lines().find(|line| line.starts_with("Highest one-way rate, sleeping")).unwrap();
    for link in ["eth · veth", "eth · one-process", "eth · two-processes"] {
        assert!(verdict.contains(link), "{verdict}");
    }
    let page = report::render(&session);
    assert!(page.contains("id=\"ethernet\"") && page.contains("µs/KB carriers"));
    assert!(page.contains("carriers between them"), "the plot of CPU per KB shows them too");
}

#[test]
fn no_difference_is_claimed_where_intervals_overlap() {
    let mut session = generated_session();
    for cell in session.cells.iter_mut().filter(|cell| cell.test == "latency") {
        cell.ci95 = Some([0.0, 1e9]);
    }
    let text = report::summary_text(&session);
    assert!(text.contains("no measurable difference from unix · polling"), "{text}");
    assert!(!text.contains("shorter than"), "{text}");
}

#[test]
fn nothing_is_claimed_by_fewer_pairs_than_an_interval_takes() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = generated_session();
    for cell in session.cells.iter_mut().filter(|cell| cell.test == "latency" && cell.level != "msg") {
        // An older version gave an interval to two pairs as well.
        cell.blocks.retain(|block| block.pair < 2);
    }
    let store = stored(&session, directory.path());
    let session = store::read(store.directory()).unwrap();
    let unix = session.cells.iter().find(|cell| cell.level == "unix" && cell.test == "latency").unwrap();
    assert_eq!(unix.ci95, None);
    let text = report::summary_text(&session);
    assert!(text.contains("; too few pairs for a verdict on unix · polling (2.00 µs"), "{text}");
    assert!(!text.contains("shorter than"), "{text}");
    assert!(text.contains("as many as"), "other questions have their verdicts: {text}");
    assert!(report::render(&session).contains("<td class=\"figure\">too few pairs</td>"));
    let line = csv::from_cells(std::slice::from_ref(unix));
    assert!(line.contains(",ns,,,"), "no interval in its fields: {line}");
}

#[test]
fn every_plotted_point_stands_in_a_table() {
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
        assert!(section.contains(&format!("data-download=\"{id}\"")));
        let (drawn, table) = section.split_once("<details>").unwrap();
        let wide = drawn.split("<svg ").find(|svg| svg.contains("class=\"wide usual\"")).unwrap();
        // What a pointer is told of each: the series, where it is, and how much.
        let told = wide.split("<title>").skip(1).filter_map(|title| title.split("</title>").next());
        let told: Vec<Vec<&str>> = told.map(|told| told.lines().collect()).collect();
        let points: Vec<&Vec<&str>> = told.iter().filter(|told| told.len() > 1).collect();
        let has_lines = wide.contains("stroke-dasharray");
        assert!(!points.is_empty() || has_lines, "{id}: nothing is told");
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
fn cells_that_differ_in_anything_have_a_row_each() {
    let mut session = generated_session();
    session.cells.clear();
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
fn the_command_of_a_web_cell_has_no_word_that_the_command_does_not_know() {
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
fn what_is_absent_unstable_or_out_of_line_is_said() {
    let mut session = generated_session();
    let hole = session
        .cells
        .iter_mut()
        .find(|cell| cell.level == "tcp" && cell.test == "stream" && cell.size_bytes == Some(4096));
    hole.unwrap().value /= 10.0;
    session.complete = false;
    let page = report::render(&session);
    assert!(page.contains("tcp · loopback at 4 KiB"), "the hole is flagged");
    assert!(page.contains("no TUN device: load the tun module"));
    assert!(page.contains("interrupted"));
    assert!(!page.contains("changed by more than 5 %"));
    session.cells.last_mut().unwrap().value *= 1.2;
    assert!(report::render(&session).contains("changed by more than 5 %"));
}

#[test]
fn historic_figures_stand_beside_todays() {
    let page = report::render(&generated_session());
    let then = page.split("Then and now").nth(1).unwrap();
    assert!(then.contains("GM performance measurements"));
    // GM 2.1's 5.05 µs against the generated 200 ns.
    assert!(then.contains("5.05 µs") && then.contains("25.2×"), "the factor is worked out");
}

#[test]
fn an_empty_session_is_a_page_too() {
    let session = Session { cells: Vec::new(), absent: Vec::new(), ..generated_session() };
    assert!(report::render(&session).contains("Nothing was measured"));
    assert_eq!(report::summary_text(&session), "\n");
}

#[test]
fn a_stored_session_reads_back_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let session = generated_session();
    let store = stored(&session, directory.path());
    assert!(store::read(store.directory()).unwrap() == session);
    let again = Store::create(store.directory(), &session);
    assert!(matches!(again, Err(StoreError::Occupied(_))));
}

#[test]
fn a_torn_last_line_costs_that_cell_only() {
    let directory = tempfile::tempdir().unwrap();
    let session = generated_session();
    let store = stored(&session, directory.path());
    let path = store.directory().join("cells.jsonl");
    let whole = fs::read(&path).unwrap();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    // Torn off within the two bytes of a µ.
    file.write_all(b"{\"schema\":\"bywire-cell/1\",\"level\":\"\xc2").unwrap();
    assert!(store::read(store.directory()).unwrap().cells == session.cells);
    fs::write(&path, [b"{\"torn\n".as_slice(), &whole].concat()).unwrap();
    let error = store::read(store.directory()).unwrap_err().to_string();
    assert!(error.contains("cells.jsonl, line 1"), "{error}");
}

#[test]
fn cells_that_are_being_measured_are_read_and_none_is_read_twice() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = generated_session();
    session.cells.truncate(2);
    for (cell, began_unix_seconds) in session.cells.iter_mut().zip([1.5, 2.5]) {
        let (before, after) = (Gauge::default(), Gauge::default());
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
    // So the machine may leave a file that it was to write when it stopped.
    let torn = store.directory().join("running/0003.json");
    std::fs::write(&torn, "").unwrap();
    assert!(read() == session.cells);
    let said = store::cut_off(store.directory(), 2).unwrap().expect("something is torn");
    assert!(said.ends_with("running/0003.json: cut off; 2 cells read"), "{said}");
    for cell in &session.cells {
        store.append(cell).unwrap();
        assert!(read() == session.cells, "one of them stands in both places");
    }
    store.forget_running().unwrap();
    store.forget_running().unwrap();
    assert!(read() == session.cells);
}

#[test]
fn what_controls_a_terminal_is_not_read() {
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
fn what_is_no_session_is_refused_in_one_line() {
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
