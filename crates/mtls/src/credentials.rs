//! One consistent set of own certificate, key and CA, read and checked as a whole.

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

/// An own certificate with its key, and the CA that peers are checked by. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Credentials(Arc<Inner>);

struct Inner {
    /// Of the files' content.
    digest: String,
    identity: Identity,
    validity: Validity,
    /// Of the certificate and its intermediates.
    first_end: SystemTime,
    ca_validity: Validity,
    own: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    clients: ExpectClients,
}

/// The key stays out of logs.
impl fmt::Debug for Inner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Credentials")
            .field("identity", &self.identity)
            .field("expires_at", &date(self.validity.not_after))
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads and checks the files: they parse, other users can't change them, the key is closed to others and belongs to
    /// the certificate, the certificate is valid now and passes under the CA for its role's use, and it
    /// names an identity of the trust domain and of one of `roles`.
    ///
    /// Files that are being replaced may not match for a moment, so they are read again once.
    ///
    /// # Errors
    /// [`CredentialsError`], which names the file and what to do.
    pub fn load(settings: &TlsSettings, roles: &[Role]) -> Result<Self, CredentialsError> {
        let credentials = once_more_if_torn(|| Self::of(settings, &Files::read(settings)?))?;
        credentials.require_role(settings, roles)?;
        Ok(credentials)
    }

    /// Whose certificate it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// From when until when the certificate is valid.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.0.validity
    }

    /// The last moment of what is shown to peers: of the certificate, or of an intermediate one that ends
    /// before it.
    pub(crate) fn first_end(&self) -> SystemTime {
        self.0.first_end
    }

    /// From when until when the CA's certificate is valid; of several, that one whose end comes first.
    #[must_use]
    pub fn ca_validity(&self) -> Validity {
        self.0.ca_validity
    }

    /// Whether the files hold what these credentials were made of.
    pub(crate) fn are_of(&self, files: &Files) -> bool {
        self.0.digest == files.digest()
    }

    /// Whether both are from the same reading of the files.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The settings of a server of this certificate. Nothing is resumed, so that every connection
    /// is checked against the certificates and the CA of its own time. For one handshake: `outdated` is
    /// told of its client.
    pub(crate) fn server_config(&self, outdated: Outdated) -> Result<ServerConfig, Error> {
        let own = SingleCertAndKey::from(Arc::clone(&self.0.own));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)?
            .with_client_cert_verifier(Arc::new(self.0.clients.telling(outdated)))
            .with_cert_resolver(Arc::new(own));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// The settings of a client with this certificate that wants to talk to `expected` alone. For one
    /// handshake: `outdated` is told of its server.
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

/// Reads files that may be about to be replaced, one after the other, while they are read.
fn once_more_if_torn<T>(
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

    /// What comes of reading files that are found as told, and how often they are read.
    fn read(found: [fn() -> Result<(), CredentialsError>; 2]) -> (bool, usize) {
        let reads = Cell::new(0);
        let passed = once_more_if_torn(|| {
            reads.set(reads.get() + 1);
            found[reads.get() - 1]()
        });
        (passed.is_ok(), reads.get())
    }

    #[test]
    fn mismatched_files_are_read_twice() {
        let good = || Ok(());
        let torn =
            || Err(CredentialsError::KeyMismatch { key: "k".into(), certificate: "c".into() });
        let missing = || {
            let source = std::io::ErrorKind::NotFound.into();
            Err(CredentialsError::Read { item: crate::Item::Key, path: "k".into(), source })
        };
        assert_eq!(read([good, good]), (true, 1));
        assert_eq!(read([torn, good]), (true, 2));
        assert_eq!(read([torn, torn]), (false, 2));
        assert_eq!(read([missing, good]), (false, 1));
    }
}
