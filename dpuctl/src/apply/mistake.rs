//! Mistakes in a file of networks, with the path to the key. A wrong type is reported with what was found and what is
//! expected. An unknown key is reported with the most similar known key. The parser reports only the path of an unknown
//! key, so this module follows the type along the path to list its keys.

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

/// What the parser reports for a value that is not the expected number. The first comes from a type that tries several
/// forms.
const NO_NUMBER: [&str; 5] = [
    "data did not match any variant of untagged enum Content",
    "invalid digit found in string",
    "cannot parse integer from empty string",
    "number too large to fit in target type",
    "number too small to fit in target type",
];

/// Longest quotation of a file, in characters.
const LONGEST_TEXT: usize = 64;

/// How many expected keys a message names.
const NAMED: usize = 3;

/// Message for the key at the end of `path`, such as `subnets.1.cidrr`, which `T` does not have there.
pub(super) fn unknown<'de, T: Deserialize<'de>>(path: &str) -> String {
    let segments: Vec<_> = path.split('.').collect();
    let key = segments.last().copied().unwrap_or_default();
    // Keys of several words have a second spelling, the protocol's. Suggest the spelling that the unknown key uses.
    let is_other = |known: &str| match is_protocols(key) {
        true => known.contains('_'),
        false => is_protocols(known),
    };
    let known: Vec<_> =
        keys_of::<T>(&segments).iter().copied().filter(|known| !is_other(known)).collect();
    unknown_key(&full_name(&segments), key, &known)
}

/// Whether a key has the protocol's spelling (snake case).
fn is_protocols(key: &str) -> bool {
    key.contains(|c: char| c.is_ascii_uppercase())
}

/// The mistake with line and column, which may be those of the surrounding map, and with the key's path if that is
/// known. `found` is the value at the path.
pub(super) fn located<'de, T: Deserialize<'de>>(
    path: &str,
    error: &serde_norway::Error,
    found: Option<&Value>,
) -> Mistake {
    let place = error.location().map(|location| (location.line(), location.column()));
    let suffix = place.map(|(line, column)| format!(" at line {line} column {column}"));
    let problem = error.to_string().replace(&suffix.unwrap_or_default(), "");
    // The parser repeats part of the path at the start of its message.
    let begun = problem.split_once(": ").filter(|(begun, _)| path.starts_with(begun));
    let problem = begun.map_or(problem.as_str(), |(_, rest)| rest);
    let kinds = expected::<T>(path, problem).zip(found.map(kind_of));
    let problem = match kinds {
        Some((expected, found)) => format!("found {found}, expected {expected}"),
        None => problem.into(),
    };
    let is_known = path != "." && !path.contains('?');
    Mistake { place, message: if is_known { format!("`{path}`: {problem}") } else { problem } }
}

/// The keys and indices of a path, such as `subnets[1].cidr`.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '[', ']']).filter(|segment| !segment.is_empty())
}

/// What is expected at the end of `path`, taken from the parser's message. `None`: the value has the right type.
fn expected<'de, T: Deserialize<'de>>(path: &str, problem: &str) -> Option<String> {
    if NO_NUMBER.contains(&problem) {
        return Some("a whole number that is not negative and not too large".into());
    }
    let (_, expected) = problem.strip_prefix("invalid type: ")?.rsplit_once(", expected ")?;
    Some(match expected {
        "a sequence" => "a list".into(),
        "a map" => "keys with values".into(),
        "a string" => "text".into(),
        "a boolean" => "`true` or `false`".into(),
        // The message goes on with the name of a Rust type.
        of_type if of_type.starts_with("struct ") => some_keys::<T>(path),
        other => other.into(),
    })
}

/// Some of the keys of `T` at the end of `path`.
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

/// Joins segments, such as `subnets[1].cidr`.
fn full_name(segments: &[&str]) -> String {
    let is_index = |segment: &str| segment.bytes().all(|byte| byte.is_ascii_digit());
    let named = |segment: &&str| match is_index(segment) {
        true => format!("[{segment}]"),
        false => format!(".{segment}"),
    };
    let name: String = segments.iter().map(named).collect();
    name.trim_start_matches('.').into()
}

/// The keys of `T` at the end of `path`.
fn keys_of<'de, T: Deserialize<'de>>(path: &[&str]) -> &'static [&'static str] {
    let keys = Cell::default();
    // This always fails, because the end of the path has no value. Only the visited keys matter.
    let _ = T::deserialize(Type { path, keys: &keys });
    keys.get()
}

/// A deserializer without data that leads a type along a path, to learn the type's keys.
#[derive(Clone, Copy)]
struct Type<'a> {
    path: &'a [&'a str],
    keys: &'a Cell<&'static [&'static str]>,
}

impl<'a> Type<'a> {
    /// The next segment of the path, and the deserializer behind it.
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
