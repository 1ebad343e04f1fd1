//! `${NAME}` in configuration files: one environment variable, so that many machines can share a file.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A refused use of a variable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misuse {
    /// The byte offset in the file, from 0.
    pub offset: usize,
    /// What is wrong.
    pub message: String,
}

/// Replaces `${name}` in the strings of a TOML text by the variable's value. Keys, comments and texts that are not TOML
/// stay unchanged.
///
/// The value must be a host name, so that it cannot change the meaning of the rest of the file.
///
/// # Errors
/// If the variable is unset or not a host name, or a string uses another variable.
pub(crate) fn expand(text: &str, name: &str, value: Option<&str>) -> Result<String, Misuse> {
    let mut strings = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        strings_of_table(table.get_ref(), &mut strings);
    }
    strings.sort_by_key(|span| span.start);
    let mut expanded = String::with_capacity(text.len());
    let mut end = 0;
    for span in strings {
        expanded += &text[end..span.start];
        expand_string(&text[span.clone()], span.start, name, value, &mut expanded)?;
        end = span.end;
    }
    Ok(expanded + &text[end..])
}

fn strings_of_table(table: &DeTable<'_>, strings: &mut Vec<Range<usize>>) {
    table.values().for_each(|value| strings_of_value(value, strings));
}

fn strings_of_value(value: &Spanned<DeValue<'_>>, strings: &mut Vec<Range<usize>>) {
    match value.get_ref() {
        DeValue::String(_) => strings.push(value.span()),
        DeValue::Array(items) => items.iter().for_each(|item| strings_of_value(item, strings)),
        DeValue::Table(table) => strings_of_table(table, strings),
        _ => {}
    }
}

/// Appends a string of the file that begins at `start`.
fn expand_string(
    text: &str,
    start: usize,
    name: &str,
    value: Option<&str>,
    expanded: &mut String,
) -> Result<(), Misuse> {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let offset = start + text.len() - rest.len() + before.len();
        let Some((_, behind)) = after.split_once('}').filter(|(it, _)| *it == name) else {
            let message = format!("unknown variable: only `${{{name}}}` is available here");
            return Err(Misuse { offset, message });
        };
        expanded.push_str(before);
        expanded.push_str(value_of(name, value).map_err(|message| Misuse { offset, message })?);
        rest = behind;
    }
    expanded.push_str(rest);
    Ok(())
}

fn value_of<'a>(name: &str, value: Option<&'a str>) -> Result<&'a str, String> {
    match value {
        None => {
            Err(format!("`{name}` is not set in the environment: set it to the name of this node"))
        }
        Some(value) if !is_name(value) => {
            Err(format!("`{name}` is {value:?}: use 1 to 253 of a-z, 0-9, `.` and `-`"))
        }
        Some(value) => Ok(value),
    }
}

fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.bytes().all(|byte| is_inner(byte) || matches!(byte, b'.' | b'-'))
        && text.bytes().next().is_some_and(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str, value: Option<&str>) -> Result<String, Misuse> {
        expand(text, "NODE_NAME", value)
    }

    #[test]
    fn variable_is_replaced_in_strings_alone() {
        let text = "# of ${OTHER}\nname = \"dpu-${NODE_NAME}\" # ${HOME}\n\
                    [b.'${OTHER}']\npaths = ['/a/${NODE_NAME}/${NODE_NAME}', { a = \"${NODE_NAME}\" }]\n\
                    lines = \"\"\"\n# ${NODE_NAME}\n\"\"\"\n";
        let expected = "# of ${OTHER}\nname = \"dpu-n1.eu\" # ${HOME}\n\
                        [b.'${OTHER}']\npaths = ['/a/n1.eu/n1.eu', { a = \"n1.eu\" }]\n\
                        lines = \"\"\"\n# n1.eu\n\"\"\"\n";
        assert_eq!(expanded(text, Some("n1.eu")).unwrap(), expected);
        assert_eq!(expanded("a = 1\n", None).unwrap(), "a = 1\n");
        assert_eq!(expanded("no TOML ${NODE_NAME}", None).unwrap(), "no TOML ${NODE_NAME}");
    }

    #[test]
    fn misuse_has_its_place() {
        for (text, value, words) in [
            ("a = 1\nb = 'ü${NODE_NAME}'", None, "`NODE_NAME` is not set"),
            ("a = 1\nb = 'ü${NODENAME}'", Some("n"), "only `${NODE_NAME}`"),
            ("a = 1\nb = 'ü${NODE_NAME'", Some("n"), "only `${NODE_NAME}`"),
            ("a = 1\nb = 'ü${NODE_NAME}'", Some("n'\nc = 1"), "`NODE_NAME` is \"n'"),
            ("a = 1\nb = 'ü${NODE_NAME}'", Some("../n"), "`NODE_NAME` is \"../n"),
        ] {
            let misuse = expanded(text, value).unwrap_err();
            assert_eq!(Some(misuse.offset), text.find("${"), "{text}");
            assert!(misuse.message.contains(words), "{misuse:?}");
        }
    }
}
