//! `dpuctl apply`: networks from files.

mod conflict;
mod mistake;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};

use bootstrap::cut;
use offload_proto::{
    Reason,
    v1::{
        ApplyNetworkRequest, ListNetworksResponse, Network, NetworkStatus,
        operator_client::OperatorClient,
    },
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_norway::{Deserializer, Value};

use crate::{
    client::Client, console::Console, error::CallError, mistake::Mistake, outdated::outdated,
};

/// The origin of networks that only the service's configuration file changes.
pub(crate) const CONFIGURATION: &str = "configuration";

/// Longest file, in bytes: room for some thousands of networks in the form of `dpuctl get`.
const LONGEST_FILE: usize = 4 * 1024 * 1024;

/// Time limit of the parser, which takes time by the square of the nesting depth of brackets. Networks take it one
/// second, nested brackets could take it hours.
const LONGEST_READING: Duration = Duration::from_secs(20);

/// Longest complaint about a document, in bytes: the complaint may quote the document.
const LONGEST_PROBLEM: usize = 1024;

/// Some editors put a byte order mark at the start of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ListedNetwork {
    network: Network,
    /// The list declares that the network comes from the service's configuration file.
    fixed: bool,
    /// The version that the list was printed with. Empty: the file has none.
    resource_version: String,
}

impl ListedNetwork {
    pub(crate) fn name(&self) -> &str {
        &self.network.name
    }
}

/// Reads the networks in the file at `path`; `-` is standard input. JSON is accepted, too, because it is YAML.
pub(crate) fn read(
    path: &Path,
    console: &mut Console<'_>,
) -> Result<Vec<ListedNetwork>, CallError> {
    let unreadable = |source| CallError::File { path: path.into(), source };
    let text = if path == Path::new("-") {
        read_text(&mut *console.input)
    } else {
        File::open(path).and_then(read_text)
    };
    parse_text(path, text.map_err(unreadable)?)
}

pub(crate) fn parse_text(path: &Path, text: String) -> Result<Vec<ListedNetwork>, CallError> {
    parse_within(LONGEST_READING, text)
        .map_err(|mistake| CallError::Document { path: path.into(), mistake })
}

/// Reads at most one byte more than [`LONGEST_FILE`], which is enough to refuse the file.
pub(crate) fn read_text(input: impl Read) -> io::Result<String> {
    let mut text = String::new();
    input.take(LONGEST_FILE as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Parses on a thread of its own: the parser cannot be interrupted, and a slow one ends only with the program.
fn parse_within(longest: Duration, text: String) -> Result<Vec<ListedNetwork>, Mistake> {
    let (sender, parsed) = mpsc::channel();
    // The receiver is gone if the time limit has passed.
    thread::spawn(move || drop(sender.send(parse(&text))));
    parsed.recv_timeout(longest).unwrap_or_else(|_| {
        Err(elsewhere(format!("it can't be read within {longest:?}: brackets are nested too deep")))
    })
}

/// Parses all documents, so that a mistake in the last one prevents the first from being applied.
fn parse(text: &str) -> Result<Vec<ListedNetwork>, Mistake> {
    if text.len() > LONGEST_FILE {
        let message = format!(
            "it is longer than {} MiB: apply its networks in several files",
            LONGEST_FILE / 1024 / 1024
        );
        return Err(elsewhere(message));
    }
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let mut found = Vec::new();
    // A reader can be used once. The first one only finds out the kind of the document.
    let readers = Deserializer::from_str(text).zip(Deserializer::from_str(text));
    for (index, (kind, reader)) in readers.enumerate() {
        let document = Document { index, text };
        let read = if is_list(kind) { document.list(reader) } else { document.single(reader) };
        found.extend(read.map_err(|mistake| match looks_like_toml(text) {
            true => elsewhere("this looks like TOML: networks are written as YAML or JSON".into()),
            false => Mistake { message: cut(mistake.message, LONGEST_PROBLEM), ..mistake },
        })?);
    }
    if found.is_empty() { Err(elsewhere("it holds no network".into())) } else { Ok(found) }
}

fn elsewhere(message: String) -> Mistake {
    Mistake { place: None, message }
}

/// Whether a document has the form that `dpuctl get networks` prints.
fn is_list(document: Deserializer<'_>) -> bool {
    BTreeMap::<String, IgnoredAny>::deserialize(document)
        .is_ok_and(|keys| keys.contains_key("networks"))
}

/// One of the documents in a text.
#[derive(Clone, Copy)]
struct Document<'a> {
    index: usize,
    text: &'a str,
}

impl Document<'_> {
    fn list(self, reader: Deserializer<'_>) -> Result<Vec<ListedNetwork>, Mistake> {
        let list: ListNetworksResponse = self.deserialize(reader)?;
        list.networks.into_iter().map(|status| self.found(status)).collect()
    }

    fn found(self, status: NetworkStatus) -> Result<ListedNetwork, Mistake> {
        let fixed = status.origin == CONFIGURATION;
        let missing = || self.mistake("an item of `networks` has no `network`");
        let network = self.named(status.network.ok_or_else(missing)?)?;
        Ok(ListedNetwork { network, fixed, resource_version: status.resource_version })
    }

    /// Returns no network for an empty document, as after a closing `---`.
    fn single(self, reader: Deserializer<'_>) -> Result<Vec<ListedNetwork>, Mistake> {
        let Some(network) = self.deserialize(reader)? else { return Ok(Vec::new()) };
        Ok(vec![ListedNetwork { network: self.named(network)?, ..ListedNetwork::default() }])
    }

    fn named(self, network: Network) -> Result<Network, Mistake> {
        if network.name.is_empty() {
            return Err(self.mistake("the network has no `name`"));
        }
        Ok(network)
    }

    /// A mistake that has no key or line.
    fn mistake(self, what: &str) -> Mistake {
        elsewhere(format!("document {}: {what}", self.index + 1))
    }

    /// Refuses unknown fields, which the protocol's types ignore: a person's typing error must not be ignored.
    fn deserialize<T: DeserializeOwned>(self, reader: Deserializer<'_>) -> Result<T, Mistake> {
        let mut unknown = None;
        let mut track = serde_path_to_error::Track::new();
        let reader = serde_path_to_error::Deserializer::new(reader, &mut track);
        let read = serde_ignored::deserialize(reader, |path| {
            // serde_ignored marks optional parents with a question mark.
            unknown.get_or_insert_with(|| path.to_string().replace("?.", ""));
        });
        match (read, unknown) {
            (Ok(_), Some(path)) => Err(self.mistake(&mistake::unknown::<T>(&path))),
            (Ok(read), None) => Ok(read),
            (Err(error), _) => {
                let path = track.path().to_string();
                Err(mistake::located::<T>(&path, &error, self.value_at(&path).as_ref()))
            }
        }
    }

    /// The value at a path such as `subnets[0].ranges`. `None`: the document cannot be read at all.
    fn value_at(self, path: &str) -> Option<Value> {
        let reader = Deserializer::from_str(self.text).nth(self.index)?;
        let document = Value::deserialize(reader).ok()?;
        let mut value = &document;
        for segment in mistake::segments(path) {
            value = match segment.parse::<usize>() {
                Ok(index) if value.is_sequence() => value.get(index)?,
                _ => value.get(segment)?,
            };
        }
        Some(value.clone())
    }
}

/// Whether the first line with content is a heading or a setting of TOML.
fn looks_like_toml(text: &str) -> bool {
    let says_something = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let Some(line) = text.lines().map(str::trim).find(says_something) else { return false };
    let heading = line.strip_prefix('[').map(|rest| rest.trim_matches(['[', ']']));
    let setting = line.split_once('=').map(|(key, _)| key.trim_end());
    heading.or(setting).is_some_and(is_toml_key)
}

fn is_toml_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

/// How networks are applied.
#[derive(Debug, Default)]
pub(crate) struct How {
    pub(crate) dry_run: bool,
    /// Also replace what other operators have changed in between.
    pub(crate) force_conflicts: bool,
    /// Reason for the audit.
    pub(crate) reason: String,
}

/// Applies the networks in order and stops at the first refusal. Networks that a list marks as fixed are skipped, so
/// that a printed list can be edited and applied as a whole.
pub(crate) async fn apply(
    client: &mut Client,
    networks: Vec<ListedNetwork>,
    how: &How,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    for mut listed in networks {
        if how.force_conflicts {
            listed.resource_version.clear();
        }
        apply_one(client, listed, how, console).await?;
    }
    Ok(())
}

async fn apply_one(
    client: &mut Client,
    listed: ListedNetwork,
    how: &How,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let ListedNetwork { network, fixed, resource_version } = listed;
    let name = network.name.clone();
    if fixed {
        return console.note(&format!("network/{name} skipped: it is the configuration file's"));
    }
    let question = ApplyNetworkRequest {
        network: Some(network.clone()),
        dry_run: how.dry_run,
        resource_version,
        reason: how.reason.clone(),
    };
    let answer = match client.call(OperatorClient::apply_network, question).await {
        Err(CallError::Refused(failure)) if failure.reason == Reason::NetworkConflict => {
            conflict::show(client, network, console).await?;
            return Err(CallError::Refused(failure));
        }
        answer => answer?,
    };
    let suffix = if how.dry_run { " (dry run)" } else { "" };
    let outcome = format!("{}{suffix}", answer.outcome);
    console.line(&format!("network/{name} {outcome}"))?;
    match outdated(&answer.network.unwrap_or_default()) {
        None => Ok(()),
        Some(pods) => console.note(&format!(
            "network/{name}: older settings until their pods are recreated: {pods}"
        )),
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;

    const LONGEST_MESSAGE: usize = 4096;

    /// Fuzzes files in YAML and JSON. Every network that is read can be written and read again.
    #[test]
    fn apply_file() {
        ::fuzz::target("apply_file", |input| {
            let Ok(text) = std::str::from_utf8(input) else { return };
            match parse(text) {
                Ok(found) => {
                    for ListedNetwork { network, .. } in found {
                        let json = serde_json::to_string(&network).unwrap();
                        let expected = ListedNetwork { network, ..ListedNetwork::default() };
                        assert_eq!(parse(&json).unwrap(), [expected]);
                    }
                }
                Err(Mistake { place, message }) => {
                    assert!(message.len() <= LONGEST_MESSAGE, "{message}");
                    // YAML has more line breaks than Rust.
                    let most = text.len() + 1;
                    assert!(place.is_none_or(|(line, _)| (1..=most).contains(&line)), "{message}");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(text: &str) -> Vec<Network> {
        parse(text).unwrap().into_iter().map(|found| found.network).collect()
    }

    #[test]
    fn yaml_with_several_documents_is_read() {
        let networks = networks(
            "---\n# blue\nname: blue\nvlan: 100\nsubnets:\n- cidr: 10.1.0.0/16\n  gateway: 10.1.0.1\n\
             ---\nname: red\nbandwidth: {ingressRate: 250000000}\nfirst_hop: true\n---\n",
        );
        assert_eq!(networks.len(), 2);
        assert_eq!((networks[0].name.as_str(), networks[0].vlan), ("blue", 100));
        assert_eq!(networks[0].subnets[0].gateway, "10.1.0.1");
        assert_eq!(networks[1].bandwidth.unwrap().ingress_rate, 250_000_000);
        assert!(networks[1].first_hop);
    }

    #[test]
    fn json_is_read() {
        let text = r#"{"name": "blue", "bandwidth": {"egressRate": "5000"}, "firstHop": true}"#;
        let networks = networks(text);
        assert_eq!(networks[0].bandwidth.unwrap().egress_rate, 5000);
        assert!(networks[0].first_hop);
    }

    #[test]
    fn what_is_printed_can_be_applied() {
        let blue = networks("name: blue\nvlan: 7\nsubnets: [{cidr: fd00::/64}]").remove(0);
        let status = |origin: &str| NetworkStatus {
            network: Some(blue.clone()),
            origin: origin.into(),
            resource_version: "3f".into(),
            ..NetworkStatus::default()
        };
        let list = ListNetworksResponse { networks: vec![status("api"), status("configuration")] };
        let expected = [false, true].map(|fixed| {
            let resource_version = "3f".into();
            ListedNetwork { network: blue.clone(), fixed, resource_version }
        });
        let yaml = serde_norway::to_string(&list).unwrap();
        assert_eq!(parse(&yaml).unwrap(), expected);
        let json = serde_json::to_string_pretty(&list).unwrap();
        assert_eq!(parse(&json).unwrap(), expected);
        assert_eq!(networks(&serde_norway::to_string(&blue).unwrap()), [blue]);
    }

    #[test]
    fn mistakes_have_their_place() {
        let shown = [
            ("", ": it holds no"),
            ("---\n", ": it holds no"),
            (
                "name: a\n---\nname: b\nvlam: 3\n",
                ": document 2: unknown key `vlam`: did you mean `vlan`?",
            ),
            (
                "name: a\nanti_spoofin: b\n",
                ": document 1: unknown key `anti_spoofin`: did you mean `anti_spoofing`?",
            ),
            ("vlan: 3\n", ": document 1: "),
            ("name: a\nvlan: many\n", ":1:1: `vlan`: "),
            (
                "name: a\nsubnets:\n- cidr: x\n- {cidrr: x}\n",
                ": document 1: unknown key `subnets[1].cidrr`: did you mean `cidr`?",
            ),
            ("name: a\nsubnets:\n- banana: x\n", ": document 1: unknown key `subnets[0].banana`: "),
            (
                "{\"name\": \"a\",\n \"bandwidth\": {\"rate\": 1}}",
                ": document 1: unknown key `bandwidth.rate`: ",
            ),
            (
                "name: a\nbandwidth: {ingresRate: 1}\n",
                ": document 1: unknown key `bandwidth.ingresRate`: did you mean `ingressRate`?",
            ),
            ("name: [\n", ":1:7: `name`: "),
            ("name: a\nb\nc: d\n", ":3:1: "),
            ("networks: []\n", ": it holds no"),
            ("networks:\n- origin: api\n", ": document 1: an item of `networks` has no `network`"),
            ("networks:\n- nam: a\n", ": document 1: unknown key `networks[0].nam`: "),
            (
                "networks:\n- network: {name: a, vlam: 2}\n",
                ": document 1: unknown key `networks[0].network.vlam`: did you mean `vlan`?",
            ),
            ("# blue\nname = \"blue\"\nvlan = 3\n", ": this looks"),
            ("[[network]]\nname = \"blue\"\n", ": this looks"),
            ("[\n{\"name\": \"a\"}]\n", ":1:1: found a list, expected keys"),
            ("- name: a\n", ":1:1: found a list, expected keys"),
            ("hello\n", ":1:1: found the text \"hello\", expected keys"),
            ("name: a\nMTU: 1500\n", ": document 1: unknown key `MTU`: did you mean `mtu`?"),
            ("name: a\nmtu: 1\nmtu: 2\n", ":1:1: duplicate field `mtu`"),
            (
                "name: a\nsubnets:\n- cidr: x\n  cidr: y\n",
                ":3:3: `subnets[0]`: duplicate field `cidr`",
            ),
        ];
        for (text, expected) in shown {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn wrong_types_have_their_keys_path() {
        for (line, path, found, expected) in [
            ("vlan: many", "vlan", "the text \"many\"", "a whole number"),
            ("vlan: -1", "vlan", "the number -1", "a whole number"),
            ("vlan: 1.5", "vlan", "the number 1.5", "a whole number"),
            ("vlan: 99999999999", "vlan", "the number 99999999999", "a whole number"),
            ("vlan: \"\"", "vlan", "the text \"\"", "a whole number"),
            ("vlan: [1]", "vlan", "a list", "a whole number"),
            ("trunk: [a]", "trunk[0]", "the text \"a\"", "a whole number"),
            ("trunk: 5", "trunk", "the number 5", "a list"),
            ("bandwidth: {ingressRate: -1}", "bandwidth.ingressRate", "the number -1", "a whole"),
            ("bandwidth: 5", "bandwidth", "the number 5", "keys such as `ingress_rate`"),
            ("routes: [{mtu: x}]", "routes[0].mtu", "the text \"x\"", "a whole number"),
            (
                "subnets: [10.3.0.0/24]",
                "subnets[0]",
                "the text \"10.3.0.0/24\"",
                "keys such as `cidr`",
            ),
            ("name: [a]", "name", "a list", "text"),
            ("vlan:", "vlan", "nothing", "a whole number"),
            ("first_hop: 5", "first_hop", "the number 5", "`true` or `false`"),
            ("routes: {mtu: 5}", "routes", "keys with values", "a list"),
        ] {
            let shown = parse(&format!("pool: a\n{line}\n")).unwrap_err();
            let sentence = format!("`{path}`: found {found}, expected {expected}");
            assert!(shown.message.starts_with(&sentence), "{line}: {shown}");
            assert!(shown.place.unwrap().0 <= 2, "{line}: {shown}");
        }
    }

    #[test]
    fn text_as_ranges_is_explained() {
        for (ranges, path, expected) in [
            ("10.0.0.0/24", "subnets[0].ranges", "a list"),
            ("[10.0.0.0/24]", "subnets[0].ranges[0]", "keys such as `start` and `end`"),
        ] {
            let text = format!("name: a\nsubnets: [{{cidr: 10.0.0.0/16, ranges: {ranges}}}]\n");
            let shown = parse(&text).unwrap_err();
            let sentence = format!("`{path}`: found the text \"10.0.0.0/24\", expected {expected}");
            assert_eq!(shown.message, sentence);
        }
    }

    #[test]
    fn a_mark_before_the_text_is_passed_over() {
        assert_eq!(networks("\u{feff}name: blue\nvlan: 3\n")[0].vlan, 3);
        assert_eq!(networks("\u{feff}{\"name\": \"blue\"}")[0].name, "blue");
    }

    /// One network as `dpuctl get networks` lists it, with the usual fields.
    fn listed(number: u16) -> NetworkStatus {
        let [high, low] = number.to_be_bytes();
        let networks = networks(&format!(
            "name: tenant-{number}\nvlan: {}\nmtu: 9000\nsubnets: [{{cidr: 10.{high}.{low}.0/24, \
             gateway: 10.{high}.{low}.1, ranges: [{{start: 10.{high}.{low}.10, end: \
             10.{high}.{low}.99}}]}}]\nroutes: [{{destination: 10.0.0.0/8, gateway: \
             10.{high}.{low}.2}}]\ndns: {{nameservers: [10.0.0.53], search: [cluster.local]}}",
            number + 1
        ));
        NetworkStatus { network: networks.into_iter().next(), ..NetworkStatus::default() }
    }

    #[test]
    fn thousand_printed_networks_can_be_applied() {
        let list = ListNetworksResponse { networks: (0..1000).map(listed).collect() };
        let yaml = serde_norway::to_string(&list).unwrap();
        let json = serde_json::to_string_pretty(&list).unwrap();
        for text in [yaml, json] {
            let length = text.len();
            let found = parse_within(LONGEST_READING, text).map_err(|shown| shown.message);
            assert_eq!(found.map(|found| found.len()), Ok(1000), "{length} bytes");
        }
    }

    #[test]
    fn overlong_file_is_refused_unread() {
        let most = "name: a\n".to_owned() + &"#".repeat(LONGEST_FILE - "name: a\n".len());
        assert_eq!(networks(&most).len(), 1);
        let shown = parse(&(most + "#")).unwrap_err().to_string();
        assert!(shown.contains("4 MiB"), "{shown}");
    }

    #[test]
    fn deep_brackets_time_out() {
        for deep in ["[", "[a: ", "{? "] {
            let text = deep.repeat(LONGEST_FILE / deep.len());
            let shown = parse_within(Duration::from_millis(10), text).unwrap_err().to_string();
            assert!(shown.contains("10ms") && shown.contains("brackets"), "{shown}");
        }
    }

    #[test]
    fn deep_nesting_is_reported() {
        for deep in ["[", "[a: ", "- ", "? "] {
            let shown = parse(&deep.repeat(16 * 1024 / deep.len()));
            assert!(shown.is_err(), "{deep}");
        }
    }
}
