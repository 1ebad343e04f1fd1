//! Certificates with an intermediate.

use std::{
    fs,
    io::ErrorKind,
    time::{Duration, SystemTime},
};

use crate::{
    handshake::{accept, connect_error, handshake_error},
    support::{
        BOUND, HOUR, Pki, both_ends, bounded, expired, host, listen, load_error, not_yet_valid,
    },
};
use hyper_util::rt::TokioIo;
use mtls::{
    ConnectError, Connector, HandshakeError, Identity, LiveCredentials, Role, Server, ServerStream,
    authority::{Issued, Validity},
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tower::Service;

/// The server's first frame.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// Trusts this root in addition to the CA of its [`Pki`].
struct Chains {
    pki: Pki,
    root: Issuer<'static, KeyPair>,
}

fn params(name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = validity.not_before.into();
    params.not_after = validity.not_after.into();
    params
}

fn ca_params(name: &str, validity: Validity) -> CertificateParams {
    let mut params = params(name, validity);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn lasting() -> Validity {
    Validity::from_now(HOUR)
}

impl Chains {
    fn new() -> Self {
        let (pki, key) = (Pki::new(), KeyPair::generate().unwrap());
        let params = ca_params("root", lasting());
        let root = params.self_signed(&key).unwrap().pem();
        fs::write(pki.path().join("ca.crt"), [pki.authority.certificate(), &root].concat())
            .unwrap();
        Self { pki, root: Issuer::new(params, key) }
    }

    /// A certificate with the given validity and an intermediate.
    fn issue(&self, role: Role, name: &str, own: Validity, intermediate: Validity) -> Issued {
        let issuer_key = KeyPair::generate().unwrap();
        let issuer_params = ca_params("intermediate", intermediate);
        let issuer = issuer_params.signed_by(&issuer_key, &self.root).unwrap().pem();
        let identity = Identity::new("test.local", role, name).unwrap().to_string();
        let mut params = params(name, own);
        params.subject_alt_names = vec![SanType::URI(identity.try_into().unwrap())];
        params.extended_key_usages = vec![match role {
            Role::Dpu => ExtendedKeyUsagePurpose::ServerAuth,
            _ => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let key = KeyPair::generate().unwrap();
        let issuer_of_it = Issuer::new(issuer_params, issuer_key);
        let own = params.signed_by(&key, &issuer_of_it).unwrap().pem();
        Issued { certificate: [own, issuer].concat(), key: key.serialize_pem() }
    }

    /// Credentials whose intermediate expires after so many seconds, long before their own certificate.
    fn short(&self, role: Role, name: &str, seconds: u64) -> LiveCredentials {
        let intermediate = Validity::from_now(Duration::from_secs(seconds));
        let issued = self.issue(role, name, lasting(), intermediate);
        LiveCredentials::load(&self.pki.save(&issued, &format!("short-{role}")), &[role]).unwrap()
    }
}

/// Both ends of a connection.
async fn connection(
    server: LiveCredentials,
    client: LiveCredentials,
) -> (ServerStream, mtls::ClientStream) {
    let (listener, address) = listen().await;
    let server = Server::new(server, BOUND);
    let mut connector = Connector::new(client, &address, "dpu-1", BOUND).unwrap();
    let greet = async {
        let mut stream = accept(&listener, &server).await.unwrap();
        stream.write_all(SETTINGS).await.unwrap();
        stream
    };
    let connect = connector.call("http://dpu".parse().unwrap());
    let (accepted, connected) = both_ends(greet, connect).await;
    (accepted, connected.map(TokioIo::into_inner).unwrap())
}

/// Reads until the connection ends, and returns the reason.
async fn over(mut stream: impl AsyncRead + Unpin) -> String {
    let error = bounded(stream.read_to_end(&mut Vec::new())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    error.to_string()
}

#[tokio::test]
async fn intermediate_expiry_ends_connection() {
    let chains = Chains::new();
    let (dpu, node) = (chains.pki.live(Role::Dpu, "dpu-1"), chains.pki.live(Role::Host, "node-1"));
    let of_server = connection(chains.short(Role::Dpu, "dpu-1", 8), node).await;
    let of_client = connection(dpu, chains.short(Role::Host, "node-1", 8)).await;
    let certificate_end = of_client.0.peer().certificate_end;
    assert!(certificate_end > SystemTime::now() + HOUR / 2, "it is the peer's own");
    let (server_s, client_s) = tokio::join!(over(of_server.1), over(of_client.0));
    for (said, name) in [(server_s, "dpu/dpu-1"), (client_s, "host/node-1")] {
        assert!(said.contains("intermediate certificate"), "{said}");
        assert!(said.contains(&format!(" spiffe://test.local/{name} expired on 20")), "{said}");
    }
}

/// HTTP/2 servers that send their settings and nothing else.
async fn greet_all(listener: tokio::net::TcpListener, credentials: LiveCredentials) {
    let server = Server::new(credentials, BOUND);
    let mut streams = Vec::new();
    loop {
        let mut stream = accept(&listener, &server).await.unwrap();
        stream.write_all(SETTINGS).await.unwrap();
        streams.push(stream);
    }
}

#[tokio::test]
async fn connection_is_renewed_before_intermediate_expires() {
    let chains = Chains::new();
    let pairs = [
        (chains.short(Role::Dpu, "dpu-1", 9), chains.pki.live(Role::Host, "node-1")),
        (chains.pki.live(Role::Dpu, "dpu-1"), chains.short(Role::Host, "node-1", 9)),
    ];
    let end = SystemTime::now() + Duration::from_secs(9);
    let mut connectors = Vec::new();
    for (server, client) in pairs {
        let (listener, address) = listen().await;
        for live in [&server, &client] {
            tokio::spawn(live.clone().follow(Duration::from_millis(5)));
        }
        tokio::spawn(greet_all(listener, server));
        let connector = Connector::new(client, &address, "dpu-1", BOUND).unwrap();
        connectors.push((bounded(connector.connect()).await.unwrap(), connector));
    }
    for (role, name) in [(Role::Dpu, "dpu-1"), (Role::Host, "node-1")] {
        chains.pki.save(&chains.pki.issue(role, name), &format!("short-{role}"));
    }
    let renewed = async { tokio::join!(connectors[0].1.renewed(), connectors[1].1.renewed()) };
    let _channels = bounded(renewed).await;
    assert!(SystemTime::now() < end, "too late");
}

#[tokio::test]
async fn only_dpu_certificate_expiry_is_reported() {
    let chains = Chains::new();
    let ended = chains.issue(Role::Dpu, "dpu-1", expired(), lasting_since_long());
    let error = connect_error(&chains.pki, &ended).await;
    assert!(matches!(error, ConnectError::DpuExpired { .. }), "{error}");

    let of_ended = chains.issue(Role::Dpu, "dpu-1", lasting(), expired());
    let error = connect_error(&chains.pki, &of_ended).await;
    assert!(matches!(error, ConnectError::ServerRefused { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("intermediate certificates"), "{said}");
}

fn lasting_since_long() -> Validity {
    Validity { not_before: SystemTime::now() - 3 * HOUR, ..lasting() }
}

#[tokio::test]
async fn host_refusal_has_only_its_own_dates() {
    let chains = Chains::new();
    let ended = chains.issue(Role::Host, "node-1", expired(), lasting_since_long());
    let error = handshake_error(&chains.pki, &ended).await;
    let HandshakeError::Outdated { holder, .. } = &error else { panic!("{error}") };
    assert_eq!(*holder, host("node-1"));

    let wrong = [(expired(), "has expired"), (not_yet_valid(), "is not valid yet")];
    for (intermediate, what) in wrong {
        let issued = chains.issue(Role::Host, "node-1", lasting(), intermediate);
        let error = handshake_error(&chains.pki, &issued).await;
        assert!(matches!(error, HandshakeError::Certificate(_)), "{error}");
        assert!(
            error.to_string().contains(&format!("intermediate certificates {what}")),
            "{error}"
        );
    }
}

#[test]
fn own_chain_with_expired_intermediate_is_refused() {
    let chains = Chains::new();
    let issued = chains.issue(Role::Host, "node-1", lasting(), expired());
    let error = load_error(&chains.pki.save(&issued, "of-ended"));
    assert!(error.contains("intermediate certificates"), "{error}");
}
