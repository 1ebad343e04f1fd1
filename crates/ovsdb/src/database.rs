//! A connection to an OVSDB server.
//!
//! Two locks, never held together. `state` guards the replica and the waiting calls; it is held during a read of the
//! replica or while an update is applied. `writer` is held for one message. A reader thread takes either lock; so does
//! every caller.

use std::{
    collections::HashMap,
    fmt,
    io::{self, ErrorKind, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use suspend_timeout::SuspendAwareTimeout;

use crate::{
    Error, Operation, Outcome, Replica,
    message::{Message, messages},
    operation::refusal,
};

/// Where the server is, and which tables to replicate.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Path of the server's socket.
    pub socket: PathBuf,
    /// Name of the database.
    pub database: String,
    /// Tables to replicate.
    pub tables: Vec<MonitoredTable>,
    /// Timeout of a call.
    pub deadline: Duration,
}

/// Columns of a table to replicate.
#[derive(Clone, Debug)]
pub struct MonitoredTable {
    /// Name of the table.
    pub name: String,
    /// Names of the columns.
    pub columns: Vec<String>,
}

impl MonitoredTable {
    /// Replicates these columns of a table.
    pub fn new<'a>(name: &str, columns: impl IntoIterator<Item = &'a str>) -> Self {
        let columns = columns.into_iter().map(str::to_owned).collect();
        Self { name: name.to_owned(), columns }
    }
}

/// A connection to a database, with a replica of the monitored tables. Dropping it closes the connection.
#[derive(Debug)]
pub struct Database {
    shared: Arc<Shared>,
    name: String,
    deadline: Duration,
}

/// State that callers share with the reader thread.
#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    state: Mutex<State>,
    /// A handle for shutting down the connection without a lock.
    stream: UnixStream,
    /// Locked for one message.
    writer: Mutex<UnixStream>,
}

#[derive(Debug, Default)]
struct State {
    replica: Replica,
    /// Receivers of answers, by call number.
    calls: HashMap<u64, SyncSender<Answer>>,
    latest_call: u64,
    /// Waits for a state of the replica, by number.
    waiters: HashMap<u64, Waiter>,
    latest_waiter: u64,
    /// Number of the monitor call, whose answer is the initial content of the tables.
    monitor: Option<u64>,
    /// Counts received messages.
    received: u64,
    /// Value of `received` when an answer timed out.
    silent_at: Option<u64>,
    /// Counts answers that timed out.
    missed_answers: u64,
    /// The reason why the connection is closed.
    ended: Option<String>,
}

/// The result of a call. `Err` is the server's error value.
type Answer = Result<Value, Value>;

/// Checks the replica after each change and returns `true` once it has notified its caller.
///
/// The reader thread runs these checks. Waking all callers for every change would cost a wake-up of each of, say, 64
/// callers.
struct Waiter(Box<dyn FnMut(&Replica) -> bool + Send>);

impl fmt::Debug for Waiter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Waiter")
    }
}

impl Database {
    /// Connects and fills the replica.
    ///
    /// # Errors
    /// [`Error::Connect`]; [`Error::TooOld`] if a table or column is missing; the errors of any call.
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let connect = |source: io::Error| match source.kind() {
            ErrorKind::TimedOut => Error::TimedOut {
                socket: settings.socket.clone(),
                what: "accepted a connection",
                milliseconds: settings.deadline.as_millis(),
            },
            _ => Error::Connect { socket: settings.socket.clone(), source },
        };
        let writer =
            suspend_timeout::connect(&settings.socket, settings.deadline).map_err(connect)?;
        let reader = writer.try_clone().map_err(connect)?;
        let stream = writer.try_clone().map_err(connect)?;
        let shared = Arc::new(Shared {
            socket: settings.socket.clone(),
            state: Mutex::default(),
            stream,
            writer: Mutex::new(writer),
        });
        let (name, deadline) = (settings.database.clone(), settings.deadline);
        let database = Self { shared: Arc::clone(&shared), name, deadline };
        let read = move || shared.read_all(&reader);
        thread::Builder::new().name("ovsdb".into()).spawn(read).map_err(connect)?;
        database.check_schema(&settings.tables)?;
        database.monitor(&settings.tables)?;
        Ok(database)
    }

    /// Runs the operations as one transaction. On return the replica shows its effects.
    ///
    /// If an earlier answer timed out and the server has sent nothing since, the call first checks with a short timeout
    /// that the server is alive. Otherwise thousands of calls to a suspended server would each wait for the full
    /// timeout.
    ///
    /// # Errors
    /// After [`Error::NotSame`] or [`Error::Refused`] nothing has changed. After [`Error::Closed`] or
    /// [`Error::TimedOut`] the transaction may have been carried out, or still be carried out.
    pub fn transact(&self, operations: &[Operation]) -> Result<Vec<Outcome>, Error> {
        self.check_alive()?;
        let name = Value::from(self.name.as_str());
        let operations = operations.iter().map(|operation| operation.0.clone());
        let params = std::iter::once(name).chain(operations).collect();
        Outcome::all(self.call("transact", &params)?)
    }

    /// Checks that the server answers.
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::TimedOut`].
    pub fn echo(&self) -> Result<(), Error> {
        self.call("echo", &json!([])).map(drop)
    }

    /// Number of answers that timed out.
    #[must_use]
    pub fn missed_answers(&self) -> u64 {
        self.shared.state.lock().missed_answers
    }

    /// Calls [`Self::echo`] with a timeout of 50 ms if the latest answer timed out and the server has sent nothing
    /// since.
    ///
    /// # Errors
    /// Those of [`Self::echo`].
    pub fn check_alive(&self) -> Result<(), Error> {
        match self.shared.is_silent() {
            true => self.call_within(SIGN_OF_LIFE, "echo", &json!([])).map(drop),
            false => Ok(()),
        }
    }

    /// Reads the replica.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn read<T>(&self, look: impl FnOnce(&Replica) -> T) -> Result<T, Error> {
        let state = self.shared.state.lock();
        self.shared.still_open(&state)?;
        Ok(look(&state.replica))
    }

    /// Waits until `look` returns a value. `look` runs after each change of the replica and holds the lock, so it must
    /// not use this connection.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::TimedOut`] after `deadline`.
    pub fn wait<T: Send + 'static>(
        &self,
        deadline: Duration,
        look: impl FnMut(&Replica) -> Option<T> + Send + 'static,
    ) -> Result<T, Error> {
        self.shared.wait_until(deadline, look)
    }

    /// Blocks until the replica's version differs from `seen`, and returns the new version.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::TimedOut`] after `deadline`.
    pub fn wait_for_change(&self, seen: u64, deadline: Duration) -> Result<u64, Error> {
        let look = move |replica: &Replica| Some(replica.version()).filter(|now| *now != seen);
        self.wait(deadline, look)
    }

    /// Closes the connection. Waiting calls fail with [`Error::Closed`].
    pub fn close(&self) {
        self.shared.end("this program closed it");
    }

    fn check_schema(&self, tables: &[MonitoredTable]) -> Result<(), Error> {
        let schema = self.call("get_schema", &json!([self.name]))?;
        let version = schema["version"].as_str().unwrap_or("unknown");
        let missing = |missing: String| {
            let (database, version) = (self.name.clone(), version.to_owned());
            Error::TooOld { database, version, missing }
        };
        for MonitoredTable { name, columns } in tables {
            let table = schema["tables"].get(name);
            let table = table.ok_or_else(|| missing(format!("table {name}")))?;
            let is_missing = |column: &&String| table["columns"].get(*column).is_none();
            if let Some(column) = columns.iter().find(is_missing) {
                return Err(missing(format!("column {column} in table {name}")));
            }
        }
        Ok(())
    }

    fn monitor(&self, tables: &[MonitoredTable]) -> Result<(), Error> {
        let wanted =
            |table: &MonitoredTable| (table.name.clone(), json!([{"columns": table.columns}]));
        let wanted: Map<_, _> = tables.iter().map(wanted).collect();
        // The reader applies the answer to the replica before it reads the first update.
        self.call("monitor", &json!([self.name, MONITOR, wanted])).map(drop)
    }

    fn call(&self, method: &str, params: &Value) -> Result<Value, Error> {
        self.call_within(self.deadline, method, params)
    }

    fn call_within(
        &self,
        deadline: Duration,
        method: &str,
        params: &Value,
    ) -> Result<Value, Error> {
        let (id, answer) = self.shared.expect_answer(method)?;
        let message = json!({"id": id, "method": method, "params": params});
        let answered = self.shared.write(&message);
        let answered = answered.and_then(|()| self.shared.receive("answered", deadline, &answer));
        let mut state = self.shared.state.lock();
        state.calls.remove(&id);
        if matches!(answered, Err(Error::TimedOut { .. })) {
            state.silent_at = Some(state.received);
            state.missed_answers += 1;
        }
        drop(state);
        answered?.map_err(|error| refusal(&error))
    }
}

/// Name of the monitor in the server's messages.
const MONITOR: &str = "replica";

/// Timeout of the check that a silent server is alive.
const SIGN_OF_LIFE: Duration = Duration::from_millis(50);

impl Drop for Database {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn closed(&self, why: &str) -> Error {
        Error::Closed { socket: self.socket.clone(), why: why.to_owned() }
    }

    fn still_open(&self, state: &State) -> Result<(), Error> {
        state.ended.as_ref().map_or(Ok(()), |why| Err(self.closed(why)))
    }

    /// Whether an answer timed out and the server has sent nothing since.
    fn is_silent(&self) -> bool {
        let state = self.state.lock();
        state.silent_at == Some(state.received)
    }

    /// Registers a new call. Returns its number and the receiver of its answer.
    fn expect_answer(&self, method: &str) -> Result<(u64, Receiver<Answer>), Error> {
        let (sender, answer) = sync_channel(1);
        let mut state = self.state.lock();
        self.still_open(&state)?;
        state.latest_call += 1;
        let id = state.latest_call;
        state.calls.insert(id, sender);
        if method == "monitor" {
            state.monitor = Some(id);
        }
        Ok((id, answer))
    }

    /// Waits until `look` returns a value.
    fn wait_until<T: Send + 'static>(
        &self,
        deadline: Duration,
        mut look: impl FnMut(&Replica) -> Option<T> + Send + 'static,
    ) -> Result<T, Error> {
        let mut state = self.state.lock();
        self.still_open(&state)?;
        if let Some(found) = look(&state.replica) {
            return Ok(found);
        }
        let (sender, found) = sync_channel(1);
        // If the caller gave up, the send fails; the waiter still returns `true` and is removed.
        let notify =
            move |replica: &Replica| look(replica).map(|found| sender.send(found)).is_some();
        state.latest_waiter += 1;
        let number = state.latest_waiter;
        state.waiters.insert(number, Waiter(Box::new(notify)));
        drop(state);
        let found = self.receive("reached the expected state", deadline, &found);
        self.state.lock().waiters.remove(&number);
        found
    }

    /// Writes one message under the lock. A partial message would corrupt the stream, so a failure closes the
    /// connection.
    fn write(&self, message: &Value) -> Result<(), Error> {
        let message = message.to_string();
        let mut writer = self.writer.lock();
        let written = writer.write_all(message.as_bytes());
        drop(writer);
        match written {
            // The server closed the connection. The reader reads its last message, which says why, and ends all calls.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(error) => {
                let why = format!("writing failed ({error})");
                self.end(&why);
                Err(self.closed(&why))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Waits for a value from the reader thread.
    fn receive<T>(
        &self,
        what: &'static str,
        deadline: Duration,
        awaited: &Receiver<T>,
    ) -> Result<T, Error> {
        let mut timeout = SuspendAwareTimeout::new(deadline);
        let silent = || Error::TimedOut {
            socket: self.socket.clone(),
            what,
            milliseconds: deadline.as_millis(),
        };
        loop {
            match timeout.wait(|most| awaited.recv_timeout(most)).ok_or_else(silent)? {
                Ok(received) => return Ok(received),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
            }
        }
    }

    /// The reason why the connection is closed.
    fn gone(&self) -> Error {
        let state = self.state.lock();
        self.closed(state.ended.as_deref().unwrap_or("the reader has stopped"))
    }

    /// Reads and handles messages until the connection ends.
    fn read_all(&self, reader: &UnixStream) {
        for message in messages(reader) {
            let taken = match message {
                Ok(message) => self.take(message),
                Err(error) if error.is_io() => Err(error.to_string()),
                Err(error) => Err(format!("the server sent an invalid message ({error})")),
            };
            if let Err(why) = taken {
                return self.end(&why);
            }
        }
        self.end("the server closed it");
    }

    fn take(&self, message: Message) -> Result<(), String> {
        let malformed = || "the server sent an invalid table update".to_owned();
        self.state.lock().received += 1;
        match message {
            Message::Echo { id, params } => {
                let answer = json!({"id": id, "result": params, "error": null});
                return self.write(&answer).map_err(|error| error.to_string());
            }
            Message::Update(rows) => {
                let State { replica, waiters, .. } = &mut *self.state.lock();
                replica.apply(&rows).ok_or_else(malformed)?;
                waiters.retain(|_, waiter| !waiter.0(replica));
            }
            Message::Answer(id, answer) => {
                let mut state = self.state.lock();
                // An answer with a wrong number means that the real one is lost, and perhaps more.
                if id > state.latest_call {
                    return Err("the server answered a call that was never made".to_owned());
                }
                if let (true, Ok(rows)) = (state.monitor == Some(id), &answer) {
                    state.replica.apply(rows).ok_or_else(malformed)?;
                }
                // The caller may have timed out.
                if let Some(awaited) = state.calls.remove(&id) {
                    let _ = awaited.send(answer);
                }
            }
            Message::Other => {}
        }
        Ok(())
    }

    /// Closes the connection. The first reason is kept.
    fn end(&self, why: &str) {
        let mut state = self.state.lock();
        state.ended.get_or_insert_with(|| why.to_owned());
        // Dropping the senders ends all waiting calls.
        state.calls.clear();
        state.waiters.clear();
        drop(state);
        // Ends a blocked write. The server may have closed the connection already, so errors are ignored.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
