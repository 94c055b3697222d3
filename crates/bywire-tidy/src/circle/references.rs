//! The modules of one crate and the modules that each names, read from the tokens of the source.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::tokens;

/// The modules of a crate that have their own files.
#[derive(Debug, Default)]
pub struct Modules {
    all: Vec<Module>,
}

#[derive(Debug, Default)]
struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    paths: Vec<Path>,
    /// The paths that `use` imports, by their names in this module.
    imports: BTreeMap<String, Path>,
}

/// A path as written, such as `crate::level::msg`, seen from `depth` inline modules within a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Path {
    depth: usize,
    segments: Vec<String>,
}

/// The longest chain of imports that is followed. No tree has a longer one, and `use a::b; use b::a` has no end.
const IMPORTS_MAX: usize = 8;

impl Modules {
    /// The modules below the root file `root`, read from the texts in `files`.
    pub fn of(root: &str, files: &BTreeMap<String, String>) -> Self {
        let mut modules = Self::default();
        modules.add(root.to_owned(), None, files);
        modules
    }

    /// For each file, the other files of its crate that it names.
    pub fn edges(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let edges = (0..self.all.len()).map(|from| {
            let named = self.all[from].paths.iter().filter_map(|path| self.target(from, path, IMPORTS_MAX));
            let others = named.filter(|to| *to != from).map(|to| self.all[to].file.as_str());
            (self.all[from].file.as_str(), others.collect())
        });
        edges.collect()
    }

    fn add(&mut self, file: String, parent: Option<usize>, files: &BTreeMap<String, String>) -> usize {
        let own = self.all.len();
        let mut reader = Reader::new(files.get(&file).map_or("", String::as_str));
        reader.read();
        let Reader { paths, imports, declared, .. } = reader;
        self.all.push(Module { file, parent, children: BTreeMap::new(), paths, imports });
        for name in declared {
            let directory = directory(&self.all[own].file);
            let places = [format!("{directory}/{name}.rs"), format!("{directory}/{name}/mod.rs")];
            if let Some(file) = places.into_iter().find(|place| files.contains_key(place)) {
                let child = self.add(file, Some(own), files);
                self.all[own].children.insert(name, child);
            }
        }
        own
    }

    /// The module that defines the item at `path`. An item that a module imports from another leads to that one.
    fn target(&self, from: usize, path: &Path, imports_left: usize) -> Option<usize> {
        let mut inline = path.depth;
        let mut place = from;
        for (index, segment) in path.segments.iter().enumerate() {
            match segment.as_str() {
                "crate" => (place, inline) = (0, 0),
                "self" => {}
                "super" if inline > 0 => inline -= 1,
                "super" => place = self.all[place].parent?,
                name => match self.all[place].children.get(name) {
                    Some(child) => place = *child,
                    // The first word names something else: another crate, a type, an enum.
                    None if index == 0 => return None,
                    None => {
                        let import = self.all[place].imports.get(name).filter(|_| imports_left > 0);
                        let through = import.and_then(|path| self.target(place, path, imports_left - 1));
                        return Some(through.unwrap_or(place));
                    }
                },
            }
        }
        Some(place)
    }
}

/// The directory of the modules that `file` declares.
fn directory(file: &str) -> String {
    let (above, name) = file.rsplit_once('/').unwrap_or(("", file));
    let is_root = ["lib.rs", "main.rs", "mod.rs"].contains(&name) || above.ends_with("/bin");
    if is_root { above.to_owned() } else { file.trim_end_matches(".rs").to_owned() }
}

struct Reader<'a> {
    tokens: Vec<&'a str>,
    place: usize,
    /// Inline modules around the present place, each with the depth of braces at which it ends.
    inline: Vec<usize>,
    braces: usize,
    paths: Vec<Path>,
    imports: BTreeMap<String, Path>,
    declared: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let (imports, declared) = (BTreeMap::new(), Vec::new());
        Self {
            tokens: tokens(text),
            place: 0,
            inline: Vec::new(),
            braces: 0,
            paths: Vec::new(),
            imports,
            declared,
        }
    }

    fn at(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.place + ahead).copied().unwrap_or("")
    }

    fn read(&mut self) {
        while self.place < self.tokens.len() {
            match (self.at(0), self.at(1), self.at(2)) {
                ("#", "[", "cfg") if self.is_for_tests() => self.skip_item(),
                ("use", ..) => {
                    self.place += 1;
                    self.tree(Vec::new());
                }
                ("mod", name, ";") => {
                    self.declared.push(name.to_owned());
                    self.place += 3;
                }
                ("mod", _, "{") => {
                    self.inline.push(self.braces);
                    self.braces += 1;
                    self.place += 3;
                }
                (_, "::", _) if self.place == 0 || self.tokens[self.place - 1] != "::" => self.path(),
                (token, ..) => {
                    self.brace(token);
                    self.place += 1;
                }
            }
        }
    }

    fn brace(&mut self, token: &str) {
        match token {
            "{" => self.braces += 1,
            "}" => {
                self.braces = self.braces.saturating_sub(1);
                self.inline.pop_if(|depth| *depth == self.braces);
            }
            _ => {}
        }
    }

    /// Is this `#[cfg(test)]` or the like? Code under it is no part of the product.
    fn is_for_tests(&self) -> bool {
        let condition = self.tokens[self.place..].iter().take_while(|token| **token != "]");
        let words: Vec<_> = condition.collect();
        words.contains(&&"test") && !words.contains(&&"not")
    }

    /// Skips an item with its attribute: to its semicolon, or to the end of its braces.
    fn skip_item(&mut self) {
        while self.place < self.tokens.len() && self.at(0) != "]" {
            self.place += 1;
        }
        let mut open = 0usize;
        while self.place < self.tokens.len() {
            let token = self.at(0);
            self.place += 1;
            match token {
                "{" => open += 1,
                "}" => open = open.saturating_sub(1),
                _ => {}
            }
            if open == 0 && (token == ";" || token == "}") {
                return;
            }
        }
    }

    fn path(&mut self) {
        let mut segments = vec![self.at(0).to_owned()];
        self.place += 1;
        while self.at(0) == "::" && is_name(self.at(1)) {
            segments.push(self.at(1).to_owned());
            self.place += 2;
        }
        if self.at(0) == "::" {
            self.place += 1;
        }
        if is_name(&segments[0]) {
            self.paths.push(Path { depth: self.inline.len(), segments });
        }
    }

    /// Reads one tree of a `use`, after `before`.
    fn tree(&mut self, before: Vec<String>) {
        let mut segments = before;
        loop {
            match self.at(0) {
                "{" => {
                    self.place += 1;
                    while !["}", ""].contains(&self.at(0)) {
                        self.tree(segments.clone());
                        if self.at(0) == "," {
                            self.place += 1;
                        }
                    }
                    self.place += 1;
                    return;
                }
                "*" => {
                    self.place += 1;
                    self.import(segments, None);
                    return;
                }
                "::" => self.place += 1,
                "as" => {
                    let name = self.at(1).to_owned();
                    self.place += 2;
                    self.import(segments, Some(name));
                    return;
                }
                name if is_name(name) => {
                    segments.push(name.to_owned());
                    self.place += 1;
                }
                _ => {
                    let name = segments.last().cloned();
                    self.import(segments, name);
                    return;
                }
            }
        }
    }

    fn import(&mut self, mut segments: Vec<String>, name: Option<String>) {
        // `use a::{self}` names `a`.
        let is_self = segments.len() > 1 && segments.last().is_some_and(|last| last == "self");
        if is_self {
            segments.pop();
        }
        let name = if is_self { segments.last().cloned() } else { name };
        if segments.is_empty() {
            return;
        }
        let path = Path { depth: self.inline.len(), segments };
        if let Some(name) = name.filter(|_| self.inline.is_empty()) {
            self.imports.insert(name, path.clone());
        }
        self.paths.push(path);
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}
