//! The networks that are defined in files of the host: CNI configurations, and NetworkAttachmentDefinitions.
//!
//! The folder is read once for each ADD that names a further network: so a network is there, changed or gone as soon
//! as its file is.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use offload_proto::{Failure, Reason};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::additions::{self, Additions};

/// Longest file, in bytes.
const FILE_LIMIT: u64 = 1024 * 1024;
/// The endings of what is read. Editors leave files with others.
const ENDINGS: [&str; 5] = ["conf", "conflist", "json", "yaml", "yml"];
/// What a NetworkAttachmentDefinition is by its `kind`.
const ATTACHMENT_DEFINITION: &str = "NetworkAttachmentDefinition";
/// Our own plugin, by `type`.
const OWN_PLUGIN: &str = "host-shim";

/// A network that is made by plugins, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Chain {
    /// Its name.
    pub network: String,
    /// Where it is defined.
    pub file: PathBuf,
    /// The versions of the specification that it says it follows.
    pub versions: Vec<String>,
    /// Whether CHECK is to be left out.
    pub is_unchecked: bool,
    /// The plugins' configurations. Each has its `type`.
    pub plugins: Vec<Map<String, Value>>,
    /// What is set beside what they make.
    #[serde(default)] // as records of before have it
    pub additions: Additions,
}

/// What a name stands for on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A network that other plugins make.
    Plugins(Chain),
    /// The DPU's network of that name. Empty: its default one.
    Dpu(String),
}

/// What a file says of a name.
#[derive(Debug)]
struct Definition {
    file: PathBuf,
    name: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A CNI configuration.
    Configuration(Map<String, Value>),
    /// A NetworkAttachmentDefinition.
    Attachment {
        /// Whose pods may use it. `None`: everybody's.
        namespace: Option<String>,
        /// `None`: the configuration of the same name.
        configuration: Option<Map<String, Value>>,
    },
}

/// What the files of a folder say, as they were when it was read.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    definitions: Vec<Definition>,
    /// The files that can't be read, by what they are called, and why.
    unread: Vec<(OsString, Failure)>,
}

impl Catalogue {
    /// Reads a folder. A file that can't be read stops no pod, unless it is called by the name that is looked up.
    ///
    /// # Errors
    /// [`Reason::DelegateInvalid`]: the folder can't be read.
    pub(super) fn read(folder: &Path) -> Result<Self, Failure> {
        let mut catalogue = Self::default();
        for file in files(folder).map_err(|error| invalid(folder, &error.to_string()))? {
            match read_file(&file) {
                Ok(more) => catalogue.definitions.extend(more),
                Err(failure) => {
                    tracing::warn!("passed over: {failure}");
                    let called = file.file_stem().unwrap_or_default().to_owned();
                    catalogue.unread.push((called, failure));
                }
            }
        }
        Ok(catalogue)
    }

    /// What this name stands for when a pod of that namespace says it. `None`: no file says anything of it.
    ///
    /// # Errors
    /// [`Reason::NetworkNotAllowed`]: it is other namespaces' only. [`Reason::DelegateInvalid`]: what is defined
    /// can't be used.
    pub(super) fn look_up(&self, namespace: &str, name: &str) -> Result<Option<Meaning>, Failure> {
        if let Some((_, failure)) = self.unread.iter().find(|(called, _)| called == name) {
            return Err(failure.clone());
        }
        let found: Vec<_> = self.definitions.iter().filter(|it| it.name == name).collect();
        let attachments: Vec<_> = found.iter().copied().filter(|one| one.is_attachment()).collect();
        if attachments.is_empty() {
            let configuration = only_one(found)?;
            return configuration.map(Definition::meaning).transpose();
        }
        let usable = attachments.into_iter().filter(|one| one.is_for(namespace)).collect();
        let Some(attachment) = only_one(usable)? else {
            let message = format!(
                "network {name} is not for pods of the namespace {namespace:?} on this host"
            );
            return Err(Failure::new(Reason::NetworkNotAllowed, message));
        };
        if attachment.configuration().is_some() {
            return attachment.meaning().map(Some);
        }
        let configurations = found.into_iter().filter(|one| !one.is_attachment()).collect();
        only_one(configurations)?.unwrap_or(attachment).meaning().map(Some)
    }
}

impl Definition {
    fn is_attachment(&self) -> bool {
        matches!(self.kind, Kind::Attachment { .. })
    }

    /// Whether pods of that namespace may use it.
    fn is_for(&self, pods: &str) -> bool {
        match &self.kind {
            Kind::Attachment { namespace, .. } => namespace.as_ref().is_none_or(|it| it == pods),
            Kind::Configuration(_) => true,
        }
    }

    fn configuration(&self) -> Option<&Map<String, Value>> {
        match &self.kind {
            Kind::Configuration(body) => Some(body),
            Kind::Attachment { configuration, .. } => configuration.as_ref(),
        }
    }

    fn meaning(&self) -> Result<Meaning, Failure> {
        let body = self.configuration().ok_or_else(|| {
            let name = &self.name;
            let why = format!("it holds no `spec.config`, and no file defines {name} otherwise");
            invalid(&self.file, &why)
        })?;
        meaning(&self.file, &self.name, body)
    }
}

fn only_one(mut all: Vec<&Definition>) -> Result<Option<&Definition>, Failure> {
    match &all[..] {
        [one, other, ..] => {
            let (first, name) = (one.file.display(), &one.name);
            Err(invalid(&other.file, &format!("{first} defines {name} already")))
        }
        _ => Ok(all.pop()),
    }
}

/// The files that define networks, by name. A folder that is not there has none.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
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

fn read_file(path: &Path) -> Result<Vec<Definition>, Failure> {
    let text = read_text(path).map_err(|error| invalid(path, &error.to_string()))?;
    // JSON is YAML, too; but of YAML's errors in JSON nobody would make sense.
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
    File::open(path)?.take(FILE_LIMIT + 1).read_to_string(&mut text)?;
    match text.len() as u64 > FILE_LIMIT {
        true => Err(io::Error::other(format!("it is longer than {FILE_LIMIT} bytes"))),
        false => Ok(text),
    }
}

fn definition(path: &Path, document: Value) -> Result<Definition, Failure> {
    let Value::Object(document) = document else {
        return Err(invalid(path, "it holds no object"));
    };
    if document.get("kind").and_then(Value::as_str) == Some(ATTACHMENT_DEFINITION) {
        return attachment(path, &document.into());
    }
    let Some(name) = text(document.get("name")) else {
        return Err(invalid(
            path,
            "it is neither a CNI configuration with a `name`, nor a NetworkAttachmentDefinition",
        ));
    };
    Ok(Definition { file: path.into(), name, kind: Kind::Configuration(document) })
}

fn attachment(path: &Path, document: &Value) -> Result<Definition, Failure> {
    let name = text(document.pointer("/metadata/name"))
        .ok_or_else(|| invalid(path, "its `metadata` has no `name`"))?;
    let configuration = match text(document.pointer("/spec/config")) {
        None => None,
        Some(text) => Some(serde_json::from_str(&text).map_err(|error| {
            invalid(path, &format!("`spec.config` of {name} is no JSON object: {error}"))
        })?),
    };
    let namespace = text(document.pointer("/metadata/namespace"));
    let kind = Kind::Attachment { namespace, configuration };
    Ok(Definition { file: path.into(), name, kind })
}

/// A text that says something.
fn text(value: Option<&Value>) -> Option<String> {
    value?.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned)
}

fn meaning(file: &Path, network: &str, body: &Map<String, Value>) -> Result<Meaning, Failure> {
    let plugins = plugins(file, network, body)?;
    if let [plugin] = &plugins[..]
        && plugin["type"] == OWN_PLUGIN
    {
        return own_network(file, network, plugin).map(Meaning::Dpu);
    }
    if plugins.iter().any(|plugin| plugin["type"] == OWN_PLUGIN) {
        let why = format!(
            "{network} has {OWN_PLUGIN} in a chain: a network is the DPU's or other plugins'"
        );
        return Err(invalid(file, &why));
    }
    let declared = body.get("cniVersions").and_then(Value::as_array).into_iter().flatten();
    let versions = declared.chain(body.get("cniVersion")).filter_map(|one| text(Some(one)));
    Ok(Meaning::Plugins(Chain {
        network: network.into(),
        file: file.into(),
        versions: versions.collect(),
        is_unchecked: body.get("disableCheck").is_some_and(|value| *value == Value::Bool(true)),
        plugins,
        additions: additions(file, network, body)?,
    }))
}

/// What our own key of it says.
fn additions(file: &Path, network: &str, body: &Map<String, Value>) -> Result<Additions, Failure> {
    let Some(told) = body.get(additions::KEY) else { return Ok(Additions::default()) };
    let wrong = |why: &str| invalid(file, &format!("`{}` of {network}: {why}", additions::KEY));
    let additions: Additions =
        serde_json::from_value(told.clone()).map_err(|error| wrong(&error.to_string()))?;
    match additions.problem() {
        None => Ok(additions),
        Some(problem) => Err(wrong(&problem)),
    }
}

/// Of a list its plugins, and of a single plugin's configuration that one.
fn plugins(
    file: &Path,
    network: &str,
    body: &Map<String, Value>,
) -> Result<Vec<Map<String, Value>>, Failure> {
    let plugins = match body.get("plugins") {
        None => {
            let mut plugin = body.clone();
            plugin.remove(additions::KEY);
            vec![plugin]
        }
        Some(list) => serde_json::from_value(list.clone())
            .map_err(|error| invalid(file, &format!("`plugins` of {network}: {error}")))?,
    };
    if plugins.is_empty() {
        return Err(invalid(file, &format!("`plugins` of {network} is empty")));
    }
    if plugins.iter().any(|plugin| plugin.contains_key(additions::KEY)) {
        let why =
            format!("`{}` of {network} belongs beside `plugins`, not into one", additions::KEY);
        return Err(invalid(file, &why));
    }
    let is_named = |plugin: &Map<String, Value>| {
        text(plugin.get("type")).is_some_and(|name| !name.contains('/') && !name.starts_with('.'))
    };
    match plugins.iter().all(is_named) {
        true => Ok(plugins),
        false => {
            let why = format!("{network} has a plugin whose `type` is not a program's name");
            Err(invalid(file, &why))
        }
    }
}

/// The DPU's network that our own plugin would take.
fn own_network(file: &Path, network: &str, plugin: &Map<String, Value>) -> Result<String, Failure> {
    const TRANSLATED: [&str; 4] = ["cniVersion", "name", "type", "network"];
    if let Some(key) = plugin.keys().find(|key| !TRANSLATED.contains(&key.as_str())) {
        let why = format!(
            "{network} is the DPU's, of which `{key}` can't be set here: ask for it by the pod's annotation, or set it with `dpuctl apply`"
        );
        return Err(invalid(file, &why));
    }
    Ok(match plugin.get("network") {
        None => network.to_owned(),
        Some(named) => named.as_str().unwrap_or_default().to_owned(),
    })
}

fn invalid(path: &Path, why: &str) -> Failure {
    let message = format!("{} can't be used: {why}", path.display());
    Failure::new(Reason::DelegateInvalid, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn look_up(folder: &Path, namespace: &str, name: &str) -> Result<Option<Meaning>, Failure> {
        Catalogue::read(folder)?.look_up(namespace, name)
    }

    /// The types of the plugins, or the DPU's network.
    fn told(folder: &TempDir, namespace: &str, name: &str) -> Result<String, Failure> {
        Ok(match look_up(folder.path(), namespace, name)? {
            None => "nothing".into(),
            Some(Meaning::Dpu(network)) => format!("the DPU's {network}"),
            Some(Meaning::Plugins(chain)) => {
                let types = chain.plugins.iter().map(|plugin| plugin["type"].as_str().unwrap());
                types.collect::<Vec<_>>().join(", ")
            }
        })
    }

    fn attachment_definition(namespace: &str, config: &Value) -> String {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": "storage", "namespace": namespace },
            "spec": { "config": config.to_string() },
        })
        .to_string()
    }

    #[test]
    fn configurations_and_lists_are_found_by_their_names() {
        let list = json!({"name": "both", "cniVersion": "1.0.0", "cniVersions": ["0.4.0"],
            "plugins": [{"type": "bridge"}, {"type": "tuning"}]});
        let folder = folder(&[
            ("a.conf", r#"{"name": "macvlan-1", "type": "macvlan"}"#),
            ("b.conflist", &list.to_string()),
            ("c.conf~", "not read"),
        ]);
        assert_eq!(told(&folder, "shop", "macvlan-1").unwrap(), "macvlan");
        assert_eq!(told(&folder, "shop", "both").unwrap(), "bridge, tuning");
        assert_eq!(told(&folder, "shop", "a").unwrap(), "nothing");
        let Some(Meaning::Plugins(chain)) = look_up(folder.path(), "", "both").unwrap() else {
            panic!("it is one")
        };
        assert_eq!(chain.versions, ["0.4.0", "1.0.0"]);
        assert_eq!(look_up(Path::new("/nonexistent"), "", "both"), Ok(None));
    }

    #[test]
    fn attachment_definitions_are_thick_or_thin_and_of_a_namespace() {
        let thin = "kind: NetworkAttachmentDefinition\nmetadata: {name: disks, namespace: shop}\n---\n\
                    kind: NetworkAttachmentDefinition\nmetadata: {name: blue}\nspec:\n  config: |\n    \
                    {\"type\": \"host-shim\", \"network\": \"green\"}\n";
        let thick = attachment_definition("shop", &json!({"type": "vlan"}));
        let other = attachment_definition("bank", &json!({"type": "ipvlan"}));
        let folder = folder(&[
            ("thin.yaml", thin),
            ("thick.json", &thick),
            ("other.json", &other),
            ("disks.conf", r#"{"name": "disks", "type": "macvlan"}"#),
        ]);
        assert_eq!(told(&folder, "shop", "storage").unwrap(), "vlan");
        assert_eq!(told(&folder, "bank", "storage").unwrap(), "ipvlan");
        assert_eq!(told(&folder, "shop", "disks").unwrap(), "macvlan");
        assert_eq!(told(&folder, "any", "blue").unwrap(), "the DPU's green");
        let refused = told(&folder, "bank", "disks").unwrap_err();
        assert_eq!(refused.reason, Reason::NetworkNotAllowed);
    }

    #[test]
    fn what_cant_be_used_is_told_with_its_file() {
        let twice = r#"{"name": "twice", "type": "macvlan"}"#;
        let folder = folder(&[
            ("broken.conf", "{"),
            ("list.yaml", "- a\n"),
            ("a.conf", twice),
            ("b.conf", twice),
            ("path.conf", r#"{"name": "path", "type": "../evil"}"#),
            ("none.conflist", r#"{"name": "none", "plugins": []}"#),
            (
                "chain.conflist",
                r#"{"name": "chain", "plugins": [{"type": "host-shim"}, {"type": "tuning"}]}"#,
            ),
            (
                "within.conflist",
                r#"{"name": "within", "plugins": [{"type": "vlan", "dpu-offload": {}}]}"#,
            ),
            ("own.conf", r#"{"name": "own", "type": "host-shim", "vlan": 7}"#),
            ("thin.yaml", "kind: NetworkAttachmentDefinition\nmetadata: {name: thin}\n"),
            (
                "nad.yaml",
                "kind: NetworkAttachmentDefinition\nmetadata: {name: nad}\nspec: {config: x}\n",
            ),
        ]);
        for (name, file, why) in [
            ("broken", "broken.conf", "EOF"),
            ("list", "list.yaml", "no object"),
            ("twice", "b.conf", "a.conf defines twice already"),
            ("path", "path.conf", "not a program's name"),
            ("none", "none.conflist", "is empty"),
            ("chain", "chain.conflist", "in a chain"),
            ("within", "within.conflist", "belongs beside `plugins`"),
            ("own", "own.conf", "`vlan` can't be set here"),
            ("thin", "thin.yaml", "no `spec.config`"),
            ("nad", "nad.yaml", "is no JSON"),
        ] {
            let failure = told(&folder, "shop", name).unwrap_err();
            assert_eq!(failure.reason, Reason::DelegateInvalid);
            assert!(
                failure.message.contains(file) && failure.message.contains(why),
                "{name}: {failure}"
            );
        }
        assert_eq!(told(&folder, "shop", "blue").unwrap(), "nothing", "others' files stop nobody");
    }
}
