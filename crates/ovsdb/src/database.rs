//! A connection to a database.

use std::{
    collections::HashMap,
    fmt,
    io::{self, ErrorKind, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use patience::Patience;
use serde_json::{Map, Value, json};

use crate::{
    Error, Operation, Outcome, Replica,
    message::{Message, messages},
    operation::refusal,
};

/// What is talked to, and what is kept a replica of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server's socket.
    pub socket: PathBuf,
    /// The name of the database there.
    pub database: String,
    /// The tables that are kept a replica of.
    pub tables: Vec<MonitoredTable>,
    /// How long an answer is waited for.
    pub deadline: Duration,
}

/// A table that is kept a replica of, with some of its columns.
#[derive(Clone, Debug)]
pub struct MonitoredTable {
    /// Its name.
    pub name: String,
    /// The names of the columns.
    pub columns: Vec<String>,
}

impl MonitoredTable {
    /// The table of that name with these columns.
    pub fn new<'a>(name: &str, columns: impl IntoIterator<Item = &'a str>) -> Self {
        let columns = columns.into_iter().map(str::to_owned).collect();
        Self { name: name.to_owned(), columns }
    }
}

/// A connection to a database, with a replica of some of it. It ends when it is dropped.
#[derive(Debug)]
pub struct Database {
    shared: Arc<Shared>,
    name: String,
    deadline: Duration,
}

/// What calls share with the thread that reads.
#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    state: Mutex<State>,
    /// To end it: that takes no lock.
    stream: UnixStream,
    /// Held for one message.
    writer: Mutex<UnixStream>,
}

#[derive(Debug, Default)]
struct State {
    replica: Replica,
    /// Where answers are waited for, by the numbers of the calls.
    calls: HashMap<u64, SyncSender<Answer>>,
    latest_call: u64,
    /// What is waited for of the replica, likewise.
    lookouts: HashMap<u64, Lookout>,
    latest_lookout: u64,
    /// The call whose answer is what the tables hold at first.
    monitor: Option<u64>,
    /// Counts what was read.
    heard: u64,
    /// What had been read when an answer did not come in time.
    silent_at: Option<u64>,
    /// Counts answers that did not come in time.
    silences: u64,
    /// Why there is no connection any more.
    ended: Option<String>,
}

/// What came of a call; `Err`: what the server says that is wrong.
type Answer = Result<Value, Value>;

/// Looks at the replica with each change, whether it shows what somebody waits for, and tells him once it does. The
/// reader does so, for each by himself: of sixty-four who wait, each change would wake all.
struct Lookout(Box<dyn FnMut(&Replica) -> bool + Send>);

impl fmt::Debug for Lookout {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Lookout")
    }
}

impl Database {
    /// Connects, and has the replica filled.
    ///
    /// # Errors
    /// [`Error::Connect`]; [`Error::TooOld`], if a table or column is not there; or as any call.
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let connect = |source: io::Error| match source.kind() {
            ErrorKind::TimedOut => Error::TimedOut {
                socket: settings.socket.clone(),
                what: "accepted a connection",
                milliseconds: settings.deadline.as_millis(),
            },
            _ => Error::Connect { socket: settings.socket.clone(), source },
        };
        let writer = patience::connect(&settings.socket, settings.deadline).map_err(connect)?;
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

    /// Does all of that or nothing. Once it returns, the replica shows it.
    ///
    /// A server that has once not answered in time, and has said nothing since, is asked for a sign of life first, and
    /// that is waited for briefly: what is asked for a thousand times must come to an end.
    ///
    /// # Errors
    /// [`Error::NotSame`] or [`Error::Refused`], and nothing was done; [`Error::Closed`] or [`Error::TimedOut`], and
    /// it may have been done, or be done yet.
    pub fn transact(&self, operations: &[Operation]) -> Result<Vec<Outcome>, Error> {
        self.look_for_life()?;
        let name = Value::from(self.name.as_str());
        let operations = operations.iter().map(|operation| operation.0.clone());
        let params = std::iter::once(name).chain(operations).collect();
        Outcome::all(self.call("transact", &params)?)
    }

    /// Asks the server whether it is there.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::TimedOut`].
    pub fn echo(&self) -> Result<(), Error> {
        self.call("echo", &json!([])).map(drop)
    }

    /// Counts answers that did not come in time.
    #[must_use]
    pub fn silences(&self) -> u64 {
        self.shared.lock().silences
    }

    /// Sends [`Self::echo`] with a short deadline, and only to a server whose latest answer did not come in time and
    /// which has said nothing since.
    ///
    /// # Errors
    /// As [`Self::echo`].
    pub fn look_for_life(&self) -> Result<(), Error> {
        match self.shared.is_silent() {
            true => self.call_within(SIGN_OF_LIFE, "echo", &json!([])).map(drop),
            false => Ok(()),
        }
    }

    /// Looks at the replica.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn read<T>(&self, look: impl FnOnce(&Replica) -> T) -> Result<T, Error> {
        let state = self.shared.lock();
        self.shared.still_open(&state)?;
        Ok(look(&state.replica))
    }

    /// Looks at the replica with each change, until the look finds something. A look is taken while nobody else can
    /// take one, and must not use this connection.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::TimedOut`] after `deadline`.
    pub fn wait<T: Send + 'static>(
        &self,
        deadline: Duration,
        look: impl FnMut(&Replica) -> Option<T> + Send + 'static,
    ) -> Result<T, Error> {
        self.shared.look_out(deadline, look)
    }

    /// Blocks until the replica is of another version than `seen`, and returns that.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::TimedOut`] after `deadline`.
    pub fn wait_for_change(&self, seen: u64, deadline: Duration) -> Result<u64, Error> {
        let look = move |replica: &Replica| Some(replica.version()).filter(|now| *now != seen);
        self.wait(deadline, look)
    }

    /// Ends the connection. Whoever waits is told.
    pub fn close(&self) {
        self.shared.end("it was closed here");
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
        // The reader fills the replica with the answer, before it reads of any change.
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
        let mut state = self.shared.lock();
        state.calls.remove(&id);
        if matches!(answered, Err(Error::TimedOut { .. })) {
            state.silent_at = Some(state.heard);
            state.silences += 1;
        }
        drop(state);
        answered?.map_err(|told| refusal(&told))
    }
}

/// By which the server names the replica in its messages.
const MONITOR: &str = "replica";

/// How long a server that has not answered has to say that it is there.
const SIGN_OF_LIFE: Duration = Duration::from_millis(50);

impl Drop for Database {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self, why: &str) -> Error {
        Error::Closed { socket: self.socket.clone(), why: why.to_owned() }
    }

    fn still_open(&self, state: &State) -> Result<(), Error> {
        state.ended.as_ref().map_or(Ok(()), |why| Err(self.closed(why)))
    }

    /// Whether an answer did not come in time, and nothing else has come since.
    fn is_silent(&self) -> bool {
        let state = self.lock();
        state.silent_at == Some(state.heard)
    }

    /// The number of a new call, and where its answer comes.
    fn expect_answer(&self, method: &str) -> Result<(u64, Receiver<Answer>), Error> {
        let (sender, answer) = sync_channel(1);
        let mut state = self.lock();
        self.still_open(&state)?;
        state.latest_call += 1;
        let id = state.latest_call;
        state.calls.insert(id, sender);
        if method == "monitor" {
            state.monitor = Some(id);
        }
        Ok((id, answer))
    }

    /// Waits until `look` finds something.
    fn look_out<T: Send + 'static>(
        &self,
        deadline: Duration,
        mut look: impl FnMut(&Replica) -> Option<T> + Send + 'static,
    ) -> Result<T, Error> {
        let mut state = self.lock();
        self.still_open(&state)?;
        if let Some(found) = look(&state.replica) {
            return Ok(found);
        }
        let (sender, found) = sync_channel(1);
        // Whoever has given up is told nothing, and is off the list in a moment.
        let tell = move |replica: &Replica| look(replica).map(|found| sender.send(found)).is_some();
        state.latest_lookout += 1;
        let number = state.latest_lookout;
        state.lookouts.insert(number, Lookout(Box::new(tell)));
        drop(state);
        let found = self.receive("shown what was waited for", deadline, &found);
        self.lock().lookouts.remove(&number);
        found
    }

    /// Half of a message would be the end of all that follow.
    fn write(&self, message: &Value) -> Result<(), Error> {
        let message = message.to_string();
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let written = writer.write_all(message.as_bytes());
        drop(writer);
        match written {
            // The server has closed the connection. The reader has yet to read why, and then ends all calls.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(error) => {
                let why = format!("nothing can be written ({error})");
                self.end(&why);
                Err(self.closed(&why))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Waits until what is waited for has come.
    fn receive<T>(
        &self,
        what: &'static str,
        deadline: Duration,
        awaited: &Receiver<T>,
    ) -> Result<T, Error> {
        let mut patience = Patience::new(deadline);
        let silent = || Error::TimedOut {
            socket: self.socket.clone(),
            what,
            milliseconds: deadline.as_millis(),
        };
        loop {
            match patience.wait(|most| awaited.recv_timeout(most)).ok_or_else(silent)? {
                Ok(received) => return Ok(received),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
            }
        }
    }

    /// Why nothing comes any more.
    fn gone(&self) -> Error {
        let state = self.lock();
        self.closed(state.ended.as_deref().unwrap_or("nothing comes any more"))
    }

    /// Reads what the server says until it ends.
    fn read_all(&self, reader: &UnixStream) {
        for message in messages(reader) {
            let taken = match message {
                Ok(message) => self.take(message),
                Err(error) if error.is_io() => Err(error.to_string()),
                Err(error) => Err(format!("the server said what is no message ({error})")),
            };
            if let Err(why) = taken {
                return self.end(&why);
            }
        }
        self.end("the server has closed it");
    }

    fn take(&self, message: Message) -> Result<(), String> {
        let senseless = || "the server told of rows in a way that makes no sense".to_owned();
        self.lock().heard += 1;
        match message {
            Message::Echo { id, params } => {
                let answer = json!({"id": id, "result": params, "error": null});
                return self.write(&answer).map_err(|error| error.to_string());
            }
            Message::Update(rows) => {
                let State { replica, lookouts, .. } = &mut *self.lock();
                replica.apply(&rows).ok_or_else(senseless)?;
                lookouts.retain(|_, lookout| !lookout.0(replica));
            }
            Message::Answer(id, answer) => {
                let mut state = self.lock();
                // The answer that was meant is lost, and who knows what else.
                if id > state.latest_call {
                    return Err("the server answered what nobody has asked".to_owned());
                }
                if let (true, Ok(rows)) = (state.monitor == Some(id), &answer) {
                    state.replica.apply(rows).ok_or_else(senseless)?;
                }
                // Who waited for it may have given up.
                if let Some(awaited) = state.calls.remove(&id) {
                    let _ = awaited.send(answer);
                }
            }
            Message::Other => {}
        }
        Ok(())
    }

    /// There is no connection any more, for the first reason that was told.
    fn end(&self, why: &str) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(|| why.to_owned());
        // Whoever waits finds that nobody is left who could tell him anything.
        state.calls.clear();
        state.lookouts.clear();
        drop(state);
        // Whoever is writing is told so. It may have been shut down by the other side.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
