//! Files of the host that define networks, as they are read.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use offload_proto::{Failure, Reason};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::lease;
use crate::cni::go_json;

/// Longest file, in bytes.
const FILE_LIMIT: u64 = 1024 * 1024;
/// The endings of what is read. Editors leave files with others.
const ENDINGS: [&str; 5] = ["conf", "conflist", "json", "yaml", "yml"];
/// What a NetworkAttachmentDefinition is by its `kind`.
const ATTACHMENT_DEFINITION: &str = "NetworkAttachmentDefinition";
/// What a network of the DPU's on a link of the host is by its `kind`.
const DELEGATED_NETWORK: &str = "DelegatedNetwork";

/// The keys of a DelegatedNetwork.
const DELEGATED_KEYS: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];
/// The keys of its metadata.
const METADATA_KEYS: [&str; 4] = ["name", "namespace", "labels", "annotations"];

/// What a file says of a name.
#[derive(Debug)]
pub(super) struct Definition {
    /// Where it says so.
    pub file: PathBuf,
    /// The name.
    pub name: String,
    kind: Kind,
}

/// As what.
#[derive(Debug)]
enum Kind {
    /// A CNI configuration.
    Configuration(Map<String, Value>),
    /// A NetworkAttachmentDefinition.
    Attachment {
        /// The Kubernetes namespace whose pods may use the network. `None`: all.
        namespace: Option<String>,
        /// `None`: the configuration of the same name.
        configuration: Option<Map<String, Value>>,
    },
    /// A network of the DPU's that a plugin makes on a link of the host.
    Delegated {
        /// The Kubernetes namespace whose pods may use the network. `None`: all.
        namespace: Option<String>,
        /// That of the plugin.
        configuration: Map<String, Value>,
    },
}

/// `spec` of a network of the DPU's on a link of the host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DelegatedSpec {
    /// The DPU's network. `None`: that of the same name.
    network: Option<String>,
    /// What makes the pods' interfaces.
    #[serde(rename = "type")]
    plugin: LinkPlugin,
    /// The host's link that they are stacked on.
    master: String,
    /// How they are. `None`: the plugin's own default.
    mode: Option<String>,
}

/// A plugin that stacks interfaces on a link.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LinkPlugin {
    Macvlan,
    Ipvlan,
}

impl LinkPlugin {
    const fn program(self) -> &'static str {
        match self {
            Self::Macvlan => "macvlan",
            Self::Ipvlan => "ipvlan",
        }
    }
}

impl DelegatedSpec {
    /// The plugin's configuration. The version of the specification is left to the plugin, and the MTU to the lease.
    fn configuration(self, name: &str) -> Map<String, Value> {
        let network = self.network.as_deref().unwrap_or(name);
        let mut configuration = Map::from_iter([
            ("type".to_owned(), self.plugin.program().into()),
            ("master".to_owned(), self.master.into()),
            ("ipam".to_owned(), lease::section(network)),
        ]);
        if let Some(mode) = self.mode {
            configuration.insert("mode".into(), mode.into());
        }
        configuration
    }
}

impl Definition {
    /// Whether it is an object with metadata, and no CNI configuration.
    pub(super) fn is_object(&self) -> bool {
        matches!(self.kind, Kind::Attachment { .. } | Kind::Delegated { .. })
    }

    /// Whether its plugin gets the MTU of the DPU's network.
    pub(super) fn uses_network_mtu(&self) -> bool {
        matches!(self.kind, Kind::Delegated { .. })
    }

    /// Whether pods of that namespace may use it.
    pub(super) fn is_for(&self, pods: &str) -> bool {
        match &self.kind {
            Kind::Attachment { namespace, .. } | Kind::Delegated { namespace, .. } => {
                namespace.as_ref().is_none_or(|it| it == pods)
            }
            Kind::Configuration(_) => true,
        }
    }

    /// The CNI configuration that it is or holds.
    pub(super) fn configuration(&self) -> Option<&Map<String, Value>> {
        match &self.kind {
            Kind::Configuration(body) | Kind::Delegated { configuration: body, .. } => Some(body),
            Kind::Attachment { configuration, .. } => configuration.as_ref(),
        }
    }
}

/// The files that define networks, by name. A folder that is not there has none.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    let is_read = |path: &PathBuf| {
        path.extension().and_then(OsStr::to_str).is_some_and(|ending| ENDINGS.contains(&ending))
    };
    let mut paths: Vec<_> = paths.into_iter().filter(is_read).collect();
    paths.sort();
    Ok(paths)
}

/// What a file defines.
pub(super) fn read_file(path: &Path) -> Result<Vec<Definition>, Failure> {
    let text = read_text(path).map_err(|error| invalid(path, &error.to_string()))?;
    // JSON is also YAML, but the YAML parser's errors about JSON are misleading.
    let documents = match path.extension().and_then(OsStr::to_str) {
        Some("yaml" | "yml") => serde_norway::Deserializer::from_str(&text)
            .map(Value::deserialize)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| invalid(path, &error.to_string())),
        _ => serde_json::from_str(&text)
            .map(|document| vec![document])
            .map_err(|error| invalid(path, &error.to_string())),
    }?;
    let documents = documents.into_iter().filter(|document| !document.is_null());
    documents.map(|document| definition(path, document)).collect()
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // Opening a FIFO would block the calls for all networks.
    let file = bootstrap::open_regular_file(path)?;
    file.take(FILE_LIMIT + 1).read_to_string(&mut text)?;
    match text.len() as u64 > FILE_LIMIT {
        true => Err(io::Error::other(format!("it is longer than {FILE_LIMIT} bytes"))),
        false => Ok(text),
    }
}

fn definition(path: &Path, document: Value) -> Result<Definition, Failure> {
    let Value::Object(document) = document else {
        return Err(invalid(path, "it holds no object"));
    };
    match document.get("kind").and_then(Value::as_str) {
        Some(ATTACHMENT_DEFINITION) => return attachment(path, &document.into()),
        Some(DELEGATED_NETWORK) => return delegated(path, document),
        _ => {}
    }
    let Some(name) = text(go_json::get(&document, "name")) else {
        return Err(invalid(
            path,
            "it is neither a CNI configuration with a `name`, nor a NetworkAttachmentDefinition or DelegatedNetwork",
        ));
    };
    Ok(Definition { file: path.into(), name, kind: Kind::Configuration(document) })
}

fn delegated(path: &Path, mut document: Map<String, Value>) -> Result<Definition, Failure> {
    check_keys(path, "", &document, &DELEGATED_KEYS)?;
    if let Some(Value::Object(metadata)) = document.get("metadata") {
        check_keys(path, "metadata.", metadata, &METADATA_KEYS)?;
    }
    let spec = document.remove("spec").unwrap_or_else(|| json!({}));
    let (name, namespace) = metadata(path, &document.into())?;
    let spec: DelegatedSpec = serde_json::from_value(spec)
        .map_err(|error| invalid(path, &format!("`spec` of {name}: {error}")))?;
    let kind = Kind::Delegated { namespace, configuration: spec.configuration(&name) };
    Ok(Definition { file: path.into(), name, kind })
}

/// That an object has no other keys than these. A misspelled `namespace` would open a network to all pods.
fn check_keys(
    path: &Path,
    prefix: &str,
    object: &Map<String, Value>,
    known: &[&str],
) -> Result<(), Failure> {
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let why = format!("unknown key `{prefix}{key}`: use {}", known.join(", "));
            Err(invalid(path, &why))
        }
    }
}

/// The name of an object, and the namespace whose pods may use it.
fn metadata(path: &Path, document: &Value) -> Result<(String, Option<String>), Failure> {
    let name = text(document.pointer("/metadata/name"))
        .ok_or_else(|| invalid(path, "its `metadata` has no `name`"))?;
    let namespace = document.pointer("/metadata/namespace");
    if namespace.is_some_and(|it| !it.is_string() && !it.is_null()) {
        return Err(invalid(path, &format!("`metadata.namespace` of {name} is no text")));
    }
    Ok((name, text(namespace)))
}

fn attachment(path: &Path, document: &Value) -> Result<Definition, Failure> {
    let (name, namespace) = metadata(path, document)?;
    let configuration = match text(document.pointer("/spec/config")) {
        None => None,
        Some(text) => Some(serde_json::from_str(&text).map_err(|error| {
            invalid(path, &format!("`spec.config` of {name} is no JSON object: {error}"))
        })?),
    };
    let kind = Kind::Attachment { namespace, configuration };
    Ok(Definition { file: path.into(), name, kind })
}

/// A text that says something.
pub(super) fn text(value: Option<&Value>) -> Option<String> {
    value?.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned)
}

/// That a file or folder can't be used.
pub(super) fn invalid(path: &Path, why: &str) -> Failure {
    let message = format!("cannot use {}: {why}", path.display());
    Failure::new(Reason::DelegateInvalid, message)
}
