//! Sessions: which one is open, capabilities, and how sessions end.

use std::time::Duration;

use nix::sys::signal::Signal;
use offload_proto::{
    Reason,
    v1::{self, dpu_message, host_message},
};
use test_clock::within;
use tonic::Code;

use crate::{
    service_support::{NETWORKS, Setup, reason},
    session::{Session, hello},
};

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
        older.send(host_message::Message::Heartbeat(v1::Heartbeat { sequence: 7 })).await;
        let echo = older.receive().await.unwrap();
        assert_eq!(echo, Some(dpu_message::Message::Heartbeat(v1::Heartbeat { sequence: 7 })));

        let (_newer, second) = Session::greeted(&setup).await;
        assert_eq!(older.receive().await.unwrap_err().code(), Code::Aborted);
        let mut host = setup.host();
        for id in ["", "nonsense", first.session_id.as_str()] {
            assert_eq!(reason(host.attach(attach_on(id)).await), Reason::StaleSession, "{id:?}");
        }
        // The host has advertised no VF.
        let refused = host.attach(attach_on(&second.session_id)).await;
        assert_eq!(reason(refused), Reason::VfsExhausted);
    });
}

/// Agents of earlier and later versions.
#[test]
fn agents_of_other_versions_share_common_capabilities() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut operator = setup.operator();
        let mut problem = async || {
            let request = v1::ExamineRequest { wait_ms: 10_000 };
            let diagnosis = operator.examine(request).await.unwrap().into_inner();
            diagnosis.hosts[0].problem.clone()
        };
        assert!(problem().await.contains("not connected"));

        let (mut old, hello_reply) = Session::greeted(&setup).await;
        assert_eq!(hello_reply.capabilities, [""; 0]);
        assert!(problem().await.contains("can't be asked: upgrade it"));
        old.send(host_message::Message::Heartbeat(v1::Heartbeat { sequence: 7 })).await;
        let received = old.receive().await.unwrap();
        assert!(matches!(received, Some(dpu_message::Message::Heartbeat(_))), "{received:?}");

        let mut new = Session::open(&setup).await;
        let host_message::Message::Hello(hello) = hello() else { unreachable!() };
        let capabilities = vec!["teleport".to_owned(), "examine".to_owned()];
        new.send(host_message::Message::Hello(v1::Hello { capabilities, ..hello })).await;
        let Some(dpu_message::Message::HelloReply(hello_reply)) = new.receive().await.unwrap()
        else {
            panic!("no hello_reply")
        };
        assert_eq!(hello_reply.capabilities, ["examine"]);
        // A message that this version does not know, then a known one.
        new.out.send(v1::HostMessage { message: None }).await.unwrap();
        let answer = async {
            let asked = new.receive().await.unwrap();
            let Some(dpu_message::Message::Examine(asked)) = asked else { panic!("{asked:?}") };
            let found = v1::Examination {
                request_id: asked.request_id,
                problem: "too tired".into(),
                ..v1::Examination::default()
            };
            new.send(host_message::Message::Examination(found)).await;
        };
        let (shown, ()) = tokio::join!(problem(), answer);
        assert_eq!(shown, "too tired");
    });
}

#[test]
fn session_breaking_the_protocol_ends_with_reason() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut rude = Session::open(&setup).await;
        rude.send(host_message::Message::Heartbeat(v1::Heartbeat::default())).await;
        assert_eq!(reason(rude.receive().await), Reason::InvalidRequest);

        let (mut twice, _) = Session::greeted(&setup).await;
        twice.send(hello()).await;
        assert_eq!(reason(twice.receive().await), Reason::InvalidRequest);

        let mut modern = Session::open(&setup).await;
        let protocol = Some(v1::ProtocolVersions { lowest: 2, highest: 3 });
        let host_message::Message::Hello(hello) = hello() else { unreachable!() };
        modern.send(host_message::Message::Hello(v1::Hello { protocol, ..hello })).await;
        assert_eq!(reason(modern.receive().await), Reason::Unsupported);
    });
}

#[test]
fn silent_session_ends() {
    let setup = Setup::new();
    setup.configure("heartbeat_ms = 100\nhandshake_timeout_s = 3", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let mut mute = Session::open(&setup).await;
        assert_eq!(reason(mute.receive().await), Reason::InvalidRequest);

        let (mut silent, _) = Session::greeted(&setup).await;
        assert_eq!(reason(silent.receive().await), Reason::StaleSession);
        let dpu = setup.operator().get_dpu(v1::GetDpuRequest {}).await.unwrap().into_inner();
        assert!(!dpu.hosts[0].connected, "{dpu:?}");
    });
}

#[test]
fn stopping_service_notifies_hosts_and_keeps_the_bridge() {
    let setup = Setup::new();
    let mut service = setup.start();
    setup.client(async || {
        let (mut session, _) = Session::greeted(&setup).await;
        service.signal(Signal::SIGTERM);
        let last = within(Duration::from_secs(5), session.receive()).await.unwrap();
        assert!(matches!(last, Ok(Some(dpu_message::Message::Draining(_)))), "{last:?}");
        assert_eq!(reason(session.receive().await), Reason::Draining);
    });
    assert!(service.end());
    assert_eq!(setup.netns.link("br-offload")["ifalias"], "dpu-offload fabric");
    drop(service);
    setup.start();
}
