//! The section `[allocation]`.

use serde::{Deserialize, Deserializer, Serialize, de};

use super::section::{out_of_range, section};

section! {
    /// How VFs, addresses and MAC addresses are allocated.
    pub struct Allocation {
        /// How long a freed address is in cool-down, in seconds.
        pub address_cool_down_s: u64 = 60, 0..=86_400;
        /// The first bytes of allocated MAC addresses: 1 to 5, locally administered unicast.
        #[serde(deserialize_with = "mac_prefix")]
        pub mac_prefix: MacPrefix = MacPrefix(vec![0x02]);
        /// The number of consecutive failures after which a VF is quarantined.
        pub quarantine_after: u32 = 3, 1..=100;
    }
}

/// The first bytes of MAC addresses: 1 to 5.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MacPrefix(Vec<u8>);

impl MacPrefix {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn mac_prefix<'de, D: Deserializer<'de>>(input: D) -> Result<MacPrefix, D::Error> {
    let text = String::deserialize(input)?;
    parse_mac_prefix(&text).ok_or_else(|| {
        de::Error::custom(format!(
            "{text:?} is not a prefix for MAC addresses: write 1 to 5 hexadecimal bytes with colons, \
             the first of them locally administered and unicast (x2, x6, xa or xe), such as \
             \"02:5e\""
        ))
    })
}

fn parse_mac_prefix(text: &str) -> Option<MacPrefix> {
    let byte = |part: &str| {
        let is_hex = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        is_hex.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    let bytes = text.split(':').map(byte).collect::<Option<Vec<u8>>>()?;
    let is_local_unicast = bytes.first().is_some_and(|first| first & 0b11 == 0b10);
    (bytes.len() <= 5 && is_local_unicast).then_some(MacPrefix(bytes))
}
