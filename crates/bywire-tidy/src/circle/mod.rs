//! Modules of a crate form no circle: each can be read, tested and moved after the modules that it names.
//!
//! A module names another by a `use` or by a path. A name that a module only re-exports leads to the module that
//! defines it. Code under `#[cfg(test)]` does not count.

mod references;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use crate::breach::Breach;
use crate::tree::Tree;
use references::Modules;

/// Files of one crate, each of which leads to each other one.
pub type Circle<'a> = BTreeSet<&'a str>;

/// One breach for each circle.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let breach = |circle: &Circle| Breach {
        path: circle.first().copied().unwrap_or_default().to_owned(),
        line: 0,
        reason: format!("modules in a circle: move what they share to a lower one: {}", shown(circle)),
    };
    circles(&tree.files).iter().map(breach).collect()
}

/// Every circle of the tree, the largest first.
pub fn circles(files: &BTreeMap<String, String>) -> Vec<Circle<'_>> {
    let roots = files.keys().filter(|path| is_root(path));
    let mut circles: Vec<Vec<String>> = Vec::new();
    for root in roots {
        let modules = Modules::of(root, files);
        let found = of_graph(&modules.edges());
        circles.extend(found.into_iter().map(|circle| circle.into_iter().map(str::to_owned).collect()));
    }
    let own = |file: &String| files.get_key_value(file).map(|(key, _)| key.as_str());
    let mut circles: Vec<Circle> =
        circles.iter().map(|circle| circle.iter().filter_map(own).collect()).collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// The first file of a library or a program, tests and benches excepted.
fn is_root(path: &str) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") || path.contains("/src/bin/")
}

/// The files of a circle in one line.
pub fn shown(circle: &Circle) -> String {
    circle.iter().copied().collect::<Vec<_>>().join(", ")
}

/// The strongly connected components of more than one file.
fn of_graph<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Circle<'a>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|from| (*from, reach(edges, from))).collect();
    let mut circles: Vec<Circle> = Vec::new();
    for (from, to) in &reached {
        let circle: Circle = to.iter().copied().filter(|file| reached[file].contains(from)).collect();
        if circle.contains(from) && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

/// All files that `from` leads to in one step or more.
fn reach<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = edges[from].iter().copied().collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(edges[file].iter().copied());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(path, text)| (format!("crates/one/src/{path}"), (*text).to_owned())).collect()
    }

    fn found(of: &[(&str, &str)]) -> Vec<String> {
        let files = files(of);
        let circles = circles(&files);
        circles.iter().map(|circle| shown(circle).replace("crates/one/src/", "")).collect()
    }

    #[test]
    fn modules_that_name_each_other_are_a_circle() {
        let named = [
            ("lib.rs", "mod a;\nmod b;\npub mod c;\n"),
            ("a.rs", "use crate::b::{self, c::D};\nfn f() {}\n"),
            ("b.rs", "fn g() { super::c::h::<u8>() }\n"),
            ("c/mod.rs", "mod d;\npub fn h<T>() { crate::a::f() }\n"),
            ("c/d.rs", "use std::io;\nuse crate::a as first;\n"),
        ];
        assert_eq!(found(&named), ["a.rs, b.rs, c/mod.rs"]);
    }

    #[test]
    fn a_child_that_uses_its_parent_is_a_circle_if_the_parent_uses_it() {
        let child = ("a/child.rs", "use super::Thing;\n");
        let uses = ("a.rs", "mod child;\npub struct Thing;\nfn f() { child::g() }\n");
        assert_eq!(found(&[("lib.rs", "mod a;"), uses, child]), ["a.rs, a/child.rs"]);
        let declares = ("a.rs", "mod child;\npub struct Thing;\n");
        assert!(found(&[("lib.rs", "mod a;"), declares, child]).is_empty());
    }

    #[test]
    fn a_reexported_name_leads_to_its_definition() {
        let lib = ("lib.rs", "mod a;\nmod b;\npub use a::{One, Two as Three};\nuse b::g;\n");
        assert!(found(&[lib, ("a.rs", "pub struct One;"), ("b.rs", "use crate::{One, Three};")]).is_empty());
        let own = ("b.rs", "use crate::Own;\npub fn g() {}\n");
        let defines = ("lib.rs", "mod a;\nmod b;\npub struct Own;\nuse b::g;\n");
        assert_eq!(found(&[defines, own, ("a.rs", "")]), ["b.rs, lib.rs"]);
    }

    #[test]
    fn tests_strings_and_comments_are_no_edges() {
        let text = "// crate::b::f\nconst A: &str = \"crate::b::f\";\n#[cfg(test)]\nmod tests {\n use crate::b;\n}\n";
        assert!(found(&[("lib.rs", "mod a;\nmod b;"), ("a.rs", text), ("b.rs", "use crate::a;")]).is_empty());
        let inline = "mod inside {\n use super::A;\n fn f() { super::super::b::f() }\n}\n";
        assert_eq!(
            found(&[("main.rs", "mod a;\nmod b;"), ("a.rs", inline), ("b.rs", "use crate::a;")]),
            ["a.rs, b.rs"]
        );
    }

    #[test]
    fn a_circle_is_a_breach() {
        let root = ("crates/one/src/lib.rs", "mod a;\nmod b;");
        let a = ("crates/one/src/a.rs", "use crate::b;");
        assert!(check(&Tree::of(&[root, a, ("crates/one/src/b.rs", "")])).is_empty());
        let breaches = check(&Tree::of(&[root, a, ("crates/one/src/b.rs", "use crate::a;")]));
        let [breach] = breaches.as_slice() else { panic!("{} breaches", breaches.len()) };
        assert!(breach.reason.ends_with("crates/one/src/a.rs, crates/one/src/b.rs"), "{}", breach.reason);
    }
}
