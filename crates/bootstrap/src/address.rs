use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de};

/// Deserializes an address and port such as `"0.0.0.0:7443"`; for serde's `deserialize_with`.
///
/// # Errors
/// If the value is anything else, such as a host name. The error says what to write.
pub fn socket_address<'de, D: Deserializer<'de>>(input: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(input)?;
    text.parse().map_err(|_| {
        de::Error::custom(format!(
            "{text:?} is not an address and port: write an IP address and a port, such as \"0.0.0.0:7443\" or \
             \"[::]:7443\""
        ))
    })
}
