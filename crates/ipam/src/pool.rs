//! Who holds which address.

use std::{collections::HashSet, fmt, hash::Hash, net::IpAddr};

use crate::{
    AllocateError, RequestError, ResizeError, RestoreError, SpecError, SubnetSpec,
    bitmap::Bitmap,
    cooling::Cooling,
    index::Gap,
    leases::Leases,
    segment::Place,
    subnet::{Standing, Subnet},
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

/// How many addresses one call wakes at most, so that no call pays for a whole second's releases. It
/// is more than one call can put to rest, so that there is never a backlog for long.
const WAKE_PER_CALL: usize = 8;

/// The addresses of one subnet, and who holds them. `K` names a holder: an attachment.
///
/// An address is *taken* while it is held and while it rests; the leases say by whom it is held.
#[derive(Debug)]
pub struct Pool<K> {
    subnet: Subnet,
    capacity: u128,
    cool_down: u64,
    leases: Leases<K>,
    bitmap: Bitmap,
    cooling: Cooling,
    /// Where to look for the next free address: the number after the last one handed out.
    cursor: u128,
}

impl<K: Copy + Eq + Hash> Pool<K> {
    /// A pool of which nothing is held. An address that is given back rests for `cool_down` seconds.
    ///
    /// # Errors
    /// The specification cannot be.
    pub fn new(spec: SubnetSpec, cool_down: u64) -> Result<Self, SpecError> {
        let subnet = Subnet::new(spec)?;
        Ok(Self {
            capacity: subnet.capacity(),
            subnet,
            cool_down,
            leases: Leases::new(),
            bitmap: Bitmap::default(),
            cooling: Cooling::default(),
            cursor: 0,
        })
    }

    /// Gives `key` the next free address, or the one that it holds already.
    ///
    /// # Errors
    /// None is free.
    pub fn allocate(&mut self, key: K, now: u64) -> Result<IpAddr, AllocateError> {
        let gap = match self.leases.find(&key) {
            Ok(place) => return Ok(self.address(place)),
            Err(gap) => gap,
        };
        self.wake(now);
        let number = self.next_free(now).ok_or_else(|| AllocateError::Exhausted {
            subnet: self.subnet.cidr(),
            usage: self.usage(now),
        })?;
        self.cursor = number.wrapping_add(1);
        self.hold(&gap, key, number);
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
        let gap = match self.leases.find(&key).map(|place| self.address(place)) {
            Ok(held) if held == address => return Ok(held),
            Ok(held) => return Err(RequestError::KeyHoldsAnother { held, address }),
            Err(gap) => gap,
        };
        let subnet = self.subnet.cidr();
        let number = self.subnet.number(address);
        let number = number.ok_or(RequestError::OutsideSubnet { address, subnet })?;
        if let Some(why) = self.subnet.reservation(number) {
            return Err(RequestError::Reserved { address, why });
        }
        if let Some(place) = self.bitmap.taken(number) {
            self.vacate(place, address, now)?;
        }
        self.hold(&gap, key, number);
        Ok(address)
    }

    /// Takes back what `key` holds. The address rests before it is handed out again. `None`: the key
    /// held none.
    pub fn release(&mut self, key: &K, now: u64) -> Option<IpAddr> {
        self.wake(now);
        let place = self.leases.remove(key)?;
        let address = self.address(place);
        if self.cool_down == 0 {
            self.free(place);
        } else {
            self.cooling.add(place, now.saturating_add(self.cool_down));
        }
        Some(address)
    }

    /// Takes back what `key` was given but has never used; the address does not rest. `None`: the
    /// key held none.
    pub fn forget(&mut self, key: &K) -> Option<IpAddr> {
        let place = self.leases.remove(key)?;
        let address = self.address(place);
        self.free(place);
        Some(address)
    }

    /// Lets `key` hold `address`, as a journal says that it does: even a reserved one, or one that
    /// rests, since what is in use is a fact.
    ///
    /// # Errors
    /// The address has another holder or is not in the subnet, or the key holds another address.
    pub fn restore(&mut self, key: K, address: IpAddr) -> Result<(), RestoreError<K>> {
        let gap = match self.leases.find(&key).map(|place| self.address(place)) {
            Ok(held) if held == address => return Ok(()),
            Ok(held) => return Err(RestoreError::KeyHoldsAnother { key, held, claimed: address }),
            Err(gap) => gap,
        };
        let Some(number) = self.subnet.number(address) else {
            return Err(RestoreError::OutsideSubnet { key, address, subnet: self.subnet.cidr() });
        };
        if let Some(place) = self.bitmap.taken(number) {
            if let Some(holder) = self.leases.key_at(place).copied() {
                return Err(RestoreError::InUse { address, holder, claimant: key });
            }
            self.wake_early(place);
        }
        self.hold(&gap, key, number);
        Ok(())
    }

    /// Lets `address` rest until `until`, as a journal says that it does. One that is held or not in
    /// the subnet is left alone; of two rests the later end counts.
    pub fn rest(&mut self, address: IpAddr, until: u64) {
        let Some(number) = self.subnet.number(address) else { return };
        let place = match self.bitmap.taken(number) {
            None => self.bitmap.take(&self.subnet, number),
            Some(place) => match self.cooling.until(place) {
                Some(known) if known < until => {
                    self.cooling.remove(place);
                    place
                }
                _ => return,
            },
        };
        self.cooling.add(place, until);
    }

    /// Ends the rest of `address`, for whoever may have it before that is over. One that does not rest is
    /// left alone.
    pub fn end_rest(&mut self, address: IpAddr) {
        let number = self.subnet.number(address);
        let place = number.and_then(|number| self.bitmap.taken(number));
        if let Some(place) = place.filter(|place| self.cooling.until(*place).is_some()) {
            self.wake_early(place);
        }
    }

    /// The address that `key` holds.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<IpAddr> {
        self.leases.get(key).map(|place| self.address(place))
    }

    /// Who holds `address`.
    #[must_use]
    pub fn holder(&self, address: IpAddr) -> Option<&K> {
        let place = self.bitmap.taken(self.subnet.number(address)?)?;
        self.leases.key_at(place)
    }

    /// How the addresses are used.
    #[must_use]
    pub fn usage(&self, now: u64) -> Usage {
        Usage {
            capacity: self.capacity,
            held: self.leases.len() as u64,
            cooling: self.cooling.count(now) as u64,
        }
    }

    /// Who holds what, in no particular order.
    pub fn leases(&self) -> impl Iterator<Item = (&K, IpAddr)> {
        self.leases.iter().map(|(key, place)| (key, self.address(place)))
    }

    /// What the pool was made of.
    #[must_use]
    pub const fn spec(&self) -> &SubnetSpec {
        self.subnet.spec()
    }

    /// Makes the pool another one under its live leases: wider, narrower, with other ranges. A lease
    /// is in the way if its address would leave the subnet or the ranges or become a reserved one.
    /// Leases outside the ranges, made by asking for the address, stay where the subnet has it.
    ///
    /// # Errors
    /// The specification cannot be, or a lease is in the way. Nothing has changed.
    pub fn resize(&mut self, spec: SubnetSpec) -> Result<(), ResizeError<K>> {
        let subnet = Subnet::new(spec)?;
        let displaced = self.displaced(&subnet);
        self.check_unheld(&displaced)?;
        self.end_rests_outside(&subnet, &displaced);
        self.bitmap.reopen(&subnet);
        self.capacity = subnet.capacity();
        self.subnet = subnet;
        Ok(())
    }

    fn address(&self, place: Place) -> IpAddr {
        self.subnet.address(self.bitmap.address(place))
    }

    fn hold(&mut self, gap: &Gap, key: K, number: u128) {
        let place = self.bitmap.take(&self.subnet, number);
        self.leases.insert(gap, key, place);
    }

    /// Makes some addresses free whose rest is over.
    fn wake(&mut self, now: u64) {
        for _ in 0..WAKE_PER_CALL {
            let Some(place) = self.cooling.take_due(now) else { return };
            self.free(place);
        }
    }

    fn free(&mut self, place: Place) {
        if let Some(chunk) = self.bitmap.free(place) {
            self.leases.clear_chunk(chunk);
        }
    }

    /// Makes an address free that is at rest.
    fn wake_early(&mut self, place: Place) {
        self.cooling.remove(place);
        self.free(place);
    }

    /// Makes a taken address free if its rest is over, or says why it cannot.
    fn vacate(&mut self, place: Place, address: IpAddr, now: u64) -> Result<(), RequestError<K>> {
        if let Some(until) = self.cooling.until(place)
            && until > now
        {
            return Err(RequestError::Cooling { address, seconds: until - now });
        }
        if let Some(holder) = self.leases.key_at(place).copied() {
            return Err(RequestError::InUse { address, holder });
        }
        self.wake_early(place);
        Ok(())
    }

    fn next_free(&mut self, now: u64) -> Option<u128> {
        while u128::from(self.bitmap.open_taken()) == self.capacity {
            let place = self.cooling.take_due(now)?;
            self.free(place);
        }
        self.bitmap.next_free(&self.subnet, self.cursor)
    }

    /// The taken addresses that would stand worse in `subnet`.
    fn displaced(&self, subnet: &Subnet) -> HashSet<Place> {
        let mut displaced = HashSet::new();
        let same_family = subnet.cidr().is_ipv4() == self.subnet.cidr().is_ipv4();
        for place in self.bitmap.taken_and_closed(same_family.then_some(subnet)) {
            let address = self.address(place);
            if subnet.standing(address) < self.subnet.standing(address) {
                displaced.insert(place);
            }
        }
        displaced
    }

    fn check_unheld(&self, displaced: &HashSet<Place>) -> Result<(), ResizeError<K>> {
        let resting: HashSet<Place> =
            self.cooling.iter().filter(|place| displaced.contains(place)).collect();
        let held = displaced.difference(&resting).next();
        let lease = held.and_then(|&place| Some((place, self.leases.key_at(place)?)));
        match lease {
            Some((place, key)) => {
                Err(ResizeError::LeaseInTheWay { key: *key, address: self.address(place) })
            }
            None => Ok(()),
        }
    }

    /// Forgets the rests of displaced addresses that `subnet` has no more.
    fn end_rests_outside(&mut self, subnet: &Subnet, displaced: &HashSet<Place>) {
        let outside = |place: &&Place| subnet.standing(self.address(**place)) == Standing::Outside;
        let ended: HashSet<Place> = displaced.iter().filter(outside).copied().collect();
        self.cooling.retain(|place| !ended.contains(&place));
        for place in ended {
            self.free(place);
        }
    }
}
