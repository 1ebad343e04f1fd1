//! Shared by the tests: certificates in a folder, and raw peers that misbehave.
use std::{
    fs,
    future::Future,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use mtls::{
    Connector, Credentials, Identity, LiveCredentials, Role, Server, TlsSettings,
    authority::{Authority, Issued, Validity},
};
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::{ClientConfig, crypto::ring, version::TLS13};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tempfile::TempDir;
use test_clock::within;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

pub(crate) const TRUST_DOMAIN: &str = "test.local";
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// A CA with a folder for its certificates.
pub(crate) struct Pki {
    pub(crate) folder: TempDir,
    pub(crate) authority: Authority,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create(TRUST_DOMAIN, Validity::from_now(HOUR)).unwrap();
        authority.save(folder.path()).unwrap();
        Self { folder, authority }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The settings of a program with `issued`, saved under `stem`.
    pub(crate) fn save(&self, issued: &Issued, stem: &str) -> TlsSettings {
        let (certificate, key) = issued.save(self.path(), stem).unwrap();
        let ca = self.path().join("ca.crt");
        TlsSettings { ca, certificate, key, trust_domain: TRUST_DOMAIN.into() }
    }

    pub(crate) fn issue(&self, role: Role, name: &str) -> Issued {
        self.authority.issue(role, name, Validity::from_now(HOUR)).unwrap()
    }

    pub(crate) fn settings(&self, role: Role, name: &str) -> TlsSettings {
        self.save(&self.issue(role, name), &format!("{role}-{name}"))
    }

    pub(crate) fn live(&self, role: Role, name: &str) -> LiveCredentials {
        LiveCredentials::load(&self.settings(role, name), &[role]).unwrap()
    }

    pub(crate) fn server(&self) -> Server {
        Server::new(self.live(Role::Dpu, "dpu-1"), BOUND)
    }

    pub(crate) fn connector(&self, address: &str, dpu: &str) -> Connector {
        Connector::new(self.live(Role::Host, "node-1"), address, dpu, BOUND).unwrap()
    }

    /// A certificate that [`Authority::issue`] would never create.
    pub(crate) fn odd(&self, uris: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let ca_key = fs::read_to_string(self.path().join("ca.key")).unwrap();
        let ca_key = KeyPair::from_pem(&ca_key).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(self.authority.certificate(), ca_key).unwrap();
        let mut params = CertificateParams::default();
        let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
        params.subject_alt_names = uris.iter().map(uri).collect();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        Issued { certificate, key: key.serialize_pem() }
    }
}

pub(crate) fn expired() -> Validity {
    let now = SystemTime::now();
    Validity { not_before: now - 2 * HOUR, not_after: now - HOUR }
}

pub(crate) fn not_yet_valid() -> Validity {
    let now = SystemTime::now();
    Validity { not_before: now + HOUR, not_after: now + 2 * HOUR }
}

pub(crate) fn load(settings: &TlsSettings) -> Result<Credentials, mtls::CredentialsError> {
    Credentials::load(settings, &Role::ALL)
}

pub(crate) fn load_error(settings: &TlsSettings) -> String {
    bootstrap::Chain(&load(settings).unwrap_err()).to_string()
}

/// Expects that the files are refused with these words.
pub(crate) fn assert_refused(settings: &TlsSettings, words: &str) {
    let error = load_error(settings);
    assert!(error.contains(words), "{error}");
}

pub(crate) fn host(name: &str) -> Identity {
    Identity::new(TRUST_DOMAIN, Role::Host, name).unwrap()
}

pub(crate) async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

pub(crate) async fn bounded<T>(work: impl Future<Output = T>) -> T {
    within(BOUND, work).await.expect("it takes too long")
}

/// Runs both ends of a connection.
pub(crate) async fn both_ends<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> (A, B) {
    bounded(async { tokio::join!(one, other) }).await
}

pub(crate) fn chain(issued: &Issued) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let certificates = CertificateDer::pem_slice_iter(issued.certificate.as_bytes());
    (
        certificates.map(Result::unwrap).collect(),
        PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap(),
    )
}

/// A client that shows any certificate and trusts every server.
pub(crate) async fn raw_client(
    address: &str,
    issued: Option<&Issued>,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trusting::AnyServer));
    let mut config = match issued.map(chain) {
        Some((certificates, key)) => builder.with_client_auth_cert(certificates, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("any.invalid").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

mod trusting {
    use rustls::{
        DigitallySignedStruct, Error, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::ring,
    };
    use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

    #[derive(Debug)]
    pub(super) struct AnyServer;

    impl ServerCertVerifier for AnyServer {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            ring::default_provider().signature_verification_algorithms.supported_schemes()
        }
    }
}
