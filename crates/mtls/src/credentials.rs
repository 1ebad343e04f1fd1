//! One consistent set of own certificate, key and CA, read and checked as a whole.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{
    ClientConfig, Error, RootCertStore, ServerConfig,
    client::Resumption,
    server::NoServerSessionStorage,
    sign::{CertifiedKey, SingleCertAndKey},
};

use crate::{
    certificate::date,
    error::CredentialsError,
    files::{check_chain, client_verifier, own_certificate, trusted},
    identity::{Identity, Role},
    provider::{ALPN, VERSIONS, provider},
    settings::TlsSettings,
    verifier::{ExpectClients, ExpectServer},
};

/// An own certificate with its key, and the CA that peers are checked by. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Credentials(Arc<Inner>);

struct Inner {
    identity: Identity,
    valid_from: SystemTime,
    expires_at: SystemTime,
    own: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    clients: Arc<ExpectClients>,
}

/// The key stays out of logs.
impl fmt::Debug for Inner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Credentials")
            .field("identity", &self.identity)
            .field("expires_at", &date(self.expires_at))
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads and checks the files: they parse, the key is closed to others and belongs to the
    /// certificate, the certificate is valid now and passes under the CA for its role's use, and it
    /// names an identity of the trust domain and of one of `roles`.
    ///
    /// Files that are being replaced may not match for a moment, so they are read again once.
    ///
    /// # Errors
    /// [`CredentialsError`], which names the file and what to do.
    pub fn load(settings: &TlsSettings, roles: &[Role]) -> Result<Self, CredentialsError> {
        let credentials = match Self::load_once(settings) {
            Err(CredentialsError::KeyMismatch { .. }) => Self::load_once(settings)?,
            other => other?,
        };
        credentials.require_role(settings, roles)?;
        Ok(credentials)
    }

    /// Whose certificate it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// The last moment at which the certificate is valid.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        self.0.expires_at
    }

    /// When it is to be warned of the certificate's end: `ahead` of it, but never before two thirds of
    /// its validity are over, for certificates that are renewed by themselves live shortly.
    pub(crate) fn warning_at(&self, ahead: Duration) -> SystemTime {
        let validity = self.0.expires_at.duration_since(self.0.valid_from).unwrap_or_default();
        self.0.expires_at - ahead.min(validity / 3)
    }

    /// The settings of a server of this certificate. Nothing is resumed, so that every connection
    /// is checked against the certificates and the CA of its own time.
    pub(crate) fn server_config(&self) -> Result<ServerConfig, Error> {
        let own = SingleCertAndKey::from(Arc::clone(&self.0.own));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)?
            .with_client_cert_verifier(Arc::clone(&self.0.clients) as _)
            .with_cert_resolver(Arc::new(own));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// The settings of a client with this certificate that wants to talk to `expected` alone.
    pub(crate) fn client_config(&self, expected: Identity) -> Result<ClientConfig, Error> {
        let own = SingleCertAndKey::from(Arc::clone(&self.0.own));
        let verifier = ExpectServer { roots: Arc::clone(&self.0.roots), expected };
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

    fn load_once(settings: &TlsSettings) -> Result<Self, CredentialsError> {
        let roots = Arc::new(trusted(settings)?);
        let clients = Arc::new(client_verifier(settings, &roots)?);
        let own = own_certificate(settings)?;
        check_chain(settings, &own, &roots, &clients)?;
        Ok(Self(Arc::new(Inner {
            identity: own.identity,
            valid_from: own.facts.not_before,
            expires_at: own.facts.not_after,
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
