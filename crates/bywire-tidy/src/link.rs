//! Relative links of Markdown pages resolve, headings included, and pages name only entries that `x` has.

use crate::breach::Breach;
use crate::tree::Tree;

/// One breach per link without a target and per unknown `./x` entry.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let entries = tree.files.get("x").map(|script| entries(script)).unwrap_or_default();
    let mut breaches = Vec::new();
    for (path, text) in tree.ending_in(&[".md"]) {
        for (index, line) in text.lines().enumerate() {
            let mut report =
                |reason| breaches.push(Breach { path: path.to_owned(), line: index + 1, reason });
            for link in links(line) {
                if let Err(reason) = resolve(tree, path, link) {
                    report(reason);
                }
            }
            for entry in line.split("./x ").skip(1).filter_map(first_word) {
                if !entries.contains(&entry) {
                    report(format!("./x has no {entry:?}; it has {}", entries.join(", ")));
                }
            }
        }
    }
    breaches
}

/// The targets of `[text](target)` in a line.
pub fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

fn resolve(tree: &Tree, page: &str, link: &str) -> Result<(), String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(());
    }
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let path = if file.is_empty() { page.to_owned() } else { beside(page, file) };
    if !tree.has(&path) {
        return Err(format!("{link}: there is no {path}"));
    }
    match (heading, tree.files.get(&path)) {
        (Some(heading), Some(text))
            if path.ends_with(".md") && !headings(text).any(|known| known == heading) =>
        {
            Err(format!("{link}: {path} has no such heading"))
        }
        _ => Ok(()),
    }
}

/// The path of `link`, resolved from the directory of `page`.
pub fn beside(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a page's headings: lower case, hyphens for blanks, no punctuation.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|letter| letter.is_alphanumeric() || *letter == '-' || *letter == '_').collect()
    })
}

/// The entries of `x`: the labels of its `case`.
fn entries(script: &str) -> Vec<&str> {
    let labels = script.lines().filter_map(|line| line.trim_start().split_once(')')).map(|(label, _)| label);
    let words = labels.flat_map(|label| label.split('|'));
    words.filter(|word| !word.is_empty() && word.chars().all(|letter| letter.is_ascii_lowercase())).collect()
}

fn first_word(text: &str) -> Option<&str> {
    let word = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').next()?;
    (!word.is_empty() && !word.starts_with('-')).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_breaches() {
        let page = "# A page\n[here](#a-page) [there](../README.md#the-name) [web](https://example.org/none)\n\
                    [gone](gone.md) [lost](../README.md#lost) [directory](../docs/)\n";
        let tree = Tree::of(&[("docs/page.md", page), ("README.md", "## The name!\n")]);
        let reasons: Vec<_> = check(&tree).into_iter().map(|breach| (breach.line, breach.reason)).collect();
        assert_eq!(reasons.len(), 2, "{reasons:?}");
        assert!(reasons[0].1.contains("docs/gone.md") && reasons[1].1.contains("no such heading"));
    }

    #[test]
    fn unknown_entries_of_x_are_breaches() {
        let script = "case $1 in\nbench) run ;;\ntest|check) both ;;\n*) usage ;;\nesac\n";
        let page = "Run `./x bench`, `./x check` and `./x frobnicate`.\n";
        let breaches = check(&Tree::of(&[("x", script), ("README.md", page)]));
        assert_eq!(breaches.len(), 1);
        assert!(breaches[0].reason.contains("frobnicate"));
    }
}
