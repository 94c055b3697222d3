//! Pages name only files in the tree, and the walks name only functions in those files.

use crate::breach::Breach;
use crate::tree::Tree;

/// The page whose tables name functions in their last column.
const WALKS: &str = "docs/walks.md";
/// The first directories of the tree's paths.
const ROOTS: [&str; 7] = ["crates/", "conformance/", "docs/", "examples/", "fuzz/", "lab/", "packaging/"];

/// One breach per quoted path that does not exist, and per function that its file does not have.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (page, text) in tree.ending_in(&[".md"]) {
        for (index, line) in text.lines().enumerate() {
            let mut report =
                |reason| breaches.push(Breach { path: page.to_owned(), line: index + 1, reason });
            for path in quoted(line).filter(|quoted| is_path(quoted)) {
                if !tree.has(path.trim_end_matches('/')) {
                    report(format!("there is no {path}"));
                } else if page == WALKS
                    && let Some(file) = tree.files.get(path)
                {
                    let lacking = functions(line).filter(|name| !has_function(file, name));
                    lacking.for_each(|name| report(format!("{path} has no function {name}")));
                }
            }
        }
    }
    breaches
}

/// The texts between backquotes in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Is the text a path of this tree, and neither a pattern nor part of a command?
fn is_path(quoted: &str) -> bool {
    ROOTS.iter().any(|root| quoted.starts_with(root)) && !quoted.contains(['*', ' ', '{', '…'])
}

/// The functions in the last cell of a table's row, without their types.
fn functions(row: &str) -> impl Iterator<Item = &str> {
    let last = row.trim_end().strip_suffix('|').and_then(|row| row.rsplit('|').next());
    quoted(last.unwrap_or_default()).map(|name| name.rsplit("::").next().unwrap_or(name))
}

fn has_function(file: &str, name: &str) -> bool {
    let definition = format!("fn {name}");
    file.match_indices(&definition).any(|(start, found)| file[start + found.len()..].starts_with(['(', '<']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: (&str, &str) = ("crates/bywire/src/port.rs", "pub fn send(&mut self) {}\nfn poll<M>() {}\n");

    #[test]
    fn missing_files_are_breaches() {
        let page =
            "See `crates/bywire/src/port.rs`, `crates/bywire/` and `crates/*/src`.\nAnd `crates/old.rs`.\n";
        let breaches = check(&Tree::of(&[("docs/page.md", page), PORT]));
        assert_eq!(breaches.len(), 1, "{breaches:?}");
        assert!(breaches[0].line == 2 && breaches[0].reason.contains("crates/old.rs"));
    }

    #[test]
    fn missing_functions_are_breaches() {
        let page = "| it sends | `crates/bywire/src/port.rs` | `Port::send`, `poll`, `sen` |\n";
        let breaches = check(&Tree::of(&[(WALKS, page), PORT]));
        assert_eq!(breaches.len(), 1, "{breaches:?}");
        assert!(breaches[0].reason.ends_with("no function sen"));
    }
}
