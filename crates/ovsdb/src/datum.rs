//! What a column holds, as it is written and read (RFC 7047, section 5.1).

use serde_json::{Value, json};
use uuid::Uuid;

/// What is written to a column.
#[derive(Clone, Debug, PartialEq)]
pub struct Datum(pub(crate) Value);

impl Datum {
    /// A text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self(text.into())
    }

    /// A number.
    #[must_use]
    pub fn integer(number: i64) -> Self {
        Self(number.into())
    }

    /// A truth.
    #[must_use]
    pub fn flag(is_so: bool) -> Self {
        Self(is_so.into())
    }

    /// A row that there is.
    #[must_use]
    pub fn reference(row: Uuid) -> Self {
        Self(json!(["uuid", row.to_string()]))
    }

    /// A row that the same transaction inserts under that name.
    #[must_use]
    pub fn inserted(name: &str) -> Self {
        Self(json!(["named-uuid", name]))
    }

    /// Several, in no order.
    pub fn set(members: impl IntoIterator<Item = Self>) -> Self {
        let members: Vec<_> = members.into_iter().map(|member| member.0).collect();
        Self(json!(["set", members]))
    }

    /// Nothing, where a column may hold that.
    #[must_use]
    pub fn empty() -> Self {
        Self::set([])
    }

    /// Texts by names.
    pub fn map<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let pairs: Vec<_> = pairs.into_iter().map(|(name, text)| json!([name, text])).collect();
        Self(json!(["map", pairs]))
    }
}

/// The members of what a column holds: one stands for itself.
pub(crate) fn members(value: &Value) -> &[Value] {
    match value {
        Value::Array(parts) => match &parts[..] {
            [Value::String(kind), Value::Array(members)] if kind == "set" => members,
            _ => std::slice::from_ref(value),
        },
        _ => std::slice::from_ref(value),
    }
}

/// The names and texts of what a column holds.
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

/// The row that it refers to.
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
    fn one_member_stands_for_itself() {
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
    fn pairs_are_read_as_they_are_written() {
        let map = Datum::map([("owner", "us"), ("vf", "pf0vf3")]);
        assert_eq!(pairs(&map.0).collect::<Vec<_>>(), [("owner", "us"), ("vf", "pf0vf3")]);
        assert_eq!(pairs(&json!(["map", [["a"], "b", [1, 2]]])).count(), 0);
        assert_eq!(pairs(&json!("no map")).count(), 0);
    }
}
