//! What is wrong in a file of networks: the parser's own words with the path to the key, and for a key that
//! there is none of, which one was probably meant. The parser passes over those and tells only their path,
//! so that the type is followed along it once more.

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

use crate::mistake::Mistake;

/// What the parser says of a number: a type of its own tried all that it might be.
const NO_NUMBER: &str = "data did not match any variant of untagged enum Content";

/// The key at the end of `path`, such as `subnets.1.cidrr`, is none of those that `T` has there.
pub(super) fn unknown<'de, T: Deserialize<'de>>(path: &str) -> String {
    let segments: Vec<_> = path.split('.').collect();
    let key = segments.last().copied().unwrap_or_default();
    // Keys of several words have a second name, for those who write as the protocol does: such as this key is.
    let is_protocols = |key: &str| key.contains(|c: char| c.is_ascii_uppercase());
    let is_other = |known: &str| match is_protocols(key) {
        true => known.contains('_'),
        false => is_protocols(known),
    };
    let known: Vec<_> =
        keys_of::<T>(&segments).iter().copied().filter(|known| !is_other(known)).collect();
    unknown_key(&full_name(&segments), key, &known)
}

/// The parser's sentence with its line and column, which may be those of the map around the value, and the key's
/// path if it is known.
pub(super) fn located(path: &str, error: &serde_norway::Error) -> Mistake {
    let place = error.location().map(|location| (location.line(), location.column()));
    let suffix = place.map(|(line, column)| format!(" at line {line} column {column}"));
    let said = error.to_string().replace(&suffix.unwrap_or_default(), "");
    let said = said.replace(NO_NUMBER, "it is no whole number, or one that can't be here");
    let is_known = path != "." && !path.contains('?');
    // The parser begins with some of the path itself.
    let begun = said.split_once(": ").filter(|(begun, _)| path.starts_with(begun));
    let named = format!("`{path}`: {}", begun.map_or(said.as_str(), |(_, rest)| rest));
    Mistake { place, message: if is_known { named } else { said } }
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
