//! No unfinished work is committed, and the project's own name has one spelling.

use crate::breach::Breach;
use crate::tree::Tree;

// Made of halves, so that this file keeps its own rule.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
];
const MISSPELT: [&str; 5] = [
    concat!("By", "Wire"),
    concat!("By", "-wire"),
    concat!("by", "-wire"),
    concat!("by", "Wire"),
    concat!("BY", "WIRE"),
];

/// One breach per unfinished or misspelt word.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| *path != "Cargo.lock") {
        for (index, line) in text.lines().enumerate() {
            let unfinished = UNFINISHED.iter().filter(|word| holds(line, word, |_| true));
            // In capitals it may begin the name of an environment variable or a C name.
            let misspelt = MISSPELT.iter().filter(|word| holds(line, word, |next| next != Some('_')));
            let reasons =
                unfinished.map(|word| format!("{word:?}: finish it or leave it out")).chain(misspelt.map(
                    |word| format!("{word:?}: write Bywire in prose, bywire for the command and the crates"),
                ));
            breaches.extend(reasons.map(|reason| Breach { path: path.clone(), line: index + 1, reason }));
        }
    }
    breaches
}

/// True if `line` has `word` as a whole word, and `next` accepts the letter after it.
fn holds(line: &str, word: &str, next: impl Fn(Option<char>) -> bool) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let inside = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        let whole = !inside(before) && (word.ends_with('(') || !inside(after));
        whole && next(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_and_misspelt_words_are_breaches() {
        let bad = [UNFINISHED, MISSPELT].concat().join("\n");
        let tree = Tree::of(&[("docs/bad.md", &bad)]);
        assert_eq!(check(&tree).len(), UNFINISHED.len() + MISSPELT.len());
    }

    #[test]
    fn correct_spellings_are_not_breaches() {
        let good = format!("Bywire's bywire {}_SPIN=0 mk{} {}", MISSPELT[4], "temp.XXXXXX", "TODOS");
        assert_eq!(check(&Tree::of(&[("docs/good.md", &good)])), []);
    }
}
