//! What ends the service, or keeps it from starting.

use std::io;

use mtls::CredentialsError;

use crate::{driver::Refused, records::OpenError, server::ServeError};

/// Why the service could not start, or went down.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A driver can't work here.
    #[error(transparent)]
    Driver(#[from] Refused),
    /// The certificates are not good.
    #[error("the service's certificate can't be used")]
    Credentials(#[from] CredentialsError),
    /// The journal can't be used, though its file can be read. It is as it was, and so is the traffic
    /// of running pods.
    #[error("the service can't start")]
    Journal(#[from] OpenError),
    /// The system lets no signal handler be set.
    #[error("can't wait for signals")]
    Signals(#[source] io::Error),
    /// Serving failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
}
