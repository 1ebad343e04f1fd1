//! The service's side of the protocol, with its protections and its addresses.

use crate::{
    names::Address,
    protection::{Protection, Protections},
};

/// The service's side of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSide<'a> {
    protections: Protections<'a>,
    addresses: u8,
    may_offer: bool,
}

impl<'a> ServiceSide<'a> {
    /// The side of a service with these protections and addresses. `may_offer`: whether it offers VFs.
    #[must_use]
    pub fn new(protections: Protections<'a>, addresses: u8, may_offer: bool) -> Self {
        Self { protections, addresses, may_offer }
    }

    pub(super) fn may_offer(&self) -> bool {
        self.may_offer
    }

    pub(super) fn has(&self, protection: Protection) -> bool {
        self.protections.has(protection)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = Address> + use<> {
        (0..self.addresses).map(Address)
    }
}
