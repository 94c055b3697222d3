//! An ordering access names the access with which it pairs, as it orders nothing alone.

use crate::breach::Breach;
use crate::tree::Tree;

/// The crates with memory shared between programs that do not trust each other.
const NAMED: [&str; 2] = ["crates/bywire-ring/src/", "crates/bywire-sockets/src/"];

/// All but `Relaxed`, which orders nothing.
const ORDERS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// A comment may cover several accesses, the last of them this many lines below it.
const LINES: usize = 12;

/// One breach per access without a comment that names its partner.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let sources = tree.ending_in(&[".rs"]);
    let shared = sources.filter(|(path, _)| {
        NAMED.iter().any(|named| path.starts_with(named)) && !path.ends_with("/tests.rs")
    });
    shared.flat_map(|(path, text)| breaches(path, text)).collect()
}

fn breaches(path: &str, text: &str) -> Vec<Breach> {
    let code = text.split("#[cfg(test)]").next().unwrap_or(text);
    let lines: Vec<&str> = code.lines().collect();
    let is_bare = |index: &usize| orders(lines[*index]) && !is_named(&lines[..=*index]);
    let bare = (0..lines.len()).filter(is_bare);
    bare.map(|index| Breach {
        path: path.to_owned(),
        line: index + 1,
        reason: "an ordering without its partner: say above it which access it pairs with".to_owned(),
    })
    .collect()
}

fn orders(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    ORDERS.iter().any(|order| code.contains(&format!("Ordering::{order}")))
}

/// Is there such a comment in the last [`LINES`] of these lines, and in the same function?
fn is_named(lines: &[&str]) -> bool {
    let near = lines.iter().rev().take(LINES);
    let here = near.take_while(|line| !line.trim_start().starts_with("fn ") && !line.contains(" fn "));
    here.filter_map(|line| line.split_once("//")).any(|(_, comment)| {
        let comment = comment.to_lowercase();
        ["pairs with", "pair with"].iter().any(|words| comment.contains(words))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_without_a_partner_is_a_breach() {
        let named = "fn f() {\n    // Acquire: pairs with the release store in `g`.\n    a.load(Ordering::Acquire);\n}\n";
        let bare = "fn g() {\n    a.load(Ordering::Relaxed);\n    a.store(1, Ordering::Release);\n}\n";
        let text = format!("{named}{bare}");
        let paths = ["crates/bywire-sockets/src/a.rs", "lab/measure/src/a.rs"];
        let tree = Tree::of(&[(paths[0], &text), (paths[1], &text)]);
        let breaches = check(&tree);
        assert_eq!(breaches.len(), 1, "{breaches:?}");
        assert_eq!((breaches[0].path.as_str(), breaches[0].line), (paths[0], 7));
    }
}
