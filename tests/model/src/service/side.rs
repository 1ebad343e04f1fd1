//! What the service does differently where a protection is taken out, and what it can give out.

use crate::{
    names::Address,
    protection::{Protection, Protections},
};

/// The service's side of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSide<'a> {
    protections: Protections<'a>,
    addresses: u8,
    may_promise: bool,
}

impl<'a> ServiceSide<'a> {
    /// That of a service with these protections, that has so many addresses to give out and may promise VFs or not.
    #[must_use]
    pub fn new(protections: Protections<'a>, addresses: u8, may_promise: bool) -> Self {
        Self { protections, addresses, may_promise }
    }

    pub(super) fn may_promise(&self) -> bool {
        self.may_promise
    }

    pub(super) fn has(&self, protection: Protection) -> bool {
        self.protections.has(protection)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = Address> + use<> {
        (0..self.addresses).map(Address)
    }
}
