//! Limits on crowds of callers and on cancelled calls.

use std::time::Duration;

use mtls::Role;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use offload_proto::{
    Reason,
    v1::{self, operator_client::OperatorClient},
};
use test_clock::{Stopwatch, wait_until_async, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::Code;

use crate::{
    idle::{SESSIONS, growth_by_sessions},
    service_support::{ADDRESS, NETWORKS, Setup, reason},
    session::Session,
};

/// Address of the service's metrics.
const METRICS: &str = "127.0.0.1:9464";

#[test]
fn ten_thousand_silent_connections_block_no_host() {
    const CROWD: usize = 10_000;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    assert!(hard > CROWD as u64 + 500, "this test needs {CROWD} open files; the limit is {hard}");
    let setup = Setup::new();
    // Long enough that no handshake times out during the test.
    setup.configure("handshake_timeout_s = 15", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let mut crowd = Vec::with_capacity(CROWD);
        while crowd.len() < CROWD {
            crowd.push(TcpStream::connect(ADDRESS).await.unwrap());
        }
        let begun = Stopwatch::start();
        setup.host().status(v1::StatusRequest::default()).await.unwrap();
        let taken = begun.unstalled();
        assert!(taken < Duration::from_secs(5), "a good call took {taken:?}");
        drop(crowd);
    });
}

/// TLS and HTTP/2 buffers take 32 KiB of each (docs/BENCHMARKS.md).
#[test]
fn thousand_idle_sessions_use_at_most_50_mib() {
    let growth = growth_by_sessions();
    assert!(growth <= 50.0, "{SESSIONS} sessions took {growth:.1} MiB");
}

#[test]
fn endless_handshake_times_out() {
    let setup = Setup::new();
    setup.configure("handshake_timeout_s = 1", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let mut silent = TcpStream::connect(ADDRESS).await.unwrap();
        let begun = Stopwatch::start();
        let answer = silent.read(&mut [0; 1]).await;
        assert!(matches!(answer, Ok(0) | Err(_)), "{answer:?}");
        assert!(begun.elapsed() > Duration::from_millis(900), "{:?}", begun.elapsed());
    });
}

#[test]
fn operators_see_events_and_watchers_are_bounded() {
    let setup = Setup::new();
    setup.configure("watchers = 1", NETWORKS);
    let _service = setup.start();
    setup.client(async || {
        let mut operator = setup.operator();
        let filter = v1::EventFilter { object: "green".into(), ..v1::EventFilter::default() };
        let of_green = v1::WatchRequest { filter: Some(filter), after: None };
        let mut events = operator.watch(of_green).await.unwrap().into_inner();
        let refused = operator.watch(v1::WatchRequest::default()).await.map(drop);
        assert_eq!(reason(refused), Reason::Overloaded);

        let network = v1::Network { name: "green".into(), ..v1::Network::default() };
        let apply = v1::ApplyNetworkRequest { network: Some(network), ..Default::default() };
        let applied = operator.apply_network(apply).await.unwrap().into_inner();
        assert_eq!(applied.outcome, "created");
        let event = events.message().await.unwrap().unwrap();
        assert_eq!((event.kind.as_str(), event.subject.as_str()), ("NetworkApplied", "green"));

        drop(events);
        wait_until_async("the place is free again", async || {
            operator.watch(v1::WatchRequest::default()).await.is_ok()
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

/// The work continues, so the call keeps its place until the work ends, and is counted then.
#[test]
fn cancelled_call_counts_until_its_work_ends() {
    const DEADLINE: Duration = Duration::from_secs(2);
    const TIMEOUT: Duration = Duration::from_millis(200);
    let setup = Setup::new();
    let metrics = format!("[metrics]\nlisten = {METRICS:?}\n{NETWORKS}");
    // One call for each peer.
    setup.configure("in_flight = 2", &metrics);
    let _service = setup.start();
    setup.client(async || {
        let mut host = Session::examinable(&setup).await;
        // A call returns its place a moment after its answer, so each uses its own operator.
        for (name, has_deadline) in [("alice", true), ("bob", false)] {
            let mut operator = OperatorClient::new(setup.channel(Role::Operator, name));
            // Connects first, so that the deadline covers only the call. A stream uses no place of calls.
            operator.watch(v1::WatchRequest::default()).await.unwrap();
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
                assert!(within(TIMEOUT, &mut call).await.is_none());
                drop(call);
            }
            let refused = operator.list_pools(v1::ListPoolsRequest {}).await;
            assert_eq!(reason(refused), Reason::Overloaded, "deadline: {has_deadline}");
            host.answer(asked, &[]).await;
            wait_until_async("the place is free again", async || {
                operator.list_pools(v1::ListPoolsRequest {}).await.is_ok()
            })
            .await;
        }
        let of_examine = |number, rest| {
            format!("call_duration_seconds_{number}method=\"Operator/Examine\"}} {rest}\n")
        };
        let counted = of_examine("count{", 2);
        wait_until_async("both are counted", async || scrape().await.contains(&counted)).await;
        let page = scrape().await;
        assert!(page.contains(&of_examine("bucket{le=\"0.1\",", 0)), "{page}");
    });
}
