//! The environment of a CNI call.

use std::{env, path::Path};

use offload_proto::form::{
    CONTAINER_ID_LIMIT, INTERFACE_NAMES, is_container_id, is_interface_name,
};
use serde_json::Value;

use super::error::{CniError, code};
use crate::protocol::CallerFolders;

/// The verb of a CNI call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Attach a container to a network.
    Add,
    /// Undo an ADD.
    Del,
    /// Report whether an ADD's work is still in place.
    Check,
    /// Release attachments that are not listed as valid.
    Gc,
    /// Report whether an ADD can be served.
    Status,
    /// Report the supported versions.
    Version,
}

impl Verb {
    const ALL: [Self; 6] =
        [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status, Self::Version];

    /// The verb's name in `CNI_COMMAND`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    const fn names_an_attachment(self) -> bool {
        matches!(self, Self::Add | Self::Del | Self::Check)
    }
}

/// The `CNI_…` variables. An empty one counts as missing: runtimes always set all of them.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `CNI_COMMAND`
    pub command: String,
    /// `CNI_CONTAINERID`
    pub container_id: String,
    /// `CNI_NETNS`: a path
    pub netns: String,
    /// `CNI_IFNAME`
    pub interface_name: String,
    /// `CNI_ARGS`: `KEY=value;KEY=value`
    pub args: String,
    /// `CNI_NETNS_OVERRIDE`: `1` or `true` allows the plugin's own namespace.
    pub netns_override: String,
    /// `CNI_PATH`: folders of plugins, with colons between them.
    pub path: String,
    /// `CNI_CONF_DIR`: the folder of network configurations.
    pub conf_dir: String,
}

/// The known keys of `CNI_ARGS`.
const ARGS: [&str; 7] = [
    "IP",
    "MAC",
    "K8S_POD_NAMESPACE",
    "K8S_POD_NAME",
    "K8S_POD_UID",
    "K8S_POD_INFRA_CONTAINER_ID",
    "IgnoreUnknown",
];

impl Environment {
    /// Reads the process's environment.
    #[must_use]
    pub fn of_process() -> Self {
        let read = |name| {
            env::var_os(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
        };
        Self {
            command: read("CNI_COMMAND"),
            container_id: read("CNI_CONTAINERID"),
            netns: read("CNI_NETNS"),
            interface_name: read("CNI_IFNAME"),
            args: read("CNI_ARGS"),
            netns_override: read("CNI_NETNS_OVERRIDE"),
            path: read("CNI_PATH"),
            conf_dir: read("CNI_CONF_DIR"),
        }
    }

    /// Checks the variables in the order of the reference library (libcni) and returns the verb.
    ///
    /// `CNI_PATH` may be missing: the agent's configuration names plugin folders too.
    ///
    /// # Errors
    /// [`code::INVALID_ENVIRONMENT`]: names the missing variables or the invalid one.
    pub fn verb(&self) -> Result<Verb, CniError> {
        let verb = Verb::ALL.into_iter().find(|verb| verb.as_str() == self.command);
        let verb = verb.ok_or_else(|| {
            let (command, known) = (quoted(&self.command), Verb::ALL.map(Verb::as_str).join(", "));
            invalid(format!("CNI_COMMAND {command} is unknown: it is one of {known}"))
        })?;
        self.check_values(verb)?;
        self.check_presence(verb)?;
        Ok(verb)
    }

    fn check_values(&self, verb: Verb) -> Result<(), CniError> {
        if !verb.names_an_attachment() {
            return Ok(());
        }
        if !self.container_id.is_empty() {
            check_container_id(&self.container_id).map_err(invalid)?;
        }
        if !self.interface_name.is_empty() {
            check_interface_name(&self.interface_name).map_err(invalid)?;
        }
        // A DEL of an interface `lo` that never existed must succeed.
        if verb == Verb::Add && self.interface_name == "lo" {
            return Err(invalid(
                "CNI_IFNAME lo is every pod's loopback: choose another name".into(),
            ));
        }
        Ok(())
    }

    fn check_presence(&self, verb: Verb) -> Result<(), CniError> {
        let required = [
            ("CNI_CONTAINERID", &self.container_id, verb.names_an_attachment()),
            ("CNI_NETNS", &self.netns, matches!(verb, Verb::Add | Verb::Check)),
            ("CNI_IFNAME", &self.interface_name, verb.names_an_attachment()),
        ];
        let missing: Vec<_> = required
            .into_iter()
            .filter(|(_, value, required)| *required && value.is_empty())
            .map(|(name, ..)| name)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(invalid(format!("required env variables [{}] missing or empty", missing.join(","))))
    }

    /// The folders of `CNI_PATH` and `CNI_CONF_DIR`, made absolute. Relative ones refer to the runtime's working
    /// directory, which the agent does not share.
    #[must_use]
    pub fn folders(&self) -> CallerFolders {
        let absolute = |folder: &Path| std::path::absolute(folder).ok();
        CallerFolders {
            plugins: env::split_paths(&self.path).filter_map(|it| absolute(&it)).collect(),
            networks: absolute(Path::new(&self.conf_dir)),
        }
    }

    /// Whether the plugin's own namespace is allowed as the container's.
    #[must_use]
    pub fn allows_own_netns(&self) -> bool {
        is_true(&self.netns_override)
    }

    /// The value of a key of `CNI_ARGS`; the last one wins. Empty values count as missing.
    #[must_use]
    pub fn arg(&self, key: &str) -> Option<&str> {
        let mut pairs = self.args.split(';').filter_map(|pair| pair.split_once('='));
        pairs.rfind(|(k, v)| *k == key && !v.is_empty()).map(|(_, value)| value)
    }

    /// Checks that `CNI_ARGS` consists of `KEY=value` pairs with known keys. `IgnoreUnknown` permits other keys. Keys
    /// are case-sensitive, as for Go's plugins.
    ///
    /// # Errors
    /// [`code::INVALID_ENVIRONMENT`] names the malformed pair or the unknown key, but not its value, which may be
    /// secret.
    pub fn check_args(&self) -> Result<(), CniError> {
        let mut pairs = self.args.split(';').filter(|pair| !pair.is_empty());
        if let Some(stray) = pairs.clone().find(|pair| !pair.contains('=')) {
            let message = format!("CNI_ARGS holds {}, which is no KEY=value pair", quoted(stray));
            return Err(invalid(message));
        }
        let is_unknown = |(key, value): &(&str, &str)| !value.is_empty() && !ARGS.contains(key);
        match pairs.find_map(|pair| pair.split_once('=').filter(is_unknown)) {
            Some((key, _)) if !self.arg("IgnoreUnknown").is_some_and(is_true) => {
                Err(invalid(format!(
                    "CNI_ARGS holds the unknown key {}: known are {}; set IgnoreUnknown=1 to ignore others",
                    quoted(key),
                    ARGS.join(", ")
                )))
            }
            _ => Ok(()),
        }
    }
}

fn is_true(value: &str) -> bool {
    value == "1" || value.eq_ignore_ascii_case("true")
}

fn invalid(message: String) -> CniError {
    CniError::new(code::INVALID_ENVIRONMENT, message)
}

/// The most characters of a value in a message.
const SHOWN: usize = 64;

/// Quotes a value for a message: escaped, and cut if it is long.
pub fn quoted(value: &str) -> String {
    if value.chars().count() <= SHOWN {
        return format!("{value:?}");
    }
    let beginning: String = value.chars().take(SHOWN).collect();
    format!("{beginning:?}… of {} bytes", value.len())
}

/// Quotes a JSON value for a message. Its own quotation marks are kept.
pub(super) fn shown(value: &Value) -> String {
    if let Value::String(text) = value {
        return quoted(text);
    }
    let json = value.to_string();
    let is_mark = |character| matches!(character, '"' | '\'' | '\\');
    let escaped = |character: char| match is_mark(character) {
        true => character.to_string(),
        false => character.escape_debug().to_string(),
    };
    let beginning: String = json.chars().take(SHOWN).map(escaped).collect();
    match json.chars().nth(SHOWN) {
        None => beginning,
        Some(_) => format!("{beginning}… of {} bytes", json.len()),
    }
}

/// Checks a container id.
///
/// # Errors
/// One sentence on what is wrong with the id.
pub fn check_container_id(id: &str) -> Result<(), String> {
    if is_container_id(id) {
        return Ok(());
    }
    let id_shown = quoted(id);
    if id.len() > CONTAINER_ID_LIMIT {
        return Err(format!("containerID {id_shown} is longer than {CONTAINER_ID_LIMIT} bytes"));
    }
    Err(format!("invalid characters in containerID {id_shown}"))
}

/// Checks the form of an interface's name.
///
/// # Errors
/// One sentence, without a full stop, on what is wrong with the name.
pub fn check_interface_name(name: &str) -> Result<(), String> {
    if is_interface_name(name) {
        return Ok(());
    }
    Err(format!("interface name {} can't name an interface: use {INTERFACE_NAMES}", quoted(name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn environment(command: &str) -> Environment {
        Environment {
            command: command.into(),
            container_id: "sandbox-1".into(),
            netns: "/run/netns/a".into(),
            interface_name: "eth0".into(),
            ..Environment::default()
        }
    }

    fn refusal(environment: &Environment) -> String {
        let error = environment.verb().unwrap_err();
        assert_eq!(error.code, code::INVALID_ENVIRONMENT);
        error.message
    }

    #[test]
    fn every_cni_verb_is_parsed() {
        for verb in Verb::ALL {
            assert_eq!(environment(verb.as_str()).verb(), Ok(verb));
        }
    }

    #[test]
    fn unknown_cni_commands_are_refused() {
        for command in ["", "add", "ADD ", "UPDATE"] {
            let message = refusal(&environment(command));
            assert!(message.contains(command), "{message}");
            assert!(message.ends_with(" STATUS, VERSION"), "{message}");
        }
    }

    #[test]
    fn all_missing_cni_variables_are_named() {
        let bare = Environment { command: "ADD".into(), ..Environment::default() };
        assert!(refusal(&bare).contains("[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME]"));
    }

    #[test]
    fn del_gc_and_status_need_no_netns() {
        let del = Environment { netns: String::new(), ..environment("DEL") };
        assert_eq!(del.verb(), Ok(Verb::Del));
        for command in ["GC", "STATUS", "VERSION"] {
            let bare = Environment { command: command.into(), ..Environment::default() };
            assert!(bare.verb().is_ok(), "{command}");
        }
    }

    #[test]
    fn container_ids_are_checked() {
        for id in ["-a", ".a", "_a", "a/b", "a b", "a\u{0}", "ä", "..", "a\n"] {
            let hostile = Environment { container_id: id.into(), ..environment("ADD") };
            assert!(refusal(&hostile).contains("containerID"), "{id:?}");
        }
        let long = Environment { container_id: "a".repeat(1000), ..environment("DEL") };
        assert!(refusal(&long).contains("longer than 253 bytes"));
        let longest = Environment { container_id: "a".repeat(253), ..environment("ADD") };
        assert!(longest.verb().is_ok());
    }

    #[test]
    fn interface_names_are_checked() {
        for name in [
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "a\tb",
            "eth%d",
            "a\u{1}",
            "0123456789abcdef",
            "a\u{a0}",
        ] {
            let hostile = Environment { interface_name: name.into(), ..environment("ADD") };
            assert!(refusal(&hostile).starts_with("interface name"), "{name:?}");
        }
        let loopback = |verb| Environment { interface_name: "lo".into(), ..environment(verb) };
        assert!(refusal(&loopback("ADD")).contains("loopback"));
        assert!(loopback("DEL").verb().is_ok());
        let longest =
            Environment { interface_name: "0123456789abcde".into(), ..environment("ADD") };
        assert!(longest.verb().is_ok());
    }

    #[test]
    fn caller_folders_are_absolute() {
        let environment = Environment {
            path: "/opt/cni/bin:plugins::/usr/lib/cni".into(),
            conf_dir: "net.d".into(),
            ..environment("ADD")
        };
        let below = env::current_dir().unwrap();
        let CallerFolders { plugins, networks } = environment.folders();
        let absolute = ["/opt/cni/bin", "/usr/lib/cni"].map(Path::new);
        assert_eq!(plugins, [absolute[0], &below.join("plugins"), absolute[1]]);
        assert_eq!(networks, Some(below.join("net.d")));
        assert_eq!(Environment::default().folders(), CallerFolders::default());
    }

    #[test]
    fn last_cni_arg_of_a_key_wins() {
        let environment = Environment {
            args: "IgnoreUnknown=1;K8S_POD_NAME=web;MAC=;IP=10.0.0.1;IP=10.0.0.2;".into(),
            ..environment("ADD")
        };
        assert!(environment.check_args().is_ok());
        assert_eq!(environment.arg("K8S_POD_NAME"), Some("web"));
        assert_eq!(environment.arg("IP"), Some("10.0.0.2"));
        assert_eq!(environment.arg("MAC"), None);
    }

    #[test]
    fn cni_args_without_pairs_are_refused() {
        let environment = Environment { args: "A=1;B".into(), ..environment("ADD") };
        assert!(environment.check_args().unwrap_err().message.contains("\"B\""));
    }

    #[test]
    fn unknown_cni_args_need_ignore_unknown() {
        let check = |args: &str| {
            Environment { args: args.into(), ..environment("ADD") }
                .check_args()
                .map_err(|e| e.message)
        };
        for (args, unknown) in [
            ("ip=10.1.0.5", "\"ip\""),
            ("IP=10.1.0.5;mac=02:00:00:00:00:01", "\"mac\""),
            ("TOKEN=secret;IgnoreUnknown=0", "\"TOKEN\""),
        ] {
            let message = check(args).unwrap_err();
            assert!(message.contains(&format!("unknown key {unknown}: ")), "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
        for args in ["ip=10.1.0.5;IgnoreUnknown=1", "IgnoreUnknown=True;X=1", "X=", "MAC=x"] {
            assert_eq!(check(args), Ok(()), "{args}");
        }
    }

    #[test]
    fn long_values_are_cut_in_messages() {
        assert_eq!(quoted("a\n"), r#""a\n""#);
        assert!(quoted(&"x".repeat(5000)).len() < 120);
        assert!(shown(&json!({"a": "x".repeat(5000)})).len() < 120);
    }

    #[test]
    fn values_are_quoted_once() {
        for (value, expected) in [
            (json!("on"), r#""on""#),
            (json!(7), "7"),
            (json!({"a": ["b"]}), r#"{"a":["b"]}"#),
            (json!(["\u{1b}[2J\u{202e}"]), r#"["\u001b[2J\u{202e}"]"#),
        ] {
            assert_eq!(shown(&value), expected);
        }
    }
}
