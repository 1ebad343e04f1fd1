//! Texts from other programs and hosts, which have any length and may contain control characters for a terminal.

/// The text, or its beginning and its length if it is longer than `limit` bytes.
#[must_use]
pub fn cut(mut text: String, limit: usize) -> String {
    let length = text.len();
    if length > limit {
        let end = (0..=limit).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        text.push_str(&format!("… of {length} bytes"));
    }
    text
}

/// Replaces by `\u{fffd}` each character that affects a terminal: control characters except those in `kept`, and marks
/// that change the direction of writing (Unicode, UAX #9). Such marks can make a text look like another.
#[must_use]
pub fn printable(text: &str, kept: &[char]) -> String {
    let is_hidden = |c: char| (c.is_control() || changes_direction(c)) && !kept.contains(&c);
    text.replace(is_hidden, "\u{fffd}")
}

const fn changes_direction(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(cut("short".into(), 5), "short");
        assert_eq!(cut("a long one".into(), 6), "a long… of 10 bytes");
        assert_eq!(cut("äöü".into(), 3), "ä… of 6 bytes");
        assert_eq!(cut(String::new(), 0), "");
    }

    #[test]
    fn terminals_are_not_commanded_by_names() {
        assert_eq!(printable("pod\u{1b}[31m\nx\r", &['\n']), "pod\u{fffd}[31m\nx\u{fffd}");
        assert_eq!(printable("web\u{202e}gpj.exe\n", &[]), "web\u{fffd}gpj.exe\u{fffd}");
        assert_eq!(printable("pod-ä ✓", &[]), "pod-ä ✓");
    }
}
