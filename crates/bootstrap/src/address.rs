use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de};

/// Reads a key whose value is an address and port, such as `"0.0.0.0:7443"`: for serde's
/// `deserialize_with`.
///
/// # Errors
/// It is none, such as a host's name: what to write instead.
pub fn socket_address<'de, D: Deserializer<'de>>(input: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(input)?;
    text.parse().map_err(|_| {
        de::Error::custom(format!(
            "{text:?} is not an address and port: write an IP address and a port, such as \"0.0.0.0:7443\" or \
             \"[::]:7443\""
        ))
    })
}
