//! The tree holds what people have written. Files without text are pictures and the seeds of fuzz targets, so what a build
//! leaves in any directory is not committed.

use crate::breach::Breach;
use crate::tree::Tree;

/// The beginnings of the paths of files that need no text.
const PLACES: [&str; 2] = ["fuzz/corpus/", "docs/"];

/// One breach per file without text in another place.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let strange = tree.binaries.iter().filter(|path| !PLACES.iter().any(|place| path.starts_with(place)));
    strange
        .map(|path| Breach {
            path: path.clone(),
            line: 0,
            reason: "no text: if a build has made it, add its directory to .gitignore".to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_text_are_breaches_outside_their_places() {
        let mut tree = Tree::of(&[("src/lib.rs", "")]);
        tree.binaries = ["docs/report.png", "fuzz/corpus/lane/1", "build/lib.o"].map(str::to_owned).to_vec();
        let breaches = check(&tree);
        assert_eq!(breaches.iter().map(|breach| &breach.path[..]).collect::<Vec<_>>(), ["build/lib.o"]);
    }
}
