//! Sorting of lists.

use std::{mem, str::FromStr};

use jiff::Timestamp;
use serde_json::Value;

use crate::{error::CallError, rows::Resource};

/// The sort key of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SortBy {
    /// A column of the wide table, by its heading in any case.
    Column(String),
    /// A field of the JSON form, as a JSON pointer (RFC 6901).
    Field(String),
}

/// Parses a sort key: `STATE` is a column, `.vf.pf` and `.addresses[0].address` are fields. kubectl's braces are
/// allowed.
impl FromStr for SortBy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        match text {
            "" | "." => Err("name a column, such as STATE, or a field, such as .vf.pf"),
            path if path.starts_with('.') => {
                Ok(Self::Field(path.replace('[', ".").replace(']', "").replace('.', "/")))
            }
            column => Ok(Self::Column(column.to_owned())),
        }
    }
}

/// Sorts the list. Equal items keep their order.
pub(crate) fn sort<T: Resource>(items: &mut Vec<T>, by: &SortBy) -> Result<(), CallError> {
    let (keys, is_age) = match (by, T::AGE) {
        (SortBy::Column(column), Some((heading, since)))
            if column.eq_ignore_ascii_case(heading) =>
        {
            (field_keys(items, since)?, true)
        }
        (SortBy::Column(column), _) => (column_keys(items, column)?, false),
        (SortBy::Field(pointer), _) => (field_keys(items, pointer)?, false),
    };
    let mut keyed: Vec<_> = keys.iter().map(|key| parts(key)).zip(mem::take(items)).collect();
    keyed.sort_by(|(a, _), (b, _)| if is_age { b.cmp(a) } else { a.cmp(b) });
    items.extend(keyed.into_iter().map(|(_, item)| item));
    Ok(())
}

fn column_keys<T: Resource>(items: &[T], column: &str) -> Result<Vec<String>, CallError> {
    let place = T::COLUMNS.iter().position(|heading| heading.eq_ignore_ascii_case(column));
    let unknown =
        || CallError::NoColumn { column: column.to_owned(), columns: T::COLUMNS.join(", ") };
    let place = place.ok_or_else(unknown)?;
    // The clock does not matter here: ages are sorted by their field.
    let rows = T::rows(items, true, Timestamp::UNIX_EPOCH);
    Ok(rows.into_iter().map(|mut row| row.swap_remove(place)).collect())
}

/// The field's text of each item. Unset messages have no fields, so that one item with the field is enough.
fn field_keys<T: Resource>(items: &[T], pointer: &str) -> Result<Vec<String>, CallError> {
    let encoded = items.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    if !encoded.is_empty() && encoded.iter().all(|item| item.pointer(pointer).is_none()) {
        return Err(CallError::NoField { kind: T::KIND, field: pointer.replace('/', ".") });
    }
    Ok(encoded.iter().map(|item| text_of(item.pointer(pointer))).collect())
}

fn text_of(value: Option<&Value>) -> String {
    match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// A piece of a text, so that `pf0vf10` follows `pf0vf9` and 10.1.0.10 follows 10.1.0.9.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u128),
    Text(String),
}

fn parts(text: &str) -> Vec<Part> {
    let is_same = |a: &u8, b: &u8| a.is_ascii_digit() == b.is_ascii_digit();
    let part = |piece: &[u8]| {
        let piece = String::from_utf8_lossy(piece).into_owned();
        piece.parse().map_or_else(|_| Part::Text(piece), Part::Number)
    };
    text.as_bytes().chunk_by(is_same).map(part).collect()
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::{Attachment, PoolStatus, Vf};

    use super::*;

    fn attachments() -> Vec<Attachment> {
        let attachment = |id: &str, vf, created_at: &str| Attachment {
            id: id.into(),
            vf: Some(Vf { vf, ..Vf::default() }),
            created_at: created_at.into(),
            ..Attachment::default()
        };
        vec![
            attachment("a", 10, "2026-03-01T12:00:00Z"),
            attachment("b", 9, "2026-03-01T12:00:02Z"),
            attachment("c", 11, "2026-03-01T12:00:01Z"),
        ]
    }

    fn sorted(by: &str) -> Result<String, CallError> {
        let mut items = attachments();
        sort(&mut items, &by.parse().unwrap())?;
        Ok(items.into_iter().map(|item| item.id).collect())
    }

    #[test]
    fn lists_are_sorted_by_column_or_field() {
        for (by, expected) in [
            ("VF", "bac"),
            ("vf", "bac"),
            ("AGE", "bca"),
            (".vf.vf", "bac"),
            ("{.createdAt}", "acb"),
            ("HOST", "abc"),
        ] {
            assert_eq!(sorted(by).unwrap(), expected, "{by}");
        }
    }

    #[test]
    fn counts_are_sorted_as_numbers() {
        let pool =
            |name: &str, free| PoolStatus { name: name.into(), free, ..PoolStatus::default() };
        for by in ["FREE", ".free"] {
            let mut pools = vec![pool("a", 100), pool("b", 9)];
            sort(&mut pools, &by.parse().unwrap()).unwrap();
            assert_eq!(pools[0].name, "b", "{by}");
        }
    }

    #[test]
    fn unknown_columns_and_fields_are_named() {
        let shown = sorted("colour").unwrap_err().to_string();
        assert!(shown.contains("\"colour\"") && shown.contains("NETWORK, VF"), "{shown}");
        let shown = sorted(".vf.colour").unwrap_err().to_string();
        assert!(shown.contains(".vf.colour"), "{shown}");
        assert!(".".parse::<SortBy>().is_err());
    }
}
