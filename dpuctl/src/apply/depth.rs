//! How deep brackets are nested: the parser takes time by the square of that.
//!
//! Brackets in quotes and comments are none, so this reads as much of YAML as it takes to tell them apart.
//! Where it can't, it counts all that open and none that close until the document ends: it may refuse what is
//! shallow, and takes nothing that is deep.

use crate::mistake::Mistake;

/// Deepest nesting of brackets that is read. A network has four levels.
const DEEPEST: usize = 64;

/// Refuses text whose brackets are nested deeper.
pub(super) fn check(text: &str) -> Result<(), Mistake> {
    let mut scanner = Scanner::default();
    for (number, line) in text.lines().enumerate() {
        if let Some(column) = scanner.too_deep_at(line) {
            let message = format!("brackets are nested deeper than {DEEPEST} levels");
            return Err(Mistake { place: Some((number + 1, column + 1)), message });
        }
    }
    Ok(())
}

#[derive(Default)]
struct Scanner {
    depth: usize,
    state: State,
    /// It is not known any more what is a bracket.
    is_lost: bool,
}

#[derive(Clone, Copy, Default)]
enum State {
    /// A token may begin.
    #[default]
    Start,
    /// Text without quotes.
    Plain,
    /// In a line after text without quotes, which perhaps goes on.
    PerhapsPlain,
    /// Text between such quotes.
    Quoted(char),
    /// After a backslash between double quotes.
    Escaped,
    Comment,
}
use State::{Comment, Escaped, PerhapsPlain, Plain, Quoted, Start};

impl Scanner {
    /// The column in which brackets are nested too deep.
    fn too_deep_at(&mut self, line: &str) -> Option<usize> {
        let marker = ["---", "..."].iter().find_map(|marker| line.strip_prefix(marker));
        let is_marker = marker.is_some_and(|rest| rest.chars().next().is_none_or(is_blank));
        if is_marker {
            *self = Self::default();
        } else if matches!(self.state, PerhapsPlain) && line.starts_with(|first| !is_blank(first)) {
            self.state = Start;
        }
        let mut previous = ' ';
        let mut characters =
            line.chars().enumerate().skip(if is_marker { 3 } else { 0 }).peekable();
        while let Some((column, character)) = characters.next() {
            let ends_word = characters.peek().is_none_or(|(_, next)| is_blank(*next));
            self.read(character, previous, ends_word);
            previous = character;
            if self.depth > DEEPEST {
                return Some(column);
            }
        }
        self.state = match self.state {
            Plain if self.depth == 0 => PerhapsPlain,
            Escaped => Quoted('"'),
            Comment => Start,
            other => other,
        };
        None
    }

    fn read(&mut self, character: char, previous: char, ends_word: bool) {
        if self.is_lost {
            self.depth += usize::from(matches!(character, '[' | '{'));
            return;
        }
        let is_in_brackets = self.depth > 0;
        self.state = match (self.state, character) {
            // Line breaks to YAML alone, and a mark that it passes over here and there.
            (_, '\r' | '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}') => self.lose(character),
            (Quoted('"'), '\\') => Escaped,
            (Escaped, _) => Quoted('"'),
            (Quoted(quote), _) if character == quote => Start,
            (Quoted(_) | Comment, _) | (_, ' ' | '\t') => self.state,
            (Plain, '#') if !is_blank(previous) => Plain,
            (_, '#') => Comment,
            (Plain, ':') if ends_word => Start,
            (Plain, '?') if is_in_brackets => self.lose(character),
            (Plain, '[' | ']' | '{' | '}' | ',') if is_in_brackets => self.punctuate(character),
            (Plain, _) => Plain,
            (PerhapsPlain, '-' | '?') if ends_word => PerhapsPlain,
            (PerhapsPlain, '[' | ']' | '{' | '}' | ',' | '"' | '\'') => self.lose(character),
            (_, '"' | '\'') => Quoted(character),
            (_, '[' | ']' | '{' | '}' | ',') => self.punctuate(character),
            (_, ':') if ends_word || is_in_brackets => Start,
            (_, '-' | '?') if ends_word => Start,
            // Anchors, tags, texts in lines of their own and the like: no network needs them.
            (_, '?' | '&' | '*' | '!' | '|' | '>' | '%' | '@' | '`') => self.lose(character),
            _ => Plain,
        };
    }

    fn punctuate(&mut self, character: char) -> State {
        match character {
            '[' | '{' => self.depth += 1,
            ']' | '}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        Start
    }

    fn lose(&mut self, character: char) -> State {
        self.is_lost = true;
        self.depth += usize::from(matches!(character, '[' | '{'));
        Plain
    }
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_that_are_none_close_nothing() {
        for hiding in [
            "[\"]\",",
            "[ \"\\\"]\", ",
            "[']',",
            "[ 'it''s ]', ",
            "[ it's, ']', ",
            "[ a 'b, ']', ",
            "[ # ]\n",
            "[ a #]\n",
            "[ \"]\n]\",\n",
            "[ !<]> a, ",
            "[ a,\n']', ",
            "{a: ']', b: ",
        ] {
            assert!(check(&hiding.repeat(DEEPEST)).is_ok(), "{hiding}");
            assert!(check(&hiding.repeat(DEEPEST + 1)).is_err(), "{hiding}");
        }
        for beginning in
            ["a: |\n  \"\n", "a: b\n\n  [ '\n", "a: b\n  - \"\n", "a: \u{85}\"\n", "a: !b\n"]
        {
            let text = format!("{beginning}{}", "b: [']','],[',\n".repeat(DEEPEST));
            assert!(check(&text).is_err(), "{beginning}");
        }
    }

    #[test]
    fn brackets_of_many_networks_are_not_nested() {
        for (beginning, network) in [
            (
                "",
                "{\"name\":\"a\",\"subnets\":[{\"cidr\":\"[\",\"ranges\":[{\"first\":\"b\"}]}]}\n---\n",
            ),
            ("[", "{\"name\": \"it's\", \"dns\": {\"search\": [\"a\", \"b\"]}},\n"),
            (
                "networks:\n",
                "- network:\n    name: a\n    trunk: []\n    routes:\n      - mtu: 1\n",
            ),
            ("", "name: it's [\n# don't {\n---\n"),
            ("list:\n", "- name: 'a'\n  subnets: [{cidr: fd00::/64}] # [\n  \"mtu\": 1400\n\n"),
        ] {
            assert_eq!(
                check(&format!("{beginning}{}", network.repeat(1000))).err(),
                None,
                "{network}"
            );
        }
    }
}
