//! Tokens of a Rust source, without its comments and literals.

/// The tokens of `text`: names, `::`, and single signs. Text literals are left out.
pub fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if let Some(length) = unread(rest) {
            length
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let length = end.unwrap_or(rest.len());
            tokens.push(&rest[..length]);
            length
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            tokens.push(&rest[..length]);
            length
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of a blank, a comment or a literal at the beginning of `text`.
fn unread(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    if first.is_whitespace() {
        return Some(first.len_utf8());
    }
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(text.find("*/").map_or(text.len(), |end| end + 2));
    }
    if first == '\'' {
        return Some(character(text));
    }
    let prefix = text.find(|letter| !['b', 'c', 'r'].contains(&letter))?;
    let hashes = text[prefix..].find(|letter| letter != '#')?;
    let begin = prefix + hashes;
    if prefix > 2 || !text[begin..].starts_with('"') || (hashes > 0 && !text[..prefix].contains('r')) {
        return None;
    }
    let inside = &text[begin + 1..];
    let length = if text[..prefix].contains('r') {
        let close = format!("\"{}", "#".repeat(hashes));
        inside.find(&close).map_or(inside.len(), |end| end + close.len())
    } else {
        quoted(inside)
    };
    Some(begin + 1 + length)
}

/// The length of the text after an opening quotation mark, up to and including the closing one.
fn quoted(inside: &str) -> usize {
    let mut escaped = false;
    for (place, letter) in inside.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return place + 1,
            _ => {}
        }
    }
    inside.len()
}

/// The length of `'x'`, `'\n'` or the apostrophe of a lifetime.
fn character(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => {
            letters.next();
            letters.find(|(_, letter)| *letter == '\'').map_or(1, |(place, _)| place + 1)
        }
        Some((place, letter)) => {
            let behind = place + letter.len_utf8();
            if text[behind..].starts_with('\'') { behind + 1 } else { 1 }
        }
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_left_out() {
        let text =
            "a::b(\"crate::x \\\" y\", r#\"crate::\"z\"#, 'c', '\\'', &'d e) // crate::f\n/* g */ h bring";
        let kept = ["a", "::", "b", "(", ",", ",", ",", ",", "&", "d", "e", ")", "h", "bring"];
        assert_eq!(tokens(text), kept);
    }
}
