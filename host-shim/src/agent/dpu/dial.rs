//! Credentials and connector for the connection to the configured DPU.

use bootstrap::Chain;
use mtls::{Connector, LiveCredentials, Role};
use offload_proto::{Failure, Reason};

use crate::agent::config::Config;

/// Loads the configured certificates and creates the connector that uses them.
///
/// # Errors
/// [`Reason::CertificateRefused`]: the configured certificates are missing or invalid.
pub(in crate::agent) fn credentials_and_connector(
    config: &Config,
) -> Result<(LiveCredentials, Connector), Failure> {
    let refused = |error: &(dyn std::error::Error + 'static)| {
        Failure::new(Reason::CertificateRefused, Chain(error).to_string())
    };
    let credentials = LiveCredentials::load(&config.tls, &[Role::Host]);
    let credentials = credentials.map_err(|error| refused(&error))?;
    let (dpu, limit) = (&config.dpu, config.timeouts.connect());
    let connector = Connector::new(credentials.clone(), &dpu.endpoint, &dpu.name, limit)
        .map_err(|error| refused(&error))?;
    Ok((credentials, connector))
}
