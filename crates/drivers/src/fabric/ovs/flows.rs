//! Reads and sets the flows of one bridge. Calls for several ports overlap, each on a connection of its own; the
//! daemon answers all pending requests in one pass of its loop.

use std::{collections::BTreeSet, time::Duration};

use openflow::{Action, Change, Cookies, Error, Flow, Switch, SwitchPort};

use super::switches::Switches;
use crate::driver::{Fault, Refused};

/// The flows of one bridge.
#[derive(Debug)]
pub(super) struct Flows {
    switches: Switches,
}

impl Flows {
    pub(super) const fn new(switches: Switches) -> Self {
        Self { switches }
    }

    /// Calls `work` with a connection that no other call uses. `work` may be called twice.
    pub(super) fn with<T>(
        &self,
        doing: &str,
        work: impl FnMut(&mut Switch) -> Result<T, Error>,
    ) -> Result<T, Refused> {
        self.switches.with(work).map_err(|error| refused(doing, error))
    }

    /// Resets settings that keep frames from passing those of the bridge's ports that are ours, by number. Returns
    /// the ports that it had to reset.
    pub(super) fn open_ports(
        &self,
        doing: &str,
        is_ours: impl Fn(u32) -> bool,
    ) -> Result<Vec<SwitchPort>, Refused> {
        let refused = |error| refused(doing, error);
        let (mut switch, ports) = self.switches.ports().map_err(refused)?;
        let is_held_back = |port: &SwitchPort| port.held_back_by().next().is_some();
        let held_back = ports.into_iter().filter(|port| is_ours(port.number) && is_held_back(port));
        let open = |port: SwitchPort| switch.open(&port).map(|()| port).map_err(refused);
        held_back.map(open).collect()
    }

    /// Opens a connection outside the pool.
    pub(super) fn connect(&self) -> Result<Switch, Error> {
        self.switches.connect()
    }

    /// Blocks for `pause`, then asks whether the daemon is there. Returns at once when the connection ends. `true`:
    /// since the previous call, the daemon did not answer another call in time.
    pub(super) fn watch(&self, switch: &mut Switch, pause: Duration) -> Result<bool, Error> {
        self.switches.watch(switch, pause)
    }

    /// The flows with exactly that cookie.
    pub(super) fn marked(&self, doing: &str, cookie: u64) -> Result<BTreeSet<Flow>, Refused> {
        self.with(doing, |switch| marked(switch, cookie))
    }

    /// Makes `wanted` the only flows with that cookie. Returns whether other flows had it.
    pub(super) fn set(
        &self,
        doing: &str,
        cookie: u64,
        wanted: &BTreeSet<Flow>,
    ) -> Result<bool, Refused> {
        self.with(doing, |switch| {
            let found = marked(switch, cookie)?;
            let surplus = found.difference(wanted).cloned().map(Change::Remove);
            let missing = wanted.difference(&found).cloned().map(Change::Add);
            // One bundle: the switch applies it atomically, so frames that old and new flows allow are never
            // dropped.
            let changes: Vec<_> = surplus.chain(missing).collect();
            if changes.is_empty() {
                return Ok(false);
            }
            switch.change(&changes)?;
            let left: Vec<_> = zones(&found).difference(&zones(wanted)).copied().collect();
            left.into_iter().try_for_each(|zone| switch.forget_connections(zone))?;
            Ok(!found.is_empty())
        })
    }
}

fn refused(doing: &str, error: Error) -> Refused {
    match error {
        Error::Connect { .. } => Refused::new(format!("{doing} (does ovs-vswitchd run?)"), error)
            .blamed_on(Fault::FabricAway),
        Error::TimedOut { .. } => Refused::new(format!("{doing} (see ovs-vswitchd's log)"), error)
            .blamed_on(Fault::FabricAway),
        error => Refused::new(doing, error).blamed_on(Fault::Elsewhere),
    }
}

fn marked(switch: &mut Switch, cookie: u64) -> Result<BTreeSet<Flow>, Error> {
    let found = switch.flows(Cookies::exactly(cookie))?;
    Ok(found.into_iter().map(|counted| counted.flow).collect())
}

/// The conntrack zones that flows use.
pub(super) fn zones<'a>(flows: impl IntoIterator<Item = &'a Flow>) -> BTreeSet<u16> {
    let zone = |flow: &Flow| match flow.action {
        Action::Track { zone, .. } | Action::Remember { zone, .. } => Some(zone),
        Action::Drop
        | Action::Normal
        | Action::Table(_)
        | Action::Metered { .. }
        | Action::Other => None,
    };
    flows.into_iter().filter_map(zone).collect()
}
