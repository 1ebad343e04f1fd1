//! Our annotations on a Kubernetes pod. containerd and CRI-O pass them if the configuration has the capability
//! `io.kubernetes.cri.pod-annotations`. They ask for a network and for what other callers request by `runtimeConfig`.
//! [`networks`](super::networks) reads the one for further networks. Other annotations are ignored.

use serde_json::Value;

use super::{
    environment::{quoted, shown},
    error::{CniError, invalid},
    foreign::unsupported,
};

/// The capability that passes annotations.
pub(super) const CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

const PREFIX: &str = "dpu-offload.io/";

/// The names of our annotations, without the prefix.
const NAMES: [&str; 7] =
    ["network", "networks", "mac", "ips", "ip-families", "allowed-sources", "bandwidth"];

#[derive(Debug, PartialEq)]
pub(super) struct Annotation {
    /// The annotation's name in messages.
    pub(super) title: String,
    pub(super) requested: Requested,
}

/// What an annotation asks for.
#[derive(Debug, PartialEq)]
pub(super) enum Requested {
    /// A network of the DPU.
    Network(String),
    /// Further sources to send from.
    AllowedSources(Vec<String>),
    /// Addresses of exactly these families.
    IpFamilies(Vec<String>),
    /// The value of a capability, in its form.
    Capability(&'static str, Value),
}

/// Reads our annotations from the capability's value.
///
/// # Errors
/// An annotation is unknown or malformed.
pub(super) fn read(value: &Value) -> Result<Vec<Annotation>, CniError> {
    let Value::Object(annotations) = value else {
        let message = format!("runtimeConfig.{CAPABILITY} {} is no object", shown(value));
        return Err(invalid(message));
    };
    let ours =
        annotations.iter().filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value)));
    let of_this_interface = ours.filter(|(name, _)| *name != "networks");
    of_this_interface.map(|(name, value)| read_one(name, value)).collect()
}

fn read_one(name: &str, value: &Value) -> Result<Annotation, CniError> {
    let title = format!("annotation {PREFIX}{name}");
    let Some(name) = NAMES.into_iter().find(|known| *known == name) else {
        let known = NAMES.map(|name| format!("{PREFIX}{name}")).join(", ");
        let way_out = format!("UNSUPPORTED: leave it out: the annotations are {known}");
        return Err(unsupported(&title, value).with_details(way_out));
    };
    let text = match value.as_str().map(str::trim) {
        Some("") => return Err(malformed(&title, value, "it is empty: leave it out")),
        Some(text) => text,
        None => return Err(malformed(&title, value, "it is no text")),
    };
    let requested = match name {
        "network" => Requested::Network(text.to_owned()),
        "mac" => Requested::Capability("mac", text.into()),
        "ips" => Requested::Capability("ips", listed(text).collect()),
        "ip-families" if text == "none" => Requested::IpFamilies(Vec::new()),
        "ip-families" => Requested::IpFamilies(listed(text).map(str::to_owned).collect()),
        "allowed-sources" => Requested::AllowedSources(listed(text).map(str::to_owned).collect()),
        _ => {
            let limits = serde_json::from_str(text).ok().filter(Value::is_object);
            let way_out = "write a JSON object such as {\"ingressRate\": 10000000}";
            let limits = limits.ok_or_else(|| malformed(&title, value, way_out))?;
            Requested::Capability("bandwidth", limits)
        }
    };
    Ok(Annotation { title, requested })
}

fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim)
}

fn malformed(title: &str, value: &Value, why: &str) -> CniError {
    let message = format!("{title} {} is malformed: {why}", shown(value));
    invalid(message)
}

/// The error for an annotation that contradicts the runtime's request: the plugin cannot choose.
pub(super) fn contradiction(title: &str, capability: &str, by_runtime: &Value) -> CniError {
    let message = format!(
        "{title} contradicts runtimeConfig.{capability} {}: ask for it in one of the two",
        shown(by_runtime)
    );
    invalid(message)
}

/// Checks the form of a network's name. Only the DPU knows which networks exist.
pub(super) fn check_network(title: &str, name: &str) -> Result<(), CniError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let message =
        format!("{title} {} can't name a network: write 1 to 63 of a-z, 0-9 and -", quoted(name));
    Err(invalid(message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cni::error::code;

    fn refusal(annotations: &Value) -> CniError {
        read(annotations).unwrap_err()
    }

    #[test]
    fn annotations_map_to_capabilities() {
        let annotations = json!({
            "dpu-offload.io/network": "blue",
            "dpu-offload.io/mac": "02:00:00:00:00:01",
            "dpu-offload.io/ips": "10.1.0.5/16, fd00::5",
            "dpu-offload.io/ip-families": "IPv4, IPv6",
            "dpu-offload.io/bandwidth": r#"{"ingressRate": 8000}"#,
            "example.org/mac": 5,
            "dpu-offload.io.example.org/mac": "x",
        });
        let read = read(&annotations).unwrap();
        let found: Vec<_> = read.into_iter().map(|annotation| annotation.requested).collect();
        let expected = [
            Requested::Capability("bandwidth", json!({"ingressRate": 8000})),
            Requested::Capability("ips", json!(["10.1.0.5/16", "fd00::5"])),
            Requested::IpFamilies(vec!["IPv4".into(), "IPv6".into()]),
            Requested::Capability("mac", json!("02:00:00:00:00:01")),
            Requested::Network("blue".into()),
        ];
        assert!(expected.iter().all(|requested| found.contains(requested)), "{found:?}");
        assert_eq!(found.len(), expected.len(), "{found:?}");
    }

    #[test]
    fn unknown_annotation_is_refused_with_known_ones() {
        for name in ["vlan", "", "MAC", "Network", "mac/x"] {
            let error = refusal(&json!({format!("dpu-offload.io/{name}"): "7"}));
            assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{error:?}");
            assert!(
                error.message.starts_with(&format!("annotation dpu-offload.io/{name} ")),
                "{error:?}"
            );
            assert!(
                error.details.contains("dpu-offload.io/allowed-sources, dpu-offload.io/bandwidth"),
                "{error:?}"
            );
        }
    }

    #[test]
    fn malformed_annotations_are_refused() {
        for (name, value) in [
            ("network", json!(" ")),
            ("mac", json!("")),
            ("ips", json!(["10.1.0.5"])),
            ("bandwidth", json!("10M")),
            ("bandwidth", json!("[1]")),
        ] {
            let error = refusal(&json!({format!("dpu-offload.io/{name}"): value}));
            assert_eq!(error.code, code::INVALID_CONFIGURATION, "{error:?}");
            assert!(error.message.contains(&format!("dpu-offload.io/{name}")), "{error:?}");
        }
        assert!(refusal(&json!("x")).message.contains(CAPABILITY));
    }
}
