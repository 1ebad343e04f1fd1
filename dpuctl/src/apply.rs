//! `dpuctl apply`: networks from files.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::Path,
};

use bootstrap::cut;
use offload_proto::{
    MESSAGE_LIMIT,
    v1::{ApplyNetworkRequest, ListNetworksResponse, Network, NetworkStatus},
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_norway::Deserializer;

use crate::{client::Client, console::Console, error::CallError};

/// The origin of networks that only the service's configuration file changes.
const CONFIGURATION: &str = "configuration";

/// Longest that is told of what is wrong with a document, in bytes: it may repeat what is there.
const LONGEST_PROBLEM: usize = 1024;

/// A network in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    network: Network,
    /// The list that it stands in says that it comes from the service's configuration file.
    fixed: bool,
}

/// Reads the networks in the file at `path`, or on standard input if that is `-`. JSON is YAML, too.
pub(crate) fn read(path: &Path, console: &mut Console<'_>) -> Result<Vec<Found>, CallError> {
    let unreadable = |source| CallError::File { path: path.into(), source };
    let text = if path == Path::new("-") {
        read_text(&mut *console.input)
    } else {
        File::open(path).and_then(read_text)
    };
    parse(&text.map_err(unreadable)?)
        .map_err(|message| CallError::Document { path: path.into(), message })
}

/// Networks as large as messages may be are refused by the DPU; more text is none of its networks.
fn read_text(input: impl Read) -> io::Result<String> {
    let mut text = String::new();
    input.take(MESSAGE_LIMIT as u64 + 1).read_to_string(&mut text)?;
    if text.len() > MESSAGE_LIMIT { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(text) }
}

/// All documents are read before the first is applied.
fn parse(text: &str) -> Result<Vec<Found>, String> {
    let mut found = Vec::new();
    // A document can be read once; the first reading only tells of what kind it is.
    let documents = Deserializer::from_str(text).zip(Deserializer::from_str(text));
    for (index, (kind, document)) in documents.enumerate() {
        let number = index + 1;
        let read = if is_list(kind) { listed(document) } else { single(document) };
        found.extend(read.map_err(|error| match looks_like_toml(text) {
            true => "this looks like TOML: networks are written as YAML or JSON".into(),
            false => format!("document {number}: {}", cut(error, LONGEST_PROBLEM)),
        })?);
    }
    if found.is_empty() { Err("it holds no network".into()) } else { Ok(found) }
}

/// Whether a document is what `dpuctl get networks` prints.
fn is_list(document: Deserializer<'_>) -> bool {
    BTreeMap::<String, IgnoredAny>::deserialize(document)
        .is_ok_and(|keys| keys.contains_key("networks"))
}

fn listed(document: Deserializer<'_>) -> Result<Vec<Found>, String> {
    let list: ListNetworksResponse = deserialize(document)?;
    list.networks.into_iter().map(found).collect()
}

fn found(status: NetworkStatus) -> Result<Found, String> {
    let fixed = status.origin == CONFIGURATION;
    let network = status.network.ok_or("an item of `networks` has no `network`")?;
    Ok(Found { network: named(network)?, fixed })
}

/// None is in an empty document, as after a closing `---`.
fn single(document: Deserializer<'_>) -> Result<Vec<Found>, String> {
    let network: Option<Network> = deserialize(document)?;
    let found = |network| Ok(Found { network: named(network)?, fixed: false });
    network.into_iter().map(found).collect()
}

fn named(network: Network) -> Result<Network, String> {
    if network.name.is_empty() { Err("the network has no `name`".into()) } else { Ok(network) }
}

/// Programs pass over fields that they don't know; what a person wrote is told of.
fn deserialize<T: DeserializeOwned>(document: Deserializer<'_>) -> Result<T, String> {
    let mut unknown = None;
    let mut track = serde_path_to_error::Track::new();
    let document = serde_path_to_error::Deserializer::new(document, &mut track);
    let read = serde_ignored::deserialize(document, |path| {
        // It names what may be left out by a question mark.
        unknown.get_or_insert_with(|| path.to_string().replace("?.", ""));
    });
    match (read, unknown) {
        (Ok(_), Some(field)) => Err(format!("unknown field `{field}`")),
        (Ok(read), None) => Ok(read),
        (Err(error), _) => Err(locate(&serde_path_to_error::Error::new(track.path(), error))),
    }
}

/// Whether the first line that says something is a heading or a setting of TOML.
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

/// Names the key, which the parser's own words do not always do.
fn locate(error: &serde_path_to_error::Error<serde_norway::Error>) -> String {
    let (path, message) = (error.path().to_string(), error.inner().to_string());
    let named = path == "." || message.starts_with(&path);
    if named { message } else { format!("{path}: {message}") }
}

/// Applies the networks in order and stops at the first that is refused. Those that a list names as
/// fixed are left out, so that what was printed can be edited and applied as a whole.
pub(crate) async fn apply(
    client: &mut Client,
    networks: Vec<Found>,
    dry_run: bool,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    for Found { network, fixed } in networks {
        let name = network.name.clone();
        if fixed {
            console.note(&format!("network/{name} skipped: it is the configuration file's"))?;
            continue;
        }
        let question = ApplyNetworkRequest { network: Some(network), dry_run };
        let answer = client
            .call(async |operator, request| operator.apply_network(request).await, question)
            .await?;
        let suffix = if dry_run { " (dry run)" } else { "" };
        console.line(&format!("network/{name} {}{suffix}", answer.outcome))?;
    }
    Ok(())
}

#[cfg(test)]
mod fuzz {
    use super::*;

    /// Longest complaint about a file, in bytes.
    const LONGEST_MESSAGE: usize = 4096;

    /// A file that somebody else wrote, in YAML or JSON: what is read of it can be written and read
    /// again.
    #[test]
    fn apply_file() {
        ::fuzz::target("apply_file", |input| {
            let Ok(text) = std::str::from_utf8(input) else { return };
            match parse(text) {
                Ok(found) => {
                    for Found { network, .. } in found {
                        let json = serde_json::to_string(&network).unwrap();
                        assert_eq!(parse(&json).unwrap(), [Found { network, fixed: false }]);
                    }
                }
                Err(message) => assert!(message.len() <= LONGEST_MESSAGE, "{message}"),
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
             ---\nname: red\nbandwidth: {ingressRate: 250000000}\nallow_mac_spoofing: true\n---\n",
        );
        assert_eq!(networks.len(), 2);
        assert_eq!((networks[0].name.as_str(), networks[0].vlan), ("blue", 100));
        assert_eq!(networks[0].subnets[0].gateway, "10.1.0.1");
        assert_eq!(networks[1].bandwidth.unwrap().ingress_rate, 250_000_000);
        assert!(networks[1].allow_mac_spoofing);
    }

    #[test]
    fn json_is_read() {
        let text =
            r#"{"name": "blue", "bandwidth": {"egressRate": "5000"}, "interfaceName": "net0"}"#;
        let networks = networks(text);
        assert_eq!(networks[0].bandwidth.unwrap().egress_rate, 5000);
        assert_eq!(networks[0].interface_name, "net0");
    }

    #[test]
    fn what_is_printed_can_be_applied() {
        let blue = networks("name: blue\nvlan: 7\nsubnets: [{cidr: fd00::/64}]").remove(0);
        let status = |origin: &str| NetworkStatus {
            network: Some(blue.clone()),
            origin: origin.into(),
            ..NetworkStatus::default()
        };
        let list = ListNetworksResponse { networks: vec![status("api"), status("configuration")] };
        let expected = [false, true].map(|fixed| Found { network: blue.clone(), fixed });
        let yaml = serde_norway::to_string(&list).unwrap();
        assert_eq!(parse(&yaml).unwrap(), expected);
        let json = serde_json::to_string_pretty(&list).unwrap();
        assert_eq!(parse(&json).unwrap(), expected);
        assert_eq!(networks(&serde_norway::to_string(&blue).unwrap()), [blue]);
    }

    #[test]
    fn mistakes_are_told_with_their_document() {
        let told = [
            ("", "it holds no network"),
            ("---\n", "it holds no network"),
            ("name: a\n---\nname: b\nvlam: 3\n", "document 2: unknown field `vlam`"),
            ("vlan: 3\n", "document 1: the network has no `name`"),
            ("name: a\nvlan: many\n", "document 1: vlan: "),
            ("name: a\nsubnets:\n- cidrr: x\n", "document 1: unknown field `subnets.0.cidrr`"),
            ("name: [\n", "document 1: "),
            ("networks: []\n", "it holds no network"),
            ("networks:\n- origin: api\n", "document 1: an item of `networks` has no `network`"),
            ("networks:\n- nam: a\n", "document 1: unknown field `networks.0.nam`"),
            ("# blue\nname = \"blue\"\nvlan = 3\n", "this looks like TOML: "),
            ("[[network]]\nname = \"blue\"\n", "this looks like TOML: "),
            ("[\n{\"name\": \"a\"}]\n", "document 1: invalid type: sequence"),
            ("- name: a\n", "document 1: invalid type: sequence"),
        ];
        for (text, expected) in told {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
