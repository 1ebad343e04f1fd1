//! A pool: its addresses and their holders.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    net::IpAddr,
};

use crate::{
    AllocateError, RequestError, ResizeError, RestoreError, SpecError, SubnetSpec, Usage,
    addresses::Addresses,
    cooling::Cooling,
    subnet::{Availability, Subnet},
};

/// The shortest cool-down in seconds, when no other address is free.
pub const SHORTEST_COOL_DOWN: u64 = 5;

/// The addresses of one subnet and their holders. `K` is the key of a holder: an attachment.
///
/// An address is *taken* while it is held and during its cool-down. The leases record the holders.
#[derive(Debug)]
pub struct Pool<K> {
    cool_down: u64,
    // The standard hasher would take half of an allocation's time. This one also has a random seed.
    leases: HashMap<K, u128, ahash::RandomState>,
    cooling: Cooling,
    addresses: Addresses,
}

impl<K: Copy + Eq + Hash> Pool<K> {
    /// Returns a pool without leases. A freed address is in cool-down for `cool_down` seconds.
    ///
    /// # Errors
    /// The specification is invalid.
    pub fn new(spec: SubnetSpec, cool_down: u64) -> Result<Self, SpecError> {
        let addresses = Addresses::new(Subnet::new(spec)?);
        Ok(Self { cool_down, leases: HashMap::default(), cooling: Cooling::default(), addresses })
    }

    /// Gives `key` the next free address, or the one that it holds. `None`: no address is free.
    pub fn allocate_free(&mut self, key: K, now: u64) -> Option<IpAddr> {
        let gap = match self.leases.entry(key) {
            Entry::Occupied(lease) => return Some(self.addresses.subnet().address(*lease.get())),
            Entry::Vacant(gap) => gap,
        };
        self.cooling.take_due(now).for_each(|number| self.addresses.free(number));
        let number = self.addresses.take_next()?;
        Some(self.addresses.subnet().address(*gap.insert(number)))
    }

    /// As [`Self::allocate_free`]. When no address is free, gives the one whose cool-down began first, if that was
    /// more than [`SHORTEST_COOL_DOWN`] ago.
    ///
    /// # Errors
    /// No address is free, and none has been in cool-down for long enough.
    pub fn allocate(&mut self, key: K, now: u64) -> Result<IpAddr, AllocateError> {
        if let Some(address) = self.allocate_free(key, now) {
            return Ok(address);
        }
        self.cooling.shorten(self.latest_end(now));
        // Times are whole seconds, so an address may have been freed up to a second later: hence "more than".
        let ends_before = self.latest_end(now).saturating_sub(SHORTEST_COOL_DOWN);
        let subnet = self.addresses.subnet();
        match self.cooling.take_earliest(ends_before, |number| subnet.rank(number).is_ok()) {
            Some(number) => {
                self.leases.insert(key, number);
                Ok(self.subnet().address(number))
            }
            None => {
                let subnet = self.spec().cidr;
                Err(AllocateError::Exhausted { subnet, usage: self.usage(now) })
            }
        }
    }

    /// When the first cool-down ends. `None`: no address is in cool-down.
    #[must_use]
    pub fn first_end(&self) -> Option<u64> {
        self.cooling.first_end()
    }

    /// The latest time at which a cool-down can end.
    const fn latest_end(&self, now: u64) -> u64 {
        now.saturating_add(self.cool_down)
    }

    /// Gives `key` the requested `address`, which may be outside the ranges.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn request(
        &mut self,
        key: K,
        address: IpAddr,
        now: u64,
    ) -> Result<IpAddr, RequestError<K>> {
        self.cooling.shorten(self.latest_end(now));
        if let Some(held) = self.get(&key) {
            let another = RequestError::KeyHoldsAnother { held, address };
            return if held == address { Ok(held) } else { Err(another) };
        }
        let (number, subnet) = (self.subnet().number(address), self.spec().cidr);
        let number = number.ok_or(RequestError::OutsideSubnet { address, subnet })?;
        if let Some(why) = self.subnet().reservation(number) {
            return Err(RequestError::Reserved { address, why });
        }
        if let Some(&holder) = self.holder(address) {
            return Err(RequestError::InUse { address, holder });
        }
        if let Some(until) = self.cool_down_of(number).filter(|until| *until > now) {
            return Err(RequestError::Cooling { address, seconds: until - now });
        }
        self.hold(key, number);
        Ok(address)
    }

    /// Frees the address of `key` and starts its cool-down. `None`: the key held none.
    pub fn release(&mut self, key: &K, now: u64) -> Option<IpAddr> {
        let number = self.leases.remove(key)?;
        if self.cool_down == 0 {
            self.addresses.free(number);
        } else {
            self.cooling.add(number, self.latest_end(now));
        }
        Some(self.subnet().address(number))
    }

    /// Frees the address of `key`, which was never used, without a cool-down. `None`: the key held none.
    pub fn forget(&mut self, key: &K) -> Option<IpAddr> {
        let number = self.leases.remove(key)?;
        self.addresses.free(number);
        Some(self.subnet().address(number))
    }

    /// Restores a lease from a journal, even of a reserved address or one in cool-down: the address is in use.
    ///
    /// # Errors
    /// The address has another holder or is not in the subnet, or the key holds another address.
    pub fn restore(&mut self, key: K, address: IpAddr) -> Result<(), RestoreError<K>> {
        if let Some(held) = self.get(&key) {
            let another = RestoreError::KeyHoldsAnother { key, held, claimed: address };
            return if held == address { Ok(()) } else { Err(another) };
        }
        let Some(number) = self.subnet().number(address) else {
            return Err(RestoreError::OutsideSubnet { key, address, subnet: self.spec().cidr });
        };
        if let Some(&holder) = self.holder(address) {
            return Err(RestoreError::InUse { address, holder, claimant: key });
        }
        self.hold(key, number);
        Ok(())
    }

    /// Restores the cool-down of `address` from a journal; `u64::MAX` is endless. Ignores an address that is held
    /// or outside the subnet. Of two cool-downs the later end counts.
    pub fn rest(&mut self, address: IpAddr, until: u64) {
        let Some(number) = self.subnet().number(address) else { return };
        if self.addresses.is_taken(number) {
            if self.cooling.until(number).is_none_or(|known| until <= known) {
                return;
            }
            self.cooling.remove(number);
        }
        self.addresses.take(number);
        self.cooling.add(number, until);
    }

    /// Ends the cool-down of `address`, for its former owner. Does nothing if it is not in cool-down.
    pub fn end_cool_down(&mut self, address: IpAddr) {
        let Some(number) = self.subnet().number(address) else { return };
        if self.cool_down_of(number).is_some() {
            self.cooling.remove(number);
            self.addresses.free(number);
        }
    }

    /// The address that `key` holds.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<IpAddr> {
        self.leases.get(key).map(|&number| self.subnet().address(number))
    }

    /// The holder of `address`. Searches all leases if the address is taken.
    #[must_use]
    pub fn holder(&self, address: IpAddr) -> Option<&K> {
        let number = self.subnet().number(address)?;
        let leases = self.addresses.is_taken(number).then(|| self.leases.iter());
        leases?.find(|&(_, &held)| held == number).map(|(key, _)| key)
    }

    /// The usage of the addresses.
    #[must_use]
    pub fn usage(&self, now: u64) -> Usage {
        Usage {
            capacity: self.subnet().capacity(),
            held: self.leases.len() as u64,
            cooling: self.cooling.count(now) as u64,
        }
    }

    /// All leases, in no particular order.
    pub fn leases(&self) -> impl Iterator<Item = (&K, IpAddr)> {
        self.leases.iter().map(|(key, &number)| (key, self.subnet().address(number)))
    }

    /// The pool's specification.
    #[must_use]
    pub const fn spec(&self) -> &SubnetSpec {
        self.subnet().spec()
    }

    /// Changes the subnet or its ranges under live leases. Fails if a held address would leave the subnet or the
    /// ranges or become reserved. Requested addresses outside the ranges may stay where they are.
    ///
    /// # Errors
    /// The specification is invalid, or a lease has no place. Nothing has changed.
    pub fn resize(&mut self, spec: SubnetSpec) -> Result<(), ResizeError<K>> {
        let subnet = Subnet::new(spec)?;
        let is_displaced =
            |address: IpAddr| subnet.availability(address) < self.subnet().availability(address);
        if let Some((&key, address)) = self.leases().find(|&(_, address)| is_displaced(address)) {
            return Err(ResizeError::LeaseInTheWay { key, address });
        }
        let old = self.addresses.subnet();
        self.cooling
            .retain(|number| subnet.availability(old.address(number)) != Availability::Outside);
        self.addresses.move_to(subnet, self.leases.values().copied().chain(self.cooling.iter()));
        Ok(())
    }

    const fn subnet(&self) -> &Subnet {
        self.addresses.subnet()
    }

    /// When the cool-down of an address ends, if it is in cool-down.
    fn cool_down_of(&self, number: u128) -> Option<u64> {
        if self.addresses.is_taken(number) { self.cooling.until(number) } else { None }
    }

    /// Gives `key` an address that is free or in cool-down.
    fn hold(&mut self, key: K, number: u128) {
        if self.addresses.is_taken(number) {
            self.cooling.remove(number);
        }
        self.addresses.take(number);
        self.leases.insert(key, number);
    }
}
