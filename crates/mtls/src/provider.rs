//! The choice of cryptography.

use std::sync::{Arc, LazyLock};

use rustls::{
    SupportedProtocolVersion,
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring},
    version::TLS13,
};

pub(crate) const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13];

/// The ALPN name of HTTP/2, the only protocol inside TLS.
pub(crate) const ALPN: &[u8] = b"h2";

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(ring::default_provider()));

/// The provider for all builders. Process-wide defaults are not used.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::clone(&PROVIDER)
}

pub(crate) fn signature_algorithms() -> WebPkiSupportedAlgorithms {
    PROVIDER.signature_verification_algorithms
}

#[cfg(test)]
mod tests {
    use rustls::{CipherSuite, NamedGroup};

    use super::*;

    /// Fails if an upgrade of rustls changes what is offered.
    #[test]
    fn cipher_suites_and_groups_are_these() {
        let suites: Vec<_> =
            PROVIDER.cipher_suites.iter().map(rustls::SupportedCipherSuite::suite).collect();
        let groups: Vec<_> = PROVIDER.kx_groups.iter().map(|group| group.name()).collect();
        assert_eq!(
            suites,
            [
                CipherSuite::TLS13_AES_256_GCM_SHA384,
                CipherSuite::TLS13_AES_128_GCM_SHA256,
                CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
            ]
        );
        assert_eq!(groups, [NamedGroup::X25519, NamedGroup::secp256r1, NamedGroup::secp384r1]);
    }
}
