//! Checks the tree's own rules: `./x check` runs it, and it prints one line per breach. It also writes docs/suites.md, and for
//! `./x site` the pages as a book.

mod atomic;
mod binary;
mod breach;
mod circle;
mod dependency;
mod layer;
mod link;
mod name;
mod partner;
mod site;
mod size;
mod suite;
mod tree;
mod unchecked;
mod walk;
mod word;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use breach::Breach;
use tree::Tree;

type Rule = fn(&Tree) -> Vec<Breach>;

const RULES: [(&str, Rule); 13] = [
    ("atomics stay in named crates", atomic::check),
    ("files have text, but for pictures and seeds", binary::check),
    ("every dependency is explained and used", dependency::check),
    ("crates depend on lower layers only", layer::check),
    ("modules form no circle", circle::check),
    ("links resolve", link::check),
    ("names say what they hold", name::check),
    ("orderings name their partner", partner::check),
    ("files stay short", size::check),
    ("test suites say what they prove, and docs/suites.md lists them", suite::check),
    ("unsafe stays in named places", unchecked::check),
    ("pages name existing files and functions", walk::check),
    ("no work is unfinished, and Bywire has one spelling", word::check),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(".");
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => check(root),
        ["suites"] => write_suites(root).map(|()| true),
        ["site", directory] => write_site(root, Path::new(directory)).map(|()| true),
        ["site-links", site] => check_site(Path::new(site)).map(|()| true),
        _ => {
            eprintln!("usage: bywire-tidy check    check that");
            RULES.iter().for_each(|(name, _)| eprintln!("  {name}"));
            eprintln!("       bywire-tidy suites   write {}", suite::PAGE);
            eprintln!("       bywire-tidy site DIRECTORY    write the pages as a book for mdBook");
            eprintln!("       bywire-tidy site-links SITE   check the links of the site that it has made");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bywire-tidy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the list of suites anew.
fn write_suites(root: &Path) -> Result<()> {
    let page = suite::page(&Tree::read(root)?);
    fs::write(root.join(suite::PAGE), page).with_context(|| format!("cannot write {}", suite::PAGE))
}

fn write_site(root: &Path, directory: &Path) -> Result<()> {
    site::write(root, &Tree::read(root)?, directory)
}

fn check_site(directory: &Path) -> Result<()> {
    let count = site::check(directory)?;
    println!("tidy: {count} links of the site resolve");
    Ok(())
}

/// True when no rule is broken.
fn check(root: &Path) -> Result<bool> {
    let tree = Tree::read(root)?;
    let mut clean = true;
    for (name, rule) in RULES {
        for breach in rule(&tree) {
            clean = false;
            println!("{}:{}: {} ({name})", breach.path, breach.line, breach.reason);
        }
    }
    if clean {
        println!("tidy: {} rules hold in {} files", RULES.len(), tree.files.len());
    }
    Ok(clean)
}
