use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de};

/// The value that switches metrics off.
const OFF: &str = "off";

/// Deserializes a key such as `metrics.listen`: an address and port, or `"off"`, which is `None`.
///
/// # Errors
/// If the value is neither.
pub fn listen_address<'de, D: Deserializer<'de>>(input: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(input)?;
    if text == OFF {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        de::Error::custom(format!(
            "{text:?} is not an address and port: write an IP address and a port, such as \"127.0.0.1:9464\" or \
             \"[::1]:9464\", or \"off\""
        ))
    })
}

/// The line of `--check-config` about the metrics' address.
#[must_use]
pub fn address_line(listen: Option<SocketAddr>) -> String {
    match listen {
        Some(address) => format!("Metrics are read from http://{address}/metrics\n"),
        None => "Metrics are off\n".into(),
    }
}
