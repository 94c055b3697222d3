//! Checks the tree's own rules: `./x check` runs it, and it prints one line per breach.

mod atomic;
mod binary;
mod breach;
mod circle;
mod dependency;
mod layer;
mod link;
mod name;
mod partner;
mod size;
mod tree;
mod unchecked;
mod walk;
mod word;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use breach::Breach;
use tree::Tree;

type Rule = fn(&Tree) -> Vec<Breach>;

const RULES: [(&str, Rule); 12] = [
    ("atomics stay in named crates", atomic::check),
    ("files have text, but for pictures and seeds", binary::check),
    ("every dependency is explained and used", dependency::check),
    ("crates depend on lower layers only", layer::check),
    ("modules form no circle", circle::check),
    ("links resolve", link::check),
    ("names say what they hold", name::check),
    ("orderings name their partner", partner::check),
    ("files stay short", size::check),
    ("unsafe stays in named places", unchecked::check),
    ("pages name existing files and functions", walk::check),
    ("no work is unfinished, and Bywire has one spelling", word::check),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => match check(Path::new(".")) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("bywire-tidy: {error:#}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: bywire-tidy check\nchecks that");
            RULES.iter().for_each(|(name, _)| eprintln!("  {name}"));
            ExitCode::from(2)
        }
    }
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
