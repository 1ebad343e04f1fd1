//! To the protocol: conversion of domain types to messages.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use metrics::Phases;
use offload_proto::v1;
use vf_alloc::{Device, FunctionId, PfId, Policy, VfState};

use crate::{
    attachments::{
        Applied, AttachmentDetail, AttachmentTraffic, HostPool, NetworkView, OfferedVf, OpenPool,
        Origin, Outdated, PoolView, PooledVf, SubnetUsage, VfView,
    },
    audit::AuditEntry,
    conditions::Condition,
    events::{EndedAttachment, Event, EventCursor, Severity},
    gateway::GatewayView,
    host::ExaminedVf,
    refused_peers::RefusedPeer,
    sessions::{HostCommand, HostView},
};
use drivers::{counters::PortTraffic, driver::Capability, eswitch::Card, programmer::StepStatus};
use model::{
    AllowRule, AttachmentKey, AttachmentState, AttachmentView, Dns, FurtherLease, HostRights,
    Lease, Network, Record, ResourceVersion, Subnet,
};

pub(crate) fn attachment(view: &AttachmentView) -> v1::Attachment {
    let record: &Record = &view.record;
    let network = &record.network;
    v1::Attachment {
        id: record.id.to_string(),
        host: record.key.host.to_string(),
        key: Some(key(&record.key)),
        network: network.name.clone(),
        pod: Some(record.pod.clone()),
        vf: Some(vf(record.vf, &record.device)),
        mac: record.mac.to_string(),
        vlan: network.vlan.unwrap_or_default().into(),
        addresses: record.leases.iter().map(lease).collect(),
        routes: record.routes().iter().map(Into::into).collect(),
        rules: record.rules().iter().map(Into::into).collect(),
        sysctls: (!network.sysctls.is_empty()).then(|| (&network.sysctls).into()),
        dns: Some(dns(&network.dns)),
        mtu: network.mtu,
        bandwidth: Some(record.bandwidth.into()),
        state: state(view.state).into(),
        created_at: Timestamp::from_millisecond(record.created_at).unwrap_or_default().to_string(),
        trunk: network.trunk.iter().map(|vlan| (*vlan).into()).collect(),
        // These two are set by `WorkloadApi::answer`; only hosts need them.
        host_keeps_port: false,
        port_follows_vf: false,
        port_mappings: record.port_mappings.iter().copied().map(Into::into).collect(),
        allowed_sources: record.allowed_sources().iter().map(ToString::to_string).collect(),
        anti_spoofing: network.anti_spoofing.name().into(),
        group_interface: record.group_interface.as_deref().unwrap_or_default().into(),
        further_leases: record.further_leases.iter().map(further_lease).collect(),
    }
}

pub(super) fn further_lease(its: &FurtherLease) -> v1::FurtherLease {
    v1::FurtherLease {
        interface_name: its.interface_name.to_string(),
        network: its.network.name.clone(),
        addresses: its.leases.iter().map(lease).collect(),
        routes: its.network.routes_with(&its.leases).iter().map(Into::into).collect(),
        dns: Some(dns(&its.network.dns)),
        mtu: its.network.mtu,
    }
}

fn state(state: AttachmentState) -> v1::AttachmentState {
    match state {
        AttachmentState::Reserved => v1::AttachmentState::Reserved,
        AttachmentState::Programmed => v1::AttachmentState::Programmed,
        AttachmentState::Attached => v1::AttachmentState::Attached,
        AttachmentState::Releasing => v1::AttachmentState::Releasing,
        AttachmentState::HostRemoved => v1::AttachmentState::HostRemoved,
    }
}

fn key(key: &AttachmentKey) -> v1::AttachmentKey {
    v1::AttachmentKey {
        container_id: key.container_id.to_string(),
        interface_name: key.interface_name.to_string(),
    }
}

pub(crate) fn examined_vf(found: &ExaminedVf) -> v1::ExaminedVf {
    let record = found.record.as_ref();
    let holdings = record.and_then(|record| record.holdings.as_ref());
    let addresses = holdings.into_iter().flat_map(|holdings| &holdings.addresses);
    v1::ExaminedVf {
        vf: Some(vf(found.vf, &found.device)),
        place: found.place.into(),
        netdev: found.netdev.clone(),
        netns: found.netns.clone(),
        attachment_id: record.map(|record| record.id.to_string()).unwrap_or_default(),
        use_by_host: found.use_by_host.clone(),
        mac: holdings.map(|holdings| holdings.mac.to_string()).unwrap_or_default(),
        addresses: addresses.map(ToString::to_string).collect(),
    }
}

pub(crate) fn vf(id: FunctionId, device: &Device) -> v1::Vf {
    v1::Vf {
        controller: id.pf.controller,
        pf: id.pf.pf.into(),
        vf: id.vf.into(),
        device: device.to_string(),
    }
}

fn lease(lease: &Lease) -> v1::Address {
    v1::Address { address: lease.address.to_string(), gateway: text(lease.gateway) }
}

fn text(address: Option<IpAddr>) -> String {
    address.map(|address| address.to_string()).unwrap_or_default()
}

fn dns(dns: &Dns) -> v1::Dns {
    v1::Dns {
        nameservers: dns.nameservers.iter().map(ToString::to_string).collect(),
        domain: dns.domain.clone(),
        search: dns.search.clone(),
        options: dns.options.clone(),
    }
}

pub(crate) fn detail(dpu: &str, detail: &AttachmentDetail) -> v1::AttachmentDetail {
    v1::AttachmentDetail {
        attachment: Some(attachment(&detail.view)),
        representor: detail.representor.clone(),
        steps: detail.steps.iter().map(step).collect(),
        events: detail.events.iter().map(|its| event(dpu, its)).collect(),
        counters: detail.traffic.as_ref().map(counters),
        unknown: detail.unknown.clone(),
    }
}

fn counters(traffic: &PortTraffic) -> v1::PortCounters {
    let PortTraffic { counters, offloaded } = traffic;
    v1::PortCounters {
        sent_bytes: counters.sent.bytes,
        sent_packets: counters.sent.packets,
        received_bytes: counters.received.bytes,
        received_packets: counters.received.packets,
        guard_drops: counters.drops.guard,
        egress_limit_drops: counters.drops.egress_limit,
        allow_drops: counters.drops.allow,
        ingress_limit_drops: counters.ingress_limit_drops,
        rules: offloaded.rules,
        rules_in_hardware: offloaded.in_hardware,
    }
}

pub(crate) fn attachment_traffic(of: &AttachmentTraffic) -> v1::AttachmentTraffic {
    let record: &Record = &of.view.record;
    v1::AttachmentTraffic {
        attachment_id: record.id.to_string(),
        host: record.key.host.to_string(),
        key: Some(key(&record.key)),
        pod: Some(record.pod.clone()),
        network: record.network.name.clone(),
        vf: Some(vf(record.vf, &record.device)),
        counters: of.traffic.as_ref().map(counters),
    }
}

pub(crate) fn phases(
    operation: &'static str,
    phases: &Phases,
) -> impl Iterator<Item = v1::PhaseDurations> {
    phases.noted().map(move |(phase, durations)| v1::PhaseDurations {
        operation: operation.into(),
        phase: phase.into(),
        count: durations.count(),
        sum_ns: nanoseconds(durations.sum()),
        buckets: durations.buckets().map(bucket).collect(),
    })
}

fn bucket((upper_bound, count): (Duration, u64)) -> v1::DurationBucket {
    v1::DurationBucket { upper_bound_ns: nanoseconds(upper_bound), count }
}

/// Saturates after some centuries.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

fn step(step: &StepStatus) -> v1::StepStatus {
    v1::StepStatus {
        name: step.name.into(),
        in_place: step.in_place,
        detail: step.detail.clone(),
        unknown: !step.is_known,
    }
}

pub(crate) fn condition(condition: &Condition) -> v1::Condition {
    let Condition { kind, status, reason, object, message, since, checked, affects_pods } =
        condition;
    v1::Condition {
        r#type: (*kind).into(),
        status: (*status).into(),
        reason: (*reason).into(),
        object: object.clone(),
        message: message.clone(),
        since: since.to_string(),
        checked: checked.to_string(),
        affects_pods: *affects_pods,
    }
}

pub(crate) fn event(dpu: &str, event: &Event) -> v1::Event {
    v1::Event {
        sequence: event.sequence,
        time: event.time.to_string(),
        kind: event.kind.as_str().into(),
        subject: event.subject.clone(),
        message: event.message.clone(),
        dpu: dpu.into(),
        boot: event.boot.to_string(),
        revision: event.revision,
        severity: severity(event.kind.severity()).into(),
        reason: event.reason.clone().unwrap_or_default(),
        count: event.count,
        first_time: event.first_time.to_string(),
        author: event.author.to_string(),
        attachment: event.ended.as_ref().map(|it| ended(&event.subject, it)),
    }
}

fn ended(id: &str, its: &EndedAttachment) -> v1::Attachment {
    v1::Attachment {
        id: id.into(),
        host: its.key.host.to_string(),
        key: Some(key(&its.key)),
        network: its.network.clone(),
        pod: Some(its.pod.clone()),
        vf: Some(vf(its.vf, &its.device)),
        mac: its.mac.to_string(),
        addresses: its.leases.iter().map(lease).collect(),
        created_at: Timestamp::from_millisecond(its.created_at).unwrap_or_default().to_string(),
        ..v1::Attachment::default()
    }
}

const fn severity(severity: Severity) -> v1::EventSeverity {
    match severity {
        Severity::Normal => v1::EventSeverity::Normal,
        Severity::Warning => v1::EventSeverity::Warning,
    }
}

pub(crate) fn audit_entry(entry: &AuditEntry) -> v1::AuditEntry {
    v1::AuditEntry {
        id: entry.id.to_string(),
        time: Timestamp::from_millisecond(entry.time).unwrap_or_default().to_string(),
        author: entry.cause.author.to_string(),
        action: entry.action.as_str().into(),
        object: entry.object.clone(),
        before: entry.before.clone(),
        after: entry.after.clone(),
        reason: entry.cause.reason.clone(),
    }
}

pub(crate) fn cursor(cursor: EventCursor) -> v1::EventCursor {
    v1::EventCursor { boot: cursor.boot.to_string(), revision: cursor.revision }
}

pub(crate) fn network_status(view: &NetworkView, outdated: Option<&Outdated>) -> v1::NetworkStatus {
    let (outdated_attachments, outdated) =
        outdated.map(|it| (it.number, &*it.first)).unwrap_or_default();
    let origin = match view.origin {
        Origin::Configuration => "configuration",
        Origin::Api => "api",
    };
    v1::NetworkStatus {
        network: Some(network(&view.network)),
        origin: origin.into(),
        attachments: count(view.attachments),
        subnets: view.subnets.iter().map(usage).collect(),
        gateway: view.gateway.as_ref().map(gateway),
        resource_version: ResourceVersion::of(&view.network).to_string(),
        outdated_attachments: count(outdated_attachments),
        outdated: outdated.iter().map(|record| attachment_name(record)).collect(),
    }
}

fn attachment_name(record: &Record) -> v1::AttachmentName {
    v1::AttachmentName {
        attachment_id: record.id.to_string(),
        host: record.key.host.to_string(),
        key: Some(key(&record.key)),
        pod: Some(record.pod.clone()),
    }
}

fn gateway(view: &GatewayView) -> v1::GatewayStatus {
    v1::GatewayStatus {
        link: view.link.clone(),
        addresses: view.addresses.iter().map(ToString::to_string).collect(),
        problems: view.problems.clone(),
    }
}

pub(crate) fn count(number: usize) -> u64 {
    number.try_into().unwrap_or(u64::MAX)
}

fn usage(usage: &SubnetUsage) -> v1::SubnetUsage {
    v1::SubnetUsage {
        cidr: usage.cidr.to_string(),
        capacity: usage.capacity,
        held: usage.held,
        cooling: usage.cooling,
    }
}

fn network(network: &Network) -> v1::Network {
    v1::Network {
        name: network.name.clone(),
        bridge: network.bridge.clone().unwrap_or_default(),
        vlan: network.vlan.unwrap_or_default().into(),
        outer_vlan: network.outer_vlan.unwrap_or_default().into(),
        vlan_priority: network.vlan_priority.into(),
        pool: network.pool.clone(),
        mtu: network.mtu,
        subnets: network.subnets.iter().map(subnet).collect(),
        routes: network.routes.iter().map(Into::into).collect(),
        rules: network.rules.iter().map(Into::into).collect(),
        sysctls: (!network.sysctls.is_empty()).then(|| (&network.sysctls).into()),
        dns: Some(dns(&network.dns)),
        bandwidth: Some(network.bandwidth.into()),
        total_egress_rate: network.total_egress_rate,
        anti_spoofing: network.anti_spoofing.name().into(),
        allowed_sources: network.allowed_sources.iter().map(ToString::to_string).collect(),
        optional_sources: network.optional_sources.iter().map(ToString::to_string).collect(),
        default: network.default,
        trunk: network.trunk.iter().map(|vlan| u32::from(*vlan)).collect(),
        first_hop: network.first_hop,
        interface_prefix: network.interface_prefix.clone(),
        link_group: network.link_group,
        link_alias: network.link_alias.clone(),
        gateway_mode: network.gateway_mode.name().into(),
        reaches: network.reaches.iter().cloned().collect(),
        nat: network.nat,
        namespaces: network.namespaces.iter().cloned().collect(),
        allow: network.allow.iter().map(allow_rule).collect(),
    }
}

fn allow_rule(rule: &AllowRule) -> v1::AllowRule {
    v1::AllowRule {
        from_networks: rule.from_networks.iter().cloned().collect(),
        from: rule.from.iter().map(ToString::to_string).collect(),
        protocol: rule.protocol.map(|protocol| protocol.name().into()).unwrap_or_default(),
        ports: rule.ports.iter().map(ToString::to_string).collect(),
        deny_all: rule.deny_all,
    }
}

fn subnet(subnet: &Subnet) -> v1::Subnet {
    let range = |range: &model::AddressRange| v1::AddressRange {
        start: range.start.to_string(),
        end: range.end.to_string(),
    };
    v1::Subnet {
        cidr: subnet.cidr.to_string(),
        gateway: text(subnet.gateway),
        ranges: subnet.ranges.iter().map(range).collect(),
        exclude: subnet.exclude.iter().map(ToString::to_string).collect(),
    }
}

pub(crate) fn outcome(applied: Applied) -> String {
    let outcome = match applied {
        Applied::Created => "created",
        Applied::Changed => "changed",
        Applied::Unchanged => "unchanged",
    };
    outcome.into()
}

pub(crate) fn pool(view: &PoolView) -> v1::PoolStatus {
    let policy = match view.spec.policy {
        Policy::Spread => "spread",
        Policy::Pack => "pack",
    };
    v1::PoolStatus {
        name: view.spec.name.clone(),
        select: view.spec.select.iter().map(ToString::to_string).collect(),
        policy: policy.into(),
        free: count(view.usage.free),
        in_use: count(view.usage.in_use),
        quarantined: count(view.usage.quarantined),
        absent: count(view.usage.absent),
        pinned_only: view.spec.pinned_only,
    }
}

/// A VF's state and, if it needs one, its reason.
pub(crate) fn vf_state(state: &VfState) -> (v1::VfState, &str) {
    match state {
        VfState::Free => (v1::VfState::Free, ""),
        VfState::Reserved => (v1::VfState::Reserved, ""),
        VfState::Attached => (v1::VfState::Attached, ""),
        VfState::Releasing => (v1::VfState::Releasing, ""),
        VfState::Quarantined { reason } => (v1::VfState::Quarantined, reason),
        VfState::Absent { reason } => (v1::VfState::Absent, reason),
    }
}

pub(crate) fn vf_status(view: &VfView) -> v1::VfStatus {
    let (state, detail) = vf_state(&view.state);
    let id = |of: fn((u16, u16)) -> u16| {
        view.device_ids.map(|ids| format!("{:04x}", of(ids))).unwrap_or_default()
    };
    v1::VfStatus {
        vf: Some(vf(view.vf, &view.device)),
        host: view.host.as_ref().map(ToString::to_string).unwrap_or_default(),
        pools: view.pools.clone(),
        state: state.into(),
        detail: detail.into(),
        representor: view.representor.clone(),
        attachment_id: view.attachment.map(|id| id.to_string()).unwrap_or_default(),
        vendor_id: id(|(vendor, _)| vendor),
        device_id: id(|(_, device)| device),
    }
}

pub(crate) fn capability(capability: &Capability) -> v1::Capability {
    v1::Capability {
        name: capability.name.into(),
        available: capability.available,
        detail: capability.detail.clone(),
        offloaded: capability.offloaded,
    }
}

pub(crate) fn card(card: &Card) -> v1::Card {
    v1::Card {
        device: card.device.clone(),
        eswitch_mode: card.mode.clone(),
        representors: count(card.representors),
        capabilities: card.capabilities.iter().map(capability).collect(),
    }
}

pub(crate) fn host(view: &HostView, rights: HostRights, maintenance: bool) -> v1::HostStatus {
    let contact = view.contact.as_ref();
    let refusal = contact.and_then(|contact| contact.refusal.as_ref());
    v1::HostStatus {
        name: view.name.to_string(),
        connected: view.connected,
        agent_version: view.agent_version.clone(),
        boot_id: view.boot_id.clone(),
        since: view.since.map(|since| since.to_string()).unwrap_or_default(),
        absence: view.absence.clone().unwrap_or_default(),
        networks: rights.networks.into_iter().collect(),
        own_macs_only: !rights.any_mac,
        address: contact.map(|contact| contact.address.to_string()).unwrap_or_default(),
        refusal: refusal.map(|refusal| refusal.reason.clone()).unwrap_or_default(),
        refused_at: refusal.map(|refusal| refusal.at.to_string()).unwrap_or_default(),
        pod_findings: view.pod_findings.clone(),
        pod_findings_left_out: view.pod_findings_left_out,
        maintenance,
    }
}

pub(crate) fn refused_peer(peer: RefusedPeer) -> v1::RefusedPeer {
    v1::RefusedPeer {
        address: peer.address.to_string(),
        name: peer.name,
        reason: peer.reason,
        time: peer.at.to_string(),
        count: peer.count,
    }
}

/// Maximum characters of a VF's reason sent to a host: so ten thousand VFs fit into a message.
const PROBLEM: usize = 80;

pub(crate) fn vf_pools(pools: &[HostPool]) -> v1::VfPools {
    let vf = |vf: &PooledVf| v1::PooledVf {
        device: vf.device.to_string(),
        problem: vf.problem.iter().flat_map(|problem| problem.chars().take(PROBLEM)).collect(),
    };
    let pool = |pool: &HostPool| v1::VfPool {
        name: pool.name.clone(),
        pinned_only: pool.pinned_only,
        vfs: pool.vfs.iter().map(vf).collect(),
    };
    v1::VfPools { pools: pools.iter().map(pool).collect() }
}

pub(crate) fn offers(offers: &[OfferedVf]) -> v1::VfOffers {
    let vf = |vf: &OfferedVf| v1::OfferedVf {
        offer: Some(v1::VfOffer { device: vf.offer.device.to_string(), number: vf.offer.number }),
        pools: vf.pools.iter().map(open_pool).collect(),
        controller: vf.pf.controller,
        pf: vf.pf.pf.into(),
    };
    v1::VfOffers { vfs: offers.iter().map(vf).collect() }
}

fn open_pool(pool: &OpenPool) -> v1::OpenPool {
    v1::OpenPool { name: pool.name.clone(), packs: pool.policy == Policy::Pack }
}

pub(crate) fn command(command: HostCommand) -> v1::dpu_message::Message {
    use v1::dpu_message::Message;
    match command {
        HostCommand::Reattach(view) => {
            Message::Reattach(v1::Reattach { attachment: Some(attachment(&view)) })
        }
        HostCommand::Release { id, key: released, reason } => Message::Release(v1::Release {
            attachment_id: id.to_string(),
            key: Some(key(&released)),
            reason,
        }),
        HostCommand::Unrecorded(ids) => Message::Unrecorded(v1::Unrecorded {
            attachment_ids: ids.iter().map(ToString::to_string).collect(),
        }),
        HostCommand::NetworkChanged(changed) => Message::NetworkChanged(changed),
        HostCommand::Examine { request_id, repair_except } => Message::Examine(v1::Examine {
            request_id,
            repair: repair_except.is_some(),
            held: repair_except.iter().flatten().map(ToString::to_string).collect(),
        }),
        HostCommand::Draining { reason } => Message::Draining(v1::Draining { reason }),
        HostCommand::WantedVfs { pf: PfId { controller, pf }, count } => {
            Message::WantedVfs(v1::WantedVfs { controller, pf: pf.into(), count })
        }
    }
}
