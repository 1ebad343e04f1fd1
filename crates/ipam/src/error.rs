//! Why a pool refuses. Nothing has changed when it does.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::{Reservation, SpecError, Usage};

/// Why no address was handed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// All are held, or went into cool-down in the last [`SHORTEST_COOL_DOWN`](crate::SHORTEST_COOL_DOWN) seconds.
    #[error("{subnet} has no free address ({usage})")]
    Exhausted {
        /// The subnet.
        subnet: IpNetwork,
        /// How its addresses are used.
        usage: Usage,
    },
}

/// Why a particular address was not handed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError<K> {
    /// Somebody else holds it.
    #[error("{address} is held by {holder}")]
    InUse {
        /// The address asked for.
        address: IpAddr,
        /// Who holds it.
        holder: K,
    },
    /// It was given back a short while ago.
    #[error("{address} was given back a short while ago and cools down for another {seconds} s")]
    Cooling {
        /// The address asked for.
        address: IpAddr,
        /// How long it will go on resting.
        seconds: u64,
    },
    /// The subnet does not contain it.
    #[error("{address} is not in {subnet}")]
    OutsideSubnet {
        /// The address asked for.
        address: IpAddr,
        /// The subnet.
        subnet: IpNetwork,
    },
    /// It is nobody's to hold.
    #[error("{address} is {why}")]
    Reserved {
        /// The address asked for.
        address: IpAddr,
        /// What it is instead.
        why: Reservation,
    },
    /// The key holds an address already.
    #[error("the attachment holds {held} already, and asks for {address}")]
    KeyHoldsAnother {
        /// The address that it holds.
        held: IpAddr,
        /// The address asked for.
        address: IpAddr,
    },
}

/// Why a lease could not be taken over from a journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError<K> {
    /// Two keys claim one address.
    #[error("{address} is held by {holder} and claimed by {claimant}")]
    InUse {
        /// The address.
        address: IpAddr,
        /// Who holds it.
        holder: K,
        /// Who claims it too.
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
        /// The address that it claims too.
        claimed: IpAddr,
    },
}

/// Why a pool cannot become another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError<K> {
    /// The new specification cannot be.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The new pool would not hand out an address that is held.
    #[error("{address}, held by {key}, has no place in the new subnet")]
    LeaseInTheWay {
        /// Who holds it.
        key: K,
        /// The address.
        address: IpAddr,
    },
}
