//! Tests against `ovsdb-server` with Open vSwitch's schema, and against peers that are no database.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::{
    fs::File,
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use ovsdb::{Database, Datum, Error, MonitoredTable, Operation, Replica, Settings};
use tempfile::TempDir;
use test_clock::{Stopwatch, wait_until};
use uuid::Uuid;

/// From Debian's package openvswitch-switch.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

const HALF: Duration = Duration::from_millis(500);

/// Longer than any test runs.
const LONG: Duration = Duration::from_secs(600);

struct Server {
    folder: TempDir,
    process: Child,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("conf.db");
        let created =
            Command::new("ovsdb-tool").arg("create").args([&database, &SCHEMA.into()]).status();
        assert!(created.expect("programs of the package openvswitch-switch").success());
        let socket = folder.path().join("db.sock");
        let remote = format!("--remote=punix:{}", socket.display());
        let control = format!("--unixctl={}", folder.path().join("ctl").display());
        let null = || File::open("/dev/null").unwrap();
        let mut command = Command::new("ovsdb-server");
        command.args([&remote, &control, "-vconsole:off", "-vsyslog:off"]).arg(database);
        let process = command.stdin(Stdio::null()).stdout(null()).stderr(null()).spawn().unwrap();
        let server = Self { folder, process };
        wait_until("the server answers", || UnixStream::connect(&socket).is_ok());
        let database = server.open();
        let root = [("external_ids", Datum::map([("test", "yes")]))];
        database.transact(&[Operation::insert("Open_vSwitch", "root", root)]).unwrap();
        let bridge = [("name", Datum::text("br0"))];
        let into_root = Operation::add_to_set(
            "Open_vSwitch",
            root_of(&database),
            "bridges",
            &Datum::inserted("bridge"),
        );
        database.transact(&[Operation::insert("Bridge", "bridge", bridge), into_root]).unwrap();
        server
    }

    fn open(&self) -> Database {
        Database::open(&self.settings()).unwrap()
    }

    fn settings(&self) -> Settings {
        settings(self.folder.path().join("db.sock"))
    }

    fn signal(&self, signal: &str) {
        let process = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args([&format!("-{signal}"), &process])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn settings(socket: PathBuf) -> Settings {
    let tables = vec![
        MonitoredTable::new("Open_vSwitch", ["bridges", "next_cfg", "external_ids"]),
        MonitoredTable::new("Bridge", ["name", "ports"]),
        MonitoredTable::new("Port", ["name", "interfaces", "tag", "trunks", "external_ids"]),
        MonitoredTable::new("Interface", ["name"]),
    ];
    let deadline = Duration::from_millis(500);
    Settings { socket, database: "Open_vSwitch".into(), tables, deadline }
}

fn root_of(database: &Database) -> Uuid {
    database.read(|replica| replica.rows("Open_vSwitch").next().unwrap().id()).unwrap()
}

fn bridge_of(database: &Database) -> Uuid {
    database.read(|replica| replica.rows("Bridge").next().unwrap().id()).unwrap()
}

/// Operations that add a port to the bridge.
fn join(database: &Database, name: &str) -> Vec<Operation> {
    let interface = [("name", Datum::text(name))];
    let trunks = Datum::set([7, 8].map(Datum::integer));
    let port = [
        ("name", Datum::text(name)),
        ("interfaces", Datum::inserted("interface")),
        ("tag", Datum::integer(100)),
        ("trunks", trunks),
        ("external_ids", Datum::map([("owner", "test")])),
    ];
    vec![
        Operation::check_absent("Interface", "name", &Datum::text(name)),
        Operation::insert("Interface", "interface", interface),
        Operation::insert("Port", "port", port),
        Operation::add_to_set("Bridge", bridge_of(database), "ports", &Datum::inserted("port")),
        Operation::increment("Open_vSwitch", root_of(database), "next_cfg"),
        Operation::select("Open_vSwitch", root_of(database), ["next_cfg"]),
    ]
}

fn names(replica: &Replica) -> Vec<String> {
    let mut names: Vec<_> = replica.rows("Port").map(|port| port.text("name").to_owned()).collect();
    names.sort();
    names
}

#[test]
fn replica_shows_finished_transaction() {
    let server = Server::start();
    let database = server.open();
    let outcomes = database.transact(&join(&database, "p0")).unwrap();
    assert_eq!(outcomes.last().unwrap().rows()[0].integer("next_cfg"), Some(1));
    assert_eq!((outcomes[3].count(), outcomes[2].inserted().is_some()), (1, true));
    let port = outcomes[2].inserted().unwrap();
    database
        .read(|replica| {
            let row = replica.row("Port", port).unwrap();
            assert_eq!((row.text("name"), row.integer("tag")), ("p0", Some(100)));
            assert_eq!(row.integers("trunks").collect::<Vec<_>>(), [7, 8]);
            assert_eq!(row.map("external_ids"), [("owner", "test")].into());
            let bridge = replica.rows("Bridge").next().unwrap();
            assert_eq!(bridge.references("ports").collect::<Vec<_>>(), [port]);
        })
        .unwrap();

    let again = database.transact(&join(&database, "p0")).unwrap_err();
    assert!(matches!(again, Error::NotSame), "{again}");
    let change = [("tag", Datum::empty()), ("trunks", Datum::integer(9))];
    database.transact(&[Operation::update("Port", port, change)]).unwrap();
    assert_eq!(database.read(|it| it.row("Port", port).unwrap().integer("tag")).unwrap(), None);

    let bridge = bridge_of(&database);
    let leave = Operation::remove_from_set("Bridge", bridge, "ports", &Datum::reference(port));
    database.transact(&[leave]).unwrap();
    assert_eq!(database.read(names).unwrap(), [""; 0], "nothing refers to it any more");
}

#[test]
fn refused_ovsdb_transaction_changes_nothing() {
    let server = Server::start();
    let database = server.open();
    let mut operations = join(&database, "p0");
    operations.push(Operation::insert("Port", "bad", [("name", Datum::integer(7))]));
    let refused = database.transact(&operations).unwrap_err();
    assert!(refused.to_string().contains("expected string"), "{refused}");
    assert_eq!(database.read(names).unwrap(), [""; 0]);

    let mut settings = server.settings();
    settings.tables.push(MonitoredTable::new("Port", ["name", "colour"]));
    let refused = Database::open(&settings).unwrap_err();
    for named in ["database Open_vSwitch", "version 8.3.1", " colour in table"] {
        assert!(refused.to_string().contains(named), "{named}: {refused}");
    }
    settings.tables = vec![MonitoredTable::new("Colour", [])];
    let refused = Database::open(&settings).unwrap_err();
    assert!(refused.to_string().contains(" table Colour: "), "{refused}");
    let other = Settings { database: "other".into(), ..server.settings() };
    assert!(matches!(Database::open(&other), Err(Error::Refused { .. })));
}

#[test]
fn calls_overlap_and_foreign_changes_arrive() {
    let server = Server::start();
    let (database, other) = (server.open(), server.open());
    thread::scope(|scope| {
        for number in 0..20 {
            let database = &database;
            scope.spawn(move || database.transact(&join(database, &format!("p{number}"))).unwrap());
        }
    });
    let all = |replica: &Replica| Some(names(replica)).filter(|names| names.len() == 20);
    assert_eq!(other.wait(Duration::from_secs(10), all).unwrap(), database.read(names).unwrap());
    let never = other.wait(Duration::from_millis(20), |_| None::<()>).unwrap_err();
    assert!(matches!(never, Error::TimedOut { .. }), "{never}");
}

#[test]
fn suspended_server_times_out_and_recovers() {
    let server = Server::start();
    let database = server.open();
    server.signal("STOP");
    let late = database.transact(&join(&database, "p0")).unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }), "{late}");
    assert_eq!(database.read(names).unwrap(), [""; 0], "looks ask nobody");
    server.signal("CONT");
    let done = |replica: &Replica| (names(replica) == ["p0"]).then_some(());
    database.wait(Duration::from_secs(10), done).unwrap();
    database.transact(&join(&database, "p1")).unwrap();
}

#[test]
fn silent_server_costs_one_full_timeout() {
    let server = Server::start();
    let database = Database::open(&Settings { deadline: HALF, ..server.settings() }).unwrap();
    server.signal("STOP");
    assert!(matches!(database.transact(&[]), Err(Error::TimedOut { .. })));
    let begun = Stopwatch::start();
    for _ in 0..5 {
        let late = database.transact(&join(&database, "p0")).unwrap_err();
        assert!(matches!(late, Error::TimedOut { milliseconds: ..500, .. }), "{late}");
    }
    assert!(begun.unstalled() < HALF * 5, "{:?}", begun.unstalled());
    server.signal("CONT");
    wait_until("it says something", || database.transact(&[]).is_ok());
    assert_eq!(database.read(names).unwrap(), [""; 0], "the server received a request");
    database.transact(&join(&database, "p0")).unwrap();
}

#[test]
fn suspended_server_does_not_echo() {
    let server = Server::start();
    let database = server.open();
    database.echo().unwrap();
    server.signal("STOP");
    database.check_alive().expect("it was not silent yet");
    assert!(matches!(database.echo(), Err(Error::TimedOut { .. })));
    let late = database.check_alive().unwrap_err();
    assert!(matches!(late, Error::TimedOut { milliseconds: ..500, .. }), "{late}");
    server.signal("CONT");
    wait_until("it says something", || database.check_alive().is_ok());
}

#[test]
fn waiting_callers_learn_the_servers_end() {
    let server = Server::start();
    let database = server.open();
    let version = database.read(Replica::version).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| database.wait_for_change(version, LONG));
        drop(server);
        let ended = waiting.join().unwrap().unwrap_err();
        assert!(matches!(ended, Error::Closed { .. }), "{ended}");
    });
    assert!(matches!(database.read(names), Err(Error::Closed { .. })));
    assert!(matches!(database.transact(&[]), Err(Error::Closed { .. })));
}

/// A peer that sends these answers, one after each message that it receives.
fn peer(answers: Vec<Vec<u8>>) -> (TempDir, Settings, mpsc::Receiver<String>) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("db.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (tell, reported) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 65536];
        for answer in answers {
            let length = stream.read(&mut buffer).unwrap();
            // The test may have finished.
            let _ = tell.send(String::from_utf8_lossy(&buffer[..length]).into_owned());
            stream.write_all(&answer).unwrap();
        }
        let _ = stream.read(&mut buffer);
    });
    (folder, settings(socket), reported)
}

const SCHEMA_ANSWER: &str = r#"{"id":1,"error":null,"result":{"tables":{
    "Open_vSwitch":{"columns":{"bridges":{},"next_cfg":{},"external_ids":{}}},
    "Bridge":{"columns":{"name":{},"ports":{}}},"Interface":{"columns":{"name":{}}},
    "Port":{"columns":{"name":{},"interfaces":{},"tag":{},"trunks":{},"external_ids":{}}}}}}"#;

#[test]
fn peers_other_than_databases_are_reported() {
    for (answer, expected) in [
        (&b"HTTP/1.1 400 Bad Request"[..], "invalid message"),
        (br#"{"id":1,"resul"#, "has not answered"),
        (br#"{"id":0,"result":{},"error":null}"#, "has not answered"),
        (br#"{"id":2,"result":{},"error":null}"#, "never made"),
        (br#"{"id":1,"result":7,"error":null}"#, "no table Open_vSwitch"),
        (br#"{"id":1,"result":null,"error":"unknown database"}"#, "refused: unknown database"),
        (br#"{"method":"update","id":null,"params":["replica",7]}"#, "invalid table update"),
    ] {
        let (_folder, settings, _told) = peer(vec![answer.to_vec()]);
        let refused = Database::open(&settings).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    let folder = tempfile::tempdir().unwrap();
    let nobody = Database::open(&settings(folder.path().join("db.sock"))).unwrap_err();
    assert!(matches!(nobody, Error::Connect { .. }), "{nobody}");
}

/// The server closes its read side before it sends an invalid message, so that a call cannot be written.
#[test]
fn last_message_explains_closed_connection() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("db.sock")).unwrap();
    let (is_deaf, deaf) = mpsc::channel();
    let (has_failed, failed) = mpsc::channel();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 65536];
        for answer in [SCHEMA_ANSWER, r#"{"id":2,"error":null,"result":{}}"#] {
            assert!(stream.read(&mut buffer).unwrap() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        }
        stream.shutdown(Shutdown::Read).unwrap();
        is_deaf.send(()).unwrap();
        // A call that fails on the write, without reading on, would miss the last message.
        let _ = failed.recv_timeout(HALF / 5);
        stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
    });
    let settings = settings(folder.path().join("db.sock"));
    let database =
        Database::open(&Settings { deadline: Duration::from_secs(30), ..settings }).unwrap();
    deaf.recv().unwrap();
    let ended = database.transact(&[]).unwrap_err();
    let _ = has_failed.send(());
    server.join().unwrap();
    assert!(ended.to_string().contains("invalid message"), "{ended}");
}

#[test]
fn ten_thousand_foreign_rows_are_replicated() {
    let row = |number: u32| {
        format!(r#""{}":{{"new":{{"name":"p{number}"}}}}"#, Uuid::from_u128(number.into()))
    };
    let rows: Vec<_> = (0..10_000).map(row).collect();
    let filled = format!(r#"{{"id":2,"error":null,"result":{{"Port":{{{}}}}}}}"#, rows.join(","));
    let echo = br#"{"id":"x","method":"echo","params":["y"]}"#;
    let (_folder, settings, reported) =
        peer(vec![SCHEMA_ANSWER.into(), [filled.as_bytes(), echo].concat(), Vec::new()]);
    // On a busy machine, reading so many rows takes longer than half a second.
    let settings = Settings { deadline: Duration::from_secs(30), ..settings };
    let database = Database::open(&settings).unwrap();
    assert_eq!(database.read(|replica| replica.rows("Port").count()).unwrap(), 10_000);
    let answered = reported.iter().nth(2).unwrap();
    assert_eq!(answered, r#"{"error":null,"id":"x","result":["y"]}"#);
}
