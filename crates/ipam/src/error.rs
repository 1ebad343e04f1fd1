//! Errors of a pool. A call that fails changes nothing.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::{Reservation, SpecError, Usage};

/// Why no address was allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum AllocateError {
    /// All addresses are held, or went into cool-down in the last [`SHORTEST_COOL_DOWN`](crate::SHORTEST_COOL_DOWN)
    /// seconds.
    #[error("{subnet} has no free address ({usage})")]
    Exhausted { subnet: IpNetwork, usage: Usage },
}

/// Why a requested address was not allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum RequestError<K> {
    #[error("{address} is held by {holder}")]
    InUse { address: IpAddr, holder: K },
    #[error("{address} was freed a short while ago and is in cool-down for another {seconds} s")]
    Cooling { address: IpAddr, seconds: u64 },
    #[error("{address} is not in {subnet}")]
    OutsideSubnet { address: IpAddr, subnet: IpNetwork },
    #[error("{address} is {why}")]
    Reserved { address: IpAddr, why: Reservation },
    #[error("the attachment holds {held} already, and asks for {address}")]
    KeyHoldsAnother { held: IpAddr, address: IpAddr },
}

/// Why a lease of a journal was not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum RestoreError<K> {
    #[error("{address} is held by {holder} and claimed by {claimant}")]
    InUse { address: IpAddr, holder: K, claimant: K },
    #[error("{address}, held by {key}, is not in {subnet}")]
    OutsideSubnet { key: K, address: IpAddr, subnet: IpNetwork },
    #[error("{key} holds {held} and claims {claimed}")]
    KeyHoldsAnother { key: K, held: IpAddr, claimed: IpAddr },
}

/// Why a pool was not resized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum ResizeError<K> {
    /// The new specification is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("{address}, held by {key}, has no place in the new subnet")]
    LeaseInTheWay { key: K, address: IpAddr },
}
