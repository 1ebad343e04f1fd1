//! Frames that come past the filters at a port's ingress: the bridge drops them.
//!
//! Only a VF that is one end of a veth pair can send such, by an ifb in its namespace: see
//! [`Nftables::require_ingress`]. The rules stay with the representor when its pod changes: they do not depend on
//! the pod, and an idle port is down.
//!
//! Two calls for two ports may set rules at once: the one socket is locked, as the kernel locks nftables for each
//! transaction. Nothing else is locked meanwhile but [`known`](Detours::known), after it.

use std::{
    collections::BTreeMap,
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
    socket: Mutex<Option<Nftables>>,
    /// The ports whose rules this process has set, by name, each with its index: most attaches find them there. The
    /// kernel keeps rules by name, so that a port which is plugged in again takes the place of the one before.
    known: Mutex<BTreeMap<String, u32>>,
}

impl Detours {
    /// Those in the calling thread's namespace.
    pub(super) fn open(ability: Ability) -> Result<Self, Refused> {
        let netns = Netns::current();
        let netns = netns.map_err(|error| Refused::new("find the own network namespace", error))?;
        Ok(Self { ability, netns, socket: Mutex::default(), known: Mutex::default() })
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
        self.with(|nftables| nftables.require_ingress(&port.name))
            .map_err(|error| refused(port, error))?;
        self.known().insert(port.name.clone(), port.index);
        Ok(())
    }

    /// Whether that is so. What is missing, the next [`Self::close`] sets.
    pub(super) fn find(&self, port: &Representor) -> Result<Option<Reading>, Refused> {
        if !self.concerns(port) {
            return Ok(None);
        }
        let found = self.with(|nftables| nftables.requires_ingress(&port.name));
        if found.map_err(|error| refused(port, error))? {
            return Ok(Some(Reading::in_place("what comes by an ifb is dropped")));
        }
        self.known().remove(&port.name);
        Ok(Some(Reading::missing("what comes by an ifb passes")))
    }

    /// Whether rules were lost of ports that had them, as far as their number shows. That is said once.
    pub(super) fn were_lost(&self) -> bool {
        let ports = self.known().len();
        if ports == 0 {
            return false;
        }
        let are_lost =
            matches!(self.with(|nftables| nftables.requires_ingress_of(ports)), Ok(false));
        if are_lost {
            self.known().clear();
        }
        are_lost
    }

    fn concerns(&self, port: &Representor) -> bool {
        port.is_veth && self.ability.is_ok()
    }

    fn with<T>(&self, work: impl FnOnce(&mut Nftables) -> Result<T, Error>) -> Result<T, Error> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let nftables = match socket.take() {
            Some(open) => open,
            None => Nftables::open_in(&self.netns)?,
        };
        work(socket.insert(nftables))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(port: &Representor, error: Error) -> Refused {
    Refused::new(format!("drop what passes by the filters of {}", port.name), error)
}
