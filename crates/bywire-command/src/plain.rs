//! Text without control characters, for terminals.

/// `text` on one line, without control characters. It may come from another machine.
pub fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut line = String::new();
    for letter in words.chars() {
        match is_obeyed(letter) {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
    }
    line
}

/// True if a terminal would interpret the character. That includes characters that end a line or change the direction
/// of writing, which are not all control characters.
pub fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_one_line_without_control_characters() {
        for turning in ['\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}'] {
            assert_eq!(one_line(&format!("a{turning}b")), format!("a{}b", turning.escape_unicode()));
        }
        assert_eq!(one_line("a\n b\u{1b}[2J\u{7}\r\u{202e}µ"), "a b\\u{1b}[2J\\u{7} \\u{202e}µ");
    }
}
