//! From where a host was last heard of, and how that went.

use std::net::IpAddr;

use jiff::Timestamp;

/// The latest connection of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Where it came from.
    pub address: IpAddr,
    /// Why it was refused, if it was.
    pub refusal: Option<Refusal>,
}

/// That a connection with a host's certificate was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why: one clause without a final stop.
    pub reason: String,
    /// When.
    pub at: Timestamp,
}

impl Contact {
    pub(super) const fn accepted(address: IpAddr) -> Self {
        Self { address, refusal: None }
    }

    pub(super) fn refused(address: IpAddr, reason: &str) -> Self {
        let refusal = Refusal { reason: reason.to_owned(), at: Timestamp::now() };
        Self { address, refusal: Some(refusal) }
    }
}
