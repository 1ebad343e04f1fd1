//! Errors of a pool. A call that fails changes nothing.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::{Reservation, SpecError, Usage};

/// Why no address was allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// All addresses are held, or went into cool-down in the last [`SHORTEST_COOL_DOWN`](crate::SHORTEST_COOL_DOWN)
    /// seconds.
    #[error("{subnet} has no free address ({usage})")]
    Exhausted {
        /// The subnet.
        subnet: IpNetwork,
        /// How its addresses are used.
        usage: Usage,
    },
}

/// Why a requested address was not allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError<K> {
    /// Another key holds it.
    #[error("{address} is held by {holder}")]
    InUse {
        /// The requested address.
        address: IpAddr,
        /// The holder.
        holder: K,
    },
    /// It is in cool-down.
    #[error("{address} was freed a short while ago and is in cool-down for another {seconds} s")]
    Cooling {
        /// The requested address.
        address: IpAddr,
        /// The rest of its cool-down in seconds.
        seconds: u64,
    },
    /// The subnet does not contain it.
    #[error("{address} is not in {subnet}")]
    OutsideSubnet {
        /// The requested address.
        address: IpAddr,
        /// The subnet.
        subnet: IpNetwork,
    },
    /// No attachment can hold it.
    #[error("{address} is {why}")]
    Reserved {
        /// The requested address.
        address: IpAddr,
        /// The address's purpose.
        why: Reservation,
    },
    /// The key holds an address already.
    #[error("the attachment holds {held} already, and asks for {address}")]
    KeyHoldsAnother {
        /// The address that it holds.
        held: IpAddr,
        /// The requested address.
        address: IpAddr,
    },
}

/// Why a lease of a journal was not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError<K> {
    /// Two keys claim one address.
    #[error("{address} is held by {holder} and claimed by {claimant}")]
    InUse {
        /// The address.
        address: IpAddr,
        /// The holder.
        holder: K,
        /// The second key that claims it.
        claimant: K,
    },
    /// The subnet does not contain it.
    #[error("{address}, held by {key}, is not in {subnet}")]
    OutsideSubnet {
        /// The key.
        key: K,
        /// The address that it claims.
        address: IpAddr,
        /// The subnet.
        subnet: IpNetwork,
    },
    /// One key claims two addresses.
    #[error("{key} holds {held} and claims {claimed}")]
    KeyHoldsAnother {
        /// The key.
        key: K,
        /// The address that it holds.
        held: IpAddr,
        /// The second address that it claims.
        claimed: IpAddr,
    },
}

/// Why a pool was not resized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError<K> {
    /// The new specification is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A held address is not in the new pool.
    #[error("{address}, held by {key}, has no place in the new subnet")]
    LeaseInTheWay {
        /// The holder.
        key: K,
        /// The address.
        address: IpAddr,
    },
}
