//! Drops frames that bypass the filters at a port's ingress.
//!
//! Only a VF that is one end of a veth pair can send such frames, through an ifb in its namespace: see
//! [`Nftables::require_ingress`]. The rules stay with the representor when its pod changes: they do not depend on
//! the pod, and an idle port is down.
//!
//! Calls for several ports share one socket and its lock; the kernel serialises transactions of nftables as well.
//! `known` may be locked after that lock, never before it.
//!
//! One listing covers all ports and is cached until nftables changes.

use std::collections::{BTreeMap, BTreeSet};

use netlink::{Error, Netns, nftables::Nftables};
use parking_lot::Mutex;

use crate::{
    driver::{Ability, Reading, Refused},
    eswitch::Representor,
};

/// The rules of one bridge's ports.
#[derive(Debug)]
pub(super) struct IngressBypass {
    ability: Ability,
    netns: Netns,
    kernel: Mutex<Option<Kernel>>,
    /// The ports whose rules this process has set: name to index. Most attaches find their port here. The kernel
    /// keeps rules by name, so a port that is plugged in again replaces the earlier entry.
    known: Mutex<BTreeMap<String, u32>>,
}

/// The kernel's nftables.
#[derive(Debug)]
struct Kernel {
    nftables: Nftables,
    /// The generation of nftables at the latest listing, and the names of the ports that had all rules.
    found: Option<(u32, BTreeSet<String>)>,
}

impl IngressBypass {
    /// Uses nftables of the calling thread's namespace.
    pub(super) fn open(ability: Ability) -> Result<Self, Refused> {
        let netns = Netns::current();
        let netns = netns.map_err(|error| Refused::new("find the own network namespace", error))?;
        Ok(Self { ability, netns, kernel: Mutex::default(), known: Mutex::default() })
    }

    /// The sentence about a kernel without the ability. `None`: the kernel has it.
    pub(super) fn lack(&self) -> Option<String> {
        let why = self.ability.as_ref().err()?;
        Some(format!("frames that a pod on a veth sends by an ifb pass it: {why}"))
    }

    /// Makes the bridge drop frames that bypass the port's filters, if the port is a veth.
    pub(super) fn close(&self, port: &Representor) -> Result<(), Refused> {
        if !self.concerns(port) || self.known.lock().get(&port.name) == Some(&port.index) {
            return Ok(());
        }
        self.with(|kernel| kernel.nftables.require_ingress(&port.name))
            .map_err(|error| refused(port, error))?;
        self.known.lock().insert(port.name.clone(), port.index);
        Ok(())
    }

    /// Whether the rules are in place. `None`: the port needs none. The next [`Self::close`] sets missing rules.
    pub(super) fn find(&self, port: &Representor) -> Result<Option<Reading>, Refused> {
        if !self.concerns(port) {
            return Ok(None);
        }
        let is_found = self.with(|kernel| Ok(kernel.find()?.contains(&port.name)));
        if is_found.map_err(|error| refused(port, error))? {
            return Ok(Some(Reading::in_place("what comes by an ifb is dropped")));
        }
        self.known.lock().remove(&port.name);
        Ok(Some(Reading::missing("what comes by an ifb passes")))
    }

    /// Whether another program has removed rules that this process has set. Each loss is reported once.
    pub(super) fn were_lost(&self) -> bool {
        let known: Vec<_> = self.known.lock().keys().cloned().collect();
        if known.is_empty() {
            return false;
        }
        let lost = self.with(|kernel| {
            let found = kernel.find()?;
            Ok(known.into_iter().filter(|name| !found.contains(name)).collect::<Vec<_>>())
        });
        // A failed listing is no loss: the next comparison lists again.
        let lost = lost.unwrap_or_default();
        self.known.lock().retain(|name, _| !lost.contains(name));
        !lost.is_empty()
    }

    fn concerns(&self, port: &Representor) -> bool {
        port.is_veth && self.ability.is_ok()
    }

    fn with<T>(&self, work: impl FnOnce(&mut Kernel) -> Result<T, Error>) -> Result<T, Error> {
        let mut kernel = self.kernel.lock();
        let open = match kernel.take() {
            Some(open) => open,
            None => Kernel { nftables: Nftables::open_in(&self.netns)?, found: None },
        };
        work(kernel.insert(open))
    }
}

impl Kernel {
    /// The names of the ports that have all rules.
    fn find(&mut self) -> Result<&BTreeSet<String>, Error> {
        // Read the generation before the listing: a change in between makes the next call list again.
        let generation = self.nftables.generation()?;
        let latest = self.found.take().filter(|(of, _)| *of == generation);
        let found = match latest {
            Some(found) => found,
            None => (generation, self.nftables.ports_requiring_ingress()?),
        };
        Ok(&self.found.insert(found).1)
    }
}

fn refused(port: &Representor, error: Error) -> Refused {
    Refused::new(format!("drop frames that bypass the filters of {}", port.name), error)
}
