//! Selectors: the VFs of a pool.

use std::{fmt, str::FromStr};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

use crate::{FunctionId, PfId};

/// Some VFs, by number or by kind of card.
///
/// The forms are `p0` (all VFs of a PF), `p0#3`, `p0#2-45` and, for a kind of card, `15b3:101e`. Configuration
/// files also accept a table: `{ vendor = "15b3", device = "101e" }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// VFs of one PF, by number.
    Functions {
        /// The PF.
        pf: PfId,
        /// The first VF.
        first: u16,
        /// The last VF, included.
        last: u16,
    },
    /// VFs of one kind, by their PCI ids.
    Device {
        /// PCI vendor id.
        vendor: u16,
        /// PCI device id.
        device: u16,
    },
}

impl Selector {
    /// Whether the selector matches VF `vf`. `ids` are its PCI vendor and device, once its host has reported them.
    #[must_use]
    pub fn selects(&self, vf: FunctionId, ids: Option<(u16, u16)>) -> bool {
        match *self {
            Self::Functions { pf, first, last } => pf == vf.pf && (first..=last).contains(&vf.vf),
            Self::Device { vendor, device } => ids == Some((vendor, device)),
        }
    }

    /// The VFs that it selects by number. Empty for all VFs of a PF and for kinds of card.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = FunctionId> {
        let named = match *self {
            Self::Functions { pf, first, last } if last < u16::MAX => Some((pf, first..=last)),
            Self::Functions { .. } | Self::Device { .. } => None,
        };
        named.into_iter().flat_map(|(pf, numbers)| numbers.map(move |vf| FunctionId { pf, vf }))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Functions { pf, first: 0, last: u16::MAX } => write!(out, "{pf}"),
            Self::Functions { pf, first, last } if first == last => write!(out, "{pf}#{first}"),
            Self::Functions { pf, first, last } => write!(out, "{pf}#{first}-{last}"),
            Self::Device { vendor, device } => write!(out, "{vendor:04x}:{device:04x}"),
        }
    }
}

/// The text, shown without what comes after 40 characters, selects no VFs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum ParseSelectorError {
    #[error("{text:?} selects no VFs; write p0, p0#3, p0#2-45 or p0#0-3,8-9")]
    Form { text: String },
    #[error("{text:?}: the range {first}-{last} is the wrong way round; write {last}-{first}")]
    Reversed { text: String, first: u16, last: u16 },
    #[error("{text:?} selects several ranges where one is wanted")]
    Several { text: String },
    #[error("{text:?} is not a PCI id, such as 15b3")]
    PciId { text: String },
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Reads a selector that may list several ranges of one PF, such as `p0#0-3,8-9`.
///
/// # Errors
/// The text is of none of the forms that [`Selector`] describes.
pub fn parse_selectors(text: &str) -> Result<Vec<Selector>, ParseSelectorError> {
    if let Some((vendor, device)) = text.split_once(':') {
        return Ok(vec![Selector::Device { vendor: pci_id(vendor)?, device: pci_id(device)? }]);
    }
    let refuse = || ParseSelectorError::Form { text: shortened(text) };
    let (pf, ranges) = match text.split_once('#') {
        Some((pf, ranges)) => (pf, Some(ranges)),
        None => (text, None),
    };
    let pf: PfId = pf.parse().map_err(|_| refuse())?;
    let Some(ranges) = ranges else {
        return Ok(vec![Selector::Functions { pf, first: 0, last: u16::MAX }]);
    };
    ranges.split(',').map(|range| functions(pf, range, text)).collect()
}

/// Reads one `3` or `2-45` of `text`.
fn functions(pf: PfId, range: &str, text: &str) -> Result<Selector, ParseSelectorError> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (Some(first), Some(last)) = (decimal(first), decimal(last)) else {
        return Err(ParseSelectorError::Form { text: shortened(text) });
    };
    if first > last {
        return Err(ParseSelectorError::Reversed { text: shortened(text), first, last });
    }
    Ok(Selector::Functions { pf, first, last })
}

/// Digits only: `u16::from_str` would take a sign.
fn decimal(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Reads a PCI vendor or device id: up to four hexadecimal digits, after an optional `0x`.
fn pci_id(text: &str) -> Result<u16, ParseSelectorError> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let refuse = || ParseSelectorError::PciId { text: shortened(text) };
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(refuse());
    }
    u16::from_str_radix(digits, 16).map_err(|_| refuse())
}

impl FromStr for Selector {
    type Err = ParseSelectorError;

    fn from_str(text: &str) -> Result<Self, ParseSelectorError> {
        match *parse_selectors(text)?.as_slice() {
            [selector] => Ok(selector),
            _ => Err(ParseSelectorError::Several { text: shortened(text) }),
        }
    }
}

/// The table form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PciIds {
    vendor: String,
    device: String,
}

impl PciIds {
    fn selector(&self) -> Result<Selector, ParseSelectorError> {
        Ok(Selector::Device { vendor: pci_id(&self.vendor)?, device: pci_id(&self.device)? })
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Functions { .. } => serializer.collect_str(self),
            Self::Device { vendor, device } => {
                PciIds { vendor: format!("{vendor:04x}"), device: format!("{device:04x}") }
                    .serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match *deserializer.deserialize_any(SelectorsVisitor)?.as_slice() {
            [selector] => Ok(selector),
            _ => Err(de::Error::custom("several ranges where one is wanted")),
        }
    }
}

/// For `deserialize_with`: one selector or a list of them, each of which may list several ranges.
pub(crate) fn deserialize_selectors<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Selector>, D::Error> {
    deserializer.deserialize_any(SelectorsVisitor)
}

/// What one value of a configuration file selects.
struct Selectors(Vec<Selector>);

impl<'de> Deserialize<'de> for Selectors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SelectorsVisitor).map(Self)
    }
}

struct SelectorsVisitor;

impl<'de> Visitor<'de> for SelectorsVisitor {
    type Value = Vec<Selector>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("VFs such as \"p0#0-63\", or { vendor = \"15b3\", device = \"101e\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        parse_selectors(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let ids = PciIds::deserialize(MapAccessDeserializer::new(map))?;
        Ok(vec![ids.selector().map_err(de::Error::custom)?])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Selectors(some)) = list.next_element()? {
            all.extend(some);
        }
        Ok(all)
    }
}
