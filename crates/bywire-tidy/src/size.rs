//! Files stay readable: at most [`LINES_MAX`] lines without their tests.

use crate::breach::Breach;
use crate::tree::Tree;

/// A longer file is hard to keep in mind.
const LINES_MAX: usize = 800;

/// One breach per file that is too long.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let sources = tree.ending_in(&[".rs", ".c", ".cpp", ".h", ".hpp", ".sh"]);
    let sources = sources.filter(|(path, _)| !path.contains("/tests/") && !path.ends_with("/tests.rs"));
    let lengths = sources.map(|(path, text)| (path, lines_without_tests(text)));
    let long = lengths.filter(|(_, lines)| *lines > LINES_MAX);
    long.map(|(path, lines)| Breach {
        path: path.to_owned(),
        line: 0,
        reason: format!("{lines} lines without tests: split it, at most {LINES_MAX} fit"),
    })
    .collect()
}

/// Counts the lines before the test module, which is the last in a file.
fn lines_without_tests(text: &str) -> usize {
    let mut lines = text.lines().zip(text.lines().skip(1)).enumerate();
    let tests = lines.find(|(_, (line, next))| *line == "#[cfg(test)]" && next.starts_with("mod tests"));
    tests.map_or_else(|| text.lines().count(), |(line, _)| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_except_tests_are_breaches() {
        let long = "\n".repeat(LINES_MAX + 1);
        let tested = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let tree = Tree::of(&[("src/long.rs", &long), ("src/tested.rs", &tested), ("tests/long.rs", "")]);
        let breaches = check(&tree);
        assert_eq!(breaches.len(), 1);
        assert!(breaches[0].path == "src/long.rs" && breaches[0].reason.contains("801"));
    }
}
