//! The networks that are defined in files of the host: CNI configurations, and NetworkAttachmentDefinitions.
//!
//! The folder is read for each ADD: so a network is there, changed or gone as soon as its file is, and one may stand for
//! the DPU's of another name.

use std::{
    ffi::OsString,
    iter::successors,
    path::{Path, PathBuf},
};

use offload_proto::{Failure, Reason};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    additions::{self, Additions},
    definitions::{Definition, files, invalid, read_file, text},
    lease,
};
use crate::{
    cni::{go_json, ipam::PROGRAM as OWN_PLUGIN},
    protocol::CallerFolders,
};

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
    pub additions: Additions,
    /// Whether the plugins get the MTU of the DPU's network that its interface has addresses of.
    pub uses_network_mtu: bool,
    /// Where the caller has plugins. They are looked for there first.
    pub folders: Vec<PathBuf>,
}

/// What a name stands for on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A network that other plugins make.
    Plugins(Chain),
    /// The DPU's network of that name. Empty: its default one.
    Dpu(String),
}

/// What the files of a folder say, as they were when it was read.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    definitions: Vec<Definition>,
    /// The files that can't be read, by what they are called, and why.
    unread: Vec<(OsString, Failure)>,
    /// What has lower priority.
    fallback: Option<Box<Self>>,
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
                    tracing::warn!(%failure, "ignoring a network file");
                    let called = file.file_stem().unwrap_or_default().to_owned();
                    catalogue.unread.push((called, failure));
                }
            }
        }
        Ok(catalogue)
    }

    /// Reads the folder of a caller. Configurations that call our own plugin are the runtime's, for first interfaces:
    /// they define no further network.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn read_callers(folder: &Path) -> Result<Self, Failure> {
        let mut catalogue = Self::read(folder)?;
        catalogue.definitions.retain(|it| !calls_our_plugin(it));
        Ok(catalogue)
    }

    /// The same, with `others` at a lower priority. A definition hides those of the same name and kind that the same
    /// pods may use, and no others: an object of theirs still says which namespaces a name is for.
    pub(super) fn over(self, others: Self) -> Self {
        Self { fallback: Some(Box::new(others)), ..self }
    }

    /// What this name stands for when a pod of that namespace says it. `None`: no file says anything of it.
    ///
    /// # Errors
    /// [`Reason::NetworkNotAllowed`]: it is other namespaces' only. [`Reason::DelegateInvalid`]: what is defined
    /// can't be used.
    pub(super) fn look_up(&self, namespace: &str, name: &str) -> Result<Option<Meaning>, Failure> {
        self.check_files(name)?;
        let configuration = || self.first(|it| it.name == name && !it.is_object());
        let is_object = |it: &Definition| it.name == name && it.is_object();
        match self.first(|it| is_object(it) && it.is_for(namespace))? {
            Some(object) if object.configuration().is_some() => meaning_of(object).map(Some),
            Some(object) => meaning_of(configuration()?.unwrap_or(object)).map(Some),
            None if self.all().any(is_object) => {
                let objects = self.all().filter(|it| is_object(it));
                let files: Vec<_> = objects.map(|it| it.file.display().to_string()).collect();
                let message = format!(
                    "network {name} is not for pods of the namespace {namespace:?}: {} has another one",
                    files.join(" and ")
                );
                Err(Failure::new(Reason::NetworkNotAllowed, message))
            }
            None => configuration()?.map(meaning_of).transpose(),
        }
    }

    /// This one and what it is over, by priority.
    fn layers(&self) -> impl Iterator<Item = &Self> {
        successors(Some(self), |layer| layer.fallback.as_deref())
    }

    fn all(&self) -> impl Iterator<Item = &Definition> {
        self.layers().flat_map(|layer| &layer.definitions)
    }

    /// The one definition of that kind, of the highest priority that has any.
    fn first(&self, is_it: impl Fn(&Definition) -> bool) -> Result<Option<&Definition>, Failure> {
        for layer in self.layers() {
            let found: Vec<_> = layer.definitions.iter().filter(|it| is_it(it)).collect();
            if !found.is_empty() {
                return only_one(found);
            }
        }
        Ok(None)
    }

    /// That no file of this name is unreadable. One of lower priority does not count where the name is defined.
    fn check_files(&self, name: &str) -> Result<(), Failure> {
        for layer in self.layers() {
            if let Some((_, failure)) = layer.unread.iter().find(|(called, _)| called == name) {
                return Err(failure.clone());
            }
            if layer.definitions.iter().any(|it| it.name == name) {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn calls_our_plugin(definition: &Definition) -> bool {
    let Definition { file, name, .. } = definition;
    let plugins = definition.configuration().map(|body| plugins(file, name, body));
    plugins.is_some_and(|plugins| plugins.is_ok_and(|all| all.iter().any(is_ours)))
}

fn is_ours(plugin: &Map<String, Value>) -> bool {
    program(plugin) == OWN_PLUGIN
}

/// What a definition makes of its name.
fn meaning_of(definition: &Definition) -> Result<Meaning, Failure> {
    let body = definition.configuration().ok_or_else(|| {
        let name = &definition.name;
        let why = format!("it holds no `spec.config`, and no file defines {name} otherwise");
        invalid(&definition.file, &why)
    })?;
    let uses_network_mtu = definition.uses_network_mtu();
    Ok(match meaning(&definition.file, &definition.name, body)? {
        Meaning::Plugins(chain) => Meaning::Plugins(Chain { uses_network_mtu, ..chain }),
        Meaning::Dpu(network) => Meaning::Dpu(network),
    })
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

fn meaning(file: &Path, network: &str, body: &Map<String, Value>) -> Result<Meaning, Failure> {
    let plugins = plugins(file, network, body)?;
    if let [plugin] = &plugins[..]
        && is_ours(plugin)
    {
        return own_network(file, network, plugin).map(Meaning::Dpu);
    }
    if plugins.iter().any(is_ours) {
        let why = format!(
            "{network} has {OWN_PLUGIN} in a chain: a network is the DPU's or other plugins'"
        );
        return Err(invalid(file, &why));
    }
    let field = |name| go_json::get(body, name);
    let declared = field("cniVersions").and_then(Value::as_array).into_iter().flatten();
    let versions = declared.chain(field("cniVersion")).filter_map(|one| text(Some(one)));
    Ok(Meaning::Plugins(Chain {
        network: network.into(),
        file: file.into(),
        versions: versions.collect(),
        is_unchecked: field("disableCheck").is_some_and(|value| *value == Value::Bool(true)),
        plugins,
        additions: additions(file, network, body)?,
        uses_network_mtu: false,
        folders: Vec::new(),
    }))
}

/// What our own key of it says.
fn additions(file: &Path, network: &str, body: &Map<String, Value>) -> Result<Additions, Failure> {
    let Some(told) = go_json::get(body, additions::KEY) else { return Ok(Additions::default()) };
    Additions::read(told)
        .map_err(|why| invalid(file, &format!("`{}` of {network}: {why}", additions::KEY)))
}

/// Of a list its plugins, and of a single plugin's configuration that one.
fn plugins(
    file: &Path,
    network: &str,
    body: &Map<String, Value>,
) -> Result<Vec<Map<String, Value>>, Failure> {
    let is_addition = |key: &str| go_json::fits(key, additions::KEY);
    let plugins = match go_json::get(body, "plugins") {
        None => {
            let mut plugin = body.clone();
            plugin.retain(|key, _| !is_addition(key));
            vec![plugin]
        }
        Some(list) => serde_json::from_value(list.clone())
            .map_err(|error| invalid(file, &format!("`plugins` of {network}: {error}")))?,
    };
    if plugins.is_empty() {
        return Err(invalid(file, &format!("`plugins` of {network} is empty")));
    }
    if plugins.iter().flat_map(Map::keys).any(|key| is_addition(key)) {
        let why =
            format!("`{}` of {network} belongs next to `plugins`, not into one", additions::KEY);
        return Err(invalid(file, &why));
    }
    let is_named = |plugin: &Map<String, Value>| {
        let name = program(plugin);
        !name.trim().is_empty() && !name.contains('/') && !name.starts_with('.')
    };
    if let Some(unnamed) = plugins.iter().find(|plugin| !is_named(plugin)) {
        let why = format!("`type` {:?} of {network} is not a program's name", program(unnamed));
        return Err(invalid(file, &why));
    }
    check_leases(file, network, &plugins)?;
    Ok(plugins)
}

/// The program of a plugin. Empty: its configuration names none.
pub(super) fn program(plugin: &Map<String, Value>) -> &str {
    go_json::get(plugin, "type").and_then(Value::as_str).unwrap_or_default()
}

/// At most one plugin of a chain gives the interface its addresses.
fn check_leases(file: &Path, network: &str, plugins: &[Map<String, Value>]) -> Result<(), Failure> {
    let mut leasing = 0;
    for plugin in plugins {
        let leased = lease::network_of(plugin).map_err(|why| invalid(file, &why))?;
        leasing += usize::from(leased.is_some());
    }
    match leasing {
        0 | 1 => Ok(()),
        _ => Err(invalid(file, &format!("several plugins of {network} have `ipam` of the DPU's"))),
    }
}

impl Chain {
    /// The same for a caller that has plugins in these folders.
    pub(super) fn of_caller(self, folders: &CallerFolders) -> Self {
        Self { folders: folders.plugins.clone(), ..self }
    }

    /// The DPU's network that its interface has addresses of. `None`: its plugins see to them.
    pub(super) fn leased_network(&self) -> Option<&str> {
        self.plugins.iter().find_map(|plugin| lease::network_of(plugin).ok()?)
    }
}

/// The DPU's network that our own plugin would take.
fn own_network(file: &Path, network: &str, plugin: &Map<String, Value>) -> Result<String, Failure> {
    const TRANSLATED: [&str; 4] = ["cniVersion", "name", "type", "network"];
    let is_translated = |key: &String| TRANSLATED.iter().any(|name| go_json::fits(key, name));
    if let Some(key) = plugin.keys().find(|key| !is_translated(key)) {
        let why = format!(
            "{network} is the DPU's, of which `{key}` can't be set here: ask for it by the pod's annotation, or set it with `dpuctl apply`"
        );
        return Err(invalid(file, &why));
    }
    Ok(match go_json::get(plugin, "network") {
        None => network.to_owned(),
        Some(named) => named.as_str().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        look_up(folder.path(), namespace, name).map(shown)
    }

    fn shown(meaning: Option<Meaning>) -> String {
        match meaning {
            None => "nothing".into(),
            Some(Meaning::Dpu(network)) => format!("the DPU's {network}"),
            Some(Meaning::Plugins(chain)) => {
                chain.plugins.iter().map(program).collect::<Vec<_>>().join(", ")
            }
        }
    }

    #[test]
    fn callers_networks_come_first_without_our_configurations() {
        let of_host = folder(&[
            ("a.conf", r#"{"name": "storage", "type": "macvlan"}"#),
            ("b.conf", r#"{"name": "disks", "type": "vlan"}"#),
        ]);
        let ours = json!({"name": "blue", "plugins": [
            {"type": "host-shim", "capabilities": {"mac": true}}, {"type": "portmap"},
        ]});
        let of_caller = folder(&[
            ("a.conf", r#"{"name": "storage", "type": "ipvlan"}"#),
            ("10-blue.conflist", &ours.to_string()),
        ]);
        let of_host = Catalogue::read(of_host.path()).unwrap();
        let both = Catalogue::read_callers(of_caller.path()).unwrap().over(of_host);
        for (name, expected) in [("storage", "ipvlan"), ("disks", "vlan"), ("blue", "nothing")] {
            assert_eq!(shown(both.look_up("", name).unwrap()), expected);
        }
    }

    /// What a caller's folder with these files and the host's with those make of the name `storage` for a pod of that
    /// namespace.
    fn told_of_both(
        of_caller: &[(&str, &str)],
        of_host: &[(&str, &str)],
        namespace: &str,
    ) -> Result<String, Failure> {
        let (of_caller, of_host) = (folder(of_caller), folder(of_host));
        let of_host = Catalogue::read(of_host.path())?;
        let both = Catalogue::read_callers(of_caller.path())?.over(of_host);
        both.look_up(namespace, "storage").map(shown)
    }

    /// A NetworkAttachmentDefinition of the name `storage` without a configuration.
    fn thin(namespace: &str) -> String {
        format!(
            "kind: NetworkAttachmentDefinition\nmetadata: {{name: storage, namespace: {namespace}}}\n"
        )
    }

    const MACVLAN: &str = r#"{"name": "storage", "type": "macvlan"}"#;

    #[test]
    fn callers_configuration_leaves_the_hosts_namespaces() {
        let (of_caller, thin) = ([("storage.conf", MACVLAN)], thin("prod"));
        let told = |namespace| told_of_both(&of_caller, &[("prod.yaml", &thin)], namespace);
        assert_eq!(told("prod").unwrap(), "macvlan");
        assert_eq!(told("dev").unwrap_err().reason, Reason::NetworkNotAllowed);
    }

    #[test]
    fn callers_object_finds_the_hosts_configuration() {
        let told = told_of_both(&[("prod.yaml", &thin("prod"))], &[("a.conf", MACVLAN)], "prod");
        assert_eq!(told.unwrap(), "macvlan");
    }

    #[test]
    fn callers_object_leaves_other_namespaces_theirs() {
        let of_a = attachment_definition("a", &json!({"type": "vlan"}));
        let of_b = attachment_definition("b", &json!({"type": "ipvlan"}));
        let own_a = attachment_definition("a", &json!({"type": "bridge"}));
        let (of_caller, of_host) =
            ([("a.json", &*own_a)], [("a.json", &*of_a), ("b.json", &*of_b)]);
        let told = |namespace| told_of_both(&of_caller, &of_host, namespace);
        assert_eq!(told("a").unwrap(), "bridge");
        assert_eq!(told("b").unwrap(), "ipvlan");
    }

    #[test]
    fn broken_file_of_the_host_blocks_no_caller() {
        let of_caller = [("a.conf", MACVLAN)];
        assert_eq!(told_of_both(&of_caller, &[("storage.conf", "{")], "").unwrap(), "macvlan");
        assert!(told_of_both(&[], &[("storage.conf", "{")], "").is_err());
        assert!(told_of_both(&[("storage.conf", "{")], &of_caller, "").is_err());
    }

    #[test]
    fn delegated_network_becomes_plugins_configuration() {
        let object = |name: &str, spec: &str| {
            format!("kind: DelegatedNetwork\nmetadata: {{name: {name}}}\nspec: {spec}\n")
        };
        let page = include_str!("../../../../docs/RUNTIMES.md");
        let documented = page.split("```").find(|it| it.contains("kind: DelegatedNetwork"));
        let folder = folder(&[
            ("page.yaml", documented.unwrap()),
            (
                "a.yaml",
                &object("fast", "{network: green, type: macvlan, master: ens1, mode: vepa}"),
            ),
            ("b.yaml", &object("green", "{type: ipvlan, master: ens1}")),
            ("wrong.yaml", &object("wrong", "{type: bridge, master: ens1}")),
            ("bare.yaml", "kind: DelegatedNetwork\nmetadata: {name: bare}\n"),
        ]);
        for (name, plugin) in [
            ("fast", json!({"type": "macvlan", "master": "ens1", "mode": "vepa"})),
            ("green", json!({"type": "ipvlan", "master": "ens1"})),
            ("storage", json!({"type": "macvlan", "master": "ens1f1"})),
        ] {
            let Some(Meaning::Plugins(mut chain)) = look_up(folder.path(), "", name).unwrap()
            else {
                panic!("plugins make {name}")
            };
            assert!(chain.uses_network_mtu && chain.versions.is_empty());
            assert_eq!(chain.leased_network(), Some("green"));
            chain.plugins[0].remove("ipam");
            assert_eq!(Value::from(chain.plugins.remove(0)), plugin);
        }
        for (name, why) in [("wrong", "`bridge`"), ("bare", "`type`")] {
            let failure = look_up(folder.path(), "", name).unwrap_err();
            assert_eq!(failure.reason, Reason::DelegateInvalid);
            assert!(failure.message.contains(why), "{failure}");
        }
    }

    #[test]
    fn misspelled_keys_open_no_network() {
        let object = |head: &str| {
            format!("kind: DelegatedNetwork\n{head}\nspec: {{type: macvlan, master: ens1}}\n")
        };
        for (head, why) in [
            ("metadata: {name: storage, namespase: prod}", "`metadata.namespase`"),
            ("metadata: {name: storage}\nnamespace: prod", "`namespace`"),
            ("metadata: {name: storage, namespace: 7}", "is no text"),
        ] {
            let folder = folder(&[("storage.yaml", &object(head))]);
            let failure = told(&folder, "dev", "storage").unwrap_err();
            assert_eq!(failure.reason, Reason::DelegateInvalid);
            assert!(failure.message.contains(why), "{failure}");
        }
        let folder = folder(&[("a.yaml", &object("metadata: {name: storage, namespace: prod}"))]);
        assert_eq!(told(&folder, "prod", "storage").unwrap(), "macvlan");
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
    fn network_file_keys_match_in_any_case() {
        let list = json!({"Name": "both", "CNIVersion": "1.0.0", "cniversions": ["0.4.0"], "DisableCheck": true,
            "Plugins": [{"TYPE": "bridge", "IPAM": {"Type": "dpu-offload", "Network": "green"}}, {"type": "tuning"}],
            "DPU-Offload": {}});
        let folder = folder(&[
            ("a.conf", r#"{"NAME": "one", "Type": "macvlan", "DPU-Offload": {}}"#),
            ("b.conflist", &list.to_string()),
            ("c.conf", r#"{"Name": "ours", "Type": "host-shim", "Network": "blue"}"#),
            ("d.conf", r#"{"name": "evil", "Type": "../evil"}"#),
            ("e.conf", r#"{"name": "wrong", "type": "vlan", "Dpu-Offload": {"nonsense": 1}}"#),
        ]);
        assert_eq!(told(&folder, "", "one").unwrap(), "macvlan");
        assert_eq!(told(&folder, "", "both").unwrap(), "bridge, tuning");
        assert_eq!(told(&folder, "", "ours").unwrap(), "the DPU's blue");
        assert!(told(&folder, "", "evil").unwrap_err().message.contains("\"../evil\""));
        assert!(told(&folder, "", "wrong").unwrap_err().message.contains("nonsense"));
        let plugins = |name| match look_up(folder.path(), "", name).unwrap() {
            Some(Meaning::Plugins(chain)) => chain,
            other => panic!("{other:?}"),
        };
        let chain = plugins("both");
        assert_eq!(
            (&chain.versions[..], chain.is_unchecked),
            (&["0.4.0".into(), "1.0.0".into()][..], true)
        );
        assert_eq!(chain.leased_network(), Some("green"));
        assert_eq!(Value::from(chain.plugins[0].clone()), list["Plugins"][0]);
        let alone = plugins("one").plugins;
        assert_eq!(Vec::from_iter(alone[0].keys()), ["NAME", "Type"]);
    }

    #[test]
    fn attachment_definitions_are_read() {
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
    fn unusable_network_error_names_its_file() {
        let twice = r#"{"name": "twice", "type": "macvlan"}"#;
        let folder = folder(&[
            ("broken.conf", "{"),
            ("list.yaml", "- a\n"),
            ("a.conf", twice),
            ("b.conf", twice),
            ("ipam.conf", r#"{"name": "ipam", "type": "bridge", "ipam": {"type": "dpu-offload"}}"#),
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
            ("twice", "b.conf", "a.conf "),
            ("ipam", "ipam.conf", "names no `network`"),
            ("path", "path.conf", "\"../evil\""),
            ("none", "none.conflist", "is empty"),
            ("chain", "chain.conflist", "in a chain"),
            ("within", "within.conflist", "belongs next to `plugins`"),
            ("own", "own.conf", "`vlan`"),
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
        assert_eq!(
            told(&folder, "shop", "blue").unwrap(),
            "nothing",
            "others' files block no network"
        );
    }
}
