//! What is wrong in a file of networks, with the path to the key. For a value of another kind: what was found and what is
//! expected. For a key that there is none of: which one was probably meant. The parser passes over those and tells only
//! their path, so that the type is followed along it once more.

use std::cell::Cell;

use bootstrap::unknown_key;
use serde::{
    Deserialize, Deserializer,
    de::{
        Error, IntoDeserializer, Visitor,
        value::{Error as ValueError, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};

use serde_norway::Value;

use crate::mistake::Mistake;

/// What the parser says of a value that is not the number that is expected. Of the first, a type of its own tried all that it
/// might be.
const NO_NUMBER: [&str; 5] = [
    "data did not match any variant of untagged enum Content",
    "invalid digit found in string",
    "cannot parse integer from empty string",
    "number too large to fit in target type",
    "number too small to fit in target type",
];

/// Longest text that is repeated of a file, in characters.
const LONGEST_TEXT: usize = 64;

/// How many keys are named of those that are expected.
const NAMED: usize = 3;

/// The key at the end of `path`, such as `subnets.1.cidrr`, is none of those that `T` has there.
pub(super) fn unknown<'de, T: Deserialize<'de>>(path: &str) -> String {
    let segments: Vec<_> = path.split('.').collect();
    let key = segments.last().copied().unwrap_or_default();
    // Keys of several words have a second name, for those who write as the protocol does: such as this key is.
    let is_other = |known: &str| match is_protocols(key) {
        true => known.contains('_'),
        false => is_protocols(known),
    };
    let known: Vec<_> =
        keys_of::<T>(&segments).iter().copied().filter(|known| !is_other(known)).collect();
    unknown_key(&full_name(&segments), key, &known)
}

/// Whether a key is written as the protocol does.
fn is_protocols(key: &str) -> bool {
    key.contains(|c: char| c.is_ascii_uppercase())
}

/// What is wrong with its line and column, which may be those of the map around the value, and the key's path if it is
/// known. `found` is the value at the path.
pub(super) fn located<'de, T: Deserialize<'de>>(
    path: &str,
    error: &serde_norway::Error,
    found: Option<&Value>,
) -> Mistake {
    let place = error.location().map(|location| (location.line(), location.column()));
    let suffix = place.map(|(line, column)| format!(" at line {line} column {column}"));
    let said = error.to_string().replace(&suffix.unwrap_or_default(), "");
    // The parser begins with some of the path itself.
    let begun = said.split_once(": ").filter(|(begun, _)| path.starts_with(begun));
    let said = begun.map_or(said.as_str(), |(_, rest)| rest);
    let kinds = expected::<T>(path, said).zip(found.map(kind_of));
    let said = match kinds {
        Some((expected, found)) => format!("found {found}, expected {expected}"),
        None => said.into(),
    };
    let is_known = path != "." && !path.contains('?');
    Mistake { place, message: if is_known { format!("`{path}`: {said}") } else { said } }
}

/// The keys and indices of a path, such as `subnets[1].cidr`.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '[', ']']).filter(|segment| !segment.is_empty())
}

/// What is expected where `path` ends, by what the parser says. `None`: the value's kind is not what is wrong.
fn expected<'de, T: Deserialize<'de>>(path: &str, said: &str) -> Option<String> {
    if NO_NUMBER.contains(&said) {
        return Some("a whole number that is not negative and not too large".into());
    }
    let (_, expected) = said.strip_prefix("invalid type: ")?.rsplit_once(", expected ")?;
    Some(match expected {
        "a sequence" => "a list".into(),
        "a map" => "keys with values".into(),
        "a string" => "text".into(),
        "a boolean" => "`true` or `false`".into(),
        // It goes on with the name of a type.
        of_type if of_type.starts_with("struct ") => some_keys::<T>(path),
        other => other.into(),
    })
}

/// Some of the keys that `T` has in the value where `path` ends.
fn some_keys<'de, T: Deserialize<'de>>(path: &str) -> String {
    let path: Vec<_> = segments(path).chain([""]).collect();
    let keys = keys_of::<T>(&path).iter().filter(|key| !is_protocols(key));
    let keys: Vec<_> = keys.take(NAMED).map(|key| format!("`{key}`")).collect();
    match keys.as_slice() {
        [] => "keys with values".into(),
        [one] => format!("the key {one}"),
        [first @ .., last] => format!("keys such as {} and {last}", first.join(", ")),
    }
}

/// What a value is.
fn kind_of(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        Value::Bool(is_true) => format!("`{is_true}`"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => {
            let shown: String = text.chars().take(LONGEST_TEXT).collect();
            format!("the text {shown:?}")
        }
        Value::Sequence(_) => "a list".into(),
        Value::Mapping(_) => "keys with values".into(),
        Value::Tagged(tagged) => format!("a value with the tag {}", tagged.tag),
    }
}

/// Such as `subnets[1].cidr`.
fn full_name(segments: &[&str]) -> String {
    let is_index = |segment: &str| segment.bytes().all(|byte| byte.is_ascii_digit());
    let named = |segment: &&str| match is_index(segment) {
        true => format!("[{segment}]"),
        false => format!(".{segment}"),
    };
    let name: String = segments.iter().map(named).collect();
    name.trim_start_matches('.').into()
}

/// The keys that `T` has where `path` ends.
fn keys_of<'de, T: Deserialize<'de>>(path: &[&str]) -> &'static [&'static str] {
    let keys = Cell::default();
    // It never succeeds: there is no value at the path's end.
    let _ = T::deserialize(Type { path, keys: &keys });
    keys.get()
}

/// Has a type read itself along a path, to learn its keys.
#[derive(Clone, Copy)]
struct Type<'a> {
    path: &'a [&'a str],
    keys: &'a Cell<&'static [&'static str]>,
}

impl<'a> Type<'a> {
    /// The path's next segment, and what is there.
    fn next(self) -> impl Iterator<Item = (&'a str, Self)> {
        let next = self.path.split_first();
        next.map(|(first, path)| (*first, Self { path, ..self })).into_iter()
    }
}

impl<'de> Deserializer<'de> for Type<'_> {
    type Error = ValueError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        if self.path.len() == 1 {
            self.keys.set(fields);
        }
        visitor.visit_map(MapDeserializer::new(self.next()))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_seq(SeqDeserializer::new(self.next().map(|(_, item)| item)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_some(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, ValueError> {
        Err(ValueError::custom("no keys here"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct tuple tuple_struct map enum identifier ignored_any
    }
}

impl IntoDeserializer<'_> for Type<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
