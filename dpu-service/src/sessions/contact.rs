//! Where a host last connected from, and whether it was accepted.

use std::net::IpAddr;

use jiff::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    pub address: IpAddr,
    pub refusal: Option<Refusal>,
}

/// A refused connection with a host's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why: one clause without a final stop.
    pub reason: String,
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
