//! Fuzz targets: input to the plugin, and between plugin and agent.

use std::{fmt::Debug, str};

use netlink::MacAddress;
use offload_proto::{Reason, v1};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    cni::{
        environment::{Environment, check_container_id},
        error::{CniError, code},
        request::{Document, Prepared, ResultBase, prepare},
        result::CniResult,
        version::Version,
    },
    protocol::{Asked, Call, Reply, Request, decode},
};

/// The longest error for a runtime, in bytes: it becomes part of a pod's event.
const LONGEST_MESSAGE: usize = 2048;

/// Input of a runtime: `CNI_…` variables, one a line, an empty line, standard input.
#[test]
fn cni_input() {
    fuzz::target("cni_input", |input| {
        let (environment, stdin) = split(input);
        match prepared(&environment, stdin) {
            Ok((version, prepared)) => check_prepared(&environment, version, prepared),
            Err(refusal) => check_refusal(&refusal),
        }
    });
}

/// A call to the agent, from any process that can open its socket.
#[test]
fn agent_call() {
    fuzz::target("agent_call", |input| {
        if let Ok(call) = decode::<Call<Asked>>(input) {
            assert_reads_back(&call);
        }
    });
}

/// An answer to the plugin.
#[test]
fn agent_reply() {
    fuzz::target("agent_reply", |input| {
        let Ok(reply) = decode::<Reply>(input) else { return };
        assert_reads_back(&reply);
        if let Reply::Attached { attachment, .. } = reply {
            for version in Version::ALL {
                check_result(CniResult::default(), &attachment, version);
            }
        }
    });
}

fn split(input: &[u8]) -> (Environment, &[u8]) {
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    let (variables, stdin) = match end {
        Some(end) => (&input[..end], &input[end + 2..]),
        None => (input, &input[..0]),
    };
    let mut environment = Environment::default();
    let variables = String::from_utf8_lossy(variables);
    for (name, value) in variables.lines().filter_map(|line| line.split_once('=')) {
        let variable = match name {
            "CNI_COMMAND" => &mut environment.command,
            "CNI_CONTAINERID" => &mut environment.container_id,
            "CNI_NETNS" => &mut environment.netns,
            "CNI_IFNAME" => &mut environment.interface_name,
            "CNI_ARGS" => &mut environment.args,
            "CNI_NETNS_OVERRIDE" => &mut environment.netns_override,
            _ => continue,
        };
        value.clone_into(variable);
    }
    (environment, stdin)
}

fn prepared(environment: &Environment, stdin: &[u8]) -> Result<(Version, Prepared), CniError> {
    let verb = environment.verb()?;
    let document = Document::read(stdin)?;
    let version = document.version;
    Ok((version, prepare(verb, environment, document)?))
}

fn check_prepared(environment: &Environment, version: Version, prepared: Prepared) {
    let Prepared { timeout, request, base, .. } = prepared;
    if let Request::Add(add) = &request {
        check_container_id(&add.key.container_id).unwrap();
        assert!(!add.netns.is_empty() && !add.key.interface_name.is_empty());
        assert!(add.interface.mac.is_none_or(MacAddress::is_unicast));
        let ResultBase { previous, sandbox, .. } = base;
        assert_eq!(sandbox, environment.netns);
        check_result(previous, &attachment(), version);
    }
    assert_reads_back(&Call::new(timeout, request));
}

fn attachment() -> v1::Attachment {
    v1::Attachment {
        key: Some(v1::AttachmentKey { container_id: "c".into(), interface_name: "eth0".into() }),
        mac: "02:00:00:00:00:01".into(),
        addresses: vec![v1::Address { address: "10.1.0.2/16".into(), gateway: "10.1.0.1".into() }],
        ..v1::Attachment::default()
    }
}

/// The result has the version's form, and the next plugin of a chain reads it back unchanged.
fn check_result(previous: CniResult, attachment: &v1::Attachment, version: Version) {
    let position = previous.interfaces.len();
    let shown = previous.with_attachment(attachment, "/run/netns/a", None).render(version);
    let read = CniResult::read(&shown).unwrap();
    assert_eq!(read.cni_version, version.as_str());
    assert_eq!(read.interfaces[position].sandbox, "/run/netns/a");
    assert_eq!(read.render(version), shown);
}

/// A refusal has a documented code and is short enough for an event.
fn check_refusal(refusal: &CniError) {
    let codes = [
        code::INCOMPATIBLE_VERSION,
        code::UNSUPPORTED_FIELD,
        code::INVALID_ENVIRONMENT,
        code::IO_FAILURE,
        code::UNDECODABLE,
        code::INVALID_CONFIGURATION,
        code::INVALID_NETNS,
        Reason::CheckFailed.cni_code(),
    ];
    assert!(codes.contains(&refusal.code), "{refusal:?}");
    let length = refusal.message.len() + refusal.details.len();
    assert!((1..=LONGEST_MESSAGE).contains(&length), "{length} bytes: {refusal:?}");
    let object = refusal.to_json(Version::NEWEST).to_string();
    let read: Value = serde_json::from_str(&object).unwrap();
    assert_eq!(read["msg"].as_str(), Some(refusal.message.as_str()));
}

#[track_caller]
fn assert_reads_back<T: Serialize + DeserializeOwned + Debug>(value: &T) {
    let text = serde_json::to_vec(value).unwrap();
    let read: T = decode(&text).unwrap();
    let again = serde_json::to_vec(&read).unwrap();
    assert_eq!(str::from_utf8(&again), str::from_utf8(&text));
}
