//! gRPC over mutual TLS.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use crate::support::{BOUND, Pki, bounded, expired, host, listen, raw_client};
use mtls::{
    ConnectError, Connector, Limits, LiveCredentials, Peer, Role, authority::Validity, incoming,
};
use test_clock::{wait_until_async, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::{mpsc, oneshot},
    time::sleep,
};
use tonic::{
    Request, Status,
    service::interceptor::InterceptedService,
    transport::{Channel, Server},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const LIMITS: Limits =
    Limits { handshakes: 8, connections: 8, connections_per_identity: 8, unread: BOUND };

/// Serves gRPC health to all admitted peers and checks their identity. Stops when the result is dropped.
fn serve(pki: &Pki, listener: TcpListener, limits: Limits) -> oneshot::Sender<()> {
    serve_as(pki.server(), listener, limits)
}

fn serve_as(server: mtls::Server, listener: TcpListener, limits: Limits) -> oneshot::Sender<()> {
    let incoming = incoming(listener, server, limits);
    let (_, health) = tonic_health::server::health_reporter();
    let health = InterceptedService::new(health, |request: Request<()>| {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.identity.clone());
        match peer {
            Some(peer) if peer == host("node-1") => Ok(request),
            other => Err(Status::permission_denied(format!("{other:?}"))),
        }
    });
    let (stop, stopped) = oneshot::channel();
    let router = Server::builder().add_service(health);
    let stopped = async { drop(stopped.await) };
    tokio::spawn(router.serve_with_incoming_shutdown(incoming, stopped));
    stop
}

async fn call(channel: Channel) -> Result<(), Status> {
    let request = HealthCheckRequest { service: String::new() };
    HealthClient::new(channel).check(request).await.map(drop)
}

#[tokio::test]
async fn requests_carry_their_peer() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let _server = serve(&pki, listener, LIMITS);
    let channel = bounded(pki.connector(&address, "dpu-1").connect()).await.unwrap();
    bounded(call(channel)).await.unwrap();
}

#[tokio::test]
async fn failed_call_reports_connection_error() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let _server = serve(&pki, listener, LIMITS);
    let status = bounded(call(pki.connector(&address, "dpu-9").channel())).await.unwrap_err();
    let reason = ConnectError::find(&status).expect("the reason is inside");
    assert!(matches!(reason, ConnectError::ServerRefused { .. }), "{reason}");
}

#[tokio::test]
async fn a_channel_comes_back_with_its_dpu() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let channel = pki.connector(&address, "dpu-1").channel();
    let server = serve(&pki, listener, LIMITS);
    bounded(call(channel.clone())).await.unwrap();

    drop(server);
    wait_until_async("calls fail", async || call(channel.clone()).await.is_err()).await;

    let listener = bounded(async {
        loop {
            match TcpListener::bind(&address).await {
                Ok(listener) => return listener,
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await;
    let _server = serve(&pki, listener, LIMITS);
    wait_until_async("calls succeed", async || call(channel.clone()).await.is_ok()).await;
}

#[tokio::test]
async fn callers_of_dead_dpu_share_attempts() {
    const CALLERS: usize = 200;
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            drop(stream);
        }
    });
    let channel = pki.connector(&address, "dpu-1").channel();
    let calls = futures::future::join_all((0..CALLERS).map(|_| call(channel.clone())));
    let failed = bounded(calls).await.into_iter().filter(Result::is_err).count();
    assert_eq!(failed, CALLERS);
    assert!(attempts.load(Ordering::Relaxed) < CALLERS / 10, "{attempts:?}");
}

#[tokio::test]
async fn excess_connections_are_closed_visibly() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let _server = serve(&pki, listener, Limits { connections: 1, ..LIMITS });
    let connects = async || pki.connector(&address, "dpu-1").connect().await.is_ok();
    let first = bounded(pki.connector(&address, "dpu-1").connect()).await.unwrap();
    assert!(!bounded(connects()).await);

    drop(first);
    wait_until_async("another may connect", connects).await;
}

#[tokio::test]
async fn silent_peer_does_not_delay_others() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let _server = serve(&pki, listener, LIMITS);
    let _silent = tokio::net::TcpStream::connect(&address).await.unwrap();
    bounded(call(pki.connector(&address, "dpu-1").channel())).await.unwrap();
}

#[tokio::test]
async fn silent_peers_cannot_fill_listener() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let _server = serve(&pki, listener, LIMITS);
    let mut silent = Vec::new();
    for _ in 0..LIMITS.handshakes * 4 {
        silent.push(tokio::net::TcpStream::connect(&address).await.unwrap());
    }
    // The first were aborted long before their time limit.
    let dropped = bounded(silent[0].read(&mut [0; 1])).await;
    assert!(matches!(dropped, Ok(0) | Err(_)), "{dropped:?}");
    bounded(call(pki.connector(&address, "dpu-1").channel())).await.unwrap();
}

#[tokio::test]
async fn one_identity_cannot_take_all_connections() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let _server = serve(&pki, listener, Limits { connections_per_identity: 1, ..LIMITS });
    let connects = async || pki.connector(&address, "dpu-1").connect().await.is_ok();
    let first = bounded(pki.connector(&address, "dpu-1").connect()).await.unwrap();
    assert!(!bounded(connects()).await);
    let other = pki.live(Role::Viewer, "eve");
    let other = Connector::new(other, &address, "dpu-1", BOUND).unwrap();
    bounded(other.connect()).await.unwrap();

    drop(first);
    wait_until_async("it may connect again", connects).await;
}

/// The first bytes of an HTTP/2 client, and a ping.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingping";

#[tokio::test]
async fn a_peer_that_never_reads_loses_its_connection() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let _server = serve(&pki, listener, Limits { unread: Duration::from_secs(1), ..LIMITS });
    let issued = pki.issue(Role::Host, "node-1");
    let mut deaf = raw_client(&address, Some(&issued)).await.unwrap();
    deaf.write_all(GREETING).await.unwrap();
    let pings = PING.repeat(1000);
    bounded(async { while deaf.write_all(&pings).await.is_ok() {} }).await;
}

/// Validity of certificates whose expiry is awaited, in seconds. The first suits a fast machine; the next ones are for
/// machines on which it expires too early.
const LIVES: [u64; 3] = [6, 18, 54];
/// Longer than the longest of them.
const LIMIT: Duration = Duration::from_secs(120);

/// Credentials that are valid for so many seconds.
fn short_lived(pki: &Pki, role: Role, name: &str, seconds: u64) -> LiveCredentials {
    let validity = Validity::from_now(Duration::from_secs(seconds));
    let issued = pki.authority.issue(role, name, validity).unwrap();
    LiveCredentials::load(&pki.save(&issued, "short"), &[role]).unwrap()
}

/// A connection that has served a call.
struct Served {
    connector: Connector,
    channel: Channel,
    _server: oneshot::Sender<()>,
}

/// A connection with a certificate of one side that expires soon.
async fn served(pki: &Pki, ending: Role) -> Served {
    for seconds in LIVES {
        let (listener, address) = listen().await;
        let credentials = |role, name| match role == ending {
            true => short_lived(pki, role, name, seconds),
            false => pki.live(role, name),
        };
        let server = mtls::Server::new(credentials(Role::Dpu, "dpu-1"), BOUND);
        let server = serve_as(server, listener, LIMITS);
        let client = credentials(Role::Host, "node-1");
        let connector = Connector::new(client, &address, "dpu-1", BOUND).unwrap();
        if let Ok(channel) = bounded(connector.connect()).await
            && bounded(call(channel.clone())).await.is_ok()
        {
            return Served { connector, channel, _server: server };
        }
    }
    panic!("no call succeeds, however long the certificates live");
}

/// Calls until one fails, and returns its error.
async fn until_refused(channel: &Channel) -> ConnectError {
    let refusal = async {
        loop {
            match call(channel.clone()).await {
                Ok(()) => sleep(Duration::from_millis(20)).await,
                // The call during which the connection ends has only a general error.
                Err(status) if ConnectError::find(&status).is_none() => {}
                Err(status) => return status,
            }
        }
    };
    let status = within(LIMIT, refusal).await.expect("it takes too long");
    ConnectError::find(&status).unwrap().clone()
}

#[tokio::test]
async fn a_connection_ends_with_its_clients_certificate() {
    let pki = Pki::new();
    let served = served(&pki, Role::Host).await;
    let error = until_refused(&served.channel).await;
    assert!(matches!(error, ConnectError::OwnExpired { .. }), "{error}");
}

#[tokio::test]
async fn a_listener_reports_whose_certificates_are_outdated() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let (sender, mut refused) = mpsc::channel(1);
    let _server = serve_as(pki.server().reporting(sender), listener, LIMITS);
    let issued = pki.authority.issue(Role::Host, "node-1", expired()).unwrap();
    let stream = bounded(raw_client(&address, Some(&issued))).await.unwrap();
    let peer = bounded(refused.recv()).await.unwrap();
    assert_eq!(
        (peer.holder, peer.address),
        (Some(host("node-1")), stream.get_ref().0.local_addr().unwrap())
    );
    assert!(peer.reason.starts_with("it expired on 20"), "{}", peer.reason);
}

#[tokio::test]
async fn a_listener_reports_peers_that_expect_another_name() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let (sender, mut refused) = mpsc::channel(1);
    let _server = serve_as(pki.server().reporting(sender), listener, LIMITS);
    let error = bounded(pki.connector(&address, "dpu-9").connect()).await.unwrap_err();
    assert!(error.is_certificate(), "{error}");
    let peer = bounded(refused.recv()).await.unwrap();
    assert_eq!(peer.holder, None);
    assert!(peer.reason.contains("another name"), "{}", peer.reason);
}

#[tokio::test]
async fn a_connection_ends_with_its_servers_certificate() {
    let pki = Pki::new();
    let served = served(&pki, Role::Dpu).await;
    let error = until_refused(&served.channel).await;
    assert!(matches!(error, ConnectError::DpuExpired { .. }), "{error}");
}

/// Whether a connection is renewed before its certificate expires, which has a successor.
async fn is_renewed_in_time(pki: &Pki, address: &str, seconds: u64) -> bool {
    let lasting = pki.connector(address, "dpu-1");
    let _lasting = bounded(lasting.connect()).await.unwrap();
    let short = short_lived(pki, Role::Host, "node-1", seconds);
    let end = short.current().validity().not_after;
    let waning = Connector::new(short.clone(), address, "dpu-1", BOUND).unwrap();
    let Ok(_waning) = bounded(waning.connect()).await else { return false };
    pki.save(&pki.issue(Role::Host, "node-1"), "short");
    tokio::spawn(short.follow(Duration::from_millis(5)));
    let renewal = async {
        tokio::select! {
            _ = lasting.renewed() => panic!("an hour ahead"),
            _ = waning.renewed() => SystemTime::now() < end,
        }
    };
    within(LIMIT, renewal).await.unwrap_or(false)
}

#[tokio::test]
async fn connection_is_renewed_before_either_certificate_expires() {
    let pki = Pki::new();
    let (listener, address) = listen().await;
    let _server = serve(&pki, listener, LIMITS);
    for seconds in LIVES {
        if is_renewed_in_time(&pki, &address, seconds).await {
            return;
        }
    }
    panic!("too late");
}

#[tokio::test]
async fn connection_is_replaced_only_by_longer_one() {
    let pki = Pki::new();
    let served = served(&pki, Role::Host).await;
    tokio::select! {
        error = until_refused(&served.channel) => assert!(error.is_certificate(), "{error}"),
        _ = served.connector.renewed() => panic!("with a certificate that nobody renewed"),
    }
}
