//! Aspects: the names and values of which a link's state consists, and their comparison.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Values of one part, by aspect.
pub(super) type Aspects = BTreeMap<String, String>;

/// Describes each aspect that differs, in a few words.
pub(super) fn differences(now: &Aspects, was: &Aspects) -> Vec<String> {
    let names: BTreeSet<_> = now.keys().chain(was.keys()).collect();
    let of = |aspects: &Aspects, name: &str, other: Option<&String>| match aspects.get(name) {
        Some(value) => value.clone(),
        None if other.is_some_and(|other| other == ON) => OFF.to_owned(),
        None => "none".to_owned(),
    };
    let difference = |name: &String| {
        let (present, past) = (now.get(name), was.get(name));
        let (present, past) = (of(now, name, past), of(was, name, present));
        (present != past).then(|| format!("its {name} is {present} instead of {past}"))
    };
    let was_known = |name: &&String| !is_of_unknown(name, was);
    names.into_iter().filter(was_known).filter_map(difference).collect()
}

/// Whether the driver refused to report an aspect or its group. `rings for sending` belongs to the group `rings`.
fn is_of_unknown(name: &str, aspects: &Aspects) -> bool {
    let mut unknown = aspects.iter().filter(|(_, value)| value.starts_with(UNKNOWN));
    unknown.any(|(group, _)| name.strip_prefix(group.as_str()).is_some_and(is_end_of_word))
}

fn is_end_of_word(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(' ')
}

const UNKNOWN: &str = "unknown (";

/// The value of an aspect that the driver refuses to report.
pub(super) fn unknown(why: &dyn fmt::Display) -> String {
    format!("{UNKNOWN}{why})")
}

pub(super) const ON: &str = "on";
pub(super) const OFF: &str = "off";

pub(super) fn on_or_off(on: bool) -> String {
    if on { ON } else { OFF }.to_owned()
}

/// Formats an attribute of unknown meaning: a number if its length fits one, else bytes.
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
    fn missing_aspect_is_off_or_none() {
        let aspects =
            |name: &str, value: &str| Aspects::from([(name.to_owned(), value.to_owned())]);
        let now = aspects("feature x", ON);
        let found = |now: &Aspects, was: &Aspects| differences(now, was).concat();
        assert_eq!(found(&now, &Aspects::new()), instead_of("feature x", "on", "off"));
        let was = aspects("alias", "a");
        assert_eq!(found(&Aspects::new(), &was), instead_of("alias", "none", "a"));
    }

    #[test]
    fn aspect_refused_at_first_is_not_compared() {
        let aspects = |all: &[(&str, &str)]| -> Aspects {
            all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let refused = aspects(&[("rings", &unknown(&"EBUSY")), ("ringside", "1")]);
        let found = aspects(&[("rings for sending", "512"), ("ringside", "2")]);
        assert_eq!(differences(&found, &refused), [instead_of("ringside", "2", "1")]);
        assert!(differences(&refused, &refused).is_empty());
        let back = differences(&refused, &found);
        assert_eq!(back[0], instead_of("rings", "unknown (EBUSY)", "none"), "{back:?}");
    }
}
