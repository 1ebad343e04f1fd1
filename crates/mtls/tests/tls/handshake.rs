//! Which peers are admitted, and what both sides learn of a refusal. Uses real sockets.

use std::{
    fs,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::support::{
    BOUND, HOUR, Pki, both_ends, bounded, chain, expired, host, listen, not_yet_valid, raw_client,
};
use mtls::{
    ConnectError, Connector, HandshakeError, Role, Server, ServerStream,
    authority::{Authority, Issued, Validity},
};
use rustls::{AlertDescription, ServerConfig, crypto::ring, version::TLS13};
use test_clock::wait_until_async;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, split},
    net::{TcpListener, TcpStream},
    task::yield_now,
};
use tokio_rustls::{TlsAcceptor, client::TlsStream};

pub(crate) async fn accept(
    listener: &TcpListener,
    server: &Server,
) -> Result<ServerStream, HandshakeError> {
    let (stream, _) = listener.accept().await.unwrap();
    server.accept(stream).await
}

/// Connects with `issued` to a server of `pki`, which must refuse it with these words. Returns the client's alert.
async fn assert_refused(
    pki: &Pki,
    issued: Option<&Issued>,
    words: &str,
) -> Option<AlertDescription> {
    let (listener, address) = listen().await;
    let server = pki.server();
    let client = async {
        let mut stream = raw_client(&address, issued).await?;
        stream.read_u8().await
    };
    let (accepted, read) = both_ends(accept(&listener, &server), client).await;
    let reason = accepted.unwrap_err().to_string();
    assert!(reason.contains(words), "{reason}");
    match read.err()?.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(alert) => Some(*alert),
        _ => None,
    }
}

/// Both ends of a connection of the host `node-1`.
async fn connection(pki: &Pki) -> (ServerStream, TlsStream<TcpStream>) {
    let (listener, address) = listen().await;
    let server = pki.server();
    let issued = pki.issue(Role::Host, "node-1");
    let client = raw_client(&address, Some(&issued));
    let (accepted, connected) = both_ends(accept(&listener, &server), client).await;
    (accepted.unwrap(), connected.unwrap())
}

#[tokio::test]
async fn a_host_is_let_in_by_name() {
    let pki = Pki::new();
    let (stream, client) = connection(&pki).await;
    let peer = stream.peer();
    assert_eq!(peer.identity, host("node-1"));
    assert_eq!(peer.address, client.get_ref().0.local_addr().unwrap());
}

#[tokio::test]
async fn no_certificate_is_refused() {
    let alert = assert_refused(&Pki::new(), None, "no certificate").await;
    assert_eq!(alert, Some(AlertDescription::CertificateRequired));
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused() {
    let (ours, theirs) = (Pki::new(), Pki::new());
    let issued = theirs.issue(Role::Host, "node-1");
    let alert = assert_refused(&ours, Some(&issued), "not by the CA").await;
    assert_eq!(alert, Some(AlertDescription::DecryptError));

    let stranger = Authority::create("stranger.local", Validity::from_now(HOUR)).unwrap();
    let issued = stranger.issue(Role::Host, "node-1", Validity::from_now(HOUR)).unwrap();
    let alert = assert_refused(&ours, Some(&issued), "not trusted").await;
    assert_eq!(alert, Some(AlertDescription::UnknownCA));
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let pki = Pki::new();
    let issued = pki.authority.issue(Role::Host, "node-1", expired()).unwrap();
    let alert = assert_refused(&pki, Some(&issued), "it expired on 20").await;
    assert_eq!(alert, Some(AlertDescription::CertificateExpired));
}

#[tokio::test]
async fn not_yet_valid_certificate_is_refused() {
    let pki = Pki::new();
    let issued = pki.authority.issue(Role::Host, "node-1", not_yet_valid()).unwrap();
    assert_refused(&pki, Some(&issued), " from 20").await;
}

#[tokio::test]
async fn certificate_for_servers_is_refused() {
    let pki = Pki::new();
    assert_refused(&pki, Some(&pki.issue(Role::Dpu, "dpu-2")), "extended key usage").await;
}

#[tokio::test]
async fn dpu_is_no_client_with_any_usage() {
    let pki = Pki::new();
    let odd = pki.odd(&["spiffe://test.local/dpu/dpu-2"], |_| {});
    let alert = assert_refused(&pki, Some(&odd), "spiffe://test.local/dpu/dpu-2, ").await;
    assert_eq!(alert, Some(AlertDescription::CertificateUnknown));
}

#[tokio::test]
async fn certificate_needs_exactly_one_identity() {
    let pki = Pki::new();
    assert_refused(&pki, Some(&pki.odd(&[], |_| {})), "no SPIFFE identity").await;

    let two = ["spiffe://test.local/host/a", "spiffe://test.local/host/b"];
    assert_refused(&pki, Some(&pki.odd(&two, |_| {})), "names 2 URIs").await;

    let elsewhere = pki.odd(&["spiffe://elsewhere/host/a"], |_| {});
    assert_refused(&pki, Some(&elsewhere), "trust domain test.local").await;

    let root = pki.odd(&["spiffe://test.local/root/a"], |_| {});
    assert_refused(&pki, Some(&root), "\"root\" is no role").await;
}

/// A TLS 1.2 ClientHello as bytes: rustls is built without that version.
#[tokio::test]
async fn tls_1_2_is_refused() {
    const CLIENT_HELLO: &[u8] = &[
        0x16, 0x03, 0x01, 0x00, 0x37, // handshake record of 55 bytes
        0x01, 0x00, 0x00, 0x33, 0x03, 0x03, // ClientHello of 51 bytes, version 1.2
        7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
        7, 7,    // random
        0x00, // no session id
        0x00, 0x02, 0xc0, 0x2f, // ECDHE_RSA_WITH_AES_128_GCM_SHA256
        0x01, 0x00, // no compression
        0x00, 0x08, 0x00, 0x0d, 0x00, 0x04, 0x00, 0x02, 0x04, 0x03, // ecdsa_secp256r1_sha256
    ];
    const FATAL_PROTOCOL_VERSION: &[u8] = &[0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 70];
    let (listener, address) = listen().await;
    let server = Pki::new().server();
    let client = async {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(CLIENT_HELLO).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let (accepted, answer) = both_ends(accept(&listener, &server), client).await;
    assert!(matches!(accepted.unwrap_err(), HandshakeError::Tls(_)));
    assert_eq!(answer, FATAL_PROTOCOL_VERSION);
}

#[tokio::test]
async fn a_slow_handshake_is_given_up() {
    let (listener, address) = listen().await;
    let server = Server::new(Pki::new().live(Role::Dpu, "dpu-1"), Duration::from_millis(20));
    let _silent = TcpStream::connect(&address).await.unwrap();
    let error = bounded(accept(&listener, &server)).await.unwrap_err();
    assert!(matches!(error, HandshakeError::TooSlow(_)), "{error}");
}

#[tokio::test]
async fn bytes_that_are_no_tls_are_refused() {
    let (listener, address) = listen().await;
    let server = Pki::new().server();
    let mut client = TcpStream::connect(&address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(bounded(accept(&listener, &server)).await, Err(HandshakeError::Tls(_))));
}

/// Sends until the peer's buffers are full.
async fn fill(stream: &mut ServerStream) {
    let mut is_full = |context: &mut Context<'_>| {
        Poll::Ready(Pin::new(&mut *stream).poll_write(context, &[0; 65536]).is_pending())
    };
    while !poll_fn(&mut is_full).await {}
}

#[tokio::test]
async fn unread_answers_pause_the_client() {
    let pki = Pki::new();
    let (mut stream, mut client) = connection(&pki).await;
    client.write_all(b"?").await.unwrap();
    assert_eq!(bounded(stream.read_u8()).await.unwrap(), b'?');
    bounded(fill(&mut stream)).await;
    client.write_all(b"!").await.unwrap();
    // The runtime polls all sockets, so that it has seen the pending data once another connection is accepted.
    let _ = connection(&pki).await;
    let mut said = [0];
    let unheard = poll_fn(|context| {
        Poll::Ready(Pin::new(&mut stream).poll_read(context, &mut ReadBuf::new(&mut said)))
    });
    assert!(unheard.await.is_pending());
    // On a task of its own only the connection can wake it.
    let (mut reader, mut writer) = split(stream);
    let heard = tokio::spawn(async move { reader.read_u8().await });
    yield_now().await;
    tokio::spawn(async move {
        let mut sink = vec![0; 65536];
        while client.read(&mut sink).await.is_ok_and(|count| count > 0) {}
    });
    bounded(writer.flush()).await.unwrap();
    assert_eq!(bounded(heard).await.unwrap().unwrap(), b'!');
}

/// The connector's error for a server that shows `issued` and asks for no client certificate.
pub(crate) async fn connect_error(pki: &Pki, issued: &Issued) -> ConnectError {
    let (listener, address) = listen().await;
    let (certificates, key) = chain(issued);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .unwrap();
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        drop(TlsAcceptor::from(Arc::new(config)).accept(stream).await);
    };
    let connector = pki.connector(&address, "dpu-1");
    let (connected, ()) = both_ends(connector.connect(), server).await;
    connected.unwrap_err()
}

#[tokio::test]
async fn servers_other_than_the_expected_dpu_are_refused() {
    let pki = Pki::new();
    let error = connect_error(&pki, &pki.issue(Role::Dpu, "dpu-2")).await.to_string();
    let mismatch = "it belongs to spiffe://test.local/dpu/dpu-2, \
                    but spiffe://test.local/dpu/dpu-1 was expected";
    assert!(error.ends_with(mismatch), "{error}");

    let a_host_as_dpu = pki.odd(&["spiffe://test.local/host/dpu-1"], |_| {});
    let error = connect_error(&pki, &a_host_as_dpu).await;
    assert!(error.to_string().contains("spiffe://test.local/dpu/dpu-1 was expected"), "{error}");
    assert!(error.is_certificate());

    let error = connect_error(&pki, &pki.issue(Role::Host, "dpu-1")).await.to_string();
    assert!(error.contains("extended key usage"), "{error}");

    let error = connect_error(&pki, &Pki::new().issue(Role::Dpu, "dpu-1")).await.to_string();
    assert!(error.contains("not by the CA"), "{error}");
}

#[tokio::test]
async fn expired_dpu_certificate_names_its_renewal() {
    let pki = Pki::new();
    let old = pki.authority.issue(Role::Dpu, "dpu-1", expired()).unwrap();
    let error = connect_error(&pki, &old).await;
    assert!(matches!(error, ConnectError::DpuExpired { .. }) && error.is_certificate(), "{error}");
    let said = error.to_string();
    assert!(said.contains(" spiffe://test.local/dpu/dpu-1 at "), "{said}");
    assert!(said.contains(" expired on 20") && said.ends_with(" on the DPU"), "{said}");

    // Only a certificate of the trusted CA proves the identity.
    let strangers = Pki::new().authority.issue(Role::Dpu, "dpu-1", expired()).unwrap();
    let of_another = pki.authority.issue(Role::Dpu, "dpu-2", expired()).unwrap();
    for issued in [strangers, of_another] {
        let error = connect_error(&pki, &issued).await;
        assert!(matches!(error, ConnectError::ServerRefused { .. }), "{error}");
    }
}

/// The server's error for a client that shows `issued`.
pub(crate) async fn handshake_error(pki: &Pki, issued: &Issued) -> HandshakeError {
    let ((listener, address), server) = (listen().await, pki.server());
    let client = raw_client(&address, Some(issued));
    let (accepted, _stream) = both_ends(accept(&listener, &server), client).await;
    accepted.unwrap_err()
}

#[tokio::test]
async fn peer_refused_for_dates_is_named() {
    let pki = Pki::new();
    let node_1 = |pki: &Pki, validity| pki.authority.issue(Role::Host, "node-1", validity).unwrap();
    for validity in [expired(), not_yet_valid()] {
        let error = handshake_error(&pki, &node_1(&pki, validity)).await;
        let HandshakeError::Outdated { holder, .. } = &error else { panic!("{error}") };
        assert_eq!(*holder, host("node-1"));
        // Any CA can put any name into a certificate.
        let strangers = handshake_error(&pki, &node_1(&Pki::new(), validity)).await;
        assert!(matches!(strangers, HandshakeError::Certificate(_)), "{strangers}");
    }
    let of_another_role = pki.authority.issue(Role::Dpu, "dpu-1", expired()).unwrap();
    let error = handshake_error(&pki, &of_another_role).await;
    assert!(matches!(error, HandshakeError::Certificate(_)), "{error}");
}

#[tokio::test]
async fn a_client_learns_why_the_dpu_refuses_it() {
    let (ours, theirs) = (Pki::new(), Pki::new());
    let (listener, address) = listen().await;
    let server = ours.server();
    let settings = theirs.settings(Role::Host, "node-1");
    let both = [theirs.authority.certificate(), ours.authority.certificate()].concat();
    fs::write(&settings.ca, both).unwrap();
    let live = mtls::LiveCredentials::load(&settings, &[Role::Host]).unwrap();
    let connector = Connector::new(live, &address, "dpu-1", BOUND).unwrap();

    let (accepted, connected) = both_ends(accept(&listener, &server), connector.connect()).await;
    assert!(accepted.is_err());
    let error = connected.unwrap_err();
    assert!(error.is_certificate());
    for named in [&address, "spiffe://test.local/host/node-1", "(alert DecryptError)"] {
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test]
async fn expired_certificate_is_not_tried() {
    let pki = Pki::new();
    let validity = Validity::from_now(Duration::from_secs(1));
    let issued = pki.authority.issue(Role::Host, "node-1", validity).unwrap();
    let settings = pki.save(&issued, "short");
    let live = mtls::LiveCredentials::load(&settings, &[Role::Host]).unwrap();
    let connector = Connector::new(live.clone(), "127.0.0.1:1", "dpu-1", BOUND).unwrap();
    wait_until_async("the certificate expires", async || live.problem().is_some()).await;
    let error = bounded(connector.connect()).await.unwrap_err();
    assert!(matches!(error, ConnectError::OwnExpired { .. }), "{error}");
    assert!(live.problem().unwrap().ends_with("renew it"));
}

#[tokio::test]
async fn silent_dpu_times_out() {
    let pki = Pki::new();
    let (_silent, address) = listen().await;
    let live = pki.live(Role::Host, "node-1");
    let connector = Connector::new(live, &address, "dpu-1", Duration::from_millis(20)).unwrap();
    let error = bounded(connector.connect()).await.unwrap_err();
    assert!(matches!(error, ConnectError::TooSlow { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    assert!(!error.is_certificate());
}

#[tokio::test]
async fn malformed_addresses_and_names_are_refused() {
    let pki = Pki::new();
    let live = pki.live(Role::Host, "node-1");
    for address in ["", "192.168.100.2", "http://a:1", "a:b", "a:1/x", "a:99999", ":7443"] {
        assert!(Connector::new(live.clone(), address, "dpu-1", BOUND).is_err(), "{address}");
    }
    for address in ["192.168.100.2:7443", "dpu.example:7443", "[fd00::1]:7443"] {
        assert!(Connector::new(live.clone(), address, "dpu-1", BOUND).is_ok(), "{address}");
    }
    assert!(Connector::new(live, "a:1", "dpu/1", BOUND).is_err());
}
