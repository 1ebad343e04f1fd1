//! A network between host and DPU that a test can cut, delay and restore. It forwards TLS records without decrypting
//! them, so a fault can follow any single record.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Netns;

/// Header of a TLS record: type, version and length.
const HEADER: usize = 5;

/// A fault of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All connections end. New ones are possible at once.
    Cut,
    /// All connections end, and new ones are impossible.
    Gone,
    /// Records of the host are delayed.
    HoldUp,
    /// Records of the DPU are delayed.
    HoldDown,
    /// All records are delayed.
    Hold,
    /// One record is delayed by this time, and so are those behind it on the same connection, because TCP keeps their
    /// order.
    Late(Duration),
}

impl Fault {
    fn holds(self, way: Way) -> bool {
        match self {
            Self::Cut | Self::Gone | Self::Late(_) => false,
            Self::HoldUp => way == Way::Up,
            Self::HoldDown => way == Way::Down,
            Self::Hold => true,
        }
    }
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From the host to the DPU.
    Up,
    Down,
}

/// The network, while the test runs.
#[derive(Clone, Debug)]
pub struct Proxy(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Records that may pass until the fault begins.
    planned: Option<(usize, Fault)>,
    /// The present fault.
    fault: Option<Fault>,
    /// Records that have passed on all connections.
    passed: usize,
    /// Latency of each record.
    latency: Duration,
    connections: Vec<Connection>,
}

/// A TLS record with its time of arrival.
type Sent = (Instant, Vec<u8>);

/// Sockets of both sides.
type Connection = [TcpStream; 2];

impl Proxy {
    /// Forwards connections from `listen` in the namespace to `target`.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start(netns: &Netns, listen: SocketAddr, target: SocketAddr) -> Self {
        let shared = Arc::new(Shared::default());
        let netns = netns.open();
        let (listening, listens) = mpsc::channel();
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            netns.run(|| {
                let listener = TcpListener::bind(listen).expect("listen");
                listening.send(()).expect("tell so");
                accept(&serving, &listener, target);
            })
        });
        listens.recv().expect("the proxy to listen");
        Self(shared)
    }

    /// Schedules a fault after `records` more TLS records, in either direction.
    pub fn plan(&self, records: usize, fault: Fault) {
        self.0.change(|state| state.planned = Some((records, fault)));
    }

    /// Starts a fault now.
    pub fn strike(&self, fault: Fault) {
        self.0.change(|state| state.strike(fault));
    }

    /// Whether the scheduled fault has begun.
    #[must_use]
    pub fn has_struck(&self) -> bool {
        self.0.state().planned.is_none()
    }

    /// Ends the fault and its schedule. Held records are delivered.
    pub fn heal(&self) {
        self.0.change(|state| (state.planned, state.fault) = (None, None));
    }

    /// Sets the latency of each record in both directions, independent of the number of records in flight.
    pub fn delay(&self, latency: Duration) {
        self.0.change(|state| state.latency = latency);
    }

    /// Number of TLS records that have passed.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.0.state().passed
    }
}

impl State {
    fn strike(&mut self, fault: Fault) {
        self.planned = None;
        if matches!(fault, Fault::Cut | Fault::Gone) {
            for socket in self.connections.drain(..).flatten() {
                // The fault may have ended by itself.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
        self.fault = (!matches!(fault, Fault::Cut | Fault::Late(_))).then_some(fault);
    }

    /// Counts a record and returns its delay.
    fn count(&mut self) -> Duration {
        self.passed += 1;
        match &mut self.planned {
            Some((0, fault)) => {
                let fault = *fault;
                self.strike(fault);
                if let Fault::Late(by) = fault { by } else { Duration::ZERO }
            }
            Some((left, _)) => {
                *left -= 1;
                Duration::ZERO
            }
            None => Duration::ZERO,
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until a record of this direction may pass.
    fn admit(&self, way: Way) {
        let late = self.state().count();
        thread::park_timeout(late);
        let held = |state: &mut State| state.fault.is_some_and(|fault| fault.holds(way));
        self.changed.wait_while(&mut self.state(), held);
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, target: SocketAddr) {
    for host in listener.incoming().filter_map(Result::ok) {
        if shared.state().fault == Some(Fault::Gone) {
            continue;
        }
        // A DPU that is down refuses; the host notices by the end of its connection.
        if let Ok(dpu) = TcpStream::connect(target) {
            connect(shared, host, dpu).expect("share the sockets");
        }
    }
}

fn connect(shared: &Arc<Shared>, host: TcpStream, dpu: TcpStream) -> io::Result<()> {
    for socket in [&host, &dpu] {
        socket.set_nodelay(true)?;
    }
    shared.state().connections.push([host.try_clone()?, dpu.try_clone()?]);
    let up = (host.try_clone()?, dpu.try_clone()?, Way::Up);
    for (from, to, way) in [up, (dpu, host, Way::Down)] {
        let (reading, delivering) = (Arc::clone(shared), Arc::clone(shared));
        let (sender, sent) = mpsc::channel();
        thread::spawn(move || read(&reading, &from, &sender));
        thread::spawn(move || deliver(&delivering, &sent, &to, way));
    }
    Ok(())
}

/// Queues record by record until the connection ends.
fn read(shared: &Shared, mut from: &TcpStream, sender: &Sender<Sent>) -> io::Result<()> {
    let mut header = [0; HEADER];
    loop {
        from.read_exact(&mut header)?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let mut record = header.to_vec();
        record.resize(HEADER + length, 0);
        from.read_exact(&mut record[HEADER..])?;
        let arrival = Instant::now() + shared.state().latency;
        sender.send((arrival, record)).map_err(io::Error::other)?;
    }
}

/// Writes records at their time of arrival until no more come.
fn deliver(shared: &Shared, sent: &Receiver<Sent>, mut to: &TcpStream, way: Way) {
    for (arrival, record) in sent {
        park_until(arrival);
        shared.admit(way);
        if to.write_all(&record).is_err() {
            break;
        }
    }
    // The other side learns about the end only after the fault.
    shared.admit(way);
    let _ = to.shutdown(Shutdown::Write);
}

fn park_until(moment: Instant) {
    let left = || moment.saturating_duration_since(Instant::now());
    while !left().is_zero() {
        thread::park_timeout(left());
    }
}
