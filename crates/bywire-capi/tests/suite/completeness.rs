//! C has a counterpart for every public function, event and option of Rust: a table of both is held to the sources on
//! either side.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Each public function of the message layer, and the C functions that stand for it, or why none does.
const FUNCTIONS: [(&str, &[&str]); 56] = [
    ("Address::local", &["bw_connect"]),
    ("Buffer::as_ptr", &["field buffer"]),
    ("Buffer::from_raw", &["bw_send_buffer", "bw_post_receive", "bw_put", "bw_get"]),
    ("Buffer::into_vec", &["field buffer"]),
    ("Buffer::is_borrowed", &["field buffer"]),
    ("Heap::block", &["bw_heap_block"]),
    ("Heap::block_bytes", &["bw_heap_block_bytes"]),
    ("Heap::peer", &["bw_heap_peer"]),
    ("Lent::as_slice", &["bw_lent_memory"]),
    ("Lent::is_empty", &["bw_lent_bytes"]),
    ("Lent::len", &["bw_lent_bytes"]),
    ("Lent::read", &["bw_lent_read"]),
    ("Lent::to_vec", &["bw_lent_read"]),
    ("Payload::into_buffer", &["field buffer"]),
    ("Payload::is_borrowed", &["field buffer"]),
    ("Peer::from_bits", &["type bw_peer_t"]),
    ("Peer::to_bits", &["type bw_peer_t"]),
    ("PeerInfo::pid", &["field pid"]),
    ("PeerInfo::port", &["field address"]),
    ("PeerInfo::uid", &["field uid"]),
    ("Port::address", &["bw_port_address"]),
    ("Port::arm", &["bw_arm"]),
    ("Port::await_room", &["bw_await_room"]),
    ("Port::connect", &["bw_connect"]),
    ("Port::connect_start", &["bw_connect_start"]),
    ("Port::disconnect", &["bw_disconnect"]),
    ("Port::flush", &["bw_flush"]),
    ("Port::get", &["bw_get"]),
    ("Port::has_progressed", &["bw_has_progressed"]),
    ("Port::heap", &["bw_heap_open"]),
    ("Port::name", &["bw_port_name"]),
    ("Port::open", &["bw_port_open"]),
    ("Port::options", &["bw_port_options"]),
    ("Port::peer_info", &["bw_peer_info"]),
    ("Port::peers", &["bw_peers"]),
    ("Port::poll", &["bw_poll"]),
    ("Port::poll_arrived", &["bw_poll_arrived"]),
    ("Port::poll_short", &["bw_poll"]),
    ("Port::poll_short_arrived", &["bw_poll_arrived"]),
    ("Port::post_receive", &["bw_post_receive"]),
    ("Port::put", &["bw_put"]),
    ("Port::recycle", &["bw_event_release"]),
    ("Port::region", &["bw_region_memory"]),
    ("Port::region_mut", &["bw_region_memory"]),
    ("Port::register", &["bw_region_register"]),
    ("Port::revoke", &["bw_region_revoke"]),
    ("Port::send", &["bw_send"]),
    ("Port::send_buffer", &["bw_send_buffer"]),
    ("Port::send_datagram", &["bw_send_datagram"]),
    ("Port::send_headed", &["bw_send"]),
    ("Port::send_lent", &["bw_send_lent"]),
    ("Port::statistics", &["bw_port_statistics"]),
    ("Port::wait", &["bw_wait"]),
    ("PortOptions::named", &["bw_port_options_init"]),
    ("PortOptions::numbered", &["bw_port_options_init"]),
    ("ShortMessage::bytes", &["field data"]),
];

/// What C has besides: what Rust does by traits (drop, slices, display, the descriptor) and by itself.
const C_ONLY: [&str; 10] = [
    "bw_abi_version",
    "bw_block_drop",
    "bw_block_memory",
    "bw_descriptor",
    "bw_error_text",
    "bw_heap_close",
    "bw_last_error_text",
    "bw_lent_return",
    "bw_port_close",
    "bw_version",
];

/// What a field is called in Rust and in C.
type Renamed = &'static [(&'static str, &'static str)];

/// Structures whose every field has one of the same name in C, or the names in C that stand for it.
const FIELDS: [(&str, &str, Renamed); 4] = [
    (
        "message/options.rs",
        "PortOptions",
        &[
            ("geometry", "lanes"),
            ("housekeeping_interval", "housekeeping_interval_ns"),
            ("linger", "linger_ns"),
            ("spin", "spin_ns"),
            ("unreachable_after", "unreachable_after_ns"),
        ],
    ),
    ("port/mod.rs", "Statistics", &[]),
    ("message/peer.rs", "PeerInfo", &[("owner", "user")]),
    ("message/event.rs", "Message", &[("payload", "data")]),
];

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bywire/src").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn header() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/bywire.h");
    fs::read_to_string(path).expect("the header")
}

/// The text of every file of a directory and of those in it.
fn sources(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![fs::read_to_string(&path).expect("a source")],
        })
        .collect()
}

/// `Type::function` for each public function of a type that the crate exports.
fn public_functions() -> BTreeSet<String> {
    let library = source("lib.rs");
    let uses = library.split("\npub use ").skip(1).map(|rest| rest.split(';').next().unwrap_or(rest));
    let exported: BTreeSet<&str> =
        uses.flat_map(|list| list.split(|letter: char| !letter.is_alphanumeric())).collect();
    let mut found = BTreeSet::new();
    for text in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../bywire/src")) {
        let mut owner = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("impl ") {
                let name = name.split([' ', '<']).next().unwrap_or(name);
                owner = (line.ends_with(&format!("{name} {{")) && exported.contains(name))
                    .then(|| name.to_owned());
            } else if line == "}" {
                owner = None;
            }
            let name = ["    pub fn ", "    pub unsafe fn ", "    pub const fn "]
                .into_iter()
                .find_map(|start| line.strip_prefix(start)?.split(['(', '<']).next());
            if let (Some(owner), Some(name)) = (&owner, name) {
                found.insert(format!("{owner}::{name}"));
            }
        }
    }
    found
}

#[test]
fn every_public_function_has_its_row_and_every_row_its_function() {
    let found = public_functions();
    assert!(found.len() > 40, "{found:?}");
    let rows: BTreeSet<String> = FUNCTIONS.iter().map(|(rust, _)| (*rust).to_owned()).collect();
    assert_eq!(found, rows);
}

#[test]
fn every_row_names_what_the_header_has_and_every_function_of_the_header_has_a_row() {
    let header = header();
    let words: BTreeSet<&str> =
        header.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let named = FUNCTIONS.iter().flat_map(|(_, names)| names.iter().copied());
    let mut covered: BTreeSet<&str> = C_ONLY.into_iter().collect();
    for name in named {
        let word = name.split(' ').next_back().expect("a word");
        assert!(words.contains(word), "{name} is not in bywire.h");
        covered.insert(name);
    }
    let declared: BTreeSet<&str> = header
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '(')
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("bw_"))
        .collect();
    let missing: Vec<&&str> = declared.difference(&covered).collect();
    assert!(missing.is_empty(), "{missing:?} of bywire.h stand in no row");
}

#[test]
fn every_event_and_every_field_reaches_c() {
    let header = header();
    let header = header.replace(" *", " ");
    let events = source("message/event.rs");
    let body =
        events.split("pub enum Event {").nth(1).and_then(|rest| rest.split("\n}").next()).expect("events");
    let variants = body
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    let mut count = 0;
    for variant in variants {
        let name: String = variant.chars().take_while(|letter| letter.is_alphanumeric()).collect();
        let constant = format!("BW_EVENT_{} =", snake(&name).to_uppercase());
        assert!(header.contains(&constant), "Event::{name}: no {constant} in bywire.h");
        count += 1;
    }
    assert!(count >= 11, "only {count} events found: the file looks different now");
    for (file, structure, renamed) in FIELDS {
        let text = source(file);
        let start = format!("pub struct {structure} {{");
        let body = text.split(&start).nth(1).and_then(|rest| rest.split("\n}").next()).expect(structure);
        let fields: Vec<&str> =
            body.lines().filter_map(|line| line.strip_prefix("    pub ")?.split(':').next()).collect();
        assert!(!fields.is_empty(), "{structure} has no public field: the file looks different now");
        for field in fields {
            let name = renamed.iter().find(|(rust, _)| *rust == field).map_or(field, |(_, c)| c);
            assert!(
                header
                    .lines()
                    .any(|line| line.ends_with(&format!(" {name};")) || line.contains(&format!("{name}["))),
                "{structure}::{field}: no field {name} in bywire.h"
            );
        }
    }
}

/// The manual's pages name nothing that does not exist, in C or in Rust.
#[test]
fn every_enumeration_of_the_interface_is_in_the_header() {
    let header = header();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = fs::read_dir(directory).expect("the sources").map(|entry| entry.expect("an entry").path());
    let text = files.filter(|path| path.is_file()).map(|path| fs::read_to_string(path).expect("a source"));
    let text = text.collect::<String>();
    let names: Vec<&str> =
        text.split("pub enum bw_").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(
            header.contains(&format!("}} bw_{name};")),
            "bw_{name} is not in bywire.h: add it to cbindgen.toml"
        );
    }
}

#[test]
fn pages_name_existing_functions() {
    let header = header();
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.map(str::to_owned).collect()
    };
    let known = words(&header);
    let functions = public_functions();
    let sources = [
        "message/error.rs",
        "message/event.rs",
        "message/options.rs",
        "message/peer.rs",
        "message/region.rs",
    ]
    .map(source)
    .join("\n");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let cpp = ["bywire.hpp", "bywire/result.hpp"].map(|name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include").join(name);
        fs::read_to_string(path).expect(name)
    });
    let cpp = words(&cpp.join("\n"));
    let mut count = 0;
    for page in ["c.md", "gm.md"] {
        let text = fs::read_to_string(root.join(page)).expect(page);
        for word in words(&text).into_iter().filter(|word| word.starts_with("bw_") || word.starts_with("BW_"))
        {
            assert!(known.contains(&word) || word == "bw_", "{page}: there is no {word} in bywire.h");
            count += 1;
        }
        let prose: String = text.split("```").step_by(2).collect();
        let quoted = prose.split('`').skip(1).step_by(2).filter(|quoted| quoted.contains("::"));
        for quoted in quoted.map(|quoted| quoted.split(' ').next().unwrap_or(quoted)) {
            let (owner, name) = quoted.split_once("::").expect("filtered");
            if owner == "std" {
                continue;
            }
            if ["bywire", "errc"].contains(&owner) {
                // `bywire::static` is no class but a target of CMake.
                assert!(cpp.contains(name) || name == "static", "{page}: there is no {quoted} in bywire.hpp");
                continue;
            }
            let body = sources.split(&format!("pub enum {owner} {{")).nth(1);
            let is_variant = body.and_then(|rest| rest.split("\n}").next()).is_some_and(|body| {
                body.lines()
                    .any(|line| words(line).contains(name) && line.starts_with(&format!("    {name}")))
            });
            assert!(is_variant || functions.contains(quoted), "{page}: there is no {quoted} in Rust");
            count += 1;
        }
    }
    assert!(count > 80, "only {count} names found: the pages look different now");
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
