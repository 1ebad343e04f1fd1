//! Rights of callers, and invalid calls.

use mtls::Role;
use offload_proto::{
    MESSAGE_LIMIT, Reason,
    v1::{self, operator_client::OperatorClient, workload_network_client::WorkloadNetworkClient},
};
use test_clock::wait_until_async;
use tonic::{Status, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::service_support::{Setup, reason};

/// Results of four calls: workload, read, change, health.
async fn try_all(channel: Channel) -> [Result<(), Status>; 4] {
    let mut workload = WorkloadNetworkClient::new(channel.clone());
    let mut operator = OperatorClient::new(channel.clone());
    let network = v1::Network { name: "tried".into(), ..v1::Network::default() };
    let apply =
        v1::ApplyNetworkRequest { network: Some(network), dry_run: true, ..Default::default() };
    [
        workload.status(v1::StatusRequest::default()).await.map(drop),
        operator.get_dpu(v1::GetDpuRequest {}).await.map(drop),
        operator.apply_network(apply).await.map(drop),
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.map(drop),
    ]
}

#[test]
fn each_role_has_its_own_calls() {
    let setup = Setup::new();
    let _service = setup.start();
    let matrix = [
        (Role::Host, "node-1", [true, false, false, true]),
        (Role::Operator, "alice", [false, true, true, true]),
        (Role::Viewer, "eve", [false, true, false, true]),
    ];
    for (role, name, expected) in matrix {
        let results = setup.client(async || try_all(setup.channel(role, name)).await);
        for (result, may) in results.into_iter().zip(expected) {
            match may {
                true => result.unwrap(),
                false => assert_eq!(reason(result), Reason::NotAuthorised, "{role}"),
            }
        }
    }
}

#[test]
fn unconfigured_host_is_refused_by_name() {
    let setup = Setup::new();
    let _service = setup.start();
    let results = setup.client(async || try_all(setup.channel(Role::Host, "stranger")).await);
    let [work, look, _, health] = results;
    assert_eq!(reason(work), Reason::HostUnknown);
    assert_eq!(reason(look), Reason::NotAuthorised);
    health.unwrap();
}

#[test]
fn services_and_their_health_are_listed() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let channel = setup.channel(Role::Viewer, "eve");
        let list = MessageRequest::ListServices(String::new());
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
        let mut reflection = ServerReflectionClient::new(channel.clone());
        let asked = reflection.server_reflection_info(tokio_stream::iter([request])).await;
        let answer = asked.unwrap().into_inner().message().await.unwrap().unwrap();
        let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else {
            panic!("{answer:?}");
        };
        let mut health = HealthClient::new(channel);
        for service in ["offload.v1.WorkloadNetwork", "offload.v1.Operator"] {
            assert!(listed.service.iter().any(|known| known.name == service), "{listed:?}");
            wait_until_async("it serves", async || {
                let request = HealthCheckRequest { service: service.into() };
                let answer = health.check(request).await;
                answer.is_ok_and(|it| it.into_inner().status() == ServingStatus::Serving)
            })
            .await;
        }
    });
}

#[test]
fn oversized_message_leaves_the_connection_open() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut host = setup.host();
        let name = "x".repeat(MESSAGE_LIMIT + 1);
        let pod = Some(v1::Pod { name, ..v1::Pod::default() });
        let refused = host.attach(v1::AttachRequest { pod, ..Default::default() }).await;
        assert_eq!(reason(refused), Reason::InvalidRequest);
        host.status(v1::StatusRequest::default()).await.unwrap();
    });
}

#[test]
fn hostile_fields_are_refused_by_name() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut host = setup.host();
        let key = |container_id: &str, interface_name: &str| v1::AttachmentKey {
            container_id: container_id.into(),
            interface_name: interface_name.into(),
        };
        let long = "x".repeat(254);
        let keys = [
            None,
            Some(key("", "eth0")),
            Some(key("../../etc/passwd", "eth0")),
            Some(key(&long, "eth0")),
            Some(key("c1", "eth0/../x")),
            Some(key("c1", "sixteen-bytes-xx")),
            Some(key("c1", "eth%d")),
        ];
        for key in keys {
            let shown = format!("{key:?}");
            let refused = host.detach(v1::DetachRequest { key, ..Default::default() }).await;
            assert_eq!(reason(refused), Reason::InvalidRequest, "{shown}");
        }
    });
}
