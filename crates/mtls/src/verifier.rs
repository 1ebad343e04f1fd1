//! Which certificates pass.
//!
//! Both verifiers leave the cryptography to rustls and webpki and only replace the question "for
//! which DNS name?", which means nothing here, by "for which identity?". Addresses of management
//! links are the same on every host, so a name in DNS proves nothing about a DPU.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::verify_tls13_signature,
    server::{
        ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::{
    certificate::{CertificateProblem, Facts},
    identity::{Identity, Role},
    provider::{provider, signature_algorithms},
};

/// Why a certificate that is good in itself is refused.
#[derive(Clone, Debug, thiserror::Error)]
enum Refusal {
    #[error("it belongs to {found}, but {expected} was expected")]
    OtherServer { found: Identity, expected: Identity },
    #[error("it belongs to {found}, which is outside the trust domain {trust_domain}")]
    TrustDomain { found: Identity, trust_domain: String },
    #[error("it belongs to {0}, but a DPU is no client")]
    DpuAsClient(Identity),
    #[error(transparent)]
    Certificate(#[from] CertificateProblem),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        CertificateError::Other(OtherError(Arc::new(refusal))).into()
    }
}

/// Checks that a certificate is by one of `roots`, valid now, and good for a server.
pub(crate) fn check_server_chain(
    certificate: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &RootCertStore,
    now: UnixTime,
) -> Result<(), Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let algorithms = signature_algorithms().all;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)
}

/// Lets a client accept exactly one DPU.
#[derive(Debug)]
pub(crate) struct ExpectServer {
    pub roots: Arc<RootCertStore>,
    pub expected: Identity,
}

impl ServerCertVerifier for ExpectServer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        check_server_chain(certificate, intermediates, &self.roots, now)?;
        let found = identity(certificate)?;
        if found != self.expected {
            return Err(Refusal::OtherServer { found, expected: self.expected.clone() }.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &signature_algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        signature_algorithms().supported_schemes()
    }
}

/// Lets a server accept the hosts and operators of its trust domain.
#[derive(Debug)]
pub(crate) struct ExpectClients {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: String,
}

impl ExpectClients {
    pub(crate) fn new(
        roots: Arc<RootCertStore>,
        trust_domain: &str,
    ) -> Result<Self, VerifierBuilderError> {
        let chain = WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?;
        Ok(Self { chain, trust_domain: trust_domain.into() })
    }

    fn admit(&self, found: Identity) -> Result<(), Refusal> {
        if found.trust_domain() != self.trust_domain {
            return Err(Refusal::TrustDomain { found, trust_domain: self.trust_domain.clone() });
        }
        match found.role() {
            Role::Dpu => Err(Refusal::DpuAsClient(found)),
            Role::Host | Role::Operator | Role::Viewer => Ok(()),
        }
    }
}

impl ClientCertVerifier for ExpectClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(certificate, intermediates, now)?;
        self.admit(identity(certificate)?)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// The identity in a certificate whose chain was checked.
fn identity(certificate: &CertificateDer<'_>) -> Result<Identity, Refusal> {
    Ok(Facts::read(certificate)?.identity()?)
}
