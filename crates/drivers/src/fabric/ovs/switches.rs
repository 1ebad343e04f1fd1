//! A pool of OpenFlow connections to the bridge: one for each call in progress.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use openflow::{Error, PortSwitch, Switch, SwitchPort};
use parking_lot::{Mutex, MutexGuard};

/// The time limit for the daemon's answers.
const ANSWER: Duration = Duration::from_secs(3);

/// The time limit for the greeting of a daemon that missed an answer. Short, so that a pass over a thousand ports
/// ends.
const GREETING_OF_STALLED: Duration = Duration::from_millis(50);

/// The pool keeps as many connections as calls were in progress at once.
#[derive(Debug)]
pub(super) struct Switches {
    socket: PathBuf,
    idle: Mutex<Vec<Switch>>,
    /// Whether the latest answer timed out.
    is_stalled: AtomicBool,
    /// Whether an answer timed out since [`Self::watch`] last had one.
    has_stalled: AtomicBool,
}

impl Switches {
    pub(super) fn new(socket: PathBuf) -> Self {
        let [is_stalled, has_stalled] = [false; 2].map(AtomicBool::new);
        Self { socket, idle: Mutex::default(), is_stalled, has_stalled }
    }

    /// Calls `work` with a connection that no other call uses. `work` may be called twice.
    pub(super) fn with<T>(
        &self,
        mut work: impl FnMut(&mut Switch) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // The daemon closes idle connections when it ends, and after a long silence: try the next one.
        while let Some(mut switch) = self.pop() {
            match work(&mut switch) {
                Err(Error::Closed { .. }) => {}
                outcome => return self.keep(switch, outcome),
            }
        }
        if self.is_stalled.load(Ordering::Relaxed) {
            self.check_alive()?;
        }
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
    pub(super) fn ports(&self) -> Result<(PortSwitch, Vec<SwitchPort>), Error> {
        if self.is_stalled.load(Ordering::Relaxed) {
            self.check_alive()?;
        }
        let connected = PortSwitch::connect(&self.socket, ANSWER);
        self.note(&connected);
        connected
    }

    /// Fails fast if a daemon that missed its latest answer still does not greet.
    fn check_alive(&self) -> Result<(), Error> {
        Switch::connect(&self.socket, GREETING_OF_STALLED).map(drop)
    }

    /// Records whether the call timed out. Then drops the idle connections, so that no other call waits on one of
    /// them.
    fn note<T>(&self, outcome: &Result<T, Error>) {
        let is_stalled = matches!(outcome, Err(Error::TimedOut { .. }));
        self.is_stalled.store(is_stalled, Ordering::Relaxed);
        if is_stalled {
            self.has_stalled.store(true, Ordering::Relaxed);
            self.idle().clear();
        }
    }

    /// Returns the connection to the pool, unless an error other than a refusal has made it unusable.
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
        self.idle.lock()
    }
}
