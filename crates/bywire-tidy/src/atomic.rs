//! Raw atomics stay in the crates where they are proved. Other code shares data by channels, locks or the message
//! layer.

use crate::breach::Breach;
use crate::tree::Tree;

/// The crates for memory shared between threads or processes, the laboratory that measures it, the bare ring that it
/// is compared with, the file of the C boundary that detects misuse by threads, and the peer of the tests that breaks the
/// rules of such memory.
const NAMED: [&str; 10] = [
    "crates/bywire-sys/",
    "crates/bywire-ring/",
    "crates/bywire/",
    "crates/bywire-sockets/",
    "lab/measure/",
    "lab/figures/src/bare_copy.rs",
    "lab/figures/src/bare_ring.rs",
    "crates/bywire-capi/src/call_guard.rs",
    "crates/bywire-testing/src/rogue.rs",
    "fuzz/",
];

/// One breach per line of another crate that names a raw atomic.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let modules = ["core", "std"].map(|library| format!("{library}::sync::atomic"));
    let sources = tree.ending_in(&[".rs"]);
    let others = sources.filter(|(path, _)| !NAMED.iter().any(|named| path.starts_with(named)));
    let lines = others.flat_map(|(path, text)| text.lines().enumerate().map(move |line| (path, line)));
    let raw = lines.filter(|(_, (_, line))| modules.iter().any(|module| line.contains(module)));
    raw.map(|(path, (index, _))| Breach {
        path: path.to_owned(),
        line: index + 1,
        reason: format!("raw atomics belong into {}", NAMED.join(", ")),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_atomic_outside_the_named_crates_is_a_breach() {
        let line = format!("use {}::sync::atomic::AtomicU32;\n", "std");
        let tree =
            Tree::of(&[("crates/bywire-ring/src/ring.rs", &line), ("crates/bywire-cli/src/main.rs", &line)]);
        let breaches = check(&tree);
        assert_eq!(breaches.len(), 1);
        assert_eq!((breaches[0].path.as_str(), breaches[0].line), ("crates/bywire-cli/src/main.rs", 1));
    }
}
