//! Identities, certificates and mutual TLS 1.3 between hosts, DPUs and operators. Certificates can be replaced while
//! the programs run.
//!
//! - [`Credentials`] are a consistent set of own certificate, key and CA; [`LiveCredentials`] follow the files.
//! - [`Server`] accepts connections and determines each peer's [`Identity`]; [`incoming`] feeds them to tonic, whose
//!   requests then carry a [`Peer`] in their extensions.
//! - [`Connector`] opens connections to a DPU of a given name, as tonic channels.
//! - [`authority`] creates certificates for development.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod authority;
mod certificate;
mod client_stream;
mod connection_limits;
mod connector;
mod credentials;
mod error;
mod files;
mod identity;
mod lifetime;
mod listener;
mod live;
mod provider;
mod reason;
mod renewal;
mod server;
mod settings;
mod tcp;
mod term;
mod validity;
mod verifier;

pub use client_stream::ClientStream;
pub use connector::{ConnectError, Connector, EndpointError};
pub use credentials::Credentials;
pub use error::{CredentialsError, Item};
pub use identity::{Identity, IdentityError, NAME_LIMIT, Role};
pub use listener::{Limits, incoming};
pub use live::LiveCredentials;
pub use server::{ConnectionNumber, HandshakeError, Peer, RefusedPeer, Server, ServerStream};
pub use settings::{ExpiryWarning, TlsSettings};
pub use validity::Validity;
