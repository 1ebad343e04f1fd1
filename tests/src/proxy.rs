//! A network between host and DPU that a test can cut, hold up and heal. It forwards TLS records
//! without understanding them, so that a fault can be placed after each single one.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use crate::Netns;

/// Type, version and length: what a TLS record begins with.
const HEADER: usize = 5;

/// What becomes of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All connections end. New ones can be made at once.
    Cut,
    /// All connections end, and no new ones can be made.
    Gone,
    /// What the host sends waits, and comes late.
    HoldUp,
    /// What the DPU sends waits, and comes late.
    HoldDown,
    /// Everything waits, and comes late.
    Hold,
    /// A single record is late by that much, and so is what follows it on its way: a connection's order
    /// is TCP's, so that nothing overtakes it.
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

/// The network, as long as the test runs.
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
    /// The fault that there is.
    fault: Option<Fault>,
    /// Records that have passed, of all connections.
    passed: usize,
    /// What every record takes on its way.
    latency: Duration,
    connections: Vec<Connection>,
}

/// A TLS record, and when it arrives.
type Sent = (Instant, Vec<u8>);

/// Both ends' sockets.
type Connection = [TcpStream; 2];

impl Proxy {
    /// Forwards connections to `listen` in that namespace to `target`.
    ///
    /// # Panics
    /// When it can't listen.
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

    /// Lets `records` more TLS records pass, in either direction, and then the fault begin.
    pub fn plan(&self, records: usize, fault: Fault) {
        self.0.change(|state| state.planned = Some((records, fault)));
    }

    /// Lets the fault begin now.
    pub fn strike(&self, fault: Fault) {
        self.0.change(|state| state.strike(fault));
    }

    /// Whether the fault that was planned has begun.
    #[must_use]
    pub fn has_struck(&self) -> bool {
        self.0.state().planned.is_none()
    }

    /// Ends fault and plan. What was held goes on its way.
    pub fn heal(&self) {
        self.0.change(|state| (state.planned, state.fault) = (None, None));
    }

    /// Has each record take so long on its way from now on, in either direction, however many are under way.
    pub fn delay(&self, latency: Duration) {
        self.0.change(|state| state.latency = latency);
    }

    /// TLS records that have passed so far.
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
                // It may have ended by itself.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
        self.fault = (!matches!(fault, Fault::Cut | Fault::Late(_))).then_some(fault);
    }

    /// One more record wants to pass. Returns by how much it is late.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until a record of that direction may pass.
    fn admit(&self, way: Way) {
        let late = self.state().count();
        thread::park_timeout(late);
        let held = |state: &mut State| state.fault.is_some_and(|fault| fault.holds(way));
        drop(self.changed.wait_while(self.state(), held));
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, target: SocketAddr) {
    for host in listener.incoming().filter_map(Result::ok) {
        if shared.state().fault == Some(Fault::Gone) {
            continue;
        }
        // A DPU that is down refuses: the host learns it by the end of its own connection.
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

/// Sends record by record on its way until the connection ends.
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

/// Writes record by record as they arrive until no more come.
fn deliver(shared: &Shared, sent: &Receiver<Sent>, mut to: &TcpStream, way: Way) {
    for (arrival, record) in sent {
        park_until(arrival);
        shared.admit(way);
        if to.write_all(&record).is_err() {
            break;
        }
    }
    // The other side learns of the end only once it may.
    shared.admit(way);
    let _ = to.shutdown(Shutdown::Write);
}

fn park_until(moment: Instant) {
    let left = || moment.saturating_duration_since(Instant::now());
    while !left().is_zero() {
        thread::park_timeout(left());
    }
}
