//! The checked tree: its text files, and its crates as Cargo sees them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The input of all rules.
#[derive(Debug, Default)]
pub struct Tree {
    /// Text of every file that is, or would be, under version control, by its path from the root.
    pub files: BTreeMap<String, String>,
    /// Names of the files without text.
    pub binaries: Vec<String>,
    /// Every crate of the workspace by its name.
    pub crates: BTreeMap<String, Crate>,
}

/// A crate of the workspace as Cargo sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crate {
    /// The directory of its manifest, from the root.
    pub directory: String,
    /// Its direct dependencies of all kinds.
    pub dependencies: Vec<Dependency>,
}

/// A direct dependency as a manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The package's name.
    pub name: String,
    /// True for a crate of this workspace.
    pub ours: bool,
    /// True if only tests and benches use it.
    pub development: bool,
}

impl Tree {
    /// Reads the tree at `root`, which must be a git checkout.
    ///
    /// # Errors
    /// There is no git or cargo, or cargo refuses a manifest.
    pub fn read(root: &Path) -> Result<Self> {
        let listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let mut tree = Self { crates: crates(root)?, ..Self::default() };
        for path in run(root, "git", &listing)?.split('\0').filter(|path| !path.is_empty()) {
            // Git still lists a file whose deletion is not committed.
            let Ok(bytes) = fs::read(root.join(path)) else { continue };
            match String::from_utf8(bytes) {
                Ok(text) => drop(tree.files.insert(path.to_owned(), text)),
                Err(_) => tree.binaries.push(path.to_owned()),
            }
        }
        Ok(tree)
    }

    /// The files whose name ends in one of `endings`.
    pub fn ending_in<'a>(&'a self, endings: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        let files = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        files.filter(move |(path, _)| endings.iter().any(|ending| path.ends_with(ending)))
    }

    /// True if the tree has a file or directory of this path.
    pub fn has(&self, path: &str) -> bool {
        let inside =
            |file: &String| file == path || file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        path.is_empty() || self.files.keys().chain(&self.binaries).any(inside)
    }
}

fn crates(root: &Path) -> Result<BTreeMap<String, Crate>> {
    let printed = run(root, "cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: Value = serde_json::from_str(&printed).context("cargo metadata prints no JSON")?;
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let top = text(&metadata["workspace_root"]);
    let directory = |manifest: &str| {
        let inside = manifest.strip_prefix(&top).unwrap_or(manifest);
        inside.trim_end_matches("/Cargo.toml").trim_start_matches('/').to_owned()
    };
    let dependency = |value: &Value| Dependency {
        name: text(&value["name"]),
        ours: value["path"].is_string(),
        development: value["kind"] == "dev",
    };
    let packages = list(&metadata, "packages").into_iter();
    Ok(packages
        .map(|package| {
            let dependencies = list(&package, "dependencies").iter().map(dependency).collect();
            let directory = directory(&text(&package["manifest_path"]));
            (text(&package["name"]), Crate { directory, dependencies })
        })
        .collect())
}

fn run(root: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).current_dir(root).output();
    let output = output.with_context(|| format!("cannot run {program}: install it"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {} failed: {}", arguments[0], said.trim());
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
impl Tree {
    /// A tree of only these files.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Self { files, ..Self::default() }
    }

    /// The same tree with one more crate.
    pub fn with_crate(mut self, name: &str, dependencies: &[Dependency]) -> Self {
        let directory = format!("crates/{name}");
        self.crates.insert(name.to_owned(), Crate { directory, dependencies: dependencies.to_vec() });
        self
    }
}
