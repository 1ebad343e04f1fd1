//! Where in a file a mistake is, and which key was probably meant. What reads networks tells only the
//! path to an unknown key, so that the text and the type are followed along it once more.

use std::{cell::Cell, fmt};

use bootstrap::unknown_key;
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::{Error as ValueError, StrDeserializer},
    },
    forward_to_deserialize_any,
};

use super::sentence::{duplicate, sentence};
use crate::mistake::Mistake;

/// The key at the end of `path` is none of those that `T` has there. `document` is another reading.
pub(super) fn unknown<'de, T: Deserialize<'de>>(
    document: serde_norway::Deserializer<'de>,
    path: &str,
) -> Mistake {
    let segments: Vec<_> = path.split('.').collect();
    let key = segments.last().copied().unwrap_or_default();
    // Keys of several words have a second name, for those who write as the protocol does.
    let known = keys_of::<T>(&segments).iter().copied();
    let known: Vec<_> = known.filter(|known| key.contains('_') || !known.contains('_')).collect();
    let message = unknown_key(&full_name(&segments), key, &known);
    Mistake { place: key_in(document, &segments, 1), message }
}

/// What the parser says, with the key, which it does not always name, and the place. It tells where the
/// value begins, or the map around it.
pub(super) fn located(
    document: serde_norway::Deserializer<'_>,
    path: &str,
    error: &serde_norway::Error,
) -> Mistake {
    let said = error.to_string();
    let told = place(error);
    let suffix = told.map(|(line, column)| format!(" at line {line} column {column}"));
    let said = suffix.and_then(|suffix| said.strip_suffix(&suffix)).unwrap_or(&said);
    // It is none, or the parser failed before it knew.
    let is_known = path != "." && !path.contains('?');
    let path = if is_known { path.replace('[', ".").replace(']', "") } else { String::new() };
    let segments: Vec<_> = path.split('.').filter(|segment| !segment.is_empty()).collect();
    let said = said.strip_prefix(&format!("{}: ", full_name(&segments))).unwrap_or(said);
    let place = match duplicate(said) {
        Some(key) => key_in(document, &[&segments, &[key][..]].concat(), 2),
        None => key_in(document, &segments, 1),
    };
    let told_of =
        if segments.is_empty() { "".into() } else { format!("`{}`: ", full_name(&segments)) };
    Mistake { place: told.max(place), message: told_of + &sentence(said, &segments) }
}

/// Such as `subnets[1].cidr`.
fn full_name(segments: &[&str]) -> String {
    let mut name = String::new();
    for segment in segments {
        let is_index = segment.bytes().all(|b| b.is_ascii_digit());
        match (is_index, name.is_empty()) {
            (true, _) => name.push_str(&format!("[{segment}]")),
            (false, true) => name.push_str(segment),
            (false, false) => name.push_str(&format!(".{segment}")),
        }
    }
    name
}

/// Where the parser failed.
fn place(error: &serde_norway::Error) -> Option<(usize, usize)> {
    error.location().map(|location| (location.line(), location.column()))
}

/// Where the key at the end of `path` stands for the `occurrence`th time, from 1.
fn key_in(
    document: serde_norway::Deserializer<'_>,
    path: &[&str],
    occurrence: usize,
) -> Option<(usize, usize)> {
    Within { path, occurrence }.deserialize(document).err().as_ref().and_then(place)
}

/// Follows a path in a document, and fails at the key at its end: parsers tell where they fail.
struct Within<'a> {
    path: &'a [&'a str],
    occurrence: usize,
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a map or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((wanted, path)) = self.path.split_first() else { return Ok(()) };
        let mut left = self.occurrence;
        while let Some(is_it) =
            map.next_key_seed(Key { wanted, is_last: path.is_empty() && left == 1 })?
        {
            if is_it && !path.is_empty() {
                map.next_value_seed(Within { path, ..self })?;
            } else {
                left -= usize::from(is_it);
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((index, path)) = self.path.split_first() else { return Ok(()) };
        for _ in 0..index.parse().unwrap_or(0) {
            list.next_element::<IgnoredAny>()?;
        }
        list.next_element_seed(Within { path, ..self }).map(|_| ())
    }
}

/// Whether a key is the one that is wanted; if that is the last, it fails there.
struct Key<'a> {
    wanted: &'a str,
    is_last: bool,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<bool, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = bool;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        match (key == self.wanted, self.is_last) {
            (true, true) => Err(E::custom("here")),
            (is_it, _) => Ok(is_it),
        }
    }
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
    fn next(self) -> Option<(&'a str, Self)> {
        let (first, path) = self.path.split_first()?;
        Some((first, Self { path, ..self }))
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
        visitor.visit_map(Once(self.next()))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_seq(Once(self.next()))
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

/// A map or a list of the one thing that the path names.
struct Once<'a>(Option<(&'a str, Type<'a>)>);

impl<'de> MapAccess<'de> for Once<'_> {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ValueError> {
        let key = self.0.map(|(key, _)| seed.deserialize(StrDeserializer::new(key)));
        key.transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ValueError> {
        let (_, value) = self.0.take().ok_or_else(|| ValueError::custom("no more values"))?;
        seed.deserialize(value)
    }
}

impl<'de> SeqAccess<'de> for Once<'_> {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ValueError> {
        self.0.take().map(|(_, element)| seed.deserialize(element)).transpose()
    }
}
