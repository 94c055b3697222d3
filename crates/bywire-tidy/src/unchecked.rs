//! Unsafe code stays in a few named places, where a reader expects it.

use crate::breach::Breach;
use crate::tree::Tree;

/// Crates for unsafe code, then single files with their reason.
const NAMED: [&str; 28] = [
    "crates/bywire-sys/",
    "crates/bywire-ring/",
    "crates/bywire-capi/",
    "crates/bywire-sockets/",
    // Objects of an interpreter, whose memory the library fills and whose interpreter reads the library's.
    "crates/bywire-python/",
    // Buffers lent to the program out of shared memory.
    "crates/bywire/src/message/buffer.rs",
    "crates/bywire/src/message/lend.rs",
    // The processor's time-stamp counter.
    "lab/measure/src/clock.rs",
    // A mapping shared by the two ends of a ceiling's measurement.
    "lab/measure/src/memory.rs",
    // The calls of libfabric's programs, their functions in the other direction, and memory that programs leave to operations.
    "crates/bywire-ofi/src/entry/",
    "crates/bywire-ofi/src/host.rs",
    "crates/bywire-ofi/src/memory.rs",
    "crates/bywire-ofi/src/operation.rs",
    "crates/bywire-ofi/src/regions.rs",
    // Reading memory lent by the other end of the same measurement.
    "lab/measure/src/transport/msg.rs",
    // Bytes that two threads hand to each other, and two mappings of one ring, one of them read-only.
    "lab/figures/src/bare_copy.rs",
    "lab/figures/src/bare_ring.rs",
    // Counting allocators.
    "crates/bywire-eth/tests/suite/carrier.rs",
    "crates/bywire-sim/tests/memory.rs",
    "crates/bywire-stream/tests/allocations.rs",
    // Packet sockets, which report a frame's tag beside the frame.
    "crates/bywire-eth/tests/suite/vlan.rs",
    // Entering a namespace between fork and exec.
    "lab/measure/src/namespaces.rs",
    // Forking, becoming another user, mounting a file system, and watching stores by their faults.
    "crates/bywire/tests/suite/fork.rs",
    "crates/bywire/tests/suite/fuse/",
    "crates/bywire/tests/suite/step/",
    "crates/bywire/tests/suite/users.rs",
    // Memory that changes while it is put.
    "crates/bywire/tests/suite/urgent.rs",
    // The words of this rule itself.
    "crates/bywire-tidy/src/unchecked.rs",
];

const FORMS: [&str; 5] = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe("];

/// One breach per line elsewhere that opens something unsafe.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let sources = tree.ending_in(&[".rs"]);
    let others = sources.filter(|(path, _)| !NAMED.iter().any(|named| path.starts_with(named)));
    let lines = others.flat_map(|(path, text)| text.lines().enumerate().map(move |line| (path, line)));
    let opened = lines.filter(|(_, (_, line))| FORMS.iter().any(|form| line.contains(form)));
    let misplaced = opened.map(|(path, (index, _))| Breach {
        path: path.to_owned(),
        line: index + 1,
        reason: "unsafe outside its named places: move it to bywire-sys, or name the place and why in \
                 crates/bywire-tidy/src/unchecked.rs"
            .to_owned(),
    });
    misplaced.chain(unreasoned(tree)).collect()
}

/// Finds SAFETY comments that refer to another one. Its invariant need not hold here, or after the next change.
fn unreasoned(tree: &Tree) -> impl Iterator<Item = Breach> {
    let phrase = format!("{}: as above", "SAFETY");
    let sources = tree.ending_in(&[".rs"]);
    let lines = sources.flat_map(|(path, text)| text.lines().enumerate().map(move |line| (path, line)));
    lines.filter(move |(_, (_, line))| line.contains(&phrase)).map(|(path, (index, _))| Breach {
        path: path.to_owned(),
        line: index + 1,
        reason: "a reason that stands elsewhere: say what holds here, and who upholds it".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_outside_the_named_places_is_a_breach() {
        let text = "fn safe() {}\nlet word = unsafe { *pointer };\n";
        let tree =
            Tree::of(&[("crates/bywire-wire/src/frame.rs", text), ("crates/bywire-sys/src/clock.rs", text)]);
        let found: Vec<_> = check(&tree).into_iter().map(|breach| (breach.path, breach.line)).collect();
        assert_eq!(found, [("crates/bywire-wire/src/frame.rs".to_owned(), 2)]);
        let text = format!("// {}: as above.\n", "SAFETY");
        let found = check(&Tree::of(&[("crates/bywire-sys/src/clock.rs", &text)]));
        assert_eq!(found.len(), 1);
    }
}
