//! The network configuration that a runtime passes on standard input.

use std::io::Read;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    environment::quoted,
    error::{CniError, code, invalid},
    foreign::ForeignKey,
    go_json,
    version::Version,
};

/// The longest configuration, in bytes.
const CONFIGURATION_LIMIT: u64 = 1024 * 1024;

/// The keys that the plugin reads. Unknown keys belong to others and are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    /// The specification's version that the document and the result follow.
    pub cni_version: String,
    /// The configuration's name.
    pub name: String,
    /// The plugin that the configuration is for.
    #[serde(rename = "type")]
    pub plugin: String,
    /// The plugins of a list. A plugin gets one of them, never the list.
    pub plugins: Option<Value>,
    /// The DPU's network. Absent: `name`. Empty: the DPU's default network.
    pub network: Option<String>,
    /// Further networks for pods that ask for none: names or objects.
    pub networks: Option<Vec<Value>>,
    /// The prefix of the further interfaces' names.
    pub interface_prefix: Option<String>,
    /// Whether the result has only the first interface's addresses, for runtimes that treat all addresses as the pod's.
    pub only_pod_addresses: bool,
    /// The agent's socket.
    pub agent_socket: Option<String>,
    /// How long calls wait for an absent agent, in seconds.
    pub agent_return_seconds: Option<u64>,
    /// A VF that the kubelet's device plugin chose, as Multus passes it.
    #[serde(rename = "deviceID")]
    pub device_id: Option<String>,
    /// `deviceID` under its other name.
    #[serde(rename = "pciBusID")]
    pub pci_bus_id: Option<String>,
    /// A MAC address for the pod.
    pub mac: Option<String>,
    /// Addresses for the pod.
    pub ips: Option<Vec<String>>,
    /// The families of which the pod gets an address.
    pub ip_families: Option<Vec<String>>,
    /// Arguments by convention (`args.cni`).
    pub args: Args,
    /// The values of the capabilities that the configuration declares.
    pub runtime_config: Map<String, Value>,
    /// The result of the previous plugin, or of the ADD.
    pub prev_result: Option<Value>,
    /// The attachments that GC keeps. Absent differs from empty.
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<ValidAttachment>>,
    /// The same list under the key that older runtimes use by mistake.
    #[serde(rename = "cni.dev/attachments")]
    pub attachments: Option<Vec<ValidAttachment>>,
    /// A key of another plugin in the configuration.
    #[serde(skip)]
    pub foreign_key: Option<ForeignKey>,
}

/// `args`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Args {
    /// `args.cni`
    pub cni: CniArgs,
}

/// `args.cni`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CniArgs {
    /// A MAC address for the pod.
    pub mac: Option<String>,
    /// Addresses for the pod.
    pub ips: Option<Vec<String>>,
    /// The families of which the pod gets an address.
    #[serde(rename = "ipFamilies")]
    pub ip_families: Option<Vec<String>>,
    /// Further sources that the pod asks to send from.
    #[serde(rename = "allowedSources")]
    pub allowed_sources: Option<Vec<String>>,
}

/// An attachment that GC keeps.
#[derive(Clone, Debug, Deserialize)]
pub struct ValidAttachment {
    /// The container id.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface's name.
    pub ifname: String,
}

/// The keys of GC's list.
const VALID_LISTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

impl Configuration {
    /// Reads and checks a configuration in the order of the reference library (libcni).
    ///
    /// # Errors
    /// [`code::IO_FAILURE`], [`code::UNDECODABLE`] or [`code::INVALID_CONFIGURATION`].
    pub fn read(input: impl Read) -> Result<Self, CniError> {
        let undecodable = |why: &dyn std::fmt::Display| {
            let message = format!("the network configuration on stdin can't be decoded: {why}");
            CniError::new(code::UNDECODABLE, message)
        };
        let text = read_limited(input)?;
        if text.trim_ascii().is_empty() {
            let message = "there is no network configuration on stdin: pass one, such as \
                           /etc/cni/net.d's with the list's `name` and `cniVersion`";
            return Err(CniError::new(code::UNDECODABLE, message));
        }
        let mut document: Map<String, Value> =
            serde_json::from_slice(&text).map_err(|error| undecodable(&error))?;
        // Only noted here: an ADD refuses it, but a DEL must succeed.
        let foreign_key = ForeignKey::first_of(&document);
        // Go prints an empty list as null, which would count as absent.
        for key in VALID_LISTS {
            if let Some(list @ Value::Null) = document.get_mut(key) {
                *list = Value::Array(Vec::new());
            }
        }
        let read: Self =
            go_json::read(Value::Object(document)).map_err(|error| undecodable(&error))?;
        let configuration = Self { foreign_key, ..read };
        configuration.check_name()?;
        configuration.check_type()?;
        Ok(configuration)
    }

    fn check_type(&self) -> Result<(), CniError> {
        if !self.plugin.is_empty() {
            return Ok(());
        }
        let message = if self.plugins.is_some() {
            "this is a configuration list: pass one of its `plugins` with the list's `name` and \
             `cniVersion`"
        } else {
            "missing `type`: the configuration does not say which plugin it is for"
        };
        Err(invalid(message))
    }

    fn check_name(&self) -> Result<(), CniError> {
        if self.name.is_empty() {
            return Err(invalid("missing network name"));
        }
        let is_first = |c: char| c.is_ascii_alphanumeric();
        let is_later = |c: char| is_first(c) || matches!(c, '_' | '.' | '-');
        if self.name.starts_with(is_first) && self.name.chars().all(is_later) {
            return Ok(());
        }
        let message = format!("invalid characters found in network name {}", quoted(&self.name));
        Err(invalid(message))
    }

    /// The version that the configuration and the result follow.
    ///
    /// # Errors
    /// [`code::INCOMPATIBLE_VERSION`]: the plugin does not support the version. A configuration without one has version
    /// 0.1.0.
    pub fn version(&self) -> Result<Version, CniError> {
        let text = if self.cni_version.is_empty() { "0.1.0" } else { &self.cni_version };
        Version::parse(text).ok_or_else(|| {
            CniError::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions").with_details(
                format!("config is {}, plugin supports {}", quoted(text), Version::list()),
            )
        })
    }

    /// The DPU's network that the configuration is for. Empty: the DPU's default network.
    #[must_use]
    pub fn network(&self) -> String {
        self.network.clone().unwrap_or_else(|| self.name.clone())
    }
}

/// Reads the whole configuration unless it is too long.
pub(super) fn read_limited(input: impl Read) -> Result<Vec<u8>, CniError> {
    let mut document = Vec::new();
    input.take(CONFIGURATION_LIMIT + 1).read_to_end(&mut document).map_err(|error| {
        CniError::new(code::IO_FAILURE, format!("error reading from stdin: {error}"))
    })?;
    if document.len() as u64 > CONFIGURATION_LIMIT {
        let message = format!(
            "the network configuration on stdin is longer than {CONFIGURATION_LIMIT} bytes"
        );
        return Err(CniError::new(code::IO_FAILURE, message));
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refusal(text: &str) -> CniError {
        Configuration::read(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn configuration_tolerates_foreign_keys() {
        let text = r#"{"cniVersion":"1.0.0","name":"blue","type":"host-shim","mtu":9000,
            "capabilities":{"mac":true},"agentSocket":"/tmp/s","args":null,"runtimeConfig":null,"deviceID":"0000:03:00.2"}"#;
        let configuration = Configuration::read(text.as_bytes()).unwrap();
        assert_eq!(configuration.version(), Ok(Version::V1_0_0));
        assert_eq!(configuration.network(), "blue");
        assert_eq!(configuration.device_id.as_deref(), Some("0000:03:00.2"));
    }

    #[test]
    fn network_may_differ_from_the_name() {
        let of = |network: &str| {
            let text = format!(r#"{{"name":"n","type":"host-shim","network":"{network}"}}"#);
            Configuration::read(text.as_bytes()).unwrap().network()
        };
        assert_eq!(of("red"), "red");
        assert_eq!(of(""), "");
    }

    #[test]
    fn malformed_configuration_is_undecodable() {
        for text in
            ["", "{", "[]x", "null", "{\"name\":\"a\"", "{\"name\":7}", "{\"cniVersion\":1}"]
        {
            assert_eq!(refusal(text).code, code::UNDECODABLE, "{text}");
        }
        let deep = format!("{{\"name\":\"a\",\"args\":{}", "[".repeat(100_000));
        assert_eq!(refusal(&deep).code, code::UNDECODABLE);
    }

    #[test]
    fn malformed_gc_entry_names_its_list() {
        for list in VALID_LISTS {
            let text = format!(r#"{{"name":"n","type":"host-shim","{list}":[{{"id":"g"}}]}}"#);
            let error = refusal(&text);
            assert_eq!(error.code, code::UNDECODABLE);
            let expected = format!("{list}[0]: missing field `containerID`");
            assert!(error.message.ends_with(&expected), "{error:?}");
        }
    }

    #[test]
    fn names_are_checked() {
        for text in [r#"{}"#, r#"{"name":""}"#, r#"{"name":"a/b"}"#, r#"{"name":"../x"}"#] {
            assert_eq!(refusal(text).code, code::INVALID_CONFIGURATION, "{text}");
        }
    }

    #[test]
    fn configuration_list_is_refused() {
        let list = r#"{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"host-shim"}]}"#;
        for (text, words) in [(list, "one of its `plugins`"), (r#"{"name":"n"}"#, "`type`")] {
            let error = refusal(text);
            assert_eq!(error.code, code::INVALID_CONFIGURATION);
            assert!(error.message.contains(words), "{error:?}");
        }
    }

    #[test]
    fn versions_are_checked() {
        for version in ["", "0.1.0", "0.2.0", "2.0.0", "1.1", "x"] {
            let text = format!(r#"{{"cniVersion":"{version}","name":"n","type":"host-shim"}}"#);
            let error = Configuration::read(text.as_bytes()).unwrap().version().unwrap_err();
            assert_eq!(error.code, code::INCOMPATIBLE_VERSION);
            assert!(error.details.contains("1.1.0"));
        }
    }

    #[test]
    fn oversized_cni_configuration_is_refused() {
        let padding = usize::try_from(CONFIGURATION_LIMIT).unwrap();
        let text = format!(r#"{{"name":"n","x":"{}"}}"#, "y".repeat(padding));
        assert_eq!(refusal(&text).code, code::IO_FAILURE);
    }

    #[test]
    fn unreadable_stdin_is_an_io_failure() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        assert_eq!(Configuration::read(Broken).unwrap_err().code, code::IO_FAILURE);
    }
}
