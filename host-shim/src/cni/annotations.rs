//! Annotations of ours on a Kubernetes pod, as containerd and CRI-O pass them where the configuration
//! has the capability `io.kubernetes.cri.pod-annotations`: a pod asks by them for what other callers
//! ask for by `runtimeConfig`, and for a network. Further networks are asked for in [`networks`](super::networks)' own
//! form. Annotations of others are none of our business.

use serde_json::Value;

use super::{
    environment::{quoted, shown},
    error::{CniError, code},
    foreign::unsupported,
};

/// The capability that they come by.
pub(super) const CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

/// They begin so.
const PREFIX: &str = "dpu-offload.io/";

/// Their names, without the prefix.
const NAMES: [&str; 7] =
    ["network", "networks", "mac", "ips", "ip-families", "allowed-sources", "bandwidth"];

/// The one that asks for other interfaces.
const NETWORKS: &str = "networks";

/// One of them.
#[derive(Debug, PartialEq)]
pub(super) struct Annotation {
    /// What messages call it.
    pub(super) title: String,
    /// What it asks for.
    pub(super) wish: Wish,
}

/// What an annotation asks for.
#[derive(Debug, PartialEq)]
pub(super) enum Wish {
    /// The DPU's network of that name.
    Network(String),
    /// To send for these besides itself.
    AllowedSources(Vec<String>),
    /// An address of each of these families, and of no other.
    IpFamilies(Vec<String>),
    /// What a capability asks for, by that name and in its form.
    Capability(&'static str, Value),
}

/// Those of ours, from the value of the capability.
///
/// # Errors
/// [`code::UNSUPPORTED_FIELD`] for one that nobody defined, [`code::INVALID_CONFIGURATION`] for one
/// that is malformed.
pub(super) fn read(value: &Value) -> Result<Vec<Annotation>, CniError> {
    let Value::Object(annotations) = value else {
        let message = format!("runtimeConfig.{CAPABILITY} {} is no object", shown(value));
        return Err(CniError::new(code::INVALID_CONFIGURATION, message));
    };
    let ours =
        annotations.iter().filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value)));
    let of_this_interface = ours.filter(|(name, _)| *name != NETWORKS);
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
    let wish = match name {
        "network" => Wish::Network(text.to_owned()),
        "mac" => Wish::Capability("mac", text.into()),
        "ips" => Wish::Capability("ips", listed(text).collect()),
        "ip-families" if text == "none" => Wish::IpFamilies(Vec::new()),
        "ip-families" => Wish::IpFamilies(listed(text).map(str::to_owned).collect()),
        "allowed-sources" => Wish::AllowedSources(listed(text).map(str::to_owned).collect()),
        _ => Wish::Capability("bandwidth", limits(&title, text)?),
    };
    Ok(Annotation { title, wish })
}

fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim)
}

fn limits(title: &str, text: &str) -> Result<Value, CniError> {
    let limits = serde_json::from_str(text).ok().filter(Value::is_object);
    limits.ok_or_else(|| {
        let way_out = "write a JSON object such as {\"ingressRate\": 10000000}";
        malformed(title, &Value::from(text), way_out)
    })
}

fn malformed(title: &str, value: &Value, why: &str) -> CniError {
    let message = format!("{title} {} is malformed: {why}", shown(value));
    CniError::new(code::INVALID_CONFIGURATION, message)
}

/// An annotation and the runtime ask for different things, and which is meant nobody can tell.
pub(super) fn contradiction(title: &str, capability: &str, by_runtime: &Value) -> CniError {
    let message = format!(
        "{title} contradicts runtimeConfig.{capability} {}: ask for it in one of the two",
        shown(by_runtime)
    );
    CniError::new(code::INVALID_CONFIGURATION, message)
}

/// The name of a network is the DPU's to know; here it must be one at all.
pub(super) fn check_network(title: &str, name: &str) -> Result<(), CniError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let message =
        format!("{title} {} can't name a network: write 1 to 63 of a-z, 0-9 and -", quoted(name));
    Err(CniError::new(code::INVALID_CONFIGURATION, message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(annotations: &Value) -> CniError {
        read(annotations).unwrap_err()
    }

    #[test]
    fn each_asks_for_what_its_capability_asks_for() {
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
        let wishes: Vec<_> = read.into_iter().map(|annotation| annotation.wish).collect();
        let expected = [
            Wish::Capability("bandwidth", json!({"ingressRate": 8000})),
            Wish::Capability("ips", json!(["10.1.0.5/16", "fd00::5"])),
            Wish::IpFamilies(vec!["IPv4".into(), "IPv6".into()]),
            Wish::Capability("mac", json!("02:00:00:00:00:01")),
            Wish::Network("blue".into()),
        ];
        assert!(expected.iter().all(|wish| wishes.contains(wish)), "{wishes:?}");
        assert_eq!(wishes.len(), expected.len(), "{wishes:?}");
    }

    #[test]
    fn one_that_nobody_defined_is_refused_with_those_that_are() {
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
    fn what_is_malformed_is_refused_by_name() {
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
