//! The real service over real mutual TLS: who may do what, and what strangers, crowds and mistakes
//! get.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests"
)]

mod service_support;
#[path = "../../crates/netlink/tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use mtls::Role;
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::Signal,
};
use offload_proto::{
    Finding, MESSAGE_LIMIT, Reason,
    v1::{
        self, dpu_message, host_message, operator_client::OperatorClient,
        workload_network_client::WorkloadNetworkClient,
    },
};
use service_support::{ADDRESS, NETWORKS, Setup, eventually, reason};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// Where the service's metrics are read.
const METRICS: &str = "127.0.0.1:9464";

/// What each of four calls gave: work, look, change, health.
async fn try_all(channel: Channel) -> [Result<(), Status>; 4] {
    let mut workload = WorkloadNetworkClient::new(channel.clone());
    let mut operator = OperatorClient::new(channel.clone());
    let network = v1::Network { name: "tried".into(), ..v1::Network::default() };
    let apply = v1::ApplyNetworkRequest { network: Some(network), dry_run: true };
    [
        workload.status(v1::StatusRequest {}).await.map(drop),
        operator.get_dpu(v1::GetDpuRequest {}).await.map(drop),
        operator.apply_network(apply).await.map(drop),
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.map(drop),
    ]
}

#[test]
fn each_role_may_call_what_is_its_own() {
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
fn a_host_that_is_not_configured_is_told_so() {
    let setup = Setup::new();
    let _service = setup.start();
    let results = setup.client(async || try_all(setup.channel(Role::Host, "stranger")).await);
    let [work, look, _, health] = results;
    assert_eq!(reason(work), Reason::HostUnknown);
    assert_eq!(reason(look), Reason::NotAuthorised);
    health.unwrap();
}

#[test]
fn services_are_listed_and_their_health_told() {
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
            eventually("it serves", async || {
                let request = HealthCheckRequest { service: service.into() };
                let answer = health.check(request).await;
                answer.is_ok_and(|it| it.into_inner().status() == ServingStatus::Serving)
            })
            .await;
        }
    });
}

#[test]
fn a_message_beyond_the_limit_is_refused_and_the_connection_lives_on() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut host = setup.host();
        let name = "x".repeat(MESSAGE_LIMIT + 1);
        let pod = Some(v1::Pod { name, ..v1::Pod::default() });
        let refused = host.attach(v1::AttachRequest { pod, ..Default::default() }).await;
        let code = refused.unwrap_err().code();
        assert!(matches!(code, Code::OutOfRange | Code::ResourceExhausted), "{code:?}");
        host.status(v1::StatusRequest {}).await.unwrap();
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

#[test]
fn ten_thousand_silent_connections_keep_nobody_out() {
    const CROWD: usize = 10_000;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    assert!(hard > CROWD as u64 + 500, "this test needs {CROWD} open files; the limit is {hard}");
    let setup = Setup::new();
    // So that nobody's place becomes free by itself meanwhile.
    setup.configure("handshake_timeout_s = 15", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let mut crowd = Vec::with_capacity(CROWD);
        while crowd.len() < CROWD {
            crowd.push(TcpStream::connect(ADDRESS).await.unwrap());
        }
        let begun = Instant::now();
        setup.host().status(v1::StatusRequest {}).await.unwrap();
        let taken = begun.elapsed();
        assert!(taken < Duration::from_secs(5), "a good call took {taken:?}");
        drop(crowd);
    });
}

#[test]
fn a_handshake_that_does_not_end_is_given_up() {
    let setup = Setup::new();
    setup.configure("handshake_timeout_s = 1", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let mut silent = TcpStream::connect(ADDRESS).await.unwrap();
        let begun = Instant::now();
        let answer = silent.read(&mut [0; 1]).await;
        assert!(matches!(answer, Ok(0) | Err(_)), "{answer:?}");
        assert!(begun.elapsed() > Duration::from_millis(900), "{:?}", begun.elapsed());
    });
}

/// A host's end of a session.
struct Session {
    out: mpsc::Sender<v1::HostMessage>,
    from_dpu: Streaming<v1::DpuMessage>,
}

impl Session {
    async fn open(setup: &Setup) -> Self {
        let (out, messages) = mpsc::channel(8);
        let opened = setup.host().session(ReceiverStream::new(messages)).await;
        Self { out, from_dpu: opened.unwrap().into_inner() }
    }

    async fn say(&self, message: host_message::Message) {
        self.out.send(v1::HostMessage { message: Some(message) }).await.unwrap();
    }

    async fn hear(&mut self) -> Result<Option<dpu_message::Message>, Status> {
        Ok(self.from_dpu.message().await?.and_then(|message| message.message))
    }

    async fn greeted(setup: &Setup) -> (Self, v1::Welcome) {
        let mut session = Self::open(setup).await;
        session.say(hello()).await;
        match session.hear().await.unwrap() {
            Some(dpu_message::Message::Welcome(welcome)) => (session, welcome),
            other => panic!("{other:?}"),
        }
    }
}

fn hello() -> host_message::Message {
    host_message::Message::Hello(v1::Hello {
        protocol: Some(v1::ProtocolVersions { lowest: 1, highest: 7 }),
        agent_version: "test".into(),
        boot_id: "boot-1".into(),
        ..v1::Hello::default()
    })
}

fn attach_on(session_id: &str) -> v1::AttachRequest {
    let key = v1::AttachmentKey { container_id: "c1".into(), interface_name: "eth0".into() };
    v1::AttachRequest { session_id: session_id.into(), key: Some(key), ..Default::default() }
}

#[test]
fn the_newest_session_replaces_the_older() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let (mut older, first) = Session::greeted(&setup).await;
        assert_eq!((first.protocol, first.dpu.as_str()), (1, "dpu-1"));
        older.say(host_message::Message::Heartbeat(v1::Heartbeat { sequence: 7 })).await;
        let echo = older.hear().await.unwrap();
        assert_eq!(echo, Some(dpu_message::Message::Heartbeat(v1::Heartbeat { sequence: 7 })));

        let (_newer, second) = Session::greeted(&setup).await;
        assert_eq!(older.hear().await.unwrap_err().code(), Code::Aborted);
        let mut host = setup.host();
        for id in ["", "nonsense", first.session_id.as_str()] {
            assert_eq!(reason(host.attach(attach_on(id)).await), Reason::StaleSession, "{id:?}");
        }
        // The host has offered no VF.
        let refused = host.attach(attach_on(&second.session_id)).await;
        assert_eq!(reason(refused), Reason::VfsExhausted);
    });
}

/// Agents of earlier and of later versions, beside this service.
#[test]
fn agents_of_other_versions_are_served_with_what_both_can_do() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut operator = setup.operator();
        let mut problem = async || {
            let request = v1::ExamineRequest { wait_ms: 10_000 };
            let diagnosis = operator.examine(request).await.unwrap().into_inner();
            diagnosis.hosts[0].problem.clone()
        };
        assert_eq!(problem().await, "it is not connected");

        let (mut old, welcome) = Session::greeted(&setup).await;
        assert_eq!(welcome.capabilities, [""; 0]);
        assert!(problem().await.contains("can't be asked: upgrade it"));
        old.say(host_message::Message::Heartbeat(v1::Heartbeat { sequence: 7 })).await;
        let heard = old.hear().await.unwrap();
        assert!(matches!(heard, Some(dpu_message::Message::Heartbeat(_))), "{heard:?}");

        let mut new = Session::open(&setup).await;
        let host_message::Message::Hello(hello) = hello() else { unreachable!() };
        let capabilities = vec!["teleport".to_owned(), "examine".to_owned()];
        new.say(host_message::Message::Hello(v1::Hello { capabilities, ..hello })).await;
        let Some(dpu_message::Message::Welcome(welcome)) = new.hear().await.unwrap() else {
            panic!("no welcome")
        };
        assert_eq!(welcome.capabilities, ["examine"]);
        // A message that this version does not know, and then one that it does.
        new.out.send(v1::HostMessage { message: None }).await.unwrap();
        let answer = async {
            let asked = new.hear().await.unwrap();
            let Some(dpu_message::Message::Examine(asked)) = asked else { panic!("{asked:?}") };
            let found = v1::Examination {
                request_id: asked.request_id,
                problem: "too tired".into(),
                ..v1::Examination::default()
            };
            new.say(host_message::Message::Examination(found)).await;
        };
        let (told, ()) = tokio::join!(problem(), answer);
        assert_eq!(told, "too tired");
    });
}

impl Session {
    /// A host that can be asked what it finds.
    async fn examinable(setup: &Setup) -> Self {
        let mut session = Self::open(setup).await;
        let host_message::Message::Hello(hello) = hello() else { unreachable!() };
        let capabilities = vec!["examine".to_owned()];
        session.say(host_message::Message::Hello(v1::Hello { capabilities, ..hello })).await;
        assert!(matches!(session.hear().await, Ok(Some(dpu_message::Message::Welcome(_)))));
        session
    }

    /// Answers the next look.
    async fn find(&mut self, subjects: &[&str]) {
        let request_id = self.asked().await;
        self.answer(request_id, subjects).await;
    }

    /// Waits for the next look.
    async fn asked(&mut self) -> u64 {
        let asked = self.hear().await.unwrap();
        let Some(dpu_message::Message::Examine(asked)) = asked else { panic!("{asked:?}") };
        asked.request_id
    }

    async fn answer(&self, request_id: u64, subjects: &[&str]) {
        let found = |subject: &&str| Finding::VfDiffers.of(subject, "its MTU is 1400");
        let examination = v1::Examination {
            request_id,
            differences: subjects.iter().map(found).collect(),
            ..v1::Examination::default()
        };
        self.say(host_message::Message::Examination(examination)).await;
    }
}

/// What is only there for a moment is not told, and of a host that falls silent what it had is.
#[test]
fn what_two_looks_at_a_host_find_is_told() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut host = Session::examinable(&setup).await;
        let mut operator = setup.operator();
        let mut told = async |wait_ms| {
            let examined = operator.examine(v1::ExamineRequest { wait_ms }).await;
            let found = examined.unwrap().into_inner().differences.into_iter();
            let mut found: Vec<_> = found.map(|it| format!("{} {}", it.code, it.subject)).collect();
            found.sort();
            found
        };
        let answers = async {
            host.find(&["pf0vf1", "pf0vf2"]).await;
            host.find(&["pf0vf2", "pf0vf3"]).await;
        };
        let (found, ()) = tokio::join!(told(60_000), answers);
        assert_eq!(found, ["VF_DIFFERS pf0vf2"]);
        let (found, ()) = tokio::join!(told(3000), host.find(&["pf0vf1"]));
        assert_eq!(found, ["HOST_NOT_EXAMINED node-1", "VF_DIFFERS pf0vf1"]);
    });
}

#[test]
fn a_session_that_breaks_the_protocol_ends_with_the_reason() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut rude = Session::open(&setup).await;
        rude.say(host_message::Message::Heartbeat(v1::Heartbeat::default())).await;
        assert_eq!(reason(rude.hear().await), Reason::InvalidRequest);

        let (mut twice, _) = Session::greeted(&setup).await;
        twice.say(hello()).await;
        assert_eq!(reason(twice.hear().await), Reason::InvalidRequest);

        let mut modern = Session::open(&setup).await;
        let protocol = Some(v1::ProtocolVersions { lowest: 2, highest: 3 });
        let host_message::Message::Hello(hello) = hello() else { unreachable!() };
        modern.say(host_message::Message::Hello(v1::Hello { protocol, ..hello })).await;
        assert_eq!(reason(modern.hear().await), Reason::Unsupported);
    });
}

#[test]
fn a_session_that_says_nothing_ends() {
    let setup = Setup::new();
    setup.configure("heartbeat_ms = 100\nhandshake_timeout_s = 3", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let mut mute = Session::open(&setup).await;
        assert_eq!(reason(mute.hear().await), Reason::InvalidRequest);

        let (mut silent, _) = Session::greeted(&setup).await;
        assert_eq!(reason(silent.hear().await), Reason::StaleSession);
        let dpu = setup.operator().get_dpu(v1::GetDpuRequest {}).await.unwrap().into_inner();
        assert!(!dpu.hosts[0].connected, "{dpu:?}");
    });
}

#[test]
fn operators_see_events_and_watchers_are_bounded() {
    let setup = Setup::new();
    setup.configure("watchers = 1", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let mut operator = setup.operator();
        let mut events = operator.watch(v1::WatchRequest {}).await.unwrap().into_inner();
        let refused = operator.watch(v1::WatchRequest {}).await.map(drop);
        assert_eq!(reason(refused), Reason::Overloaded);

        let network = v1::Network { name: "green".into(), ..v1::Network::default() };
        let apply = v1::ApplyNetworkRequest { network: Some(network), dry_run: false };
        let applied = operator.apply_network(apply).await.unwrap().into_inner();
        assert_eq!(applied.outcome, "created");
        let event = events.message().await.unwrap().unwrap();
        assert_eq!((event.kind.as_str(), event.subject.as_str()), ("NetworkApplied", "green"));

        drop(events);
        eventually("the place is free again", async || {
            operator.watch(v1::WatchRequest {}).await.is_ok()
        })
        .await;
    });
}

#[test]
fn calls_beyond_the_limit_are_refused_at_once() {
    let setup = Setup::new();
    setup.configure("in_flight = 1", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let operator = setup.operator();
        let call = async || operator.clone().list_vfs(v1::ListVfsRequest {}).await.map(drop);
        let results = futures::future::join_all((0..64).map(|_| call())).await;
        let (served, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert!(!served.is_empty() && !refused.is_empty(), "{} served", served.len());
        refused.into_iter().for_each(|result| assert_eq!(reason(result), Reason::Overloaded));
    });
}

async fn scrape() -> String {
    let mut stream = TcpStream::connect(METRICS).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    page
}

/// Its work goes on, so it has its place until that ends, and is counted then.
#[test]
fn a_call_whose_caller_has_gone_is_under_way_until_its_work_is_done() {
    const DEADLINE: Duration = Duration::from_secs(2);
    const PATIENCE: Duration = Duration::from_millis(200);
    let setup = Setup::new();
    let metrics = format!("[metrics]\nlisten = {METRICS:?}\n{NETWORKS}");
    // One call of each peer.
    setup.configure("in_flight = 2", &metrics);
    let _service = setup.start();
    setup.client(async || {
        let mut host = Session::examinable(&setup).await;
        let mut operator = setup.operator();
        // So that neither deadline is spent on a connection.
        operator.list_pools(v1::ListPoolsRequest {}).await.unwrap();
        for has_deadline in [true, false] {
            let mut looking = operator.clone();
            let mut examine = tonic::Request::new(v1::ExamineRequest::default());
            if has_deadline {
                examine.set_timeout(DEADLINE);
            }
            let mut call = Box::pin(looking.examine(examine));
            let asked = tokio::select! {
                answered = &mut call => panic!("{answered:?}"),
                asked = host.asked() => asked,
            };
            if has_deadline {
                let status = call.await.unwrap_err();
                let is_late = matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded);
                assert!(is_late, "{status:?}");
            } else {
                timeout(PATIENCE, &mut call).await.unwrap_err();
                drop(call);
            }
            let refused = operator.list_pools(v1::ListPoolsRequest {}).await;
            assert_eq!(reason(refused), Reason::Overloaded, "deadline: {has_deadline}");
            host.answer(asked, &[]).await;
            eventually("the place is free again", async || {
                operator.list_pools(v1::ListPoolsRequest {}).await.is_ok()
            })
            .await;
        }
        let of_examine = |number, rest| {
            format!("call_duration_seconds_{number}method=\"Operator/Examine\"}} {rest}\n")
        };
        let counted = of_examine("count{", 2);
        eventually("both are counted", async || scrape().await.contains(&counted)).await;
        let page = scrape().await;
        assert!(page.contains(&of_examine("bucket{le=\"0.1\",", 0)), "{page}");
    });
}

#[test]
fn a_second_examination_meanwhile_is_refused_and_the_first_is_not_harmed() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut host = Session::examinable(&setup).await;
        let (mut first, mut second) = (setup.operator(), setup.operator());
        let mut call = Box::pin(first.examine(v1::ExamineRequest { wait_ms: 60_000 }));
        let asked = tokio::select! {
            answered = &mut call => panic!("{answered:?}"),
            asked = host.asked() => asked,
        };
        let examined = second.examine(v1::ExamineRequest::default()).await.map(drop);
        let mended = second.mend(v1::MendRequest::default()).await.map(drop);
        for refused in [examined, mended] {
            let told = refused.as_ref().unwrap_err().message().to_owned();
            assert!(told.contains("one at a time") && told.contains("try again"), "{told}");
            assert_eq!(reason(refused), Reason::Overloaded);
        }
        let answers = async {
            host.answer(asked, &["pf0vf1"]).await;
            host.find(&["pf0vf1"]).await;
        };
        let (diagnosis, ()) = tokio::join!(call, answers);
        let found = diagnosis.unwrap().into_inner().differences;
        assert!(found.iter().any(|found| found.subject == "pf0vf1"), "{found:?}");
        tokio::join!(host.find(&[]), async {
            second.examine(v1::ExamineRequest::default()).await.unwrap();
        });
    });
}

async fn networks(operator: &mut OperatorClient<Channel>) -> Vec<String> {
    let listed = operator.list_networks(v1::ListNetworksRequest {}).await.unwrap().into_inner();
    listed.networks.into_iter().map(|status| status.network.unwrap().name).collect()
}

async fn problems(operator: &mut OperatorClient<Channel>) -> Vec<String> {
    operator.get_dpu(v1::GetDpuRequest {}).await.unwrap().into_inner().problems
}

#[test]
fn a_changed_file_is_taken_over_whole_or_not_at_all() {
    let setup = Setup::new();
    let service = setup.start();
    let red = NETWORKS.replace("blue", "red");
    setup.client(async || {
        let mut operator = setup.operator();
        setup.configure("", &(red.clone() + "\nvlan = 5000"));
        service.signal(Signal::SIGHUP);
        eventually("the mistake is told", async || {
            problems(&mut operator).await.iter().any(|problem| problem.contains("vlan 5000"))
        })
        .await;
        assert_eq!(networks(&mut operator).await, ["blue"]);
        assert_eq!(
            setup.host().status(v1::StatusRequest {}).await.unwrap().into_inner().problems,
            [""; 0]
        );

        // Without a signal: the file is watched.
        setup.configure("", &red);
        eventually("the network is there", async || networks(&mut operator).await == ["red"]).await;
        eventually("all is well", async || problems(&mut operator).await.is_empty()).await;

        setup.configure("connections = 5", &red);
        service.signal(Signal::SIGHUP);
        eventually("the restart is asked for", async || {
            problems(&mut operator).await.iter().any(|problem| {
                problem.ends_with("waiting for a restart of the service: `limits.connections`")
            })
        })
        .await;
    });
}

#[test]
fn a_stopping_service_tells_its_hosts_and_leaves_the_bridge() {
    let setup = Setup::new();
    let mut service = setup.start();
    setup.client(async || {
        let (mut session, _) = Session::greeted(&setup).await;
        service.signal(Signal::SIGTERM);
        let last = timeout(Duration::from_secs(5), session.hear()).await.unwrap();
        assert!(matches!(last, Ok(Some(dpu_message::Message::Draining(_)))), "{last:?}");
        assert_eq!(reason(session.hear().await), Reason::Draining);
    });
    assert!(service.end());
    assert_eq!(setup.netns.link("br-offload")["ifalias"], "dpu-offload fabric");
    drop(service);
    setup.start();
}
