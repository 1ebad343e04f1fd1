//! From the protocol: the form of every field is checked here, once.

mod events;
mod examination;
mod hello;
mod port_mappings;

use std::{
    collections::BTreeSet, fmt::Display, net::IpAddr, str::FromStr, sync::Arc, time::Duration,
};

use ipnetwork::IpNetwork;
use netlink::MacAddress;
use offload_proto::{
    Failure, Reason,
    form::{
        self, CONTAINER_ID_LIMIT, INTERFACE_NAMES, MOST_INTERFACES, is_container_id,
        is_interface_name,
    },
    v1,
};
use vf_alloc::{Device, FunctionId, NumberError, VfOffer};

pub(crate) use events::{audit_filter, event_cursor, event_filter};
pub(crate) use examination::{examination, failed_add, pod_findings, repaired};
pub(crate) use hello::{hello, inventory};

use crate::{
    attachments::{Detach, SubnetChange},
    host::{Asked, HostTime, SessionId},
};
use model::{
    AddressRange, AllowRule, AttachSpec, AttachmentId, AttachmentKey, Bandwidth, Dns, GatewayMode,
    HostName, InterfaceRequest, LeaseSpec, Network, PolicyRule, PortRange, Route, Source, Subnet,
    Sysctls, WantedAddress,
    check::{LimitsOf, check_bandwidth, check_network, check_source, is_label},
};

/// Maximum length of a text without a tighter limit, in bytes.
const LONGEST_TEXT: usize = 253;
/// Maximum number of a network's problems in a refusal; [`LONGEST_PROBLEM`] limits each, in bytes.
const MOST_PROBLEMS: usize = 8;
const LONGEST_PROBLEM: usize = 256;
/// Maximum number of addresses that one pod can request.
const MOST_ADDRESSES: usize = 16;
/// Maximum number of sources that one pod can request.
const MOST_SOURCES: usize = 16;
/// Default timeout for hosts' examinations.
const DEFAULT_WAIT: Duration = Duration::from_secs(5);
const LONGEST_WAIT_MS: u32 = 60_000;

fn invalid(sentence: impl Into<String>) -> Failure {
    Failure::new(Reason::InvalidRequest, sentence)
}

/// Shortens a peer's text to what identifies it.
fn shortened(text: &str) -> String {
    let cut: String = text.chars().take(40).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}

fn parse<T: FromStr>(what: &str, text: &str, form: &str) -> Result<T, Failure> {
    text.parse().map_err(|_| invalid(format!("{what} {} is not {form}", shortened(text))))
}

/// Checks a text for people: short and without control characters, which could spoil a terminal or a log.
fn label(what: &str, text: String) -> Result<String, Failure> {
    if text.len() > LONGEST_TEXT || text.chars().any(char::is_control) {
        return Err(invalid(format!(
            "{what} {} must be at most {LONGEST_TEXT} bytes without control characters",
            shortened(&text)
        )));
    }
    Ok(text)
}

pub(crate) fn key(
    host: &HostName,
    key: Option<v1::AttachmentKey>,
) -> Result<AttachmentKey, Failure> {
    let key = key.ok_or_else(|| invalid("the request names no attachment: set its key"))?;
    if !is_container_id(&key.container_id) {
        return Err(invalid(format!(
            "container_id {} must be 1 to {CONTAINER_ID_LIMIT} characters of a-z, A-Z, 0-9, _, . and -, \
             beginning with a letter or digit",
            shortened(&key.container_id)
        )));
    }
    if !is_interface_name(&key.interface_name) {
        return Err(invalid(format!(
            "interface_name {} can't name an interface: use {INTERFACE_NAMES}",
            shortened(&key.interface_name)
        )));
    }
    Ok(AttachmentKey {
        host: host.clone(),
        container_id: key.container_id.into(),
        interface_name: key.interface_name.into(),
    })
}

pub(crate) fn keys(
    host: &HostName,
    keys: Vec<v1::AttachmentKey>,
) -> Result<Vec<AttachmentKey>, Failure> {
    keys.into_iter().map(|one| key(host, Some(one))).collect()
}

pub(crate) fn attachment_id(text: &str) -> Result<AttachmentId, Failure> {
    parse("attachment id", text, "a UUID").map(AttachmentId)
}

pub(crate) fn optional_attachment_id(text: &str) -> Result<Option<AttachmentId>, Failure> {
    optional(text, attachment_id)
}

pub(crate) fn optional_network(name: String) -> Result<Option<String>, Failure> {
    if name.is_empty() { Ok(None) } else { network_name(name).map(Some) }
}

pub(crate) fn network_name(name: String) -> Result<String, Failure> {
    if is_label(&name) {
        return Ok(name);
    }
    Err(invalid(format!(
        "network {} must be named by 1 to 63 characters of a-z, 0-9 and -, beginning and ending \
         with a letter or digit",
        shortened(&name)
    )))
}

fn session(host: &HostName, text: &str) -> Result<SessionId, Failure> {
    text.parse().map_err(|_| {
        let id = shortened(text);
        Failure::new(Reason::StaleSession, format!("host {host} has no session {id}"))
    })
}

fn optional_session(host: &HostName, text: &str) -> Result<Option<SessionId>, Failure> {
    optional(text, |text| session(host, text))
}

pub(crate) fn detach(host: &HostName, request: v1::DetachRequest) -> Result<Detach, Failure> {
    Ok(Detach {
        key: key(host, request.key)?,
        id: optional_attachment_id(&request.attachment_id)?,
        returned: request.vf_returned,
        returned_device: optional(&request.returned_device, device)?,
        as_of: HostTime(request.as_of_ns),
        session: optional_session(host, &request.session_id)?,
        cause: examination::clean(&request.cause),
    })
}

/// Converts an attach request; also returns when the host sent it.
pub(crate) fn attach(
    host: &HostName,
    request: v1::AttachRequest,
) -> Result<(AttachSpec, Asked), Failure> {
    let session = session(host, &request.session_id)?;
    let asked = Asked { session, as_of: HostTime(request.as_of_ns) };
    let interface = InterfaceRequest {
        network: optional_network(request.network)?.unwrap_or_default(),
        device: optional(&request.device, device)?,
        mac: optional(&request.mac, mac)?,
        addresses: addresses(&request.addresses)?,
        families: request.families.map(Into::into),
        bandwidth: requested_bandwidth(request.bandwidth)?,
        port_mappings: port_mappings::port_mappings(&request.port_mappings)?,
        allowed_sources: allowed_sources(&request.allowed_sources)?,
    };
    let spec = AttachSpec {
        key: key(host, request.key)?,
        pod: pod(request.pod.unwrap_or_default())?,
        interface,
        offered: request.offered.map(offer).transpose()?,
        further_leases: further_leases(request.further_leases)?,
        group_interface: None,
    };
    Ok((spec, asked))
}

/// Addresses for interfaces of other plugins.
fn further_leases(requests: Vec<v1::LeaseRequest>) -> Result<Vec<LeaseSpec>, Failure> {
    if requests.len() >= MOST_INTERFACES {
        let (count, most) = (requests.len(), MOST_INTERFACES - 1);
        return Err(invalid(format!("addresses for {count} further interfaces: {most} at most")));
    }
    let mut leases: Vec<LeaseSpec> = Vec::new();
    for v1::LeaseRequest { interface_name, network, addresses: asked } in requests {
        if !is_interface_name(&interface_name) {
            let name = shortened(&interface_name);
            return Err(invalid(format!("further_leases: {name} can't name an interface")));
        }
        let network = optional_network(network)?
            .ok_or_else(|| invalid(format!("further_leases: {interface_name} names no network")))?;
        if leases.iter().any(|other| *other.interface_name == *interface_name) {
            return Err(invalid(format!("further_leases names {interface_name} twice")));
        }
        let (interface_name, addresses) = (interface_name.into(), addresses(&asked)?);
        leases.push(LeaseSpec { interface_name, network, addresses });
    }
    Ok(leases)
}

/// Converts an AttachAll; the first interface leads the others. Also returns when the host sent it.
pub(crate) fn attach_all(
    host: &HostName,
    requests: Vec<v1::AttachRequest>,
) -> Result<(Vec<AttachSpec>, Asked), Failure> {
    if requests.len() > MOST_INTERFACES {
        let count = requests.len();
        let message = format!("a call for {count} interfaces: {MOST_INTERFACES} at most");
        return Err(invalid(message));
    }
    let mut requests = requests.into_iter();
    let first = requests.next().ok_or_else(|| invalid("the call asks for no interface"))?;
    let (first, asked) = attach(host, first)?;
    let mut specs = vec![first];
    for request in requests {
        let (spec, its) = attach(host, request)?;
        let AttachmentKey { container_id, interface_name: group_interface, .. } = &specs[0].key;
        if its.session != asked.session || spec.key.container_id != *container_id {
            return Err(invalid(
                "the call is for several sessions or containers: make one for each",
            ));
        }
        if specs.iter().any(|other| other.key == spec.key) {
            return Err(invalid(format!("the call asks for {} twice", spec.key)));
        }
        specs.push(AttachSpec { group_interface: Some(Arc::clone(group_interface)), ..spec });
    }
    Ok((specs, asked))
}

/// Reads a text that may be left out. Empty: `None`.
fn optional<T>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    if text.is_empty() { Ok(None) } else { read(text).map(Some) }
}

fn pod(pod: v1::Pod) -> Result<v1::Pod, Failure> {
    Ok(v1::Pod {
        namespace: label("pod namespace", pod.namespace)?,
        name: label("pod name", pod.name)?,
        uid: label("pod uid", pod.uid)?,
    })
}

pub(crate) fn offers(offers: Vec<v1::VfOffer>) -> Result<Vec<VfOffer>, Failure> {
    offers.into_iter().map(offer).collect()
}

fn offer(v1::VfOffer { device: text, number }: v1::VfOffer) -> Result<VfOffer, Failure> {
    Ok(VfOffer { device: device(&text)?, number })
}

/// `domain:bus:device.function` in hexadecimal, converted to lower case. Domains may have more than four digits (VMD).
fn device(text: &str) -> Result<Device, Failure> {
    let refuse = || {
        invalid(format!(
            "device {} is not domain:bus:device.function, such as 0000:03:00.2",
            shortened(text)
        ))
    };
    form::device(text).map(Device::from).ok_or_else(refuse)
}

fn mac(text: &str) -> Result<MacAddress, Failure> {
    let mac: MacAddress = text.parse().map_err(|error| invalid(format!("mac: {error}")))?;
    if mac.is_unicast() {
        return Ok(mac);
    }
    Err(invalid(format!("mac {mac} is a multicast or zero address: an interface can't have it")))
}

fn addresses(texts: &[String]) -> Result<Vec<WantedAddress>, Failure> {
    if texts.len() > MOST_ADDRESSES {
        return Err(invalid(format!(
            "{} addresses are requested; at most {MOST_ADDRESSES} are possible",
            texts.len()
        )));
    }
    texts.iter().map(|text| parse("address", text, IP_ADDRESS)).collect()
}

const IP_ADDRESS: &str = "an IP address, such as 10.1.0.5 or fd00::5";
const PREFIX: &str = "a prefix in CIDR notation, such as 10.1.0.0/16";

fn requested_bandwidth(asked: Option<v1::Bandwidth>) -> Result<Bandwidth, Failure> {
    let bandwidth = asked.unwrap_or_default().into();
    match check_bandwidth(&bandwidth, LimitsOf::Pod).into_iter().next() {
        Some(problem) => Err(invalid(problem)),
        None => Ok(bandwidth),
    }
}

fn no_such(error: &NumberError) -> Failure {
    invalid(error.to_string())
}

pub(crate) fn vf(vf: Option<v1::Vf>) -> Result<FunctionId, Failure> {
    let vf = vf.ok_or_else(|| invalid("the request names no VF"))?;
    FunctionId::from_numbers(vf.controller, vf.pf, vf.vf).map_err(|error| no_such(&error))
}

/// Timeout for hosts' examinations. 0: the default.
pub(crate) fn wait_limit(milliseconds: u32) -> Result<Duration, Failure> {
    match milliseconds {
        0 => Ok(DEFAULT_WAIT),
        1..=LONGEST_WAIT_MS => Ok(Duration::from_millis(milliseconds.into())),
        _ => Err(invalid(format!("wait_ms is {milliseconds}, and {LONGEST_WAIT_MS} is the most"))),
    }
}

pub(crate) fn reason(text: &str) -> Result<String, Failure> {
    label("reason", text.to_owned())
}

/// A host's name to filter by. Empty: none.
pub(crate) fn optional_host(name: String) -> Result<Option<HostName>, Failure> {
    let name = label("host", name)?;
    Ok((!name.is_empty()).then(|| HostName(Arc::from(name))))
}

/// An id's prefix as an operator typed it.
pub(crate) fn id_prefix(text: &str) -> Result<String, Failure> {
    let is_allowed = |b: u8| b.is_ascii_hexdigit() || b == b'-';
    if text.len() > 36 || !text.bytes().all(is_allowed) {
        let message = format!("there is no attachment {}", shortened(text));
        return Err(Failure::new(Reason::AttachmentUnknown, message));
    }
    Ok(text.to_ascii_lowercase())
}

/// Converts a network with the configuration file's defaults and checks it by the same rules.
pub(crate) fn network(network: Option<v1::Network>) -> Result<Network, Failure> {
    let network = network.ok_or_else(|| invalid("the request has no network"))?;
    let name = shortened(&network.name);
    let of_network = |failure: Failure| invalid(format!("network {name}: {}", failure.message));
    let read = unchecked_network(network).map_err(of_network)?;
    let problems = check_network(&read);
    if problems.is_empty() { Ok(read) } else { Err(invalid(joined(problems))) }
}

fn unchecked_network(network: v1::Network) -> Result<Network, Failure> {
    Ok(Network {
        name: network.name,
        bridge: (!network.bridge.is_empty()).then_some(network.bridge),
        vlan: (network.vlan != 0).then(|| vlan(network.vlan)),
        outer_vlan: (network.outer_vlan != 0).then(|| vlan(network.outer_vlan)),
        vlan_priority: network.vlan_priority.try_into().unwrap_or(u8::MAX),
        trunk: network.trunk.into_iter().map(vlan).collect(),
        pool: if network.pool.is_empty() { "default".into() } else { network.pool },
        mtu: if network.mtu == 0 { 1500 } else { network.mtu },
        subnets: collect(&network.subnets, subnet)?,
        routes: collect(&network.routes, route)?,
        rules: collect(&network.rules, rule)?,
        sysctls: sysctls(network.sysctls.unwrap_or_default()),
        dns: dns(network.dns.unwrap_or_default())?,
        bandwidth: network.bandwidth.unwrap_or_default().into(),
        total_egress_rate: network.total_egress_rate,
        anti_spoofing: optional(&network.anti_spoofing, |text| named("anti_spoofing", text))?
            .unwrap_or_default(),
        allowed_sources: sources("allowed_sources", &network.allowed_sources)?,
        optional_sources: sources("optional_sources", &network.optional_sources)?,
        default: network.default,
        first_hop: network.first_hop,
        interface_prefix: network.interface_prefix,
        link_group: network.link_group,
        link_alias: network.link_alias,
        gateway_mode: gateway_mode(&network.gateway_mode)?,
        reaches: network.reaches.into_iter().collect(),
        nat: network.nat,
        namespaces: network.namespaces.into_iter().collect(),
        allow: allow(&network.allow)?,
    })
}

pub(crate) fn subnet_change(
    add: &[v1::Subnet],
    remove: &[String],
) -> Result<SubnetChange, Failure> {
    Ok(SubnetChange {
        add: collect(add, subnet)?,
        remove: collect(remove, |text| prefix("remove", text))?,
    })
}

/// Joins the first problems: a refusal travels in a header, whose size is limited.
fn joined(problems: Vec<String>) -> String {
    let more = problems.len().saturating_sub(MOST_PROBLEMS);
    let first = problems.into_iter().take(MOST_PROBLEMS);
    let first: Vec<_> = first.map(|problem| bootstrap::cut(problem, LONGEST_PROBLEM)).collect();
    match more {
        0 => first.join("; "),
        more => format!("{}; and {more} more", first.join("; ")),
    }
}

fn sources(field: &str, texts: &[String]) -> Result<BTreeSet<Source>, Failure> {
    let read = |text: &String| {
        text.parse::<Source>().map_err(|error| invalid(format!("{field}: {error}")))
    };
    texts.iter().map(read).collect()
}

fn allowed_sources(texts: &[String]) -> Result<BTreeSet<Source>, Failure> {
    if texts.len() > MOST_SOURCES {
        let message = format!(
            "allowed_sources has {} entries; a pod can request at most {MOST_SOURCES}",
            texts.len()
        );
        return Err(invalid(message));
    }
    let sources = sources("allowed_sources", texts)?;
    match sources.iter().find_map(|source| check_source("allowed_sources", *source)) {
        Some(problem) => Err(invalid(problem)),
        None => Ok(sources),
    }
}

fn gateway_mode(text: &str) -> Result<GatewayMode, Failure> {
    match text {
        "" | "router" => Ok(GatewayMode::Router),
        "dpu" => Ok(GatewayMode::Dpu),
        other => {
            Err(invalid(format!("gateway_mode {} must be \"router\" or \"dpu\"", shortened(other))))
        }
    }
}

/// A number out of range becomes `u16::MAX`, which the network's check refuses.
fn vlan(number: u32) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

fn collect<A, B>(all: &[A], read: impl Fn(&A) -> Result<B, Failure>) -> Result<Vec<B>, Failure> {
    all.iter().map(read).collect()
}

fn subnet(subnet: &v1::Subnet) -> Result<Subnet, Failure> {
    Ok(Subnet {
        cidr: prefix("subnet", &subnet.cidr)?,
        gateway: optional_address("gateway", &subnet.gateway)?,
        ranges: collect(&subnet.ranges, range)?,
        exclude: collect(&subnet.exclude, |text| prefix("exclude", text))?,
    })
}

fn range(range: &v1::AddressRange) -> Result<AddressRange, Failure> {
    let address = |text: &str| parse("range address", text, IP_ADDRESS);
    Ok(AddressRange { start: address(&range.start)?, end: address(&range.end)? })
}

fn route(route: &v1::Route) -> Result<Route, Failure> {
    Ok(Route {
        destination: prefix("route", &route.destination)?,
        gateway: optional_address("gateway", &route.gateway)?,
        mtu: route.mtu,
        advmss: route.advmss,
        priority: route.priority,
        table: route.table,
        scope: optional(&route.scope, |text| named("scope", text))?,
        kind: optional(&route.kind, |text| named("kind", text))?.unwrap_or_default(),
        onlink: route.onlink,
    })
}

/// Parses a field with a fixed set of values.
fn named<T: FromStr<Err: Display>>(field: &str, text: &str) -> Result<T, Failure> {
    text.parse().map_err(|error| invalid(format!("{field} {} {error}", shortened(text))))
}

fn allow(rules: &[v1::AllowRule]) -> Result<Vec<AllowRule>, Failure> {
    let read = |(index, rule): (usize, &v1::AllowRule)| {
        let of_rule =
            |failure: Failure| invalid(format!("allow rule {}: {}", index + 1, failure.message));
        allow_rule(rule).map_err(of_rule)
    };
    rules.iter().enumerate().map(read).collect()
}

fn allow_rule(rule: &v1::AllowRule) -> Result<AllowRule, Failure> {
    let range =
        |text: &String| text.parse::<PortRange>().map_err(|error| invalid(error.to_string()));
    Ok(AllowRule {
        from_networks: rule.from_networks.iter().cloned().collect(),
        from: rule.from.iter().map(|text| prefix("from", text)).collect::<Result<_, _>>()?,
        protocol: optional(&rule.protocol, |text| named("protocol", text))?,
        ports: rule.ports.iter().map(range).collect::<Result<_, _>>()?,
        deny_all: rule.deny_all,
    })
}

fn rule(rule: &v1::PolicyRule) -> Result<PolicyRule, Failure> {
    let source = named("rule source", &rule.source)?;
    Ok(PolicyRule { source, table: rule.table, priority: rule.priority })
}

fn sysctls(sysctls: v1::Sysctls) -> Sysctls {
    Sysctls { ipv4: sysctls.ipv4, ipv6: sysctls.ipv6 }
}

fn dns(dns: v1::Dns) -> Result<Dns, Failure> {
    let nameserver = |text: &String| parse("name server", text, IP_ADDRESS);
    Ok(Dns {
        nameservers: collect(&dns.nameservers, nameserver)?,
        domain: dns.domain,
        search: dns.search,
        options: dns.options,
    })
}

fn prefix(what: &str, text: &str) -> Result<IpNetwork, Failure> {
    parse(what, text, PREFIX)
}

fn optional_address(what: &str, text: &str) -> Result<Option<IpAddr>, Failure> {
    optional(text, |text| parse(what, text, IP_ADDRESS))
}
