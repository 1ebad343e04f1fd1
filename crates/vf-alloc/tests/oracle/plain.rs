//! A plain allocator, and the pools and VFs of both.

use std::collections::{BTreeMap, BTreeSet};

use vf_alloc::{
    Device, FunctionId, HostId, PfId, Policy, PoolSpec, Settings, Usage, VfFacts, parse_selectors,
};

pub(crate) const SETTINGS: Settings = Settings { quarantine_after: 2, offered_before: 40 };
pub(crate) const POOLS: [&str; 4] = ["low", "all", "cards", "none"];

/// The state of a VF.
#[derive(Clone, Default)]
pub(crate) struct Known {
    pub(crate) facts: Option<VfFacts>,
    pub(crate) holder: Option<(u8, Stage)>,
    pub(crate) absent: bool,
    pub(crate) quarantined: bool,
    pub(crate) unavailable: bool,
    pub(crate) failures: u32,
    pub(crate) offer: Offer,
    /// The latest number of its offer.
    pub(crate) last_number: u64,
    /// When it became free.
    pub(crate) free_since: u64,
}

/// Whether a VF is offered.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Offer {
    #[default]
    None,
    /// It is, and a new number has to be sent.
    Unsent,
    Sent(u64),
}

impl Known {
    /// Ends an offer that was made with other facts.
    pub(crate) fn learn(&mut self, facts: VfFacts) {
        if self.facts.as_ref() != Some(&facts) {
            self.facts = Some(facts);
            self.free_since = 0;
            self.offer = Offer::None;
        }
    }

    /// Invalidates the number of the offer.
    pub(crate) fn renew_offer(&mut self) {
        if self.offer != Offer::None {
            self.offer = Offer::Unsent;
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Stage {
    Reserved,
    Attached,
    Releasing,
}

#[derive(Default)]
pub(crate) struct Oracle {
    pub(crate) vfs: BTreeMap<FunctionId, Known>,
    pub(crate) second_set: bool,
    /// Whether cards are given only to requests that pin one.
    pub(crate) handed_out: bool,
    /// The latest number.
    pub(crate) last_number: u64,
    /// VFs with higher numbers have no ports.
    pub(crate) ports: Option<u16>,
}

impl Oracle {
    pub(crate) fn known(&mut self, vf: FunctionId) -> &mut Known {
        self.vfs.entry(vf).or_insert_with(|| Known { absent: true, ..Known::default() })
    }

    pub(crate) fn has_port(&self, vf: FunctionId) -> bool {
        self.ports.is_none_or(|ports| vf.vf < ports)
    }

    pub(crate) fn state(&self, vf: FunctionId, known: &Known) -> &'static str {
        let has_port = self.has_port(vf);
        match known.holder {
            Some((_, Stage::Reserved)) => "reserved",
            Some((_, Stage::Attached)) => "attached",
            Some((_, Stage::Releasing)) => "releasing",
            None if known.quarantined => "quarantined",
            None if known.absent || known.unavailable || !has_port => "absent",
            None => "free",
        }
    }

    pub(crate) fn is_in(&self, pool: &str, vf: FunctionId) -> bool {
        let facts = self.vfs.get(&vf).and_then(|known| known.facts.as_ref());
        match pool {
            "low" => vf.vf < if self.second_set { 5 } else { 3 },
            "cards" => facts.is_some_and(|facts| facts.device_id == 1),
            "all" => !self.second_set || vf.pf.pf == 0,
            _ => false,
        }
    }

    pub(crate) fn held_by(&self, key: u8) -> Option<FunctionId> {
        let holds = |known: &Known| known.holder.is_some_and(|(holder, _)| holder == key);
        self.vfs.iter().find(|(_, known)| holds(known)).map(|(&vf, _)| vf)
    }

    /// The VFs that were ever offered.
    pub(crate) fn ever_offered(&self) -> impl Iterator<Item = FunctionId> {
        self.vfs.iter().filter(|(_, known)| known.last_number > 0).map(|(&vf, _)| vf)
    }

    pub(crate) fn is_at(&self, vf: FunctionId, host: HostId, device: &Device) -> bool {
        let facts = self.vfs.get(&vf).and_then(|known| known.facts.as_ref());
        facts.is_some_and(|facts| facts.host == host && facts.device == *device)
    }

    pub(crate) fn is_handed_out(&self, vf: FunctionId) -> bool {
        self.handed_out && self.is_in("cards", vf)
    }

    pub(crate) fn is_open(&self, pool: &str) -> bool {
        !(self.handed_out && pool == "cards")
    }

    /// Whether the VF can be given out of this pool: if another program hands it out, of no open one.
    fn is_available_in(&self, pool: &str, vf: FunctionId) -> bool {
        self.is_in(pool, vf) && self.is_open(pool) != self.is_handed_out(vf)
    }

    fn is_of(&self, vf: FunctionId, host: HostId) -> bool {
        let facts = self.vfs.get(&vf).and_then(|known| known.facts.as_ref());
        facts.is_some_and(|facts| facts.host == host)
    }

    /// The host's free VFs of the pool, including offered and handed-out ones.
    pub(crate) fn free(&self, pool: &str, host: HostId) -> Vec<FunctionId> {
        let free = |(vf, known): &(&FunctionId, &Known)| {
            self.state(**vf, known) == "free" && self.is_in(pool, **vf) && self.is_of(**vf, host)
        };
        self.vfs.iter().filter(free).map(|(&vf, _)| vf).collect()
    }

    /// Those that can be given out of the pool and are offered.
    pub(crate) fn offered(&self, pool: &str, host: HostId) -> Vec<FunctionId> {
        self.available_in(pool, host, |offer| offer != Offer::None)
    }

    /// Those that can be given out of the pool and are not offered.
    pub(crate) fn unoffered(&self, pool: &str, host: HostId) -> Vec<FunctionId> {
        self.available_in(pool, host, |offer| offer == Offer::None)
    }

    fn available_in(
        &self,
        pool: &str,
        host: HostId,
        is_meant: fn(Offer) -> bool,
    ) -> Vec<FunctionId> {
        let mut free = self.free(pool, host);
        free.retain(|vf| self.is_available_in(pool, *vf) && is_meant(self.vfs[vf].offer));
        free
    }

    /// Whether the host has VFs of the pool that need a pin.
    pub(crate) fn has_handed_out(&self, pool: &str, host: HostId) -> bool {
        let is_such = |vf: &FunctionId| {
            self.is_in(pool, *vf) && self.is_of(*vf, host) && self.is_handed_out(*vf)
        };
        self.vfs.keys().any(is_such)
    }

    /// The host's VFs whose offers have to be sent.
    pub(crate) fn unsent(&self, host: HostId) -> BTreeSet<FunctionId> {
        let is_unsent = |(vf, known): &(&FunctionId, &Known)| {
            known.offer == Offer::Unsent
                && self.state(**vf, known) == "free"
                && self.is_of(**vf, host)
        };
        self.vfs.iter().filter(is_unsent).map(|(&vf, _)| vf).collect()
    }

    /// Whether a request with that number gets the VF.
    pub(crate) fn is_offered_by(&self, vf: FunctionId, number: u64) -> bool {
        let known = &self.vfs[&vf];
        self.state(vf, known) == "free" && known.offer == Offer::Sent(number)
    }

    pub(crate) fn usage(&self, pool: &str) -> Usage {
        let mut usage = Usage::default();
        for (vf, known) in self.vfs.iter().filter(|(vf, _)| self.is_in(pool, **vf)) {
            *match self.state(*vf, known) {
                "free" => &mut usage.free,
                "quarantined" => &mut usage.quarantined,
                "absent" => &mut usage.absent,
                _ => &mut usage.in_use,
            } += 1;
        }
        usage.absent += self.never_offered(pool);
        usage
    }

    /// Only the pool "low" selects VFs by number.
    fn never_offered(&self, pool: &str) -> usize {
        let named = (0..2)
            .flat_map(|pf| (0..5).map(move |vf| FunctionId { pf: PfId { controller: 0, pf }, vf }));
        named
            .filter(|vf| pool == "low" && self.is_in(pool, *vf) && !self.vfs.contains_key(vf))
            .count()
    }
}

pub(crate) fn pools(second_set: bool, handed_out: bool) -> Vec<PoolSpec> {
    let pool = |name: &str, select: &[&str], policy| PoolSpec {
        name: name.into(),
        select: select.iter().flat_map(|text| parse_selectors(text).unwrap()).collect(),
        policy,
        pinned_only: false,
    };
    let (low, all): (&[&str], &[&str]) = if second_set {
        (&["p0#0-4", "p1#0-4"], &["p0"])
    } else {
        (&["p0#0-2", "p1#0,1,2"], &["p0", "p1"])
    };
    vec![
        pool("low", low, Policy::Pack),
        pool("all", all, Policy::Spread),
        PoolSpec { pinned_only: handed_out, ..pool("cards", &["15b3:0001"], Policy::Spread) },
        pool("none", &["p9"], Policy::Pack),
    ]
}

/// Each PF serves one host, except one VF of each, which is the other host's.
pub(crate) fn facts(vf: FunctionId, moved: bool) -> VfFacts {
    let foreign = vf.vf == 7;
    VfFacts {
        host: HostId(u32::from(vf.pf.pf == 1 && !foreign)),
        device: format!("0000:0{}:00.{}", vf.pf.pf + if moved { 4 } else { 0 }, vf.vf).into(),
        vendor_id: 0x15b3,
        device_id: vf.vf % 2,
    }
}
