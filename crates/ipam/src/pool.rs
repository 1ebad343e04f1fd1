//! Who holds which address.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    net::IpAddr,
};

use crate::{
    AllocateError, RequestError, ResizeError, RestoreError, SpecError, SubnetSpec, Usage,
    addresses::Addresses,
    cooling::Cooling,
    subnet::{Standing, Subnet},
};

/// The shortest cool-down of an address, in seconds, when nothing else is free.
pub const SHORTEST_COOL_DOWN: u64 = 5;

/// The addresses of one subnet, and who holds them. `K` names a holder: an attachment.
///
/// An address is *taken* while it is held and while it rests; the leases say by whom it is held.
#[derive(Debug)]
pub struct Pool<K> {
    cool_down: u64,
    // Not by the standard hasher, which would take half of an allocation's time; this one, too, is seeded at
    // random.
    leases: HashMap<K, u128, ahash::RandomState>,
    cooling: Cooling,
    addresses: Addresses,
}

impl<K: Copy + Eq + Hash> Pool<K> {
    /// A pool of which nothing is held. An address that is given back rests for `cool_down` seconds.
    ///
    /// # Errors
    /// The specification cannot be.
    pub fn new(spec: SubnetSpec, cool_down: u64) -> Result<Self, SpecError> {
        let addresses = Addresses::new(Subnet::new(spec)?);
        Ok(Self { cool_down, leases: HashMap::default(), cooling: Cooling::default(), addresses })
    }

    /// Gives `key` the next free address, or the one that it holds already. `None`: no address is free.
    pub fn allocate_free(&mut self, key: K, now: u64) -> Option<IpAddr> {
        let gap = match self.leases.entry(key) {
            Entry::Occupied(lease) => return Some(self.addresses.subnet().address(*lease.get())),
            Entry::Vacant(gap) => gap,
        };
        self.cooling.take_due(now).for_each(|number| self.addresses.free(number));
        let number = self.addresses.take_next()?;
        Some(self.addresses.subnet().address(*gap.insert(number)))
    }

    /// As [`Self::allocate_free`]. When no address is free, gives the one that has been in cool-down longest, if that is
    /// for more than [`SHORTEST_COOL_DOWN`].
    ///
    /// # Errors
    /// No address is free, and none has been in cool-down for long enough.
    pub fn allocate(&mut self, key: K, now: u64) -> Result<IpAddr, AllocateError> {
        if let Some(address) = self.allocate_free(key, now) {
            return Ok(address);
        }
        self.cooling.shorten(self.latest_end(now));
        // The fraction of a second in which an address was given back is unknown, hence "more than".
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

    /// The latest end that a cool-down can have.
    const fn latest_end(&self, now: u64) -> u64 {
        now.saturating_add(self.cool_down)
    }

    /// Gives `key` this very `address`, which may lie outside the ranges.
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
        if let Some(until) = self.rest_of(number).filter(|until| *until > now) {
            return Err(RequestError::Cooling { address, seconds: until - now });
        }
        self.hold(key, number);
        Ok(address)
    }

    /// Takes back what `key` holds. The address rests before it is handed out again. `None`: the key
    /// held none.
    pub fn release(&mut self, key: &K, now: u64) -> Option<IpAddr> {
        let number = self.leases.remove(key)?;
        if self.cool_down == 0 {
            self.addresses.free(number);
        } else {
            self.cooling.add(number, self.latest_end(now));
        }
        Some(self.subnet().address(number))
    }

    /// Takes back what `key` was given but has never used; the address does not rest. `None`: the
    /// key held none.
    pub fn forget(&mut self, key: &K) -> Option<IpAddr> {
        let number = self.leases.remove(key)?;
        self.addresses.free(number);
        Some(self.subnet().address(number))
    }

    /// Lets `key` hold `address`, as a journal says that it does: even a reserved one, or one that
    /// rests, since what is in use is a fact.
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

    /// Lets `address` rest until `until`, as a journal says that it does; `u64::MAX` is for ever. One that is held or not in
    /// the subnet is left alone; of two rests the later end counts.
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

    /// Ends the rest of `address`, for whoever may have it before that is over. One that does not rest is
    /// left alone.
    pub fn end_rest(&mut self, address: IpAddr) {
        let Some(number) = self.subnet().number(address) else { return };
        if self.rest_of(number).is_some() {
            self.cooling.remove(number);
            self.addresses.free(number);
        }
    }

    /// The address that `key` holds.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<IpAddr> {
        self.leases.get(key).map(|&number| self.subnet().address(number))
    }

    /// Who holds `address`. Looks at every lease if the address is taken.
    #[must_use]
    pub fn holder(&self, address: IpAddr) -> Option<&K> {
        let number = self.subnet().number(address)?;
        let leases = self.addresses.is_taken(number).then(|| self.leases.iter());
        leases?.find(|&(_, &held)| held == number).map(|(key, _)| key)
    }

    /// How the addresses are used.
    #[must_use]
    pub fn usage(&self, now: u64) -> Usage {
        Usage {
            capacity: self.subnet().capacity(),
            held: self.leases.len() as u64,
            cooling: self.cooling.count(now) as u64,
        }
    }

    /// Who holds what, in no particular order.
    pub fn leases(&self) -> impl Iterator<Item = (&K, IpAddr)> {
        self.leases.iter().map(|(key, &number)| (key, self.subnet().address(number)))
    }

    /// What the pool was made of.
    #[must_use]
    pub const fn spec(&self) -> &SubnetSpec {
        self.subnet().spec()
    }

    /// Makes the pool another one under its live leases: wider, narrower, with other ranges. A lease
    /// is in the way if its address would leave the subnet or the ranges or become a reserved one.
    /// Leases outside the ranges, made by asking for the address, stay where the subnet has it.
    ///
    /// # Errors
    /// The specification cannot be, or a lease is in the way. Nothing has changed.
    pub fn resize(&mut self, spec: SubnetSpec) -> Result<(), ResizeError<K>> {
        let subnet = Subnet::new(spec)?;
        let is_displaced =
            |address: IpAddr| subnet.standing(address) < self.subnet().standing(address);
        if let Some((&key, address)) = self.leases().find(|&(_, address)| is_displaced(address)) {
            return Err(ResizeError::LeaseInTheWay { key, address });
        }
        let old = self.addresses.subnet();
        self.cooling.retain(|number| subnet.standing(old.address(number)) != Standing::Outside);
        self.addresses.move_to(subnet, self.leases.values().copied().chain(self.cooling.iter()));
        Ok(())
    }

    const fn subnet(&self) -> &Subnet {
        self.addresses.subnet()
    }

    /// When the rest of an address ends that does rest.
    fn rest_of(&self, number: u128) -> Option<u64> {
        if self.addresses.is_taken(number) { self.cooling.until(number) } else { None }
    }

    /// Lets `key` hold an address that is free or rests.
    fn hold(&mut self, key: K, number: u128) {
        if self.addresses.is_taken(number) {
            self.cooling.remove(number);
        }
        self.addresses.take(number);
        self.leases.insert(key, number);
    }
}
