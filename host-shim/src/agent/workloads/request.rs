//! Conversion of workload calls to the agent's own verbs.

use std::net::IpAddr;

use netlink::IpNetwork;
use offload_proto::{
    Failure, Reason,
    form::is_container_id,
    v1::Attachment,
    workloads::{AttachRequest, DetachRequest, NetNsAttachment},
};

use crate::{
    agent::host_port,
    cni::environment::{check_interface_name, quoted},
    protocol::{AddRequest, Key},
};

/// Converts an Attach to an ADD to `network`.
///
/// # Errors
/// [`Reason::InvalidRequest`] names the missing or malformed field; [`Reason::NetnsInvalid`] a path that is none.
pub(super) fn add(asked: AttachRequest, network: &str) -> Result<AddRequest, Failure> {
    let container_id = workload(&asked.workload_id)?.to_owned();
    let netns = asked.netns.ok_or_else(|| {
        invalid("netns is missing: a workload can only be attached by its network namespace")
    })?;
    let NetNsAttachment { netns_path, if_name } = netns;
    check_first_interface("if_name", &if_name)?;
    check_netns("netns_path", &netns_path)?;
    let key = Key { container_id, interface_name: if_name };
    Ok(AddRequest::plain(key, netns_path, network.to_owned()))
}

/// Checks the name of a first interface. Empty is valid: the network then names it.
///
/// # Errors
/// [`Reason::InvalidRequest`]: the name is malformed.
pub(in crate::agent) fn check_first_interface(field: &str, name: &str) -> Result<(), Failure> {
    if name.is_empty() { Ok(()) } else { check_interface(field, name) }
}

/// Checks the name of an interface.
///
/// # Errors
/// [`Reason::InvalidRequest`]: the name is malformed or `lo`.
pub(in crate::agent) fn check_interface(field: &str, name: &str) -> Result<(), Failure> {
    check_interface_name(name).map_err(|why| invalid(format!("{field}: {why}")))?;
    match name {
        "lo" => Err(invalid(format!("{field} lo is every pod's loopback: choose another name"))),
        _ => Ok(()),
    }
}

/// Checks the path of a network namespace.
///
/// # Errors
/// [`Reason::NetnsInvalid`]: the path is not absolute.
pub(in crate::agent) fn check_netns(field: &str, path: &str) -> Result<(), Failure> {
    if path.starts_with('/') {
        return Ok(());
    }
    let message = format!("{field} {} is not an absolute path", quoted(path));
    Err(Failure::new(Reason::NetnsInvalid, message))
}

/// Checks a workload's id.
///
/// # Errors
/// [`Reason::InvalidRequest`]: the id is malformed or reserved.
pub(in crate::agent) fn workload(id: &str) -> Result<&str, Failure> {
    if !is_container_id(id) {
        return Err(invalid(format!(
            "workload_id {} can't name a workload: use 1 to 253 letters, digits, _, . and -, the first of them a \
             letter or digit",
            quoted(id)
        )));
    }
    host_port::refuse(id).map(|()| id)
}

/// The attachment that a Detach names, if any.
pub(super) fn named(asked: &DetachRequest) -> Option<Key> {
    let interface_name = asked.netns.as_ref()?.if_name.clone();
    check_interface_name(&interface_name).ok()?;
    Some(Key { container_id: asked.workload_id.clone(), interface_name })
}

/// The addresses in the answer: the first of each family, in the network's order.
pub(super) fn addresses(attachments: &[Attachment]) -> Vec<Vec<u8>> {
    let held = attachments.iter().flat_map(|attachment| &attachment.addresses);
    let held: Vec<IpAddr> =
        held.filter_map(|held| Some(held.address.parse::<IpNetwork>().ok()?.ip())).collect();
    let first = |is_of_family: fn(&IpAddr) -> bool| held.iter().copied().find(is_of_family);
    let addresses = [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)].into_iter().flatten();
    addresses.map(bytes).collect()
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Reason::InvalidRequest, message)
}

#[cfg(test)]
mod tests {
    use offload_proto::v1;

    use super::*;

    fn asked(workload_id: &str, netns_path: &str, if_name: &str) -> AttachRequest {
        let netns = NetNsAttachment { netns_path: netns_path.into(), if_name: if_name.into() };
        AttachRequest { workload_id: workload_id.into(), netns: Some(netns) }
    }

    #[test]
    fn attach_becomes_an_add_of_the_network() {
        let add = add(asked("3f1c", "/run/netns/a", "eth0"), "blue").unwrap();
        assert_eq!(add.key.to_string(), "3f1c/eth0");
        assert_eq!((add.netns.as_str(), add.interface.network.as_str()), ("/run/netns/a", "blue"));
        assert_eq!(add.configuration, "");
    }

    #[test]
    fn malformed_workload_attach_is_refused() {
        let long = "a".repeat(254);
        for (request, reason, word) in [
            (asked("", "/n", "eth0"), Reason::InvalidRequest, "workload_id \"\""),
            (asked(&long, "/n", "eth0"), Reason::InvalidRequest, "of 254 bytes"),
            (asked("../a", "/n", "eth0"), Reason::InvalidRequest, "workload_id \"../a\""),
            (asked("host-port", "/n", "eth0"), Reason::InvalidRequest, "host-port"),
            (asked("a", "/n", "a/b"), Reason::InvalidRequest, "if_name: interface name \"a/b\""),
            (asked("a", "/n", "lo"), Reason::InvalidRequest, "loopback"),
            (asked("a", "n", "eth0"), Reason::NetnsInvalid, "netns_path \"n\""),
            (asked("a", "", "eth0"), Reason::NetnsInvalid, "netns_path \"\""),
        ] {
            let failure = add(request, "").unwrap_err();
            assert_eq!(failure.reason, reason, "{failure}");
            assert!(failure.message.contains(word), "{failure}");
        }
        let bare = AttachRequest { workload_id: "a".into(), netns: None };
        assert!(add(bare, "").unwrap_err().message.starts_with("netns "));
    }

    #[test]
    fn attach_answers_one_address_per_family() {
        let held = |address: &str| v1::Address { address: address.into(), ..Default::default() };
        let addresses_of = |texts: &[&str]| {
            let held = texts.iter().map(|address| held(address)).collect();
            addresses(&[Attachment { addresses: held, ..Default::default() }])
        };
        assert_eq!(addresses_of(&[]), [[0; 0]; 0]);
        let six = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
        let all = addresses_of(&["fd00::5/64", "10.0.0.5/24", "10.0.1.5/24", "fd01::5/64"]);
        assert_eq!(all, [vec![10, 0, 0, 5], six.to_vec()]);
    }

    #[test]
    fn detach_names_an_attachment_by_interface() {
        let of = |netns| named(&DetachRequest { workload_id: "a".into(), netns });
        assert_eq!(of(None), None);
        let netns = |if_name: &str| {
            Some(NetNsAttachment { netns_path: String::new(), if_name: if_name.into() })
        };
        assert_eq!(of(netns("a/b")), None);
        assert_eq!(of(netns("eth0")).unwrap().to_string(), "a/eth0");
    }
}
