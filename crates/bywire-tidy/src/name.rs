//! Files and functions are named after what they hold or do.

use crate::breach::Breach;
use crate::tree::Tree;

/// Names without a meaning.
const EMPTY_NAMES: [&str; 8] = ["common", "helper", "helpers", "misc", "stuff", "util", "utility", "utils"];

/// One breach per empty name of a file, directory or inline module, and per function named `get_…`.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (path, text) in tree.ending_in(&[".rs", ".c", ".cpp", ".h", ".hpp", ".sh"]) {
        let parts = path.split('/').map(|part| part.split('.').next().unwrap_or(part));
        if let Some(name) = parts.into_iter().find(|part| EMPTY_NAMES.contains(part)) {
            breaches.push(breach(path, 0, format!("{name:?} says nothing: name it for what it holds")));
        }
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> =
                line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
            for pair in words.windows(2) {
                if pair[0] == "mod" && EMPTY_NAMES.contains(&pair[1]) {
                    breaches.push(breach(path, index + 1, format!("module {:?} says nothing", pair[1])));
                }
                if pair[0] == "fn" && pair[1].starts_with("get_") {
                    breaches.push(breach(path, index + 1, format!("{}: leave out `get_`", pair[1])));
                }
            }
        }
    }
    breaches
}

fn breach(path: &str, line: usize, reason: String) -> Breach {
    Breach { path: path.to_owned(), line, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_names_are_breaches() {
        let tree = Tree::of(&[
            ("crates/one/src/util.rs", ""),
            ("crates/one/src/misc/ring.rs", ""),
            (
                "crates/one/src/ring.rs",
                concat!("pub fn ge", "t_length() {}\npub mod hel", "pers {}\nfn target_of() {}\n"),
            ),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|breach| (breach.path, breach.line)).collect();
        let expected = [("misc/ring.rs", 0), ("ring.rs", 1), ("ring.rs", 2), ("util.rs", 0)];
        assert_eq!(found, expected.map(|(path, line)| (format!("crates/one/src/{path}"), line)));
    }
}
