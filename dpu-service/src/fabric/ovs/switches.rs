//! Connections by which the bridge's flows are set and read: one for each call that is under way.

use std::{
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use openflow::{Error, PortSwitch, Switch, SwitchPort};

/// How long the daemon has to answer.
const ANSWER: Duration = Duration::from_secs(3);

/// How long it has to greet once it has not answered: a look at a thousand ports must come to an end.
const GREETING_OF_STALLED: Duration = Duration::from_millis(50);

/// As many stay open as calls were under way at once.
#[derive(Debug)]
pub(super) struct Switches {
    socket: PathBuf,
    idle: Mutex<Vec<Switch>>,
    /// Whether the latest answer did not come in time.
    is_stalled: AtomicBool,
    /// Whether an answer did not come in time since [`Self::watch`] last had one.
    has_stalled: AtomicBool,
}

impl Switches {
    pub(super) fn new(socket: PathBuf) -> Self {
        let [is_stalled, has_stalled] = [false; 2].map(AtomicBool::new);
        Self { socket, idle: Mutex::default(), is_stalled, has_stalled }
    }

    /// Does `work`, which may be done twice, with a connection that nobody else uses meanwhile.
    pub(super) fn with<T>(
        &self,
        mut work: impl FnMut(&mut Switch) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // Those that lie idle are closed by a daemon that ends, and by one that hears nothing for long.
        while let Some(mut switch) = self.pop() {
            match work(&mut switch) {
                Err(Error::Closed { .. }) => {}
                outcome => return self.keep(switch, outcome),
            }
        }
        if self.is_stalled.load(Ordering::Relaxed) {
            self.look_for_life()?;
        }
        let mut switch = self.connect()?;
        let outcome = work(&mut switch);
        self.keep(switch, outcome)
    }

    /// A connection of one's own.
    pub(super) fn connect(&self) -> Result<Switch, Error> {
        let connected = Switch::connect(&self.socket, ANSWER);
        self.note(&connected);
        connected
    }

    /// Blocks for as long as `pause`, and then asks whether the daemon is there. Returns at once when the connection
    /// ends. Whether the daemon did not answer someone in time since it was asked last.
    pub(super) fn watch(&self, switch: &mut Switch, pause: Duration) -> Result<bool, Error> {
        let watched = switch.watch(pause);
        self.note(&watched);
        watched.map(|()| self.has_stalled.swap(false, Ordering::Relaxed))
    }

    /// The bridge's ports, and a connection by which they are set up.
    pub(super) fn ports(&self) -> Result<(PortSwitch, Vec<SwitchPort>), Error> {
        if self.is_stalled.load(Ordering::Relaxed) {
            self.look_for_life()?;
        }
        let connected = PortSwitch::connect(&self.socket, ANSWER);
        self.note(&connected);
        connected
    }

    /// Whether a daemon that did not answer the last time greets again.
    fn look_for_life(&self) -> Result<(), Error> {
        Switch::connect(&self.socket, GREETING_OF_STALLED).map(drop)
    }

    /// Of a daemon that stands still nobody else is to wait for an answer on a connection that lies idle.
    fn note<T>(&self, outcome: &Result<T, Error>) {
        let is_stalled = matches!(outcome, Err(Error::TimedOut { .. }));
        self.is_stalled.store(is_stalled, Ordering::Relaxed);
        if is_stalled {
            self.has_stalled.store(true, Ordering::Relaxed);
            self.idle().clear();
        }
    }

    /// After any error but a refusal a connection is of no use.
    fn keep<T>(&self, switch: Switch, outcome: Result<T, Error>) -> Result<T, Error> {
        self.note(&outcome);
        if matches!(outcome, Ok(_) | Err(Error::Refused { .. })) {
            self.idle().push(switch);
        }
        outcome
    }

    fn pop(&self) -> Option<Switch> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Switch>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
