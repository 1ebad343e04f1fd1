//! Errors that end the service or keep it from starting.

use std::io;

use mtls::CredentialsError;

use crate::{records::OpenError, server::ServeError};
use drivers::driver::Refused;

/// Why the service could not start or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(transparent)]
    Driver(#[from] Refused),
    #[error("the service's certificate can't be used")]
    Credentials(#[from] CredentialsError),
    /// The journal cannot be used although its file can be read. The file and running pods are left unchanged.
    #[error("the service can't start")]
    Journal(#[from] OpenError),
    #[error("can't wait for signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Serve(#[from] ServeError),
}
