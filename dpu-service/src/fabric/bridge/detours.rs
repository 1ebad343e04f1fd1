//! Frames that come past the filters at a port's ingress: the bridge drops them.
//!
//! Only a VF that is one end of a veth pair can send such, by an ifb in its namespace: see
//! [`Nftables::require_ingress`]. The rules stay with the representor when its pod changes: they do not depend on
//! the pod, and an idle port is down.
//!
//! Two calls for two ports may set rules at once: the one socket is locked, as the kernel locks nftables for each
//! transaction. Nothing else is locked meanwhile but [`known`](Detours::known), after it.
//!
//! A look reads the rules of all ports. Ports that are looked at one after the other share it until nftables changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use netlink::{Error, Netns, nftables::Nftables};

use crate::{
    driver::{Ability, Reading, Refused},
    eswitch::Representor,
};

/// The rules of one bridge's ports.
#[derive(Debug)]
pub(super) struct Detours {
    ability: Ability,
    netns: Netns,
    kernel: Mutex<Option<Kernel>>,
    /// The ports whose rules this process has set, by name, each with its index: most attaches find them there. The
    /// kernel keeps rules by name, so that a port which is plugged in again takes the place of the one before.
    known: Mutex<BTreeMap<String, u32>>,
}

/// The kernel's nftables.
#[derive(Debug)]
struct Kernel {
    nftables: Nftables,
    /// The generation of nftables at the latest look, and the names of the ports that had all their rules.
    found: Option<(u32, BTreeSet<String>)>,
}

impl Detours {
    /// Those in the calling thread's namespace.
    pub(super) fn open(ability: Ability) -> Result<Self, Refused> {
        let netns = Netns::current();
        let netns = netns.map_err(|error| Refused::new("find the own network namespace", error))?;
        Ok(Self { ability, netns, kernel: Mutex::default(), known: Mutex::default() })
    }

    /// What guards say of a kernel that can't do it, for people. `None`: it can.
    pub(super) fn lack(&self) -> Option<String> {
        let why = self.ability.as_ref().err()?;
        Some(format!("frames that a pod on a veth sends by an ifb pass it: {why}"))
    }

    /// Has the bridge drop what comes past the port's filters, where that may happen.
    pub(super) fn close(&self, port: &Representor) -> Result<(), Refused> {
        if !self.concerns(port) || self.known().get(&port.name) == Some(&port.index) {
            return Ok(());
        }
        self.with(|kernel| kernel.nftables.require_ingress(&port.name))
            .map_err(|error| refused(port, error))?;
        self.known().insert(port.name.clone(), port.index);
        Ok(())
    }

    /// Whether that is so. What is missing, the next [`Self::close`] sets.
    pub(super) fn find(&self, port: &Representor) -> Result<Option<Reading>, Refused> {
        if !self.concerns(port) {
            return Ok(None);
        }
        let is_found = self.with(|kernel| Ok(kernel.find()?.contains(&port.name)));
        if is_found.map_err(|error| refused(port, error))? {
            return Ok(Some(Reading::in_place("what comes by an ifb is dropped")));
        }
        self.known().remove(&port.name);
        Ok(Some(Reading::missing("what comes by an ifb passes")))
    }

    /// Whether ports have lost rules that this process has set. Each loss is reported once.
    pub(super) fn were_lost(&self) -> bool {
        let known: Vec<_> = self.known().keys().cloned().collect();
        if known.is_empty() {
            return false;
        }
        let lost = self.with(|kernel| {
            let found = kernel.find()?;
            Ok(known.into_iter().filter(|name| !found.contains(name)).collect::<Vec<_>>())
        });
        // What can't be read now is read again by the next comparison.
        let lost = lost.unwrap_or_default();
        self.known().retain(|name, _| !lost.contains(name));
        !lost.is_empty()
    }

    fn concerns(&self, port: &Representor) -> bool {
        port.is_veth && self.ability.is_ok()
    }

    fn with<T>(&self, work: impl FnOnce(&mut Kernel) -> Result<T, Error>) -> Result<T, Error> {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match kernel.take() {
            Some(open) => open,
            None => Kernel { nftables: Nftables::open_in(&self.netns)?, found: None },
        };
        work(kernel.insert(open))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel {
    /// The names of the ports that have all their rules.
    fn find(&mut self) -> Result<&BTreeSet<String>, Error> {
        // Asked before the look: a change meanwhile makes the next look read again.
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
    Refused::new(format!("drop what passes by the filters of {}", port.name), error)
}
