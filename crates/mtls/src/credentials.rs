//! A consistent set of own certificate, key and CA, read and checked together.

use std::{fmt, sync::Arc, time::SystemTime};

use rustls::{
    ClientConfig, Error, RootCertStore, ServerConfig,
    client::Resumption,
    server::NoServerSessionStorage,
    sign::{CertifiedKey, SingleCertAndKey},
};

use crate::{
    certificate::date,
    error::CredentialsError,
    files::{Files, Trusted, check_chain, client_verifier, own_certificate, trusted},
    identity::{Identity, Role},
    provider::{ALPN, VERSIONS, provider},
    settings::TlsSettings,
    validity::Validity,
    verifier::{ExpectClients, ExpectServer, Outdated},
};

/// An own certificate with its key, and the CA for peers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Credentials(Arc<Inner>);

struct Inner {
    digest: String,
    identity: Identity,
    validity: Validity,
    /// When the first of the certificate and its intermediates expires.
    first_end: SystemTime,
    ca_validity: Validity,
    own: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    clients: ExpectClients,
}

/// Omits the key, which must not get into logs.
impl fmt::Debug for Inner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Credentials")
            .field("identity", &self.identity)
            .field("expires_at", &date(self.validity.not_after))
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads and checks the files. Each must parse, and other users must not be able to change it or to read the key.
    /// The key must belong to the certificate. The CA must trust the certificate now for its role's use. Its identity
    /// must be in the trust domain and have one of `roles`.
    ///
    /// Files that are being replaced may not match for a moment, so that a mismatch is read a second time.
    ///
    /// # Errors
    /// [`CredentialsError`] with the file and what to do.
    pub fn load(settings: &TlsSettings, roles: &[Role]) -> Result<Self, CredentialsError> {
        let credentials = retry_on_mismatch(|| Self::of(settings, &Files::read(settings)?))?;
        credentials.require_role(settings, roles)?;
        Ok(credentials)
    }

    /// The identity in the certificate.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// The certificate's validity.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.0.validity
    }

    /// When the first of the certificate and its intermediates expires.
    pub(crate) fn first_end(&self) -> SystemTime {
        self.0.first_end
    }

    /// The validity of the CA's certificate; of several the one that expires first.
    #[must_use]
    pub fn ca_validity(&self) -> Validity {
        self.0.ca_validity
    }

    /// Whether the files have the content of these credentials.
    pub(crate) fn are_of(&self, files: &Files) -> bool {
        self.0.digest == files.digest()
    }

    /// Whether both come from the same reading of the files.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// TLS settings for one handshake as a server. Sessions are never resumed, so that every connection is checked
    /// against the certificates and the CA of its time. `outdated` receives the client of an outdated certificate.
    pub(crate) fn server_config(&self, outdated: Outdated) -> Result<ServerConfig, Error> {
        let own = SingleCertAndKey::from(Arc::clone(&self.0.own));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)?
            .with_client_cert_verifier(Arc::new(self.0.clients.reporting_to(outdated)))
            .with_cert_resolver(Arc::new(own));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// TLS settings for one handshake as a client of `expected`. `outdated` receives the server of an outdated
    /// certificate.
    pub(crate) fn client_config(
        &self,
        expected: Identity,
        outdated: Outdated,
    ) -> Result<ClientConfig, Error> {
        let own = SingleCertAndKey::from(Arc::clone(&self.0.own));
        let verifier = ExpectServer { roots: Arc::clone(&self.0.roots), expected, outdated };
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(own));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(config)
    }

    fn of(settings: &TlsSettings, files: &Files) -> Result<Self, CredentialsError> {
        let Trusted { roots, validity: ca_validity } = trusted(settings, files)?;
        let clients = client_verifier(settings, &roots)?;
        let own = own_certificate(settings, files)?;
        check_chain(settings, &own, &roots, &clients)?;
        Ok(Self(Arc::new(Inner {
            digest: files.digest(),
            identity: own.identity,
            validity: own.facts.validity,
            first_end: own.first_end,
            ca_validity,
            own: Arc::new(own.certified_key),
            roots,
            clients,
        })))
    }

    fn require_role(&self, settings: &TlsSettings, roles: &[Role]) -> Result<(), CredentialsError> {
        if roles.contains(&self.0.identity.role()) {
            return Ok(());
        }
        let wanted: Vec<_> = roles.iter().map(|role| role.as_str()).collect();
        Err(CredentialsError::Role {
            path: settings.certificate.clone(),
            identity: self.0.identity.clone(),
            wanted: wanted.join(" or "),
        })
    }
}

/// Reads again after a mismatch: the files may be in the middle of a replacement, which is not atomic.
fn retry_on_mismatch<T>(
    read: impl Fn() -> Result<T, CredentialsError>,
) -> Result<T, CredentialsError> {
    match read() {
        Err(CredentialsError::KeyMismatch { .. }) => read(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Whether reading succeeds if the reads return `found` in turn, and the number of reads.
    fn read(found: [fn() -> Result<(), CredentialsError>; 2]) -> (bool, usize) {
        let reads = Cell::new(0);
        let passed = retry_on_mismatch(|| {
            reads.set(reads.get() + 1);
            found[reads.get() - 1]()
        });
        (passed.is_ok(), reads.get())
    }

    #[test]
    fn mismatched_files_are_read_twice() {
        let valid = || Ok(());
        let torn =
            || Err(CredentialsError::KeyMismatch { key: "k".into(), certificate: "c".into() });
        let missing = || {
            let source = std::io::ErrorKind::NotFound.into();
            Err(CredentialsError::Read { item: crate::Item::Key, path: "k".into(), source })
        };
        assert_eq!(read([valid, valid]), (true, 1));
        assert_eq!(read([torn, valid]), (true, 2));
        assert_eq!(read([torn, torn]), (false, 2));
        assert_eq!(read([missing, valid]), (false, 1));
    }
}
