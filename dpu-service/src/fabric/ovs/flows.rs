//! The bridge's flows. Calls for several ports overlap: the daemon answers all that have asked, each on a connection of
//! its own, whenever it comes round.

use std::{collections::BTreeSet, time::Duration};

use openflow::{Action, Change, Cookies, Error, Flow, Switch, SwitchPort};

use super::switches::Switches;
use crate::driver::{Fault, Refused};

/// Those of one bridge.
#[derive(Debug)]
pub(super) struct Flows {
    switches: Switches,
}

impl Flows {
    pub(super) const fn new(switches: Switches) -> Self {
        Self { switches }
    }

    /// Does `work`, which may be done twice, with a connection that nobody else uses meanwhile.
    pub(super) fn with<T>(
        &self,
        doing: &str,
        work: impl FnMut(&mut Switch) -> Result<T, Error>,
    ) -> Result<T, Refused> {
        self.switches.with(work).map_err(|error| refused(doing, error))
    }

    /// Has frames pass those of the bridge's ports that are `ours`, by number. Returns those that something kept frames
    /// from.
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

    /// A connection of one's own.
    pub(super) fn connect(&self) -> Result<Switch, Error> {
        self.switches.connect()
    }

    /// Blocks for as long as `pause`, and then asks whether the daemon is there. Returns at once when the connection
    /// ends. Whether the daemon did not answer someone in time since it was asked last.
    pub(super) fn watch(&self, switch: &mut Switch, pause: Duration) -> Result<bool, Error> {
        self.switches.watch(switch, pause)
    }

    /// Those with exactly that cookie.
    pub(super) fn marked(&self, doing: &str, cookie: u64) -> Result<BTreeSet<Flow>, Refused> {
        self.with(doing, |switch| marked(switch, cookie))
    }

    /// Has exactly these flows with that cookie. Says whether there were others.
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
            // The switch does all of it at once: what was let pass, and still is, is at no moment dropped.
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

/// The zones in which flows look connections up.
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
