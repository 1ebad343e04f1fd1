//! Texts that somebody else made long.

/// The text, or enough of it to know it by and how long it is, if it is longer than `limit` bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_long_is_cut_and_never_within_a_character() {
        assert_eq!(cut("short".into(), 5), "short");
        assert_eq!(cut("a long one".into(), 6), "a long… of 10 bytes");
        assert_eq!(cut("äöü".into(), 3), "ä… of 6 bytes");
        assert_eq!(cut(String::new(), 0), "");
    }
}
