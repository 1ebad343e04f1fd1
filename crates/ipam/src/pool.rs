//! Who holds which address.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::Hash,
    net::IpAddr,
};

use crate::{
    AllocateError, RequestError, ResizeError, RestoreError, SpecError, SubnetSpec, subnet::Subnet,
};

/// How a pool's addresses are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many addresses there are to be handed out unasked.
    pub capacity: u128,
    /// How many are held, with those that were asked for by name and may lie outside the ranges.
    pub held: u64,
    /// How many have been given back and still rest.
    pub cooling: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, held, cooling } = self;
        write!(out, "of {capacity}, {held} are held and {cooling} cool down")
    }
}

/// The addresses of one subnet, and who holds them. `K` names a holder: an attachment.
#[derive(Debug)]
pub struct Pool<K> {
    subnet: Subnet,
    cool_down: u64,
    by_key: HashMap<K, u128>,
    by_number: BTreeMap<u128, K>,
    cooling: BTreeMap<u128, u64>,
    cursor: u128,
}

impl<K: Clone + Eq + Hash> Pool<K> {
    /// A pool of which nothing is held. An address that is given back rests for `cool_down` seconds.
    ///
    /// # Errors
    /// The specification cannot be.
    pub fn new(spec: SubnetSpec, cool_down: u64) -> Result<Self, SpecError> {
        let subnet = Subnet::new(spec)?;
        Ok(Self {
            subnet,
            cool_down,
            by_key: HashMap::new(),
            by_number: BTreeMap::new(),
            cooling: BTreeMap::new(),
            cursor: 0,
        })
    }

    /// Gives `key` the next free address, or the one that it holds already.
    ///
    /// # Errors
    /// None is free.
    pub fn allocate(&mut self, key: K, now: u64) -> Result<IpAddr, AllocateError> {
        if let Some(held) = self.get(&key) {
            return Ok(held);
        }
        self.wake(now);
        let number = self.next_free().ok_or_else(|| AllocateError::Exhausted {
            subnet: self.subnet.cidr(),
            usage: self.usage(now),
        })?;
        self.cursor = number.wrapping_add(1);
        self.hold(key, number);
        Ok(self.subnet.address(number))
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
        if let Some(held) = self.get(&key) {
            return if held == address {
                Ok(held)
            } else {
                Err(RequestError::KeyHoldsAnother { held, address })
            };
        }
        let subnet = self.subnet.cidr();
        let number =
            self.subnet.number(address).ok_or(RequestError::OutsideSubnet { address, subnet })?;
        if let Some(why) = self.subnet.reservation(number) {
            return Err(RequestError::Reserved { address, why });
        }
        if let Some(holder) = self.by_number.get(&number) {
            return Err(RequestError::InUse { address, holder: holder.clone() });
        }
        self.wake(now);
        if let Some(until) = self.cooling.get(&number) {
            return Err(RequestError::Cooling { address, seconds: until - now });
        }
        self.hold(key, number);
        Ok(address)
    }

    /// Takes back what `key` holds. The address rests before it is handed out again. `None`: the key
    /// held none.
    pub fn release(&mut self, key: &K, now: u64) -> Option<IpAddr> {
        let number = self.drop_lease(key)?;
        if self.cool_down > 0 {
            self.cooling.insert(number, now.saturating_add(self.cool_down));
        }
        Some(self.subnet.address(number))
    }

    /// Takes back what `key` was given but has never used; the address does not rest. `None`: the key
    /// held none.
    pub fn forget(&mut self, key: &K) -> Option<IpAddr> {
        let number = self.drop_lease(key)?;
        Some(self.subnet.address(number))
    }

    /// Lets `key` hold `address`, as a journal says that it does: even a reserved one, or one that
    /// rests, since what is in use is a fact.
    ///
    /// # Errors
    /// The address has another holder or is not in the subnet, or the key holds another address.
    pub fn restore(&mut self, key: K, address: IpAddr) -> Result<(), RestoreError<K>> {
        if let Some(held) = self.get(&key) {
            return if held == address {
                Ok(())
            } else {
                Err(RestoreError::KeyHoldsAnother { key, held, claimed: address })
            };
        }
        let subnet = self.subnet.cidr();
        let Some(number) = self.subnet.number(address) else {
            return Err(RestoreError::OutsideSubnet { key, address, subnet });
        };
        if let Some(holder) = self.by_number.get(&number) {
            return Err(RestoreError::InUse { address, holder: holder.clone(), claimant: key });
        }
        self.cooling.remove(&number);
        self.hold(key, number);
        Ok(())
    }

    /// Lets `address` rest until `until`, as a journal says that it does. One that is held or not in
    /// the subnet is left alone; of two rests the later end counts.
    pub fn rest(&mut self, address: IpAddr, until: u64) {
        let Some(number) = self.subnet.number(address) else { return };
        if !self.by_number.contains_key(&number) {
            let end = self.cooling.entry(number).or_default();
            *end = until.max(*end);
        }
    }

    /// The address that `key` holds.
    pub fn get(&self, key: &K) -> Option<IpAddr> {
        self.by_key.get(key).map(|&number| self.subnet.address(number))
    }

    /// Who holds `address`. Searches: meant for messages, not for each packet.
    pub fn holder(&self, address: IpAddr) -> Option<&K> {
        self.by_number.get(&self.subnet.number(address)?)
    }

    /// How the addresses are used.
    pub fn usage(&self, now: u64) -> Usage {
        Usage {
            capacity: self.subnet.capacity(),
            held: self.by_key.len() as u64,
            cooling: self.cooling.values().filter(|&&until| until > now).count() as u64,
        }
    }

    /// Who holds what, in no particular order.
    pub fn leases(&self) -> impl Iterator<Item = (&K, IpAddr)> {
        self.by_key.iter().map(|(key, &number)| (key, self.subnet.address(number)))
    }

    /// What the pool was made of.
    pub fn spec(&self) -> &SubnetSpec {
        self.subnet.spec()
    }

    /// Makes the pool another one under its live leases: wider, narrower, with other ranges. Leases
    /// outside the ranges, made by asking for the address, stay where the subnet still has it.
    ///
    /// # Errors
    /// The specification cannot be, or a lease has no place in it. Nothing has changed.
    pub fn resize(&mut self, spec: SubnetSpec) -> Result<(), ResizeError<K>> {
        let subnet = Subnet::new(spec)?;
        for (&number, key) in &self.by_number {
            let address = self.subnet.address(number);
            let was_open = self.subnet.is_open(number);
            let number = subnet.number(address);
            if number.is_none_or(|number| {
                subnet.reservation(number).is_some() || was_open && !subnet.is_open(number)
            }) {
                return Err(ResizeError::LeaseInTheWay { key: key.clone(), address });
            }
        }
        let old = std::mem::replace(&mut self.subnet, subnet);
        self.cooling.retain(|&number, _| self.subnet.number(old.address(number)).is_some());
        Ok(())
    }

    fn wake(&mut self, now: u64) {
        self.cooling.retain(|_, until| *until > now);
    }

    fn next_free(&self) -> Option<u128> {
        let open = self.subnet.open();
        let from = |start: u128| {
            open.iter()
                .filter(move |span| span.1 >= start)
                .flat_map(move |span| span.0.max(start)..=span.1)
        };
        let free = |number: &u128| {
            !self.by_number.contains_key(number) && !self.cooling.contains_key(number)
        };
        from(self.cursor).find(free).or_else(|| from(0).find(free))
    }

    fn hold(&mut self, key: K, number: u128) {
        self.by_key.insert(key.clone(), number);
        self.by_number.insert(number, key);
    }

    fn drop_lease(&mut self, key: &K) -> Option<u128> {
        let number = self.by_key.remove(key)?;
        self.by_number.remove(&number);
        Some(number)
    }
}
