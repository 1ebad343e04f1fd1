//! Authors of changes.

use std::fmt;

use serde::{Deserialize, Serialize};

use model::HostName;

/// The author of a change, displayed as `operator/alice`, `host/node-1`, `configuration file` or `dpu-service`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// The service itself, such as its reconciler.
    #[default]
    Service,
    /// The person who edits the configuration file.
    ConfigurationFile,
    /// A host, by the name in its certificate.
    Host(HostName),
    /// An operator, by the name in the certificate.
    Operator(String),
}

impl Author {
    pub fn is_service(&self) -> bool {
        *self == Self::Service
    }
}

/// Author and reason of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    pub author: Author,
    /// The reason in the author's words. Empty: none was given.
    pub reason: String,
}

impl Cause {
    pub fn new(author: Author, reason: impl Into<String>) -> Self {
        Self { author, reason: reason.into() }
    }
}

impl fmt::Display for Author {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service => out.write_str("dpu-service"),
            Self::ConfigurationFile => out.write_str("configuration file"),
            Self::Host(name) => write!(out, "host/{name}"),
            Self::Operator(name) => write!(out, "operator/{name}"),
        }
    }
}
