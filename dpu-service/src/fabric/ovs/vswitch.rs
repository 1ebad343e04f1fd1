//! Open vSwitch as its database has it: what is written there, its daemon does.
//!
//! One connection serves all calls for all bridges, and is made anew once it was lost. Its lock is held while it is
//! made, so that calls which find none wait for the one that makes it, and share what comes of that; and never while
//! one waits for the daemon: calls for several ports overlap, and the daemon does together what they have written
//! meanwhile.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use ovsdb::{Database, Error, Operation, Replica};
use uuid::Uuid;

use super::{
    numbers::{Held, Numbers},
    rows::{self, QOS, ROOT, root, tables},
};
use crate::driver::{Fault, Refused};

/// The database of every Open vSwitch.
const NAME: &str = "Open_vSwitch";

/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(3);

/// How long the daemon has to do what was written.
const DONE: Duration = Duration::from_secs(5);

/// How long it has, before more is written, to do what it has once failed to do in time: what is asked for a thousand
/// ports must come to an end.
const CATCH_UP: Duration = Duration::from_millis(50);

/// The database and the daemon that follows it, and what its bridges share: each number of a port is one port's, in
/// whatever bridge, for connections are looked up by it.
#[derive(Debug)]
pub struct Vswitch {
    settings: ovsdb::Settings,
    connection: Mutex<Connection>,
    numbers: Numbers,
    /// Held while the one row is looked for or made that leaves queues to others.
    making_queues: Mutex<()>,
    /// Counts how often a connection was tried to be made.
    attempts: AtomicU64,
    /// The latest number that the daemon did not reach in time; 0: it has always been in time.
    overdue: AtomicI64,
}

/// The connection, or why there is none.
#[derive(Debug, Default)]
struct Connection {
    database: Option<Arc<Database>>,
    /// Why the latest attempt has failed. `None`: it has not.
    failure: Option<Arc<Error>>,
}

impl Vswitch {
    /// The one with that socket of its database. It need not run yet.
    #[must_use]
    pub fn at(database: PathBuf) -> Self {
        let settings = ovsdb::Settings {
            socket: database,
            database: NAME.to_owned(),
            tables: tables(),
            deadline: ANSWER,
        };
        Self {
            settings,
            connection: Mutex::default(),
            numbers: Numbers::default(),
            making_queues: Mutex::default(),
            attempts: AtomicU64::default(),
            overdue: AtomicI64::default(),
        }
    }

    /// The socket by which a bridge's flows are set.
    pub(super) fn management(&self, bridge: &str) -> PathBuf {
        let folder = self.settings.socket.parent().unwrap_or(Path::new("/"));
        folder.join(format!("{bridge}.mgmt"))
    }

    /// A number for a port that no other has or asks for. `None`: all are taken.
    pub(super) fn choose_number(&self) -> Result<Option<Held<'_>>, Refused> {
        self.look(|replica| self.numbers.choose(replica))
    }

    /// Keeps one from being chosen. `None`: somebody holds it already.
    pub(super) fn hold_number(&self, number: u32) -> Option<Held<'_>> {
        self.numbers.hold(number)
    }

    /// The row of ours that has ports leave their queues to others: a limit of the eswitch's is one, and the daemon
    /// would delete it.
    pub(super) fn no_queues(&self) -> Result<Uuid, Refused> {
        // Without the lock: whoever waits for a connection waits together with others.
        if let Some(found) = self.look(rows::no_queues)? {
            return Ok(found);
        }
        let _making = self.making_queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = self.look(rows::no_queues)? {
            return Ok(found);
        }
        let doing = "tell Open vSwitch to leave queues alone";
        self.change(doing, vec![Operation::insert(QOS, "queues", rows::no_queues_row())])?;
        self.look(rows::no_queues)?.ok_or_else(|| {
            Refused::because("Open vSwitch's database lost a row that was just made")
                .blamed_on(Fault::Elsewhere)
        })
    }

    /// The connection, made anew if there is none.
    pub(super) fn database(&self) -> Result<Arc<Database>, Refused> {
        let attempts = self.attempts.load(Ordering::Acquire);
        let mut connection = self.lock();
        if let Some(open) = connection.database.as_ref().filter(|open| open.read(|_| ()).is_ok()) {
            return Ok(Arc::clone(open));
        }
        // Whoever has waited for an attempt would wait as long again, one behind the other.
        let has_waited = self.attempts.load(Ordering::Acquire) != attempts;
        if let Some(failure) = connection.failure.as_ref().filter(|_| has_waited) {
            return Err(no_connection(failure));
        }
        let opened = Database::open(&self.settings);
        self.attempts.fetch_add(1, Ordering::Release);
        match opened {
            Ok(database) => {
                // It may be another database, which counts anew.
                self.overdue.store(0, Ordering::Relaxed);
                connection.failure = None;
                Ok(Arc::clone(connection.database.insert(Arc::new(database))))
            }
            Err(error) => Err(no_connection(connection.failure.insert(Arc::new(error)))),
        }
    }

    /// Asks a server that has not answered the last time whether it is there again. Any other is not asked.
    pub(super) fn look_for_life(&self) -> Result<(), Refused> {
        let looked = self.database()?.look_for_life();
        looked.map_err(|error| refused("ask Open vSwitch's database", error))
    }

    /// One look at the rows, if there is a connection.
    pub(super) fn glance<T>(&self, look: impl FnOnce(&Replica) -> T) -> Option<T> {
        let database = self.lock().database.clone();
        database.and_then(|open| open.read(look).ok())
    }

    /// One look at the rows.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Replica) -> T) -> Result<T, Refused> {
        let looked = self.database()?.read(look);
        looked.map_err(|error| refused("look into Open vSwitch's database", error))
    }

    /// Writes all of that or nothing, and waits until the daemon has done it.
    pub(super) fn change(&self, doing: &str, operations: Vec<Operation>) -> Result<(), Refused> {
        let database = self.database()?;
        self.catch_up(&database, doing)?;
        let written = write(&database, operations).map_err(|error| refused(doing, error))?;
        self.await_done(&database, written, DONE, doing)
    }

    /// Waits until the daemon has done what it has not done in time. It may have, and could not tell, as on a full
    /// disk: whatever is written has it tell again.
    fn catch_up(&self, database: &Database, doing: &str) -> Result<(), Refused> {
        let overdue = self.overdue.load(Ordering::Relaxed);
        if overdue == 0 || database.read(|replica| is_done(replica, overdue)).unwrap_or(false) {
            return Ok(());
        }
        write(database, Vec::new()).map_err(|error| refused(doing, error))?;
        self.await_done(database, overdue, CATCH_UP, doing)
    }

    /// Waits until the daemon has done all up to that number.
    fn await_done(
        &self,
        database: &Database,
        number: i64,
        patience: Duration,
        doing: &str,
    ) -> Result<(), Refused> {
        if number == 0 {
            return Ok(());
        }
        let done = move |replica: &Replica| is_done(replica, number).then_some(());
        database.wait(patience, done).map_err(|error| match error {
            Error::TimedOut { .. } => {
                self.overdue.store(number, Ordering::Relaxed);
                Refused::because(format!(
                    "can't {doing}: ovs-vswitchd does not do what Open vSwitch's database says; see whether it \
                     runs, and its log"
                ))
                .blamed_on(Fault::FabricAway)
            }
            other => refused(doing, other),
        })
    }

    /// Waits until a look finds something, as long as the daemon may take.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        doing: &str,
        look: impl FnMut(&Replica) -> Option<T> + Send + 'static,
    ) -> Result<T, Refused> {
        self.database()?.wait(DONE, look).map_err(|error| refused(doing, error))
    }

    /// Ends the connection: whoever waits on it is told.
    pub(super) fn close(&self) {
        if let Some(database) = self.lock().database.take() {
            database.close();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the daemon has done all up to that number.
fn is_done(replica: &Replica, number: i64) -> bool {
    root(replica).and_then(|root| root.integer("cur_cfg")).is_some_and(|done| done >= number)
}

/// Returns the number that the daemon's `cur_cfg` has once it has done that.
fn write(database: &Database, mut operations: Vec<Operation>) -> Result<i64, Error> {
    let known = database.read(|replica| root(replica).map(ovsdb::Row::id))?;
    let Some(root) = known else {
        return database.transact(&operations).map(|_| 0);
    };
    operations.push(Operation::increment(ROOT, root, "next_cfg"));
    operations.push(Operation::select(ROOT, root, ["next_cfg"]));
    let outcomes = database.transact(&operations)?;
    let selected = outcomes.last().map(ovsdb::Outcome::rows).unwrap_or_default();
    Ok(selected.first().and_then(|row| row.integer("next_cfg")).unwrap_or_default())
}

fn no_connection(failure: &Arc<Error>) -> Refused {
    Refused::new("ask Open vSwitch's database (does ovsdb-server run?)", Arc::clone(failure))
        .blamed_on(Fault::FabricAway)
}

/// What the database or the daemon lacks is no port's fault.
fn refused(doing: &str, error: Error) -> Refused {
    let is_servers = matches!(error, Error::TimedOut { .. } | Error::Garbage { .. });
    let (hint, fault) = match is_servers {
        true => (" (see whether ovsdb-server runs, and its log)", Fault::FabricAway),
        false => ("", Fault::Elsewhere),
    };
    Refused::new(format!("{doing}{hint}"), error).blamed_on(fault)
}
