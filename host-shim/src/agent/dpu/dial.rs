//! What a connection to the DPU is opened with: the agent's certificate, and a connector to the one DPU that
//! the configuration names.

use bootstrap::Chain;
use mtls::{Connector, LiveCredentials, Role};
use offload_proto::{Failure, Reason};

use crate::agent::config::Config;

/// The certificates that the configuration names, and what dials the DPU with them.
///
/// # Errors
/// [`Reason::CertificateRefused`]: what the configuration names is not good.
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
