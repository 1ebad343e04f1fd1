//! `dpuctl apply`: networks from files.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use offload_proto::{
    MESSAGE_LIMIT,
    v1::{ApplyNetworkRequest, Network},
};
use serde_norway::Deserializer;

use crate::{client::Client, console::Console, error::CallError};

/// Reads the networks in the file at `path`, or on standard input if that is `-`. JSON is YAML, too.
pub(crate) fn read(path: &Path, console: &mut Console<'_>) -> Result<Vec<Network>, CallError> {
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
fn parse(text: &str) -> Result<Vec<Network>, String> {
    let mut networks = Vec::new();
    for (index, document) in Deserializer::from_str(text).enumerate() {
        let number = index + 1;
        let network = network(document).map_err(|error| format!("document {number}: {error}"))?;
        networks.extend(network);
    }
    if networks.is_empty() { Err("it holds no network".into()) } else { Ok(networks) }
}

/// The network in a document. `None`: the document is empty, as after a closing `---`.
fn network(document: Deserializer<'_>) -> Result<Option<Network>, String> {
    match serde_path_to_error::deserialize::<_, Option<Network>>(document)
        .map_err(|e| locate(&e))?
    {
        Some(network) if network.name.is_empty() => Err("the network has no `name`".into()),
        network => Ok(network),
    }
}

/// Names the key, which the parser's own words do not always do.
fn locate(error: &serde_path_to_error::Error<serde_norway::Error>) -> String {
    let (path, message) = (error.path().to_string(), error.inner().to_string());
    let named = path == "." || message.starts_with(&path) || message.contains("unknown field");
    if named { message } else { format!("{path}: {message}") }
}

/// Applies the networks in order and stops at the first that is refused.
pub(crate) async fn apply(
    client: &mut Client,
    networks: Vec<Network>,
    dry_run: bool,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    for network in networks {
        let name = network.name.clone();
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
mod tests {
    use super::*;

    #[test]
    fn yaml_with_several_documents_is_read() {
        let networks = parse(
            "---\n# blue\nname: blue\nvlan: 100\nsubnets:\n- cidr: 10.1.0.0/16\n  gateway: 10.1.0.1\n\
             ---\nname: red\nbandwidth: {ingressRate: 250000000}\nallow_mac_spoofing: true\n---\n",
        )
        .unwrap();
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
        let networks = parse(text).unwrap();
        assert_eq!(networks[0].bandwidth.unwrap().egress_rate, 5000);
        assert_eq!(networks[0].interface_name, "net0");
    }

    #[test]
    fn what_is_printed_can_be_applied() {
        let networks = parse("name: blue\nvlan: 7\nsubnets: [{cidr: fd00::/64}]").unwrap();
        let yaml = serde_norway::to_string(&networks[0]).unwrap();
        assert_eq!(parse(&yaml).unwrap(), networks);
        let json = serde_json::to_string_pretty(&networks[0]).unwrap();
        assert_eq!(parse(&json).unwrap(), networks);
    }

    #[test]
    fn mistakes_are_told_with_their_document() {
        let told = [
            ("", "it holds no network"),
            ("---\n", "it holds no network"),
            ("name: a\n---\nname: b\nvlam: 3\n", "document 2: unknown field `vlam`"),
            ("vlan: 3\n", "document 1: the network has no `name`"),
            ("name: a\nvlan: many\n", "document 1: vlan: "),
            ("name: a\nsubnets:\n- cidrr: x\n", "document 1: subnets[0]: unknown field `cidrr`"),
            ("name: [\n", "document 1: "),
            ("- name: a\n", "document 1: invalid type: sequence"),
        ];
        for (text, expected) in told {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
