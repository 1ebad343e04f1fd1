//! The plugin as another plugin's IPAM plugin: it prints the addresses that the agent wrote into the configuration.
//!
//! The agent leases them on the DPU together with the ADD's attachment, and returns them with it. So this
//! code calls neither agent nor DPU, and a DEL has nothing to do.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    environment::Verb,
    error::{CniError, Refusal, invalid},
    go_json,
    result::CniResult,
    version::Version,
};

/// The plugin's name: `type` in configurations and its file name.
pub(crate) const PROGRAM: &str = "host-shim";

/// A configuration of another plugin whose `ipam` names ours.
#[derive(Debug, Deserialize)]
pub(super) struct Borrowed {
    #[serde(rename = "cniVersion", default)]
    version: String,
    ipam: Leased,
    #[serde(rename = "prevResult")]
    previous: Option<Value>,
}

/// `ipam` as the agent writes it.
#[derive(Debug, Deserialize)]
struct Leased {
    /// The leased addresses. `None`: the agent did not write the configuration.
    result: Option<Value>,
}

/// Builds `ipam` of a configuration for another plugin.
pub(crate) fn section(result: CniResult) -> Value {
    json!({ "type": PROGRAM, "result": result.render(Version::NEWEST) })
}

impl Borrowed {
    /// Parses such a configuration. `None`: it is our own plugin's, or names another IPAM plugin.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let document: Map<String, Value> = serde_json::from_slice(text).ok()?;
        let is_ours = |section: &Map<String, Value>| {
            go_json::get(section, "type").is_some_and(|name| name == PROGRAM)
        };
        let section = go_json::get(&document, "ipam").and_then(Value::as_object);
        let is_borrowed = !is_ours(&document) && section.is_some_and(is_ours);
        is_borrowed.then(|| go_json::read(document.into()).ok())?
    }

    /// Answers a call. `None`: success without output.
    pub(super) fn answer(self, verb: Verb) -> Result<Option<Value>, Refusal> {
        let version = Version::parse(&self.version).unwrap_or(Version::NEWEST);
        let refuse = |error| Refusal { version, error };
        match verb {
            Verb::Add => self.leased().map(|it| Some(it.render(version))).map_err(refuse),
            Verb::Check => self.compare().map(|()| None).map_err(refuse),
            Verb::Del | Verb::Gc | Verb::Status | Verb::Version => Ok(None),
        }
    }

    fn leased(&self) -> Result<CniResult, CniError> {
        let result = self.ipam.result.as_ref().ok_or_else(|| {
            let message = "`ipam` names host-shim, and holds no addresses: they are leased where the agent calls the \
                           plugin and `ipam` is {\"type\": \"dpu-offload\", \"network\": \"NAME\"}";
            invalid(message)
        })?;
        CniResult::read(result)
    }

    /// Whether the ADD's result has all leased addresses.
    fn compare(&self) -> Result<(), CniError> {
        let previous = self.previous.as_ref().map(CniResult::read).transpose()?.unwrap_or_default();
        let is_reported =
            |address: &str| previous.ips.iter().any(|reported| reported.address == address);
        let leased = self.leased()?.ips;
        match leased.iter().map(|leased| &leased.address).find(|leased| !is_reported(leased)) {
            None => Ok(()),
            Some(lost) => {
                Err(invalid(format!("prevResult does not have the leased address {lost}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::result::Address;

    fn borrowed(change: impl FnOnce(&mut Value)) -> Option<Borrowed> {
        let address = Address { address: "10.7.0.5/24".into(), ..Address::default() };
        let result = CniResult { ips: vec![address], ..CniResult::default() };
        let mut document = json!({
            "cniVersion": "0.4.0", "name": "storage", "type": "bridge", "ipam": section(result),
        });
        change(&mut document);
        Borrowed::read(document.to_string().as_bytes())
    }

    #[test]
    fn leased_addresses_follow_the_callers_version() {
        let result = borrowed(|_| ()).unwrap().answer(Verb::Add).unwrap().unwrap();
        let ips = json!([{"version": "4", "address": "10.7.0.5/24"}]);
        assert_eq!((&result["cniVersion"], &result["ips"]), (&json!("0.4.0"), &ips));
        assert_eq!(borrowed(|_| ()).unwrap().answer(Verb::Del).unwrap(), None);
    }

    #[test]
    fn ipam_keys_are_read_in_any_case() {
        let respelled = |document: &mut Value| {
            let section = json!({"Type": PROGRAM, "Result": document["ipam"]["result"]});
            let previous = json!({"ips": [{"address": "10.7.0.6/24"}]});
            *document = json!({
                "CNIVersion": "0.4.0", "Type": "bridge", "IPAM": section, "PrevResult": previous,
            });
        };
        let result = borrowed(respelled).unwrap().answer(Verb::Add).unwrap().unwrap();
        assert_eq!(
            (&result["cniVersion"], &result["ips"][0]["address"]),
            (&json!("0.4.0"), &json!("10.7.0.5/24"))
        );
        let refusal = borrowed(respelled).unwrap().answer(Verb::Check).unwrap_err();
        assert!(refusal.error.message.contains("10.7.0.5/24"), "{refusal:?}");
        let own = |document: &mut Value| {
            *document = json!({"TYPE": PROGRAM, "ipam": {"type": PROGRAM}});
        };
        assert!(borrowed(own).is_none());
    }

    #[test]
    fn ipam_check_compares_result_with_lease() {
        let checked = |ips: Value| {
            let result = borrowed(|document| document["prevResult"] = json!({ "ips": ips }));
            result.unwrap().answer(Verb::Check)
        };
        assert_eq!(checked(json!([{"address": "10.7.0.5/24"}])).unwrap(), None);
        let refusal = checked(json!([{"address": "10.7.0.6/24"}])).unwrap_err();
        assert!(refusal.error.message.contains("10.7.0.5/24"), "{refusal:?}");
    }

    #[test]
    fn only_other_plugins_use_our_ipam() {
        assert!(borrowed(|document| document["type"] = "host-shim".into()).is_none());
        assert!(borrowed(|document| document["ipam"]["type"] = "host-local".into()).is_none());
        let bare = borrowed(|document| document["ipam"] = json!({"type": "host-shim"})).unwrap();
        let refusal = bare.answer(Verb::Add).unwrap_err();
        assert!(refusal.error.message.contains("no addresses"), "{refusal:?}");
    }
}
