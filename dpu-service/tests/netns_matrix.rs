//! The matrix of rights: every call of every service by every kind of caller, on node-1's attachment.
//!
//! The calls come from the services' descriptors: a new call without a row fails the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "tests"
)]

#[path = "matrix/raw.rs"]
mod raw;
#[allow(dead_code, reason = "netns_service uses the rest")]
mod service_support;
#[path = "../../crates/netlink/tests/support/mod.rs"]
mod support;
#[path = "matrix/world.rs"]
mod world;

use std::collections::BTreeSet;

use mtls::Role;
use offload_proto::{Failure, Reason, v1};
use prost::Message;
use prost_types::FileDescriptorSet;

use raw::{Outcome, call};
use service_support::Setup;
use world::{UntrustedCallers, World};

/// Result of a call and its effect on node-1's attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// An answer; the attachment stays.
    Answer,
    /// An answer; the attachment ends.
    Ends,
    /// A refusal with this reason; the attachment stays.
    Refused(Reason),
}
use Expected::{Answer, Ends, Refused};

const NOT_AUTHORISED: Expected = Refused(Reason::NotAuthorised);
const HOST_UNKNOWN: Expected = Refused(Reason::HostUnknown);

/// The callers, in the order of the columns. node-1 owns the attachment.
const CALLERS: [(Role, &str); 5] = [
    (Role::Host, "node-1"),
    (Role::Host, "node-2"),
    (Role::Host, "stranger"),
    (Role::Viewer, "eve"),
    (Role::Operator, "alice"),
];

/// A call, its message, and the expected result for each caller.
type Row = (&'static str, fn(&World<'_>) -> Vec<u8>, [Expected; 5]);

/// Read-only calls are for operators and viewers.
const LOOK: [Expected; 5] = [NOT_AUTHORISED, NOT_AUTHORISED, NOT_AUTHORISED, Answer, Answer];
/// Health and reflection are for every valid certificate.
const ALL: [Expected; 5] = [Answer; 5];

/// Changes are for operators.
const fn of_operators(operator: Expected) -> [Expected; 5] {
    [NOT_AUTHORISED, NOT_AUTHORISED, NOT_AUTHORISED, NOT_AUTHORISED, operator]
}

/// Workload calls are for hosts.
const fn of_hosts(owner: Expected, other: Expected) -> [Expected; 5] {
    [owner, other, HOST_UNKNOWN, NOT_AUTHORISED, NOT_AUTHORISED]
}

fn table() -> Vec<Row> {
    vec![
        (
            "offload.v1.WorkloadNetwork/Attach",
            |world| {
                let (session_id, key) = (world.session_id(), Some(world.key()));
                encoded(&v1::AttachRequest { session_id, key, ..Default::default() })
            },
            of_hosts(Answer, Refused(Reason::StaleSession)),
        ),
        (
            "offload.v1.WorkloadNetwork/AttachAll",
            |world| {
                let (session_id, key) = (world.session_id(), Some(world.key()));
                let request = v1::AttachRequest { session_id, key, ..Default::default() };
                encoded(&v1::AttachAllRequest { requests: vec![request] })
            },
            of_hosts(Answer, Refused(Reason::StaleSession)),
        ),
        (
            "offload.v1.WorkloadNetwork/AwaitPort",
            |world| encoded(&v1::AwaitPortRequest { attachment_id: world.id(), limit_ms: 1 }),
            of_hosts(Answer, Refused(Reason::AttachmentUnknown)),
        ),
        (
            "offload.v1.WorkloadNetwork/Detach",
            |world| {
                encoded(&v1::DetachRequest {
                    key: Some(world.key()),
                    attachment_id: world.id(),
                    vf_returned: true,
                    ..Default::default()
                })
            },
            // A DEL of a missing attachment succeeds, as CNI requires.
            of_hosts(Ends, Answer),
        ),
        (
            "offload.v1.WorkloadNetwork/Check",
            |world| {
                let (key, attachment_id) = (Some(world.key()), world.id());
                encoded(&v1::CheckRequest { key, attachment_id })
            },
            of_hosts(Answer, Refused(Reason::AttachmentUnknown)),
        ),
        (
            "offload.v1.WorkloadNetwork/Collect",
            |_| encoded(&v1::CollectRequest { network: "blue".into(), valid: Vec::new() }),
            of_hosts(Ends, Answer),
        ),
        (
            "offload.v1.WorkloadNetwork/Status",
            |_| encoded(&v1::StatusRequest::default()),
            of_hosts(Answer, Answer),
        ),
        (
            "offload.v1.WorkloadNetwork/Session",
            |world| encoded(&world.hello()),
            // The hello names node-1's PF, which another host must not report.
            of_hosts(Answer, NOT_AUTHORISED),
        ),
        ("offload.v1.Operator/GetDpu", |_| encoded(&v1::GetDpuRequest {}), LOOK),
        ("offload.v1.Operator/ListVfs", |_| encoded(&v1::ListVfsRequest {}), LOOK),
        (
            "offload.v1.Operator/ListAttachments",
            |_| encoded(&v1::ListAttachmentsRequest::default()),
            LOOK,
        ),
        (
            "offload.v1.Operator/GetAttachment",
            |world| encoded(&v1::GetAttachmentRequest { id: world.id() }),
            LOOK,
        ),
        ("offload.v1.Operator/ListTraffic", |_| encoded(&v1::ListTrafficRequest::default()), LOOK),
        ("offload.v1.Operator/ListPhases", |_| encoded(&v1::ListPhasesRequest {}), LOOK),
        ("offload.v1.Operator/ListNetworks", |_| encoded(&v1::ListNetworksRequest {}), LOOK),
        ("offload.v1.Operator/ListPools", |_| encoded(&v1::ListPoolsRequest {}), LOOK),
        ("offload.v1.Operator/ListAudit", |_| encoded(&v1::ListAuditRequest::default()), LOOK),
        ("offload.v1.Operator/ListEvents", |_| encoded(&v1::ListEventsRequest::default()), LOOK),
        ("offload.v1.Operator/Watch", |_| encoded(&v1::WatchRequest::default()), LOOK),
        (
            "offload.v1.Operator/ApplyNetwork",
            |_| {
                let network = v1::Network { name: "green".into(), ..v1::Network::default() };
                encoded(&v1::ApplyNetworkRequest {
                    network: Some(network),
                    ..v1::ApplyNetworkRequest::default()
                })
            },
            of_operators(Answer),
        ),
        (
            "offload.v1.Operator/ChangeSubnets",
            |_| {
                let add = vec![v1::Subnet { cidr: "10.77.0.0/24".into(), ..v1::Subnet::default() }];
                let network = "green".into();
                encoded(&v1::ChangeSubnetsRequest { network, add, ..Default::default() })
            },
            of_operators(Answer),
        ),
        (
            "offload.v1.Operator/RenameNetwork",
            |_| {
                let (name, new_name) = ("green".into(), "emerald".into());
                encoded(&v1::RenameNetworkRequest { name, new_name, ..Default::default() })
            },
            of_operators(Answer),
        ),
        (
            "offload.v1.Operator/DeleteNetwork",
            |_| {
                let (name, force) = ("emerald".into(), true);
                encoded(&v1::DeleteNetworkRequest { name, force, ..Default::default() })
            },
            of_operators(Answer),
        ),
        (
            "offload.v1.Operator/ReleaseAttachment",
            |world| {
                encoded(&v1::ReleaseAttachmentRequest {
                    id: world.id(),
                    reason: "tried".into(),
                    forget: false,
                })
            },
            of_operators(Ends),
        ),
        (
            "offload.v1.Operator/ClearQuarantine",
            |_| {
                encoded(&v1::ClearQuarantineRequest {
                    vf: Some(v1::Vf::default()),
                    ..Default::default()
                })
            },
            of_operators(Refused(Reason::VfNotQuarantined)),
        ),
        ("offload.v1.Operator/GetDebugInfo", |_| encoded(&v1::GetDebugInfoRequest {}), LOOK),
        ("offload.v1.Operator/Examine", |_| encoded(&v1::ExamineRequest { wait_ms: 1 }), LOOK),
        (
            "offload.v1.Operator/Repair",
            |_| encoded(&v1::RepairRequest { wait_ms: 1, ..Default::default() }),
            of_operators(Answer),
        ),
        ("grpc.health.v1.Health/Check", |_| Vec::new(), ALL),
        ("grpc.health.v1.Health/Watch", |_| Vec::new(), ALL),
        ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", |_| Vec::new(), ALL),
        ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", |_| Vec::new(), ALL),
    ]
}

fn encoded(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// The calls in the descriptors.
fn calls_served() -> BTreeSet<String> {
    let descriptors = [
        v1::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let mut calls = BTreeSet::new();
    for file in descriptors.iter().flat_map(|set| FileDescriptorSet::decode(*set).unwrap().file) {
        for service in &file.service {
            let name = |method: &str| format!("{}.{}/{method}", file.package(), service.name());
            calls.extend(service.method.iter().map(|method| name(method.name())));
        }
    }
    calls
}

#[test]
fn every_call_has_its_row() {
    let rows: BTreeSet<_> = table().iter().map(|row| row.0.to_owned()).collect();
    assert_eq!(rows, calls_served());
}

#[test]
fn service_answers_every_caller_by_its_rights() {
    let setup = world::setup();
    let _service = setup.start();
    let mut tried = 0;
    for row in table() {
        setup.client(async || try_row(&setup, row).await);
        tried += CALLERS.len();
    }
    println!("figure: {tried} calls tried as one role or another on somebody's attachment");
}

async fn try_row(setup: &Setup, (path, message, expected): Row) {
    let world = World::new(setup);
    for ((role, name), expected) in CALLERS.into_iter().zip(expected) {
        let case = format!("{path} as {role} {name}");
        world.attach().await;
        let before = world.attachments().await;
        let outcome = call(world.channel(role, name), path, message(&world)).await;
        assert_eq!(seen(outcome), shown(expected), "{case}");
        let after = world.attachments().await;
        assert_eq!(after != before, expected == Ends, "{case}: {before:?}, {after:?}");
    }
}

/// A caller without a certificate of this CA that names one known role gets no connection.
#[test]
fn untrusted_callers_get_no_connection() {
    let setup = world::setup();
    let _service = setup.start();
    let untrusted = UntrustedCallers::new(&setup);
    let names = ["dpu-dpu-1", "robot", "elsewhere", "named", "two-faced", "expired", "foreign"];
    for unknown_host in names.map(Some).into_iter().chain([None]) {
        let received = untrusted.send_raw(unknown_host);
        assert!(received.contains("SSL alert number"), "{unknown_host:?}: {received}");
    }
    let received = untrusted.send_without_tls();
    // A TLS alert, or nothing.
    assert!(matches!(received.first(), None | Some(21)), "{received:?}");
    // The same bytes are accepted with a valid certificate.
    let received = untrusted.send_raw(Some("viewer"));
    assert!(!received.contains("SSL alert number"), "{received}");
    println!("figure: {} kinds of strangers refused a connection", names.len() + 2);
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Answer,
    Refused(Reason),
}

fn shown(expected: Expected) -> Seen {
    match expected {
        Answer | Ends => Seen::Answer,
        Refused(reason) => Seen::Refused(reason),
    }
}

fn seen(outcome: Outcome) -> Seen {
    match outcome {
        Ok(()) => Seen::Answer,
        Err(status) => match Failure::from_status(&status) {
            Some(failure) => Seen::Refused(failure.reason),
            None => panic!("no reason in {status:?}"),
        },
    }
}
