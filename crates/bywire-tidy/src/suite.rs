//! Each module of tests begins with what it proves, and [`PAGE`] lists all of them.

use crate::breach::Breach;
use crate::tree::Tree;

/// The list of suites. [`page`] makes it.
pub const PAGE: &str = "docs/suites.md";
/// The program of tests that each crate has. Its modules are suites; every other program is one suite.
const PROGRAM: &str = "suite";
/// Options that a suite's documentation names in backquotes, if `cargo test` needs them.
const OPTIONS: [(&str, &str, &str); 2] =
    [("`--release`", "--release ", ""), ("`--test-threads=1`", "", " -- --test-threads=1")];
const BEGINNING: &str = "# Test suites

This page lists every test suite, what it proves, and the command that runs it alone. [testing.md](testing.md) explains
the tiers and what the tests need. The words are the first paragraph of each module's documentation, and many modules say
more. `cargo run -p bywire-tidy -- suites` writes this page anew, and `./x check` says when it is stale.
";

/// A module of tests, or a program of tests.
#[derive(Clone, Copy)]
struct Suite<'tree> {
    package: &'tree str,
    program: &'tree str,
    /// The module's path with slashes. It is empty for a whole program.
    module: &'tree str,
    path: &'tree str,
    text: &'tree str,
}

impl<'tree> Suite<'tree> {
    /// The suite of a file in a crate's folder of tests, if it is Rust.
    fn new(package: &'tree str, folder: &str, path: &'tree str, text: &'tree str) -> Option<Self> {
        let name = path.strip_prefix(folder)?.strip_suffix(".rs")?;
        let name = name.strip_suffix("/mod").or(name.strip_suffix("/main")).unwrap_or(name);
        let (program, module) = name.split_once('/').unwrap_or((name, ""));
        Some(Self { package, program, module, path, text })
    }

    /// Returns whether `other` is this module or one inside it.
    fn encloses(&self, other: &Self) -> bool {
        let rest = other.module.strip_prefix(self.module);
        self.program == other.program && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The first paragraph of its documentation, in one line.
    fn summary(&self) -> String {
        let lines = documentation(self.text).map(str::trim).take_while(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join(" ")
    }

    /// The command that runs it alone.
    fn command(&self) -> String {
        let documentation: Vec<_> = documentation(self.text).collect();
        let needs = |option: &str| documentation.iter().any(|line| line.contains(option));
        let (mut before, mut behind) = (String::new(), String::new());
        for (_, first, last) in OPTIONS.iter().filter(|(option, ..)| needs(option)) {
            before.push_str(first);
            behind.push_str(last);
        }
        let module = match self.module {
            "" => String::new(),
            module => format!(" {}::", module.replace('/', "::")),
        };
        format!("cargo test {before}-p {} --test {}{module}{behind}", self.package, self.program)
    }

    fn row(&self) -> String {
        let name = if self.module.is_empty() { self.program } else { self.module }.replace('/', "::");
        let summary = self.summary().replace('|', "\\|");
        format!("| [{name}](../{}) | {summary} | `{}` |\n", self.path, self.command())
    }
}

/// The lines of documentation with which a file begins, without their marks.
fn documentation(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map_while(|line| line.strip_prefix("//!"))
}

/// The suites of all crates, by crate, program and module.
fn suites(tree: &Tree) -> Vec<Suite<'_>> {
    let mut found = Vec::new();
    for (package, member) in &tree.crates {
        let folder = format!("{}/tests/", member.directory);
        let files = tree.files.iter().filter_map(|(path, text)| Suite::new(package, &folder, path, text));
        let files: Vec<_> = files.collect();
        let with_tests: Vec<_> = files.iter().filter(|file| file.text.contains("#[test]")).collect();
        let is_suite = |file: &&Suite<'_>| match file.module {
            "" => file.program != PROGRAM,
            _ => with_tests.iter().any(|other| file.encloses(other)),
        };
        let mut suites: Vec<_> = files.iter().filter(is_suite).copied().collect();
        suites.sort_by_key(|suite| (suite.program, suite.module));
        found.extend(suites);
    }
    found
}

/// The text of [`PAGE`].
pub fn page(tree: &Tree) -> String {
    let mut page = BEGINNING.to_owned();
    let mut package = "";
    for suite in suites(tree) {
        if package != suite.package {
            package = suite.package;
            page.push_str(&format!(
                "\n## {package}\n\n| suite | what it proves | command |\n| --- | --- | --- |\n"
            ));
        }
        page.push_str(&suite.row());
    }
    page
}

/// One breach per suite that does not begin with its documentation, and one if [`PAGE`] is stale.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let silent = suites(tree).into_iter().filter(|suite| suite.summary().is_empty());
    let mut breaches: Vec<_> = silent
        .map(|suite| Breach {
            path: suite.path.to_owned(),
            line: 1,
            reason: "begin this file with `//!` and what its tests prove".to_owned(),
        })
        .collect();
    let (made, found) = (page(tree), tree.files.get(PAGE).map_or("", String::as_str));
    if made != found {
        let same = made.lines().zip(found.lines()).take_while(|(made, found)| made == found).count();
        breaches.push(Breach {
            path: PAGE.to_owned(),
            line: same + 1,
            reason: "stale: write it anew by `cargo run -p bywire-tidy -- suites`".to_owned(),
        });
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "#[test]\nfn it_holds() {}\n";

    /// A crate with these files of tests.
    fn tree(files: &[(&str, &str)]) -> Tree {
        let files: Vec<_> =
            files.iter().map(|(name, text)| (format!("crates/bywire-a/tests/{name}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        Tree::of(&files).with_crate("bywire-a", &[])
    }

    /// The list's rows for these files.
    fn rows(files: &[(&str, &str)]) -> Vec<String> {
        let page = page(&tree(files));
        page.lines().filter(|line| line.starts_with("| [")).map(str::to_owned).collect()
    }

    #[test]
    fn a_suite_is_listed_with_its_first_paragraph_and_its_command() {
        let text = format!("//! Ends are told.\n//! Once | twice.\n//!\n//! More.\n\n{TEST}");
        assert_eq!(
            rows(&[("suite/ends.rs", &text)]),
            [
                "| [ends](../crates/bywire-a/tests/suite/ends.rs) | Ends are told. Once \\| twice. | `cargo test \
              -p bywire-a --test suite ends::` |"
            ]
        );
    }

    #[test]
    fn modules_within_modules_are_listed_behind_those_that_enclose_them() {
        let inner = format!("//! Inner.\n{TEST}");
        let rows = rows(&[
            ("suite/outer/inner.rs", &inner),
            ("suite/outer/mod.rs", "//! Outer.\nmod inner;\n"),
            ("suite/outer/helper.rs", "//! Helps.\n"),
            ("suite/outermost/mod.rs", "//! Helps.\n"),
            ("suite/main.rs", "mod outer;\n"),
        ]);
        let modules: Vec<_> = rows.iter().filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(
            modules,
            [
                "cargo test -p bywire-a --test suite outer::",
                "cargo test -p bywire-a --test suite outer::inner::"
            ]
        );
    }

    #[test]
    fn a_program_of_its_own_is_one_suite() {
        let files = [("speed.rs", "//! Fast, with `--release`.\n"), ("counts/main.rs", "//! Counts.\n")];
        let rows = rows(&files);
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert!(rows[0].ends_with("`cargo test -p bywire-a --test counts` |"), "{rows:?}");
        assert!(rows[1].ends_with("`cargo test --release -p bywire-a --test speed` |"), "{rows:?}");
    }

    #[test]
    fn options_that_the_documentation_names_are_part_of_the_command() {
        let text = format!("//! Counts.\n//!\n//! It needs `--test-threads=1`.\n{TEST}");
        let rows = rows(&[("suite/counts.rs", &text)]);
        assert!(rows[0].ends_with(" --test suite counts:: -- --test-threads=1` |"), "{rows:?}");
    }

    #[test]
    fn suites_without_documentation_and_a_stale_page_are_breaches() {
        let mut tree = tree(&[("suite/silent.rs", TEST), ("suite/helper.rs", "fn helps() {}\n")]);
        tree.files.insert(PAGE.to_owned(), page(&tree));
        let breaches = check(&tree);
        assert_eq!(breaches.len(), 1, "{breaches:?}");
        assert!(breaches[0].path.ends_with("suite/silent.rs") && breaches[0].reason.contains("`//!`"));

        let documented = format!("//! It holds.\n{TEST}");
        tree.files.insert("crates/bywire-a/tests/suite/silent.rs".to_owned(), documented);
        let breaches = check(&tree);
        assert_eq!(breaches.len(), 1, "{breaches:?}");
        assert!(breaches[0].path == PAGE && breaches[0].reason.contains("-- suites`"), "{breaches:?}");
        tree.files.insert(PAGE.to_owned(), page(&tree));
        assert_eq!(check(&tree), []);
    }
}
