//! Fuzz targets: requests as they arrive on the wire.

use mtls::ConnectionNumber;
use netlink::MacAddress;
use offload_proto::{Failure, v1};
use prost::Message;
use tonic::Status;

use super::convert::{read, show};
use crate::attachments::NetworkView;
use model::{
    AttachSpec, HostName, Network,
    check::{LimitsOf, check_bandwidth, check_network},
};

/// Maximum length of a refusal, in bytes. A network's refusal lists several problems.
const LONGEST_REFUSAL: usize = 1200;
const LONGEST_REFUSAL_OF_NETWORK: usize = 2500;

/// Messages of a host. The first byte selects the message.
#[test]
fn host_request() {
    fuzz::target("host_request", |input| {
        let Some((kind, message)) = input.split_first() else { return };
        let host = HostName("node-1".into());
        match kind {
            b'a' => refused(message, |request| {
                read::attach(&host, request).map(|(spec, _asked)| check_spec(&spec))
            }),
            b'd' => refused(message, |request| read::detach(&host, request).map(drop)),
            b'h' => refused(message, |hello| {
                read::hello(&host, ConnectionNumber::default(), hello).map(drop)
            }),
            b'i' => refused(message, |inventory| read::inventory(&inventory).map(drop)),
            b'e' => examination(message),
            b'c' => refused(message, |v1::CollectRequest { network, valid }| {
                read::optional_network(network)?;
                read::keys(&host, valid).map(drop)
            }),
            b'k' => refused(message, |v1::CheckRequest { key, attachment_id }| {
                read::key(&host, key)?;
                read::optional_attachment_id(&attachment_id).map(drop)
            }),
            _ => {}
        }
    });
}

/// A network that an operator applies. An accepted one survives round trips through an answer and through the journal.
#[test]
fn api_network() {
    fuzz::target("api_network", |input| {
        let Ok(message) = v1::Network::decode(input) else { return };
        let network = match read::network(Some(message)) {
            Ok(network) => network,
            Err(failure) => return check_refusal(failure, LONGEST_REFUSAL_OF_NETWORK),
        };
        assert_eq!(check_network(&network), [""; 0]);
        let view = NetworkView::unused(network.clone());
        let shown = show::network_status(&view, None).network;
        assert_eq!(read::network(shown).unwrap(), network);
        let row = serde_json::to_vec(&network).unwrap();
        assert_eq!(serde_json::from_slice::<Network>(&row).unwrap(), network);
    });
}

/// Every examination of a host can be shown to operators.
fn examination(message: &[u8]) {
    let Ok(message) = v1::Examination::decode(message) else { return };
    match read::examination(&message) {
        Ok(found) => {
            let texts = found.findings.iter().flat_map(|it| [&it.subject, &it.message, &it.why]);
            let places = found.vfs.iter().flat_map(|vf| [&vf.netdev, &vf.netns]);
            assert!(texts.chain(places).all(|text| !text.contains(char::is_control)));
        }
        Err(problem) => assert!(!problem.contains(char::is_control), "{problem:?}"),
    }
}

fn refused<M: Message + Default>(message: &[u8], read: impl FnOnce(M) -> Result<(), Failure>) {
    if let Ok(message) = M::decode(message)
        && let Err(failure) = read(message)
    {
        check_refusal(failure, LONGEST_REFUSAL);
    }
}

/// Checks that a refusal is a single line without control characters.
fn check_refusal(failure: Failure, longest: usize) {
    let length = failure.message.len();
    assert!((1..=longest).contains(&length), "{length} bytes: {failure:?}");
    assert!(!failure.message.contains(char::is_control), "{failure:?}");
    let message = failure.message.clone();
    assert_eq!(Status::from(failure).message(), message);
}

fn check_spec(spec: &AttachSpec) {
    assert!((1..=253).contains(&spec.key.container_id.len()));
    assert!((1..=15).contains(&spec.key.interface_name.len()));
    assert!(spec.interface.addresses.len() <= 16);
    assert!(spec.interface.mac.is_none_or(MacAddress::is_unicast));
    assert_eq!(check_bandwidth(&spec.interface.bandwidth, LimitsOf::Pod), [""; 0]);
    for label in [&spec.pod.namespace, &spec.pod.name, &spec.pod.uid] {
        assert!(label.len() <= 253 && !label.contains(char::is_control));
    }
}
