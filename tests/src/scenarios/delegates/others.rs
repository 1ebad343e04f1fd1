//! Networks of other plugins, and plugins that are scripts.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{CardKind, Settings, process::program};

/// Folder of Debian's package containernetworking-plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// Timeout of a plugin in these labs, in seconds.
const CALL_S: u32 = 3;
/// Timeout on emulated processors, where Debian's plugins may take seconds.
const CALL_S_EMULATED: u32 = 30;

/// Networks of other plugins, script plugins, and their traces.
#[derive(Debug)]
pub struct OtherPlugins(TempDir);

impl OtherPlugins {
    /// Without networks.
    ///
    /// # Panics
    /// If there is no room for them.
    #[must_use]
    pub fn new() -> Self {
        let others = Self(tempfile::tempdir().unwrap());
        for name in ["networks", "plugins", "leases"] {
            fs::create_dir(others.path(name)).unwrap();
        }
        others
    }

    /// One network whose plugin creates a persistent interface with an address leased from a network of the DPU.
    #[must_use]
    pub fn with_links(network: &str, leased: &str) -> Self {
        let others = Self::new();
        others.write_plugin(network, MAKES_A_LINK);
        others.lend_our_plugin();
        others.define(network, &json!([{ "type": network, "ipam": leased_of(leased) }]));
        others
    }

    /// Installs this plugin where other plugins look for an IPAM plugin.
    pub(super) fn lend_our_plugin(&self) {
        let path = self.path("plugins").join("host-shim");
        std::os::unix::fs::symlink(program("host-shim"), path).unwrap();
    }

    /// Settings of a lab whose agent knows these networks.
    #[must_use]
    pub fn in_lab(&self, settings: &Settings) -> Settings {
        let [networks, plugins] = ["networks", "plugins"].map(|name| self.path(name));
        let call_s = match settings.card.kind {
            CardKind::Veth => CALL_S,
            CardKind::Netdevsim => CALL_S_EMULATED,
        };
        let agent = format!(
            "[delegates]\nnetworks = {networks:?}\nplugins = [{plugins:?}, {PLUGINS:?}]\n\
             call_s = {call_s}\n"
        );
        Settings { agent, ..settings.clone() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn define(&self, name: &str, plugins: &Value) {
        self.define_with(name, plugins, &json!({}));
    }

    /// Defines a network with further keys.
    pub(super) fn define_with(&self, name: &str, plugins: &Value, further: &Value) {
        let mut list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": plugins });
        list.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        fs::write(self.definition(name), list.to_string()).unwrap();
    }

    /// Defines a network object for a network of the DPU on a link of the host.
    pub(super) fn define_object(&self, name: &str, spec: &str) {
        let text = format!("kind: DelegatedNetwork\nmetadata: {{name: {name}}}\nspec: {spec}\n");
        fs::write(self.path("networks").join(format!("{name}.yaml")), text).unwrap();
    }

    pub(super) fn definition(&self, name: &str) -> PathBuf {
        self.path("networks").join(format!("{name}.conflist"))
    }

    /// Writes a plugin that is a script.
    pub(super) fn write_plugin(&self, name: &str, script: &str) {
        let path = self.path("plugins").join(name);
        let state = self.0.path().display();
        let head = format!("#!/bin/sh\nSTATE={state}\ndocument=$(cat)\n");
        fs::write(&path, format!("{head}{ANSWERS_VERSION}\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// IPAM configuration: host-local with 10.77.`number`.0/24.
    pub(super) fn ipam(&self, number: u32) -> Value {
        json!({
            "type": "host-local",
            "dataDir": self.path("leases"),
            "ranges": [[{ "subnet": format!("10.77.{number}.0/24") }]],
            "routes": [{ "dst": format!("10.78.{number}.0/24"), "gw": format!("10.77.{number}.1") }],
        })
    }

    /// Number of addresses that host-local has assigned for a network.
    pub(super) fn leases(&self, network: &str) -> usize {
        let entries = fs::read_dir(self.path("leases").join(network));
        let names = entries.into_iter().flatten().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("10.")).count()
    }
}

impl Default for OtherPlugins {
    fn default() -> Self {
        Self::new()
    }
}

/// IPAM configuration for addresses of a network of the DPU.
pub(super) fn leased_of(network: &str) -> Value {
    json!({ "type": "dpu-offload", "network": network })
}

const ANSWERS_VERSION: &str = r#"[ $CNI_COMMAND = VERSION ] && {
    echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'; exit 0; }"#;

/// Script that creates a veth pair with one end in the pod, which needs no kernel module.
pub(super) const MAKES_A_LINK: &str = r#"
    [ $CNI_COMMAND = DEL ] && {
        [ -z "$CNI_NETNS" ] || nsenter --net="$CNI_NETNS" ip link delete "$CNI_IFNAME" 2>/dev/null
        echo "$CNI_NETNS $document" >> $STATE/deleted
        exit 0; }
    [ $CNI_COMMAND = CHECK ] && { nsenter --net="$CNI_NETNS" ip link show "$CNI_IFNAME" >/dev/null || {
        echo '{"code": 150, "msg": "the link is gone"}'; exit 1; }; exit 0; }
    nsenter --net="$CNI_NETNS" ip link add "$CNI_IFNAME" up type veth peer name "p-$CNI_IFNAME"
    nsenter --net="$CNI_NETNS" ip link set "p-$CNI_IFNAME" up
    echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "'$CNI_IFNAME'", "sandbox": "'$CNI_NETNS'"}]}'
"#;
