//! Reads and sets the flows of one bridge. Calls for several ports overlap, each on a connection of its own; the
//! daemon answers all pending requests in one pass of its loop.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use openflow::{Action, Change, Cookies, Error, Flow, PortSwitch, Switch, SwitchPort};
use parking_lot::Mutex;

use crate::driver::{Fault, Refused};

/// The time limit for the daemon's answers.
const ANSWER: Duration = Duration::from_secs(3);

/// The time limit for the greeting of a daemon that missed an answer. Short, so that a pass over a thousand ports
/// ends.
const GREETING_OF_STALLED: Duration = Duration::from_millis(50);

/// The flows of one bridge, with a pool of OpenFlow connections. The pool keeps as many connections as calls were in
/// progress at once.
#[derive(Debug)]
pub(super) struct Flows {
    socket: PathBuf,
    idle: Mutex<Vec<Switch>>,
    /// Whether the latest answer timed out.
    is_stalled: AtomicBool,
    /// Whether an answer timed out since [`Self::watch`] last had one.
    has_stalled: AtomicBool,
}

impl Flows {
    pub(super) fn new(socket: PathBuf) -> Self {
        let [is_stalled, has_stalled] = [false; 2].map(AtomicBool::new);
        Self { socket, idle: Mutex::default(), is_stalled, has_stalled }
    }

    /// Calls `work` with a connection that no other call uses. `work` may be called twice.
    pub(super) fn with<T>(
        &self,
        doing: &str,
        work: impl FnMut(&mut Switch) -> Result<T, Error>,
    ) -> Result<T, Refused> {
        self.with_connection(work).map_err(|error| refused(doing, error))
    }

    fn with_connection<T>(
        &self,
        mut work: impl FnMut(&mut Switch) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // The daemon closes idle connections when it ends, and after a long silence: try the next one.
        while let Some(mut switch) = self.next_idle() {
            match work(&mut switch) {
                Err(Error::Closed { .. }) => {}
                outcome => return self.keep(switch, outcome),
            }
        }
        self.check_alive()?;
        let mut switch = self.connect()?;
        let outcome = work(&mut switch);
        self.keep(switch, outcome)
    }

    /// Opens a connection outside the pool.
    pub(super) fn connect(&self) -> Result<Switch, Error> {
        let connected = Switch::connect(&self.socket, ANSWER);
        self.note(&connected);
        connected
    }

    /// Blocks for `pause`, then asks whether the daemon is there. Returns at once when the connection ends. `true`:
    /// since the previous call, the daemon did not answer another call in time.
    pub(super) fn watch(&self, switch: &mut Switch, pause: Duration) -> Result<bool, Error> {
        let watched = switch.watch(pause);
        self.note(&watched);
        watched.map(|()| self.has_stalled.swap(false, Ordering::Relaxed))
    }

    /// The bridge's ports, and a connection that changes their settings.
    fn ports(&self) -> Result<(PortSwitch, Vec<SwitchPort>), Error> {
        self.check_alive()?;
        let connected = PortSwitch::connect(&self.socket, ANSWER);
        self.note(&connected);
        connected
    }

    /// Fails fast if a daemon that missed its latest answer still does not greet.
    fn check_alive(&self) -> Result<(), Error> {
        match self.is_stalled.load(Ordering::Relaxed) {
            true => Switch::connect(&self.socket, GREETING_OF_STALLED).map(drop),
            false => Ok(()),
        }
    }

    /// Records whether the call timed out. Then drops the idle connections, so that no other call waits on one of
    /// them.
    fn note<T>(&self, outcome: &Result<T, Error>) {
        let is_stalled = matches!(outcome, Err(Error::TimedOut { .. }));
        self.is_stalled.store(is_stalled, Ordering::Relaxed);
        if is_stalled {
            self.has_stalled.store(true, Ordering::Relaxed);
            self.idle.lock().clear();
        }
    }

    /// Returns the connection to the pool, unless an error other than a refusal has made it unusable.
    fn keep<T>(&self, switch: Switch, outcome: Result<T, Error>) -> Result<T, Error> {
        self.note(&outcome);
        if matches!(outcome, Ok(_) | Err(Error::Refused { .. })) {
            self.idle.lock().push(switch);
        }
        outcome
    }

    /// A function, so that the caller's loop does not hold the lock.
    fn next_idle(&self) -> Option<Switch> {
        self.idle.lock().pop()
    }

    /// Resets settings that keep frames from passing those of the bridge's ports that are ours, by number. Returns
    /// the ports that it had to reset.
    pub(super) fn open_ports(
        &self,
        doing: &str,
        is_ours: impl Fn(u32) -> bool,
    ) -> Result<Vec<SwitchPort>, Refused> {
        let refused = |error| refused(doing, error);
        let (mut switch, ports) = self.ports().map_err(refused)?;
        let is_held_back = |port: &SwitchPort| port.held_back_by().next().is_some();
        let held_back = ports.into_iter().filter(|port| is_ours(port.number) && is_held_back(port));
        let open = |port: SwitchPort| switch.open(&port).map(|()| port).map_err(refused);
        held_back.map(open).collect()
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
