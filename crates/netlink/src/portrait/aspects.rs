//! The aspects of a part: how they are written, and how they differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The aspects of one part, by name.
pub(super) type Aspects = BTreeMap<String, String>;

/// What is not as it was, each in a few words.
pub(super) fn differences(now: &Aspects, was: &Aspects) -> Vec<String> {
    let names: BTreeSet<_> = now.keys().chain(was.keys()).collect();
    let of = |aspects: &Aspects, name: &str, other: Option<&String>| match aspects.get(name) {
        Some(value) => value.clone(),
        None if other.is_some_and(|other| other == ON) => OFF.to_owned(),
        None => "none".to_owned(),
    };
    let told = |name: &String| {
        let (present, past) = (now.get(name), was.get(name));
        let (present, past) = (of(now, name, past), of(was, name, present));
        (present != past).then(|| format!("its {name} is {present} instead of {past}"))
    };
    let was_known = |name: &&String| !is_of_unknown(name, was);
    names.into_iter().filter(was_known).filter_map(told).collect()
}

/// Whether an aspect is one that a driver refused to tell, or belongs to such a one, as `rings for sending`
/// belongs to `rings`.
fn is_of_unknown(name: &str, aspects: &Aspects) -> bool {
    let mut unknown = aspects.iter().filter(|(_, value)| value.starts_with(UNKNOWN));
    unknown.any(|(group, _)| name.strip_prefix(group.as_str()).is_some_and(is_end_of_word))
}

fn is_end_of_word(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(' ')
}

const UNKNOWN: &str = "unknown (";

/// The value of what a driver refuses to tell.
pub(super) fn unknown(why: &dyn fmt::Display) -> String {
    format!("{UNKNOWN}{why})")
}

pub(super) const ON: &str = "on";
pub(super) const OFF: &str = "off";

pub(super) fn on_or_off(on: bool) -> String {
    if on { ON } else { OFF }.to_owned()
}

/// A value of which no more is known than its length: a number, or bytes.
pub(super) fn value_of(bytes: &[u8]) -> String {
    match *bytes {
        [byte] => byte.to_string(),
        [a, b] => u16::from_ne_bytes([a, b]).to_string(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).to_string(),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instead_of(name: &str, now: &str, was: &str) -> String {
        format!("its {name} is {now} instead of {was}")
    }

    #[test]
    fn what_is_not_there_is_off_or_none() {
        let aspects =
            |name: &str, value: &str| Aspects::from([(name.to_owned(), value.to_owned())]);
        let now = aspects("feature x", ON);
        let told = |now: &Aspects, was: &Aspects| differences(now, was).concat();
        assert_eq!(told(&now, &Aspects::new()), instead_of("feature x", "on", "off"));
        let was = aspects("alias", "a");
        assert_eq!(told(&Aspects::new(), &was), instead_of("alias", "none", "a"));
    }

    #[test]
    fn what_a_driver_refused_to_tell_at_first_is_not_compared() {
        let aspects = |all: &[(&str, &str)]| -> Aspects {
            all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let refused = aspects(&[("rings", &unknown(&"EBUSY")), ("ringside", "1")]);
        let told = aspects(&[("rings for sending", "512"), ("ringside", "2")]);
        assert_eq!(differences(&told, &refused), [instead_of("ringside", "2", "1")]);
        assert!(differences(&refused, &refused).is_empty());
        let back = differences(&refused, &told);
        assert_eq!(back[0], instead_of("rings", "unknown (EBUSY)", "none"), "{back:?}");
    }
}
