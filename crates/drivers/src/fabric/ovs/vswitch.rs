//! Open vSwitch's database, and the daemon that carries out what is written there.
//!
//! One connection serves all calls for all bridges, and is opened again when it was lost. Its lock is held while it
//! is opened: calls without a connection wait for the one that opens it, and share the outcome. No call holds that
//! lock while it waits for the daemon, so calls for several ports overlap and the daemon handles their writes
//! together.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use ovsdb::{Database, Error, Operation, Replica};
use parking_lot::Mutex;
use uuid::Uuid;

use super::{
    numbers::{Held, Numbers},
    rows::{self, QOS, ROOT, root, tables},
};
use crate::driver::{Fault, Refused};

/// The name of the database.
const NAME: &str = "Open_vSwitch";

/// The time limit for an answer of the database.
const ANSWER: Duration = Duration::from_secs(3);

/// The time limit for the daemon to carry out a change.
const DONE: Duration = Duration::from_secs(5);

/// The time limit for a daemon that missed an earlier change, before more is written. Short, so that a pass over a
/// thousand ports ends.
const CATCH_UP: Duration = Duration::from_millis(50);

/// The database with its daemon, and what the fabric's bridges share. A number belongs to one port of all bridges,
/// because conntrack zones are numbered by it.
#[derive(Debug)]
pub struct Vswitch {
    settings: ovsdb::Settings,
    connection: Mutex<Connection>,
    numbers: Numbers,
    /// Held while the QoS row without queues is looked up or created.
    making_queues: Mutex<()>,
    /// Counts attempts to open a connection.
    attempts: AtomicU64,
    /// The latest `next_cfg` that the daemon did not reach in time; 0: none.
    overdue: AtomicI64,
}

/// The connection, or why it is missing.
#[derive(Debug, Default)]
struct Connection {
    database: Option<Arc<Database>>,
    /// Why the latest attempt failed. `None`: it succeeded.
    failure: Option<Arc<Error>>,
}

impl Vswitch {
    /// An Open vSwitch with its database at this socket. It need not run yet.
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

    /// The OpenFlow management socket of a bridge.
    pub(super) fn management(&self, bridge: &str) -> PathBuf {
        let folder = self.settings.socket.parent().unwrap_or(Path::new("/"));
        folder.join(format!("{bridge}.mgmt"))
    }

    /// A number that no port has or requests. `None`: all are in use.
    pub(super) fn choose_number(&self) -> Result<Option<Held<'_>>, Refused> {
        self.look(|replica| self.numbers.choose(replica))
    }

    /// Holds a number. `None`: another call holds it.
    pub(super) fn hold_number(&self, number: u32) -> Option<Held<'_>> {
        self.numbers.hold(number)
    }

    /// Our QoS row that leaves ports' queues alone. Without it, the daemon would delete the queue by which the
    /// eswitch limits a VF.
    pub(super) fn no_queues(&self) -> Result<Uuid, Refused> {
        // First without the lock: calls that wait for a connection wait in parallel.
        if let Some(found) = self.look(rows::no_queues)? {
            return Ok(found);
        }
        let _making = self.making_queues.lock();
        if let Some(found) = self.look(rows::no_queues)? {
            return Ok(found);
        }
        let doing = "make Open vSwitch leave queues alone";
        self.change(doing, vec![Operation::insert(QOS, "queues", rows::no_queues_row())])?;
        self.look(rows::no_queues)?.ok_or_else(|| {
            Refused::because("Open vSwitch's database lost a row that was just made")
                .blamed_on(Fault::Elsewhere)
        })
    }

    /// The connection. Opens one if there is none.
    pub(super) fn database(&self) -> Result<Arc<Database>, Refused> {
        let attempts = self.attempts.load(Ordering::Acquire);
        let mut connection = self.connection.lock();
        if let Some(open) = connection.database.as_ref().filter(|open| open.read(|_| ()).is_ok()) {
            return Ok(Arc::clone(open));
        }
        // Another call tried while this one waited for the lock. Trying again would make queued calls wait one by
        // one.
        let has_waited = self.attempts.load(Ordering::Acquire) != attempts;
        if let Some(failure) = connection.failure.as_ref().filter(|_| has_waited) {
            return Err(no_connection(failure));
        }
        let opened = Database::open(&self.settings);
        self.attempts.fetch_add(1, Ordering::Release);
        match opened {
            Ok(database) => {
                // It may be another database, whose counters start again.
                self.overdue.store(0, Ordering::Relaxed);
                connection.failure = None;
                Ok(Arc::clone(connection.database.insert(Arc::new(database))))
            }
            Err(error) => Err(no_connection(connection.failure.insert(Arc::new(error)))),
        }
    }

    /// Asks a server that missed its latest answer whether it is back. Asks no other server.
    pub(super) fn check_alive(&self) -> Result<(), Refused> {
        let looked = self.database()?.check_alive();
        looked.map_err(|error| refused("ask Open vSwitch's database", error))
    }

    /// Reads the replica if there is a connection. Does not open one.
    pub(super) fn glance<T>(&self, look: impl FnOnce(&Replica) -> T) -> Option<T> {
        let database = self.connection.lock().database.clone();
        database.and_then(|open| open.read(look).ok())
    }

    /// Reads the replica.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Replica) -> T) -> Result<T, Refused> {
        let looked = self.database()?.read(look);
        looked.map_err(|error| refused("look into Open vSwitch's database", error))
    }

    /// Writes all operations in one transaction, and waits until the daemon has carried them out.
    pub(super) fn change(&self, doing: &str, operations: Vec<Operation>) -> Result<(), Refused> {
        let database = self.database()?;
        self.catch_up(&database, doing)?;
        let written = write(&database, operations).map_err(|error| refused(doing, error))?;
        self.await_done(&database, written, DONE, doing)
    }

    /// Waits for an overdue change. The daemon may have carried it out without being able to report it, as on a
    /// full disk. Any transaction makes it report again, so an empty one is written.
    fn catch_up(&self, database: &Database, doing: &str) -> Result<(), Refused> {
        let overdue = self.overdue.load(Ordering::Relaxed);
        if overdue == 0 || database.read(|replica| is_done(replica, overdue)).unwrap_or(false) {
            return Ok(());
        }
        write(database, Vec::new()).map_err(|error| refused(doing, error))?;
        self.await_done(database, overdue, CATCH_UP, doing)
    }

    /// Waits until the daemon has carried out all changes up to `number`.
    fn await_done(
        &self,
        database: &Database,
        number: i64,
        timeout: Duration,
        doing: &str,
    ) -> Result<(), Refused> {
        if number == 0 {
            return Ok(());
        }
        let done = move |replica: &Replica| is_done(replica, number).then_some(());
        database.wait(timeout, done).map_err(|error| match error {
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

    /// Waits until `look` returns a value, at most as long as the daemon may take.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        doing: &str,
        look: impl FnMut(&Replica) -> Option<T> + Send + 'static,
    ) -> Result<T, Refused> {
        self.database()?.wait(DONE, look).map_err(|error| refused(doing, error))
    }

    /// Ends the connection and the waits on it.
    pub(super) fn close(&self) {
        if let Some(database) = self.connection.lock().database.take() {
            database.close();
        }
    }
}

/// Whether the daemon has carried out all changes up to `number`.
fn is_done(replica: &Replica, number: i64) -> bool {
    root(replica).and_then(|root| root.integer("cur_cfg")).is_some_and(|done| done >= number)
}

/// Writes the operations. Returns the value that `cur_cfg` has when the daemon has carried them out.
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

/// A failure of the database or the daemon is never blamed on a port.
fn refused(doing: &str, error: Error) -> Refused {
    let is_servers = matches!(error, Error::TimedOut { .. } | Error::Garbage { .. });
    let (hint, fault) = match is_servers {
        true => (" (see whether ovsdb-server runs, and its log)", Fault::FabricAway),
        false => ("", Fault::Elsewhere),
    };
    Refused::new(format!("{doing}{hint}"), error).blamed_on(fault)
}
