//! The two spellings of a network's `anti_spoofing`: either is read, and the network keeps the level alone.
//! It is written in the older one, which a service of the release before can open; `full`, which that one
//! does not know, is left out.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor, value::MapAccessDeserializer,
    },
};

use super::{AntiSpoofing, Network};

const KEY: &str = "anti_spoofing";
const OLDER_KEY: &str = "allow_mac_spoofing";

impl AntiSpoofing {
    /// What the older spelling says.
    #[must_use]
    pub(crate) const fn of_older_spelling(allow_mac_spoofing: bool) -> Self {
        if allow_mac_spoofing { Self::Off } else { Self::Mac }
    }

    /// By reference, as serde asks.
    pub(super) fn is_full(&self) -> bool {
        *self == Self::Full
    }

    /// Likewise.
    pub(super) fn in_older_spelling<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_bool(*self == Self::Off)
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, output)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_map(AnySpelling)
    }
}

struct AnySpelling;

impl<'de> Visitor<'de> for AnySpelling {
    type Value = Network;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a network")
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Network, A::Error> {
        let respelled = Respelled { entries, is_spelled: false, is_older: false };
        Network::deserialize(MapAccessDeserializer::new(respelled))
    }
}

/// A network's entries, with the older spelling as if it were today's.
struct Respelled<A> {
    entries: A,
    /// Either spelling was there.
    is_spelled: bool,
    /// The last key was the older one.
    is_older: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Respelled<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Self { entries, is_spelled, is_older } = self;
        entries.next_key_seed(Key { seed, is_spelled, is_older })
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        if !self.is_older {
            return self.entries.next_value_seed(seed);
        }
        let level = AntiSpoofing::of_older_spelling(self.entries.next_value()?);
        seed.deserialize(level.name().into_deserializer())
    }
}

/// A key, which is read within the file's own reader, so that mistakes are told with their place.
struct Key<'a, K> {
    seed: K,
    is_spelled: &'a mut bool,
    is_older: &'a mut bool,
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<'_, K> {
    type Value = K::Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<K::Value, D::Error> {
        let key = String::deserialize(input)?;
        *self.is_older = key == OLDER_KEY;
        let is_either = *self.is_older || key == KEY;
        if is_either && std::mem::replace(self.is_spelled, true) {
            let message = format!("{OLDER_KEY} is an older spelling of {KEY}: leave it out");
            return Err(D::Error::custom(message));
        }
        let key = if *self.is_older { KEY } else { &key };
        self.seed.deserialize(key.into_deserializer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a release before does not know: it is in a row only where it says something.
    const NEWER: [&str; 16] = [
        "/allowed_sources",
        "/optional_sources",
        "/allow",
        "/bridge",
        "/outer_vlan",
        "/vlan_priority",
        "/total_egress_rate",
        "/bandwidth/egress_share",
        "/route/0/kind",
        "/route/0/scope",
        "/route/0/onlink",
        "/sysctls",
        "/first_hop",
        "/interface_prefix",
        "/link_group",
        "/link_alias",
    ];

    fn level(line: &str) -> Result<AntiSpoofing, String> {
        let network = toml::from_str::<Network>(&format!("name = \"a\"\n{line}"));
        network.map(|network| network.anti_spoofing).map_err(|error| error.to_string())
    }

    #[test]
    fn both_spellings_are_read_but_not_beside_each_other() {
        assert_eq!(level("").unwrap(), AntiSpoofing::Full);
        assert_eq!(level("anti_spoofing = \"mac\"").unwrap(), AntiSpoofing::Mac);
        assert_eq!(level("allow_mac_spoofing = true").unwrap(), AntiSpoofing::Off);
        assert_eq!(level("allow_mac_spoofing = false").unwrap(), AntiSpoofing::Mac);
        for (wrong, told) in [
            ("anti_spoofing = \"full\"\nallow_mac_spoofing = true", "older spelling"),
            ("allow_mac_spoofing = true\nanti_spoofing = \"mac\"", "older spelling"),
            ("anti_spoofing = true", "2"),
            ("allow_mac_spoofing = \"off\"", "a boolean"),
            ("anti_spoofin = \"off\"", "unknown field `anti_spoofin`"),
        ] {
            let refused = level(wrong).unwrap_err();
            assert!(refused.contains(told) && refused.contains("line "), "{wrong}: {refused}");
        }
    }

    #[test]
    fn rows_of_the_journal_are_in_words_of_the_release_before() {
        for (level, spelled) in [("full", None), ("mac", Some(false)), ("off", Some(true))] {
            let text = format!(
                "name = 'a'\nanti_spoofing = '{level}'\nroutes = [{{ destination = '10.9.0.0/16' }}]"
            );
            let network: Network = toml::from_str(&text).unwrap();
            let row = serde_json::to_value(&network).unwrap();
            let told = row.get(OLDER_KEY).map(|told| told.as_bool().unwrap());
            assert_eq!((told, row.get(KEY)), (spelled, None));
            assert!(NEWER.iter().all(|key| row.pointer(key).is_none()), "{row}");
            assert_eq!(serde_json::from_value::<Network>(row).unwrap(), network);
        }
        let all = "
            name = 'a'
            allowed_sources = ['02:00:00:00:00:01']
            optional_sources = ['02:00:00:00:00:02']
            allow = [{ nobody = true }]
            bridge = 'b'
            outer_vlan = 7
            vlan_priority = 1
            total_egress_rate = 9000
            bandwidth = { egress_share = 8000 }
            routes = [{ destination = '10.9.0.0/16', kind = 'blackhole', scope = 'link', onlink = true }]
            sysctls = { ipv4.rp_filter = 1 }
            first_hop = true
            interface_prefix = 'data'
            link_group = 8
            link_alias = 'a'
        ";
        let row = serde_json::to_value(toml::from_str::<Network>(all).unwrap()).unwrap();
        assert!(NEWER.iter().all(|key| row.pointer(key).is_some()), "{row}");
    }
}
