//! The levels: what is under test, by which tests, carried by what. Each has one row.

use bywire_results::level::Test;
use bywire_results::name::unknown;
use bywire_results::{ethernet, mpi, web};

use crate::ending::Misuse;
use crate::memory;
use crate::request::MEMORY;

/// A word of the command line, with a line about it.
pub type Word = (&'static str, &'static str);

/// One level.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name on the command line and in cells.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Its tests.
    pub tests: fn() -> Vec<Word>,
    /// What may carry its messages, where it has a choice.
    pub links: fn() -> Vec<Word>,
}

/// Every level, in the order of its help.
pub const LEVELS: [Row; 9] = [
    Row {
        tests: || memory::Test::ALL.map(|(name, test)| (name, test.about())).to_vec(),
        ..sockets(MEMORY, "the machine itself: what no way of sending can beat")
    },
    Row { links: || vec![("shm", "rings in sealed shared memory")], ..sockets("msg", "the message layer") },
    sockets("unix", "the kernel's Unix-domain sockets"),
    sockets("tcp", "the kernel's TCP"),
    sockets(
        "sock",
        "the same program and calls as tcp, its connections carried in memory as by `bywire run`",
    ),
    sockets("udp", "the kernel's UDP"),
    Row {
        links: || ethernet::Link::ALL.iter().map(|link| (link.name(), link.about())).collect(),
        ..sockets(
            ethernet::LEVEL,
            "the kernel's TCP, with what it sent again, or UDP over Ethernet of the fabric, or over plain veth (needs root)",
        )
    },
    Row {
        tests: || mpi::TESTS.iter().map(|test| (test.name(), test.about())).collect(),
        links: || mpi::Link::ALL.iter().map(|link| (link.name(), link.about())).collect(),
        ..sockets("mpi", "MPI implementations as they come, between two ranks that poll")
    },
    Row {
        tests: || web::Test::ALL.iter().map(|test| (test.name(), test.about())).collect(),
        links: || web::Link::ALL.iter().map(|link| (link.name(), link.about())).collect(),
        ..sockets(web::LEVEL, "nginx and Apache, asked over connections that stay open")
    },
];

/// A level that has every test of messages and one way to carry them.
const fn sockets(name: &'static str, about: &'static str) -> Row {
    let tests = || Test::ALL.iter().map(|test| (test.name(), test.about())).collect();
    Row { name, about, tests, links: Vec::new }
}

/// Their names.
pub fn names() -> Vec<&'static str> {
    LEVELS.iter().map(|level| level.name).collect()
}

/// The level of that name.
///
/// # Errors
/// There is none: one line with those that there are.
pub fn level(name: &str) -> Result<&'static Row, Misuse> {
    LEVELS.iter().find(|level| level.name == name).ok_or_else(|| Misuse(unknown("level", name, &names())))
}

/// Every test of any level, each once.
pub fn tests() -> Vec<Word> {
    let mut tests: Vec<Word> = Vec::new();
    for test in LEVELS.iter().flat_map(|level| (level.tests)()) {
        if !tests.contains(&test) {
            tests.push(test);
        }
    }
    tests
}
