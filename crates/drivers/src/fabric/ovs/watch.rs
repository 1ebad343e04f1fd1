//! Watches Open vSwitch for what the kernel does not report: its daemons end, are suspended or return, and other
//! programs change our rows. A restarted daemon has no flows.
//!
//! Two threads run until the fabric is dropped: one watches the database, one the daemon on a connection of its
//! own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    thread,
    time::Duration,
};

use ovsdb::{Database, Error, Replica};
use tokio::sync::watch;

use super::{
    Inner,
    rows::{self, Port},
    touched::{Ports, Shown, shown_port},
};

/// The pause before the next attempt to reach a daemon that is not there.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the database or the daemon may be away, as during a restart, before its end is reported.
const RESTART: Duration = Duration::from_secs(1);

/// The interval in which a silent database or daemon is asked whether it is there.
const PROBE: Duration = Duration::from_secs(2);

/// How long changes are collected before a comparison: every join causes some.
const GATHER: Duration = Duration::from_millis(50);

/// Starts both threads. The receiver's counter grows at each report.
pub(super) fn follow(fabric: &Arc<Inner>) -> watch::Receiver<u64> {
    let (count, receiver) = watch::channel(0);
    let count = Arc::new(count);
    spawn(fabric, &count, "ovs-rows", follow_rows);
    spawn(fabric, &count, "ovs-daemon", follow_daemon);
    receiver
}

fn spawn(
    fabric: &Arc<Inner>,
    count: &Arc<watch::Sender<u64>>,
    name: &str,
    follow: fn(&Inner, &watch::Sender<u64>),
) {
    let (fabric, count) = (Arc::clone(fabric), Arc::clone(count));
    let until_over = move || {
        while !fabric.is_over_after(PAUSE) {
            follow(&fabric, &count);
        }
    };
    if let Err(error) = thread::Builder::new().name(name.into()).spawn(until_over) {
        tracing::error!(%error, "cannot start a thread; changes in Open vSwitch are noticed within a minute only");
    }
}

fn report(count: &watch::Sender<u64>) {
    count.send_modify(|count| *count += 1);
}

/// Reports that the daemon is there, and later that it is gone or suspended.
fn follow_daemon(fabric: &Inner, count: &watch::Sender<u64>) {
    let Ok(mut switch) = fabric.flows.connect() else { return };
    report(count);
    let ended = loop {
        if fabric.is_over_after(Duration::ZERO) {
            return;
        }
        match fabric.flows.watch(&mut switch, PROBE) {
            // The call that timed out has reported the suspension. Only this thread reports the return.
            Ok(has_stalled) if has_stalled => report(count),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let stands_still = matches!(ended, openflow::Error::TimedOut { .. });
    // A suspension is no restart, so it is reported at once.
    if stands_still || !fabric.is_over_after(RESTART) && fabric.flows.connect().is_err() {
        report(count);
    }
}

/// Reports that the database is there, what [`watch_rows`] finds, and later that the database is gone.
fn follow_rows(fabric: &Inner, count: &watch::Sender<u64>) {
    let Ok(database) = fabric.vswitch.database() else { return };
    // Dropping the fabric closes the connection of that moment. This thread may have opened another one since.
    if fabric.is_over_after(Duration::ZERO) {
        return;
    }
    report(count);
    watch_rows(fabric, &database, count);
    if !fabric.is_over_after(RESTART) && fabric.vswitch.database().is_err() {
        report(count);
    }
}

/// Reports rows of ours that another program has changed, until the database can't be read.
fn watch_rows(fabric: &Inner, database: &Database, count: &watch::Sender<u64>) {
    let (mut known, mut missed_answers) = (None, database.missed_answers());
    loop {
        let Ok((version, shown)) =
            database.read(|replica| (replica.version(), all_shown(replica, &fabric.settings.name)))
        else {
            return;
        };
        let ports = fabric.touched.take();
        if known.replace(shown.clone()).is_some_and(|known| is_by_others(known, &shown, ports)) {
            report(count);
        }
        let changed = await_change(fabric, database, version, count, &mut missed_answers);
        if changed.is_err() || fabric.is_over_after(GATHER) {
            return;
        }
    }
}

/// Waits until the rows have another version than `seen`, or the fabric is dropped. Reports that the server is
/// suspended, and that it continues, also if other calls noticed it: `missed_answers` is the known count of their
/// timeouts.
fn await_change(
    fabric: &Inner,
    database: &Database,
    seen: u64,
    count: &watch::Sender<u64>,
    missed_answers: &mut u64,
) -> Result<(), Error> {
    let mut stands_still = false;
    loop {
        let is_changed = match database.wait_for_change(seen, PROBE) {
            Err(Error::TimedOut { .. }) => false,
            changed => changed.map(|_| true)?,
        };
        let stood_still = stands_still;
        stands_still = !is_changed && !answers(database)?;
        let known = std::mem::replace(missed_answers, database.missed_answers());
        let goes_on = !stands_still && known != *missed_answers;
        if stands_still != stood_still || goes_on {
            report(count);
        }
        if is_changed || fabric.is_over_after(Duration::ZERO) {
            return Ok(());
        }
    }
}

/// Whether the server answers in time.
fn answers(database: &Database) -> Result<bool, Error> {
    match database.echo() {
        Err(Error::TimedOut { .. }) => Ok(false),
        answered => answered.map(|()| true),
    }
}

/// The visible state of all our ports by name.
type AllShown = BTreeMap<String, Shown>;

fn all_shown(replica: &Replica, bridge: &str) -> AllShown {
    let Some(bridge) = rows::bridge(replica, bridge) else { return AllShown::new() };
    let ours = Port::all(replica, bridge).filter(Port::is_ours);
    ours.map(|port| (port.name().to_owned(), Some(shown_port(port)))).collect()
}

/// Whether another program has changed what was `known`. Ignores ports that this process is changing.
fn is_by_others(mut known: AllShown, shown: &AllShown, ports: Ports) -> bool {
    known.extend(ports.left);
    let names: BTreeSet<_> = known.keys().chain(shown.keys()).collect();
    let of = |all: &AllShown, name: &str| all.get(name).cloned().flatten();
    let is_changed = |name: &&String| of(&known, name) != of(shown, name);
    names.into_iter().filter(is_changed).any(|name| !ports.now.contains(name))
}

impl Inner {
    /// Waits for `pause`, or until the fabric is dropped. Returns whether it was dropped.
    fn is_over_after(&self, pause: Duration) -> bool {
        let mut is_over = self.is_over.lock();
        self.over.wait_while_for(&mut is_over, |is_over| !*is_over, pause);
        *is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Membership;

    fn of(port: &str, index: u32) -> AllShown {
        [(port.to_owned(), Some((Some(index), Some(1000), Membership::default())))].into()
    }

    #[test]
    fn what_this_process_changes_is_not_by_others() {
        let (one, other) = (of("pf0vf0", 7), of("pf0vf0", 8));
        assert!(!is_by_others(one.clone(), &one, Ports::default()));
        for shown in [&other, &AllShown::new()] {
            assert!(is_by_others(one.clone(), shown, Ports::default()));
            let now = Ports { now: ["pf0vf0".to_owned()].into(), ..Ports::default() };
            assert!(!is_by_others(one.clone(), shown, now));
        }
        let left = |left: &AllShown| Ports { left: left.clone(), ..Ports::default() };
        assert!(!is_by_others(one.clone(), &other, left(&other)));
        assert!(!is_by_others(AllShown::new(), &other, left(&other)));
        assert!(is_by_others(one.clone(), &one, left(&other)), "and changed back");
        let gone = [("pf0vf0".to_owned(), None)].into();
        assert!(!is_by_others(one, &AllShown::new(), left(&gone)));
    }
}
