use std::path::PathBuf;

use serde::Deserialize;

/// The `[tls]` table of every configuration. All files are PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// The CA certificates that are trusted, one or more.
    pub ca: PathBuf,
    /// The own certificate, followed by its intermediates if there are any.
    pub certificate: PathBuf,
    /// The own certificate's private key; its file must be closed to group and others.
    pub key: PathBuf,
    /// The trust domain of the own and of all peers' identities.
    #[serde(default = "default_trust_domain")]
    pub trust_domain: String,
}

fn default_trust_domain() -> String {
    "dpu-offload.local".into()
}
