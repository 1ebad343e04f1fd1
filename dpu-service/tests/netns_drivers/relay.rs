//! What stands between the fabric and a daemon of Open vSwitch, and spoils what the daemon says.

use std::{
    io::{Read, Write, copy},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// What becomes of the daemon's answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answers {
    /// They are passed on.
    Whole,
    /// They wait until that is over.
    HeldBack,
    /// Half of one is passed on, and then the connection ends.
    Halved,
    /// That is said in place of one.
    Replaced(&'static [u8]),
    /// That is said, and then for ever the same byte.
    Endless(&'static [u8], u8),
}

/// Passes on what is said to a socket, and spoils what it answers. New connections are made until the test ends.
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
                // A daemon that has ended takes none.
                let Ok(server) = UnixStream::connect(&to) else { continue };
                shared.pass_on(&client, &server);
            }
        });
        Self(spoiling)
    }

    /// From now on, also of connections that are open.
    pub(crate) fn set(&self, answers: Answers) {
        *self.0.answers.lock().unwrap() = answers;
        self.0.changed.notify_all();
    }
}

impl Spoiling {
    /// On two threads, which end with the connection.
    fn pass_on(self: &Arc<Self>, client: &UnixStream, server: &UnixStream) {
        let both = || (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (mut asks, mut asked) = both();
        thread::spawn(move || {
            // Either side may end it at any time.
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

    /// `Err`: the connection ends.
    fn answer(&self, client: &mut UnixStream, answer: &[u8]) -> std::io::Result<()> {
        let held_back = |answers: &mut Answers| *answers == Answers::HeldBack;
        let answers = self.changed.wait_while(self.answers.lock().unwrap(), held_back).unwrap();
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
