//! A relay between the fabric and a daemon of Open vSwitch that corrupts the daemon's answers.

use std::{
    io::{Read, Write, copy},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use parking_lot::{Condvar, Mutex};

/// What the relay does with the daemon's answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answers {
    /// Passes them on.
    Whole,
    /// Holds them until the mode changes.
    HeldBack,
    /// Passes on half of one, then ends the connection.
    Halved,
    /// Sends this text instead.
    Replaced(&'static [u8]),
    /// Sends this text instead, then one byte for ever.
    Endless(&'static [u8], u8),
}

/// Passes on what clients send to a socket, and corrupts the answers. Accepts connections until the test ends.
pub(crate) struct Relay(Arc<Spoiling>);

struct Spoiling {
    answers: Mutex<Answers>,
    changed: Condvar,
}

impl Relay {
    pub(crate) fn start(at: &Path, to: PathBuf) -> Self {
        let spoiling = Spoiling { answers: Mutex::new(Answers::Whole), changed: Condvar::new() };
        let spoiling = Arc::new(spoiling);
        let (listener, shared) = (UnixListener::bind(at).unwrap(), Arc::clone(&spoiling));
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                // A daemon that has ended accepts none.
                let Ok(server) = UnixStream::connect(&to) else { continue };
                shared.pass_on(&client, &server);
            }
        });
        Self(spoiling)
    }

    /// Changes the mode, also for open connections.
    pub(crate) fn set(&self, answers: Answers) {
        *self.0.answers.lock() = answers;
        self.0.changed.notify_all();
    }
}

impl Spoiling {
    /// Runs two threads, which end with the connection.
    fn pass_on(self: &Arc<Self>, client: &UnixStream, server: &UnixStream) {
        let both = || (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (mut asks, mut asked) = both();
        thread::spawn(move || {
            // Either side may close it at any time.
            let _ = copy(&mut asks, &mut asked);
            let _ = asked.shutdown(Shutdown::Both);
        });
        let ((mut client, mut server), spoiling) = (both(), Arc::clone(self));
        thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            while let Ok(length @ 1..) = server.read(&mut buffer) {
                if spoiling.answer(&mut client, &buffer[..length]).is_err() {
                    break;
                }
            }
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        });
    }

    /// `Err` ends the connection.
    fn answer(&self, client: &mut UnixStream, answer: &[u8]) -> std::io::Result<()> {
        let held_back = |answers: &mut Answers| *answers == Answers::HeldBack;
        let mut answers = self.answers.lock();
        self.changed.wait_while(&mut answers, held_back);
        let answers = answers.clone();
        match answers {
            Answers::Whole | Answers::HeldBack => client.write_all(answer),
            Answers::Replaced(other) => client.write_all(other),
            Answers::Halved => {
                client.write_all(&answer[..answer.len() / 2])?;
                Err(std::io::ErrorKind::ConnectionAborted.into())
            }
            Answers::Endless(begin, byte) => {
                client.write_all(begin)?;
                loop {
                    client.write_all(&[byte; 4096])?;
                }
            }
        }
    }
}
