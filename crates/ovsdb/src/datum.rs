//! Values of columns (RFC 7047, section 5.1).

use serde_json::{Value, json};
use uuid::Uuid;

/// A value to write to a column.
#[derive(Clone, Debug, PartialEq)]
pub struct Datum(pub(crate) Value);

impl Datum {
    /// A string.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self(text.into())
    }

    /// An integer.
    #[must_use]
    pub fn integer(number: i64) -> Self {
        Self(number.into())
    }

    /// A reference to an existing row.
    #[must_use]
    pub fn reference(row: Uuid) -> Self {
        Self(json!(["uuid", row.to_string()]))
    }

    /// A reference to a row that the same transaction inserts under this name.
    #[must_use]
    pub fn inserted(name: &str) -> Self {
        Self(json!(["named-uuid", name]))
    }

    /// A set of values.
    pub fn set(members: impl IntoIterator<Item = Self>) -> Self {
        let members: Vec<_> = members.into_iter().map(|member| member.0).collect();
        Self(json!(["set", members]))
    }

    /// The empty set, for optional columns.
    #[must_use]
    pub fn empty() -> Self {
        Self::set([])
    }

    /// A map from strings to strings.
    pub fn map<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let pairs: Vec<_> = pairs.into_iter().map(|(name, text)| json!([name, text])).collect();
        Self(json!(["map", pairs]))
    }
}

/// The members of a set. A single value is a set of one.
pub(crate) fn members(value: &Value) -> &[Value] {
    match value {
        Value::Array(parts) => match &parts[..] {
            [Value::String(kind), Value::Array(members)] if kind == "set" => members,
            _ => std::slice::from_ref(value),
        },
        _ => std::slice::from_ref(value),
    }
}

/// The string pairs of a map.
pub(crate) fn pairs(value: &Value) -> impl Iterator<Item = (&str, &str)> {
    let pairs = match value.as_array().map(Vec::as_slice) {
        Some([Value::String(kind), Value::Array(pairs)]) if kind == "map" => &pairs[..],
        _ => &[],
    };
    pairs.iter().filter_map(|pair| match pair.as_array().map(Vec::as_slice) {
        Some([Value::String(name), Value::String(text)]) => Some((&name[..], &text[..])),
        _ => None,
    })
}

/// The row that a value refers to.
pub(crate) fn referred(value: &Value) -> Option<Uuid> {
    match value.as_array().map(Vec::as_slice) {
        Some([Value::String(kind), Value::String(id)]) if kind == "uuid" => id.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_value_is_a_set_of_one() {
        assert_eq!(members(&json!(7)), [json!(7)]);
        assert_eq!(members(&json!(["set", [7, 8]])), [json!(7), json!(8)]);
        assert_eq!(members(&Datum::empty().0), [json!(null); 0]);
        let id = Uuid::nil();
        assert_eq!(
            members(&Datum::reference(id).0).iter().map(referred).collect::<Vec<_>>(),
            [Some(id)]
        );
    }

    #[test]
    fn map_pairs_survive_encoding() {
        let map = Datum::map([("owner", "us"), ("vf", "pf0vf3")]);
        assert_eq!(pairs(&map.0).collect::<Vec<_>>(), [("owner", "us"), ("vf", "pf0vf3")]);
        assert_eq!(pairs(&json!(["map", [["a"], "b", [1, 2]]])).count(), 0);
        assert_eq!(pairs(&json!("no map")).count(), 0);
    }
}
