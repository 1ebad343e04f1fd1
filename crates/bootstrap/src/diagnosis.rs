//! Turns the TOML parser's errors into messages for people, with the place, the key's full name and the most similar
//! known key.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Names with this similarity (Jaro-Winkler) count as typing errors.
const SIMILAR: f64 = 0.8;

/// Line and column, from 1, of the byte at `offset`.
pub(crate) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// The full name, such as `pool[1].policy`, of the key whose name or value is at `span`. `None`: there is none, or the
/// text is not TOML.
fn key_at(text: &str, span: &Range<usize>) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    key_in_table(table.get_ref(), span, "")
}

fn key_in_table(table: &DeTable<'_>, span: &Range<usize>, prefix: &str) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let dot = if prefix.is_empty() { "" } else { "." };
        let name = format!("{prefix}{dot}{}", key.get_ref());
        let deeper = key_in_value(value, span, &name);
        deeper.or_else(|| (key.span() == *span).then_some(name))
    })
}

fn key_in_value(value: &Spanned<DeValue<'_>>, span: &Range<usize>, name: &str) -> Option<String> {
    let deeper = match value.get_ref() {
        DeValue::Table(table) => key_in_table(table, span, name),
        DeValue::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| key_in_value(item, span, &format!("{name}[{index}]"))),
        _ => None,
    };
    deeper.or_else(|| (value.span() == *span).then(|| name.to_owned()))
}

/// The message for an error in `text` whose place is `span`.
pub(crate) fn explain(error: &toml::de::Error, span: &Range<usize>, text: &str) -> String {
    let key = key_at(text, span);
    let key = key.as_deref();
    let message = error.message().trim().replace('\n', ", ");
    if let Some((found, known)) = quoted_names(&message, "unknown field ") {
        return unknown_key(key.unwrap_or(found), found, &known);
    }
    if let Some((found, known)) = quoted_names(&message, "unknown variant ") {
        return name(key, &format!("unknown value `{found}`: {}", advise(found, &known, "values")));
    }
    if let Some((missing, _)) = quoted_names(&message, "missing field ") {
        let place = key.map(|table| format!(" in `{table}`")).unwrap_or_default();
        return format!("missing key `{missing}`{place}{}", from_comment(missing, text));
    }
    name(key, &message)
}

/// What to do about a missing key for which a comment of the file has an example. Empty: no comment has one.
fn from_comment(key: &str, text: &str) -> String {
    let is_example = |line: &str| {
        let value = line.trim_start().strip_prefix("# ").and_then(|line| line.strip_prefix(key));
        value.is_some_and(|value| value.trim_start().starts_with('='))
    };
    match text.lines().any(is_example) {
        true => format!(": remove the `# ` before `{key}`, and write your own value"),
        false => String::new(),
    }
}

fn name(key: Option<&str>, message: &str) -> String {
    key.map_or_else(|| message.to_owned(), |key| format!("`{key}`: {message}"))
}

/// Splits serde's "unknown field `x`, expected one of `a`, `b`" into `x` and `[a, b]`.
fn quoted_names<'a>(message: &'a str, prefix: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let mut quoted = message.strip_prefix(prefix)?.split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

/// The name in `known` that is most similar to `found`, in any case. `None`: none is similar.
#[must_use]
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let found = found.to_lowercase();
    let similarity = |candidate: &str| strsim::jaro_winkler(&found, &candidate.to_lowercase());
    let best = *known.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(best) >= SIMILAR).then_some(best)
}

/// Message for `key`, with the full name `full_name`, which is not in `known`: names the most similar known key, or
/// all.
#[must_use]
pub fn unknown_key(full_name: &str, key: &str, known: &[&str]) -> String {
    format!("unknown key `{full_name}`: {}", advise(key, known, "keys"))
}

fn advise(found: &str, known: &[&str], plural: &str) -> String {
    match nearest(found, known) {
        _ if known.is_empty() => format!("there are no {plural} here"),
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("the {plural} here are `{}`", known.join("`, `")),
    }
}
