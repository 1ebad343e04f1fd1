//! The bridge's flows: what calls for several ports ask of the switch at once goes to it together, as all of them would
//! otherwise wait for each of its answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use openflow::{Action, Change, Cookies, Error, Flow, Switch};

use super::{switches::Switches, together::Together};
use crate::driver::{Fault, Refused};

/// Flows by their cookies, of each that was asked for.
type FlowsByCookie = BTreeMap<u64, BTreeSet<Flow>>;

/// Those of one bridge.
#[derive(Debug)]
pub(super) struct Flows {
    switches: Switches,
    looks: Together<u64, Result<Arc<FlowsByCookie>, Arc<Error>>>,
    changes: Together<Vec<Change>, Changed>,
}

/// What came of changes.
#[derive(Clone, Debug)]
struct Changed {
    /// How many callers' they were.
    callers: usize,
    outcome: Result<(), Arc<Error>>,
}

impl Flows {
    pub(super) fn new(switches: Switches) -> Self {
        Self { switches, looks: Together::default(), changes: Together::default() }
    }

    /// Does `work`, which may be done twice, with a connection that nobody else uses meanwhile.
    pub(super) fn with<T>(
        &self,
        doing: &str,
        work: impl FnMut(&mut Switch) -> Result<T, Error>,
    ) -> Result<T, Refused> {
        self.switches.with(work).map_err(|error| refused(doing, Arc::new(error)))
    }

    /// A connection of one's own.
    pub(super) fn connect(&self) -> Result<Switch, Error> {
        self.switches.connect()
    }

    /// Those with exactly that cookie.
    pub(super) fn marked(&self, doing: &str, cookie: u64) -> Result<BTreeSet<Flow>, Refused> {
        let look = |cookies: &[u64]| {
            let found = self.switches.with(|switch| look(switch, cookies));
            found.map(Arc::new).map_err(Arc::new)
        };
        let found = self.looks.outcome(cookie, look).map_err(|error| refused(doing, error))?;
        Ok(found.get(&cookie).cloned().unwrap_or_default())
    }

    /// Has exactly these flows with that cookie. Says whether there were others.
    pub(super) fn set(
        &self,
        doing: &str,
        cookie: u64,
        wanted: &BTreeSet<Flow>,
    ) -> Result<bool, Refused> {
        let found = self.marked(doing, cookie)?;
        let surplus = found.difference(wanted).cloned().map(Change::Remove);
        let missing = wanted.difference(&found).cloned().map(Change::Add);
        // The switch does all of it at once: what was let pass, and still is, is at no moment dropped.
        let changes: Vec<_> = surplus.chain(missing).collect();
        if changes.is_empty() {
            return Ok(false);
        }
        self.change(changes).map_err(|error| refused(doing, error))?;
        let left: Vec<_> = zones(&found).difference(&zones(wanted)).copied().collect();
        self.forget_connections(doing, &left)?;
        Ok(!found.is_empty())
    }

    /// Forgets all connections of these zones.
    fn forget_connections(&self, doing: &str, zones: &[u16]) -> Result<(), Refused> {
        if zones.is_empty() {
            return Ok(());
        }
        let forget = |switch: &mut Switch| {
            zones.iter().try_for_each(|zone| switch.forget_connections(*zone))
        };
        self.with(doing, forget)
    }

    /// All of these or none. What the switch refuses of one caller is not to be another's fault: then each tries
    /// again by himself.
    fn change(&self, changes: Vec<Change>) -> Result<(), Arc<Error>> {
        let own = changes.clone();
        let change = |all: &[Vec<Change>]| Changed {
            callers: all.len(),
            outcome: self.change_at_once(&all.concat()),
        };
        match self.changes.outcome(changes, change) {
            Changed { callers: 2.., outcome: Err(error) } if is_refusal(&error) => {
                self.change_at_once(&own)
            }
            changed => changed.outcome,
        }
    }

    fn change_at_once(&self, changes: &[Change]) -> Result<(), Arc<Error>> {
        self.switches.with(|switch| switch.change(changes)).map_err(Arc::new)
    }
}

fn look(switch: &mut Switch, cookies: &[u64]) -> Result<FlowsByCookie, Error> {
    let cookies: BTreeSet<_> = cookies.iter().copied().collect();
    let asked: Vec<_> =
        cookies.iter().map(|value| Cookies { value: *value, mask: u64::MAX }).collect();
    let found = switch.flows_of_each(&asked)?;
    let flows = found.into_iter().map(|all| all.into_iter().map(|counted| counted.flow).collect());
    Ok(cookies.into_iter().zip(flows).collect())
}

fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Refused { .. })
}

fn refused(doing: &str, error: Arc<Error>) -> Refused {
    Refused::new(doing, error).blamed_on(Fault::Elsewhere)
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
