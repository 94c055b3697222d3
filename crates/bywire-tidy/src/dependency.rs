//! Each external dependency has a line with its reason in [`PAGE`], each line has its dependency, and each crate uses
//! the dependencies of its manifest.

use std::collections::BTreeMap;

use crate::breach::Breach;
use crate::tree::Tree;

/// A table. Each row begins with the name of a dependency in backquotes.
const PAGE: &str = "docs/dependencies.md";

/// One breach per dependency without a line, per line without a dependency, and per dependency without a use.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let mut breaches = explained(tree);
    breaches.extend(used(tree));
    breaches
}

fn explained(tree: &Tree) -> Vec<Breach> {
    let listed = listed(tree.files.get(PAGE).map_or("", String::as_str));
    let mut used = BTreeMap::new();
    for (name, member) in &tree.crates {
        for dependency in member.dependencies.iter().filter(|dependency| !dependency.ours) {
            used.entry(dependency.name.as_str()).or_insert(name);
        }
    }
    let unexplained = used.iter().filter(|(name, _)| !listed.contains_key(**name)).map(|(name, user)| {
        (0, format!("{name} ({user} uses it) has no line: say why it is needed and what else was considered"))
    });
    let stale = listed.iter().filter(|(name, _)| !used.contains_key(name.as_str()));
    let stale = stale.map(|(name, line)| (*line, format!("{name} is no longer used: remove its line")));
    unexplained.chain(stale).map(|(line, reason)| Breach { path: PAGE.to_owned(), line, reason }).collect()
}

fn used(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (name, member) in &tree.crates {
        let directory = format!("{}/", member.directory);
        let sources = || tree.ending_in(&[".rs"]).filter(|(path, _)| path.starts_with(&directory));
        // A crate that depends on itself, for its tests, has cargo build what they load.
        let others = member.dependencies.iter().filter(|dependency| dependency.name != *name);
        let unused = others.filter(|dependency| {
            let module = format!("{}::", dependency.name.replace('-', "_"));
            let imported = format!("use {};", dependency.name.replace('-', "_"));
            !sources().any(|(_, text)| text.contains(&module) || text.contains(&imported))
        });
        breaches.extend(unused.map(|dependency| Breach {
            path: format!("{directory}Cargo.toml"),
            line: 0,
            reason: format!("{} is not used: remove it", dependency.name),
        }));
    }
    breaches
}

/// The names in the first column, with their lines.
fn listed(page: &str) -> BTreeMap<String, usize> {
    let rows = page.lines().enumerate().filter_map(|(index, line)| {
        let name = line.strip_prefix("| `")?.split('`').next()?;
        Some((name.to_owned(), index + 1))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Dependency;

    #[test]
    fn the_page_and_the_manifests_list_the_same_dependencies() {
        let on = |name: &str, ours| Dependency { name: name.to_owned(), ours, development: true };
        let page = "| name | why |\n| --- | --- |\n| `rustix` | system calls |\n| `gone` | once |\n";
        let tree = Tree::of(&[(PAGE, page)])
            .with_crate("bywire-sys", &[on("rustix", false), on("loom", false), on("bywire-ring", true)]);
        let breaches = explained(&tree);
        assert_eq!(breaches.len(), 2, "{breaches:?}");
        assert!(breaches[0].reason.starts_with("loom (bywire-sys"));
        assert!(breaches[1].reason.starts_with("gone") && breaches[1].line == 4);
    }

    #[test]
    fn a_dependency_without_a_use_is_a_breach() {
        let on = |name: &str| Dependency { name: name.to_owned(), ours: false, development: false };
        let source = "use clap_complete::Shell;\nuse libc;\n";
        let tree =
            Tree::of(&[("crates/one/src/lib.rs", source), ("crates/two/src/lib.rs", "use idle::Thing;\n")])
                .with_crate("one", &[on("clap_complete"), on("libc"), on("idle")]);
        let reasons: Vec<String> = used(&tree).into_iter().map(|breach| breach.reason).collect();
        assert_eq!(reasons, ["idle is not used: remove it"]);
    }
}
