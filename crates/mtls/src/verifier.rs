//! Verification of certificates.
//!
//! Both verifiers leave the cryptography to rustls and webpki. They check the identity instead of a DNS name.
//! Management links have the same addresses on every host, so that a DNS name proves nothing about a DPU.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

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
    reason::system_time,
};

/// Why a verified certificate is refused.
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

/// Checks that one of `roots` issued the certificate, that it is valid now and allowed for servers.
pub(crate) fn check_server_chain(
    certificate: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &RootCertStore,
    now: UnixTime,
) -> Result<(), Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let algorithms = signature_algorithms().all;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)
        .map_err(|error| without_dates_of_others(error, certificate))
}

/// Removes the dates from an error about an intermediate certificate: a reader would take them for the dates of
/// `certificate` and renew the wrong one.
fn without_dates_of_others(error: Error, certificate: &CertificateDer<'_>) -> Error {
    let Ok(Facts { validity, .. }) = Facts::read(certificate) else { return error };
    match error {
        Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })
            if system_time(not_after) != validity.not_after =>
        {
            CertificateError::Expired.into()
        }
        Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })
            if system_time(not_before) != validity.not_before =>
        {
            CertificateError::NotValidYet.into()
        }
        error => error,
    }
}

/// The identity of a certificate that was refused only for its dates: the CA issued it, and it was valid at another
/// time. The peer has not proved that it has the key.
#[derive(Clone, Default)]
pub(crate) struct Outdated(Arc<OnceLock<Identity>>);

impl Outdated {
    pub(crate) fn holder(&self) -> Option<&Identity> {
        self.0.get()
    }

    /// Verifies again for a moment at which the certificate was valid.
    fn note(&self, error: &Error, holder_at: impl FnOnce(UnixTime) -> Result<Identity, Error>) {
        let valid_at = match error {
            Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
                *not_after
            }
            Error::InvalidCertificate(CertificateError::NotValidYetContext {
                not_before, ..
            }) => *not_before,
            _ => return,
        };
        if let Ok(holder) = holder_at(valid_at) {
            // A handshake verifies one certificate, so that this is the only call.
            let _ = self.0.set(holder);
        }
    }
}

impl fmt::Debug for Outdated {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Outdated({:?})", self.holder())
    }
}

/// Accepts exactly one DPU.
#[derive(Debug)]
pub(crate) struct ExpectServer {
    pub roots: Arc<RootCertStore>,
    pub expected: Identity,
    /// Receives the DPU if its certificate is outdated.
    pub outdated: Outdated,
}

impl ExpectServer {
    fn accept(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Identity, Error> {
        check_server_chain(certificate, intermediates, &self.roots, now)?;
        let found = identity(certificate)?;
        if found == self.expected {
            return Ok(found);
        }
        Err(Refusal::OtherServer { found, expected: self.expected.clone() }.into())
    }
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
        let accept = |now| self.accept(certificate, intermediates, now);
        accept(now).inspect_err(|error| self.outdated.note(error, accept))?;
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

/// Accepts the hosts and operators of a trust domain.
#[derive(Clone, Debug)]
pub(crate) struct ExpectClients {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: Arc<str>,
    /// Receives the client if its certificate is outdated.
    outdated: Outdated,
}

impl ExpectClients {
    pub(crate) fn new(
        roots: Arc<RootCertStore>,
        trust_domain: &str,
    ) -> Result<Self, VerifierBuilderError> {
        let chain = WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?;
        Ok(Self { chain, trust_domain: trust_domain.into(), outdated: Outdated::default() })
    }

    /// The same verifier for one handshake.
    pub(crate) fn reporting_to(&self, outdated: Outdated) -> Self {
        Self { outdated, ..self.clone() }
    }

    fn accept(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Identity, Error> {
        let passed = self.chain.verify_client_cert(certificate, intermediates, now);
        passed.map_err(|error| without_dates_of_others(error, certificate))?;
        Ok(self.admit(identity(certificate)?)?)
    }

    fn admit(&self, found: Identity) -> Result<Identity, Refusal> {
        if found.trust_domain() != &*self.trust_domain {
            let trust_domain = self.trust_domain.to_string();
            return Err(Refusal::TrustDomain { found, trust_domain });
        }
        match found.role() {
            Role::Dpu => Err(Refusal::DpuAsClient(found)),
            Role::Host | Role::Operator | Role::Viewer => Ok(found),
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
        let accept = |now| self.accept(certificate, intermediates, now);
        accept(now).inspect_err(|error| self.outdated.note(error, accept))?;
        Ok(ClientCertVerified::assertion())
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

fn identity(certificate: &CertificateDer<'_>) -> Result<Identity, Refusal> {
    Ok(Facts::read(certificate)?.identity()?)
}
