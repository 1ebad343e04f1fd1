//! Changes of the configuration file while the service runs.

use std::fs::{self, File};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use offload_proto::{
    ConditionReason,
    event::EventKind,
    v1::{self, operator_client::OperatorClient},
};
use test_clock::wait_until_async;
use tonic::transport::Channel;

use crate::service_support::{NETWORKS, Service, Setup};

async fn networks(operator: &mut OperatorClient<Channel>) -> Vec<String> {
    let listed = operator.list_networks(v1::ListNetworksRequest {}).await.unwrap().into_inner();
    listed.networks.into_iter().map(|status| status.network.unwrap().name).collect()
}

async fn problems(operator: &mut OperatorClient<Channel>) -> Vec<String> {
    let dpu = operator.get_dpu(v1::GetDpuRequest {}).await.unwrap().into_inner();
    let of_file = dpu.conditions.into_iter();
    let of_file = of_file.filter(|it| it.reason == ConditionReason::ConfigurationRefused.as_str());
    of_file.map(|condition| condition.message).collect()
}

#[test]
fn changed_file_is_loaded_completely_or_refused() {
    let setup = Setup::new();
    let service = setup.start();
    let red = NETWORKS.replace("blue", "red");
    setup.client(async || {
        let mut operator = setup.operator();
        setup.configure("", &(red.clone() + "\nvlan = 5000"));
        service.signal(Signal::SIGHUP);
        wait_until_async("the mistake is reported", async || {
            problems(&mut operator).await.iter().any(|problem| problem.contains("vlan 5000"))
        })
        .await;
        assert_eq!(networks(&mut operator).await, ["blue"]);
        assert_eq!(
            setup.host().status(v1::StatusRequest::default()).await.unwrap().into_inner().problems,
            [""; 0]
        );

        // Without a signal: the service polls the file.
        setup.configure("", &red);
        wait_until_async("the network is there", async || networks(&mut operator).await == ["red"])
            .await;
        wait_until_async("all is well", async || problems(&mut operator).await.is_empty()).await;

        setup.configure("connections = 5", &red);
        service.signal(Signal::SIGHUP);
        wait_until_async("the restart is asked for", async || {
            let problems = problems(&mut operator).await;
            problems.iter().any(|problem| problem.ends_with(": `limits.connections`"))
        })
        .await;
    });
}

#[test]
fn refused_file_is_tried_again_by_itself() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut operator = setup.operator();
        let green = v1::Network { name: "green".into(), ..v1::Network::default() };
        let apply = v1::ApplyNetworkRequest { network: Some(green), ..Default::default() };
        operator.apply_network(apply).await.unwrap();
        setup.configure("", &format!("{NETWORKS}\n[[network]]\nname = \"green\""));
        wait_until_async("the network of the API is in the way", async || {
            problems(&mut operator).await.iter().any(|problem| problem.contains("green"))
        })
        .await;
        let delete = v1::DeleteNetworkRequest { name: "green".into(), ..Default::default() };
        operator.delete_network(delete).await.unwrap();
        assert_eq!(networks(&mut operator).await, ["blue"]);
        wait_until_async("the file is in force", async || {
            networks(&mut operator).await == ["blue", "green"]
        })
        .await;
        wait_until_async("all is well", async || problems(&mut operator).await.is_empty()).await;
        let refused = EventKind::ConfigurationRefused.as_str().to_owned();
        let filter = v1::EventFilter { kind: refused, ..v1::EventFilter::default() };
        let listed = operator.list_events(v1::ListEventsRequest { filter: Some(filter) }).await;
        let events = listed.unwrap().into_inner().events;
        let counts: Vec<_> = events.iter().map(|event| event.count).collect();
        assert_eq!(counts, [1], "only the first refusal is an event");
    });
}

/// The audit's entries about the file, once there are `number`.
async fn loads(setup: &Setup, number: usize) -> Vec<v1::AuditEntry> {
    let mut operator = setup.operator();
    let request = v1::ListAuditRequest { object: "service.toml".into(), ..Default::default() };
    let mut entries = Vec::new();
    wait_until_async("the entries are there", async || {
        entries = operator.list_audit(request.clone()).await.unwrap().into_inner().entries;
        entries.len() == number
    })
    .await;
    entries
}

/// Stops the service, which writes its events first.
fn stop(mut service: Service<'_>) {
    service.signal(Signal::SIGTERM);
    assert!(service.end());
}

#[test]
fn configuration_of_a_restart_is_audited() {
    let setup = Setup::new();
    let service = setup.start();
    let first = setup.client(async || loads(&setup, 1).await);
    stop(service);
    setup.configure("", &NETWORKS.replace("blue", "red"));
    let service = setup.start();
    let both = setup.client(async || loads(&setup, 2).await);
    stop(service);
    assert_eq!((&both[0], both[0].before.as_str()), (&first[0], ""));
    assert_eq!((both[1].author.as_str(), &both[1].before), ("configuration file", &both[0].after));
    let _service = setup.start();
    assert_eq!(setup.client(async || loads(&setup, 2).await), both, "the file is as it was");
}

/// Opening a FIFO blocks.
#[test]
fn unreadable_file_is_reported_as_it_is() {
    let setup = Setup::new();
    let service = setup.start();
    let path = setup.path("service.toml");
    let reported = async |why: &str| {
        let mut operator = setup.operator();
        wait_until_async(why, async || {
            problems(&mut operator).await.iter().any(|problem| problem.contains(why))
        })
        .await;
    };
    setup.client(async || {
        fs::remove_file(&path).unwrap();
        reported("does not exist").await;
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        service.signal(Signal::SIGHUP);
        reported("not a regular file").await;
        fs::remove_file(&path).unwrap();
        // A sparse file.
        File::create(&path).unwrap().set_len(3 << 30).unwrap();
        reported("larger than").await;
        fs::write(&path, [0xff]).unwrap();
        reported("invalid utf-8").await;
        setup.configure("", NETWORKS);
        let mut operator = setup.operator();
        wait_until_async("all is well", async || problems(&mut operator).await.is_empty()).await;
    });
}
