//! JSON as Go's encoding/json reads it. Runtimes test their calls only with Go's plugins. Keys match a field without
//! regard to case, an exact match first, and null sets nothing.

use std::fmt::Display;

use serde::{
    Deserializer,
    de::{
        self, DeserializeOwned, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Map, Value};

/// Why a value does not fit a type.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoJsonError {
    /// An object has a key that the type does not know, with a value that asks for something.
    #[error("unknown key {key}: known are {}", known.join(", "))]
    UnknownKey {
        /// The unknown key.
        key: String,
        /// The keys of the type.
        known: &'static [&'static str],
    },
    /// Anything else.
    #[error("{}{why}", place(path))]
    Malformed {
        /// The place in the value, such as `.ips[1]`. Empty: the value itself.
        path: String,
        /// What is wrong.
        why: String,
    },
}

fn place(path: &str) -> String {
    match path.trim_start_matches('.') {
        "" => String::new(),
        path => format!("{path}: "),
    }
}

impl GoJsonError {
    /// Adds a step to the error's path.
    fn within(self, step: &str) -> Self {
        match self {
            Self::Malformed { path, why } => Self::Malformed { path: format!("{step}{path}"), why },
            unknown @ Self::UnknownKey { .. } => unknown,
        }
    }
}

impl de::Error for GoJsonError {
    fn custom<T: Display>(message: T) -> Self {
        Self::Malformed { path: String::new(), why: message.to_string() }
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownKey { key: field.to_owned(), known }
    }
}

/// Deserializes a value.
///
/// # Errors
/// [`GoJsonError`]
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, GoJsonError> {
    T::deserialize(GoJson { value, step: String::new() })
}

/// Whether a key matches a field's ASCII name. Go's case folding includes the long s and the Kelvin sign.
#[must_use]
pub fn fits(key: &str, name: &str) -> bool {
    let fold = |letter: char| match letter {
        'ſ' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(name.chars().map(fold))
}

/// The key, in its own spelling, and the value from which a field of this name is read.
#[must_use]
pub fn entry<'a>(object: &'a Map<String, Value>, name: &str) -> Option<(&'a str, &'a Value)> {
    let set = || object.iter().filter(|(_, value)| !value.is_null());
    let exact = set().find(|(key, _)| *key == name);
    let (key, value) = exact.or_else(|| set().rfind(|(key, _)| fits(key, name)))?;
    Some((key, value))
}

/// The value of a field.
#[must_use]
pub fn get<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    entry(object, name).map(|(_, value)| value)
}

/// Sets a field under the key from which it is read, and removes all other spellings.
pub fn set(object: &mut Map<String, Value>, name: &str, value: Value) {
    let key = entry(object, name).map_or(name, |(key, _)| key).to_owned();
    object.retain(|key, _| !fits(key, name));
    object.insert(key, value);
}

/// Whether Go treats the value as absent.
#[must_use]
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_true) => !is_true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}

struct GoJson {
    value: Value,
    /// The step to this value from its parent: `.key` or `[number]`.
    step: String,
}

impl<'de> Deserializer<'de> for GoJson {
    type Error = GoJsonError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, GoJsonError> {
        let visited = match self.value {
            Value::Array(items) => visit_array(items, visitor),
            Value::Object(fields) => visit_object(fields, visitor),
            plain => plain.deserialize_any(visitor).map_err(de::Error::custom),
        };
        visited.map_err(|error| error.within(&self.step))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, GoJsonError> {
        let visited = match self.value {
            Value::Object(fields) => visit_object(named(fields, names), visitor),
            other => Err(de::Error::invalid_type(unexpected(&other), &visitor)),
        };
        visited.map_err(|error| error.within(&self.step))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, GoJsonError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl de::IntoDeserializer<'_, GoJsonError> for GoJson {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

fn visit_array<'de, V: Visitor<'de>>(
    items: Vec<Value>,
    visitor: V,
) -> Result<V::Value, GoJsonError> {
    let items = items.into_iter().enumerate();
    visitor.visit_seq(SeqDeserializer::new(
        items.map(|(number, value)| GoJson { value, step: format!("[{number}]") }),
    ))
}

fn visit_object<'de, V: Visitor<'de>>(
    fields: Map<String, Value>,
    visitor: V,
) -> Result<V::Value, GoJsonError> {
    visitor.visit_map(MapDeserializer::new(fields.into_iter().map(|(key, value)| {
        let step = format!(".{key}");
        (key, GoJson { value, step })
    })))
}

/// Renames an object's keys to the matching `names`. Drops null values, and unknown fields whose values ask for
/// nothing.
#[must_use]
pub fn named(fields: Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let mut named = Map::new();
    let mut exact = Map::new();
    for (key, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
        if names.contains(&key.as_str()) {
            exact.insert(key, value);
        } else if let Some(name) = names.iter().find(|name| fits(&key, name)) {
            named.insert((*name).to_owned(), value);
        } else if !is_zero(&value) {
            named.insert(key, value);
        }
    }
    named.extend(exact);
    named
}

fn unexpected(value: &Value) -> de::Unexpected<'_> {
    match value {
        Value::Null => de::Unexpected::Unit,
        Value::Bool(value) => de::Unexpected::Bool(*value),
        Value::Number(_) => de::Unexpected::Other("number"),
        Value::String(text) => de::Unexpected::Str(text),
        Value::Array(_) => de::Unexpected::Seq,
        Value::Object(_) => de::Unexpected::Map,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase", deny_unknown_fields)]
    struct Port {
        host_port: u32,
        #[serde(rename = "hostIP")]
        host_ip: String,
        tags: Vec<String>,
        next: Option<Box<Port>>,
    }

    fn port(value: Value) -> Result<Port, GoJsonError> {
        read(value)
    }

    #[test]
    fn json_keys_match_in_any_case() {
        let value = json!({"HostPort": 1, "hostip": "a", "TAGS": ["x"], "Next": {"HOSTPORT": 2}});
        let next = Port { host_port: 2, ..Port::default() };
        let whole = Port {
            host_port: 1,
            host_ip: "a".into(),
            tags: vec!["x".into()],
            next: Some(Box::new(next)),
        };
        assert_eq!(port(value), Ok(whole));
        assert_eq!(port(json!({"ho\u{17f}tPort": 3})).unwrap().host_port, 3);
    }

    #[test]
    fn exact_json_key_wins() {
        for value in [json!({"HostPort": 1, "hostPort": 2}), json!({"hostPort": 2, "hostport": 3})]
        {
            assert_eq!(port(value).unwrap().host_port, 2);
        }
    }

    #[test]
    fn json_entry_returns_the_matched_key() {
        let object =
            json!({"Type": "a", "TYPE": null, "ho\u{17f}tPort": 1, "name": null, "Name": 2});
        let object = object.as_object().unwrap();
        assert_eq!(entry(object, "type"), Some(("Type", &json!("a"))));
        assert_eq!(entry(object, "hostPort"), Some(("ho\u{17f}tPort", &json!(1))));
        assert_eq!(get(object, "name"), Some(&json!(2)));
        assert_eq!(get(object, "hostIP"), None);
        let both = json!({"ipam": 1, "IPAM": 2, "ipaM": 3});
        assert_eq!(entry(both.as_object().unwrap(), "ipam"), Some(("ipam", &json!(1))));
    }

    #[test]
    fn json_field_keeps_its_matched_key() {
        for (before, after) in [
            (json!({"a": 1}), json!({"a": 1, "cniVersion": "x"})),
            (json!({"cniversion": "y"}), json!({"cniversion": "x"})),
            (json!({"cniVersion": "y", "cniversion": "z"}), json!({"cniVersion": "x"})),
        ] {
            let mut object = before.as_object().unwrap().clone();
            set(&mut object, "cniVersion", "x".into());
            assert_eq!(Value::from(object), after);
        }
    }

    #[test]
    fn json_null_sets_nothing() {
        let value = json!({"hostPort": null, "HostIP": null, "tags": null, "next": null});
        assert_eq!(port(value), Ok(Port::default()));
    }

    #[test]
    fn unknown_json_key_is_named() {
        let known = &["hostPort", "hostIP", "tags", "next"];
        let unknown = Err(GoJsonError::UnknownKey { key: "hostRange".into(), known });
        assert_eq!(port(json!({"hostRange": 5})), unknown);
        assert_eq!(port(json!({"next": {"hostRange": 5}})), unknown);
        assert_eq!(
            port(json!({"hostRange": 0, "x": "", "y": [], "z": false})),
            Ok(Port::default())
        );
    }

    #[test]
    fn json_type_mismatch_is_malformed() {
        for value in
            [json!({"hostPort": "1"}), json!({"tags": "x"}), json!([1]), json!("x"), json!(null)]
        {
            assert!(matches!(port(value.clone()), Err(GoJsonError::Malformed { .. })), "{value}");
        }
    }

    #[test]
    fn json_error_names_the_place() {
        for (value, place) in [
            (json!({"hostPort": "1"}), "hostPort: invalid type"),
            (json!({"Next": {"tags": ["x", 5]}}), "next.tags[1]: invalid type"),
            (json!([1]), "invalid type"),
        ] {
            let error = port(value).unwrap_err().to_string();
            assert!(error.starts_with(place), "{error}");
        }
    }
}
