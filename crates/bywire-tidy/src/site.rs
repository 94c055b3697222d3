//! The pages as a book that mdBook makes a searchable site of, and the check of the finished site's links.
//!
//! The contents follow from the pages' own links: a page is below the one that names it first. So nothing has to be kept
//! up to date by hand, and a page that no other one names is an error.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::link::{beside, links};
use crate::tree::Tree;

/// The page where readers begin.
const FIRST: &str = "README.md";
/// Its name in the book. mdBook makes `index.html` of a README too, and leaves some links to it as they are.
const FIRST_IN_BOOK: &str = "index.md";
/// Where files that are no pages can be read.
const REPOSITORY: &str = "https://github.com/bywire/bywire";
/// Pages below this directory have to be in the book.
const PAGES: &str = "docs/";

/// A book: its files by their paths, and the pictures that its pages show.
#[derive(Debug, Default)]
pub struct Book {
    pub files: BTreeMap<String, String>,
    pub pictures: BTreeSet<String>,
}

/// A page of the book, and the depth at which it is listed.
struct Entry {
    path: String,
    depth: usize,
}

/// Writes the book into `directory`, which is made anew.
pub fn write(root: &Path, tree: &Tree, directory: &Path) -> Result<()> {
    let book = book(tree)?;
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    let place = |path: &str| -> Result<PathBuf> {
        let place = directory.join(path);
        fs::create_dir_all(place.parent().unwrap_or(directory))?;
        Ok(place)
    };
    for (path, text) in &book.files {
        fs::write(place(path)?, text).with_context(|| format!("cannot write {path}"))?;
    }
    for path in &book.pictures {
        fs::copy(root.join(path), place(&format!("src/{path}"))?)
            .with_context(|| format!("cannot copy {path}"))?;
    }
    Ok(())
}

/// The book of a tree. Fails if a page is not linked from another one.
pub fn book(tree: &Tree) -> Result<Book> {
    let entries = entries(tree);
    let pages: BTreeSet<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    let missing = |path: &&str| path.starts_with(PAGES) && !pages.contains(path);
    if let Some((path, _)) = tree.ending_in(&[".md"]).find(|(path, _)| missing(path)) {
        bail!("no page links to {path}: name it on another page, or delete it");
    }
    let mut book = Book::default();
    let mut summary = "# Summary\n\n".to_owned();
    for Entry { path, depth } in &entries {
        let text = &tree.files[path];
        let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(path);
        match depth {
            0 => writeln!(summary, "[{title}]({FIRST_IN_BOOK})\n")?,
            depth => writeln!(summary, "{}- [{title}]({path})", "  ".repeat(depth - 1))?,
        }
        let name = if path == FIRST { FIRST_IN_BOOK } else { path };
        book.files.insert(format!("src/{name}"), for_site(tree, path, text, &pages, &mut book.pictures));
    }
    book.files.insert("src/SUMMARY.md".to_owned(), summary);
    book.files.insert("book.toml".to_owned(), settings());
    Ok(book)
}

fn settings() -> String {
    format!(
        "[book]\ntitle = \"Bywire\"\nlanguage = \"en\"\nsrc = \"src\"\n\n[output.html]\nno-section-label = true\n\
         git-repository-url = \"{REPOSITORY}\"\ndefault-theme = \"light\"\npreferred-dark-theme = \"navy\"\n"
    )
}

/// The pages in the order in which the contents list them. A page is found by breadth, so that it is listed below the page
/// nearest to the first one.
fn entries(tree: &Tree) -> Vec<Entry> {
    let mut below: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut known = BTreeSet::from([FIRST.to_owned()]);
    let mut waiting = VecDeque::from([FIRST.to_owned()]);
    while let Some(page) = waiting.pop_front() {
        let Some(text) = tree.files.get(&page) else { continue };
        for target in text.lines().flat_map(links).filter_map(|link| target(&page, link)) {
            if target.ends_with(".md") && tree.files.contains_key(&target) && known.insert(target.clone()) {
                below.entry(page.clone()).or_default().push(target.clone());
                waiting.push_back(target);
            }
        }
    }
    let mut entries = Vec::new();
    list(FIRST, 0, &below, &mut entries);
    entries
}

fn list(page: &str, depth: usize, below: &BTreeMap<String, Vec<String>>, entries: &mut Vec<Entry>) {
    entries.push(Entry { path: page.to_owned(), depth });
    for inner in below.get(page).into_iter().flatten() {
        list(inner, depth + 1, below, entries);
    }
}

/// The path in the tree that a link of a page leads to. Absent for links to elsewhere.
fn target(page: &str, link: &str) -> Option<String> {
    let file = link.split('#').next().unwrap_or_default();
    (!file.is_empty() && !link.contains("://") && !link.starts_with("mailto:")).then(|| beside(page, file))
}

/// A page as the site has it: links to files that are no pages lead to the repository.
fn for_site(
    tree: &Tree,
    page: &str,
    text: &str,
    pages: &BTreeSet<&str>,
    pictures: &mut BTreeSet<String>,
) -> String {
    let mut changed = String::new();
    for line in text.lines() {
        let mut line = line.to_owned();
        let found: Vec<String> = links(&line).map(str::to_owned).collect();
        for link in found {
            let Some(path) = target(page, &link) else { continue };
            if path == FIRST {
                let renamed = link.replacen(FIRST, FIRST_IN_BOOK, 1);
                line = line.replace(&format!("]({link})"), &format!("]({renamed})"));
            }
            if pages.contains(path.as_str()) {
                continue;
            }
            if path.ends_with(".png") {
                pictures.insert(path);
                continue;
            }
            let is_file = tree.files.contains_key(&path) || tree.binaries.contains(&path);
            let kind = if is_file { "blob" } else { "tree" };
            line = line.replace(&format!("]({link})"), &format!("]({REPOSITORY}/{kind}/main/{path})"));
        }
        changed += &line;
        changed.push('\n');
    }
    changed
}

/// Checks that each link of a finished site between its own files leads to a file, and to a place in it. Returns how many
/// links there are.
pub fn check(site: &Path) -> Result<usize> {
    let mut pages = BTreeMap::new();
    read(site, site, &mut pages)?;
    ensure!(!pages.is_empty(), "there is no page in {}: build the site first", site.display());
    let (mut count, mut dead) = (0, Vec::new());
    for (page, text) in &pages {
        for link in attributes(text, "href").chain(attributes(text, "src")) {
            let is_elsewhere = link.contains("://")
                || ["mailto:", "data:", "javascript:"].iter().any(|other| link.starts_with(other));
            // The page of errors is shown for any path.
            if is_elsewhere || link.is_empty() || page == "404.html" {
                continue;
            }
            count += 1;
            let (file, anchor) =
                link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let path = if file.is_empty() { page.clone() } else { beside(page, file) };
            let path = if site.join(&path).is_dir() { format!("{path}/index.html") } else { path };
            let has_anchor = |anchor: &str| {
                pages.get(&path).is_none_or(|text| attributes(text, "id").any(|id| id == anchor))
            };
            if !site.join(&path).exists()
                || !anchor.filter(|anchor| !anchor.is_empty()).is_none_or(has_anchor)
            {
                dead.push(format!("{page}: {link}"));
            }
        }
    }
    ensure!(dead.is_empty(), "{} of {count} links lead nowhere:\n{}", dead.len(), dead.join("\n"));
    Ok(count)
}

/// Reads every page of HTML below a directory, by its path from the site.
fn read(site: &Path, directory: &Path, pages: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            read(site, &path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let name = path.strip_prefix(site)?.display().to_string();
            pages.insert(name, fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// The values of an attribute of all elements.
fn attributes<'text>(text: &'text str, name: &str) -> impl Iterator<Item = &'text str> {
    let before = format!(" {name}=\"");
    let places: Vec<usize> = text.match_indices(&before).map(|(place, found)| place + found.len()).collect();
    places.into_iter().filter_map(|place| text[place..].split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(more: &[(&str, &str)]) -> Tree {
        let files = [
            (
                "README.md",
                "# Bywire\n[b](docs/b.md) then [a](docs/a.md#part), [code](src/lib.rs), [all](src/)\n![](docs/p.png)\n",
            ),
            ("docs/a.md", "# Page A\n## Part\n[back](../README.md) [elsewhere](https://example.org/x.md)\n"),
            ("docs/b.md", "# Page B\n[a](a.md) [c](c.md)\n"),
            ("docs/c.md", "# Page C\n"),
            ("src/lib.rs", "//! Code.\n"),
        ];
        Tree::of(&[&files[..], more].concat())
    }

    #[test]
    fn the_contents_follow_from_the_links_of_the_pages() {
        let book = book(&tree(&[])).unwrap();
        let summary = "# Summary\n\n[Bywire](index.md)\n\n- [Page B](docs/b.md)\n  - [Page C](docs/c.md)\n- [Page A](docs/a.md)\n";
        assert_eq!(book.files["src/SUMMARY.md"], summary);
        assert_eq!(book.pictures, BTreeSet::from(["docs/p.png".to_owned()]));
        assert!(book.files["src/docs/a.md"].contains("[back](../index.md)"));
        let first = &book.files["src/index.md"];
        assert!(first.contains("[a](docs/a.md#part)"), "{first}");
        for link in [
            "[code](https://github.com/bywire/bywire/blob/main/src/lib.rs)",
            "[all](https://github.com/bywire/bywire/tree/main/src)",
        ] {
            assert!(first.contains(link), "{link}: {first}");
        }
    }

    #[test]
    fn a_page_that_no_other_one_names_is_an_error() {
        let error = book(&tree(&[("docs/lost.md", "# Lost\n")])).unwrap_err().to_string();
        assert!(error.contains("no page links to docs/lost.md"), "{error}");
    }

    #[test]
    fn links_of_a_site_that_lead_nowhere_are_found() {
        let site = std::env::temp_dir().join(format!("bywire-site-{}", std::process::id()));
        fs::create_dir_all(site.join("docs")).unwrap();
        let write = |name: &str, text: &str| fs::write(site.join(name), text).unwrap();
        write(
            "index.html",
            "<a href=\"docs/a.html#here\">a</a> <a href=\"https://example.org/\">b</a> <img src=\"docs/a.html\">",
        );
        write(
            "docs/a.html",
            "<h2 id=\"here\">Here</h2> <a href=\"../index.html\">up</a> <a href=\"#here\">h</a>",
        );
        assert_eq!(check(&site).unwrap(), 4);
        write("docs/a.html", "<h2 id=\"there\">There</h2> <a href=\"../none.html\">up</a>");
        let error = check(&site).unwrap_err().to_string();
        fs::remove_dir_all(&site).unwrap();
        assert!(error.contains("2 of 3 links") && error.contains("index.html: docs/a.html#here"), "{error}");
        assert!(error.contains("docs/a.html: ../none.html"), "{error}");
    }
}
