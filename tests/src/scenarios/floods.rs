//! Hostile peers: they connect and then send little, too much, or the wrong thing for as long as the server allows.

use std::{
    io::{self, Write},
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::{End, figure};
use crate::{Lab, Netns, Stopwatch, wait_for};

/// HTTP/2 frames that are used here (RFC 9113).
mod frame {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const CONTINUATION: u8 = 9;
    pub(super) const END_STREAM: u8 = 1;
    pub(super) const END_HEADERS: u8 = 4;

    pub(super) fn of(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }
}

/// Behaviour of a peer with a valid certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// Makes a call but allows no byte of its answer, and reads nothing.
    NeverReads,
    /// Sends a message without end.
    NeverEnds,
    /// Announces a message of 4 GiB.
    Oversized,
    /// Opens streams and resets them at once, repeatedly.
    RapidReset,
    /// Sends headers without end.
    EndlessHeaders,
    /// Sends pings without end, and reads no acknowledgement.
    Pings,
}

impl Misbehaviour {
    /// All behaviours.
    pub const ALL: [Self; 6] = [
        Self::NeverReads,
        Self::NeverEnds,
        Self::Oversized,
        Self::RapidReset,
        Self::EndlessHeaders,
        Self::Pings,
    ];

    /// The `number`-th message after the preface.
    fn payload(self, number: u32) -> Vec<u8> {
        let stream = 2 * number + 1;
        let headers = |flags| frame::of(frame::HEADERS, flags, stream, &request());
        let call = || headers(frame::END_HEADERS);
        let data = |flags, bytes: &[u8]| frame::of(frame::DATA, flags, stream, bytes);
        match self {
            Self::NeverReads => [call(), data(frame::END_STREAM, &[0; 5])].concat(),
            Self::NeverEnds if number == 0 => [call(), data(0, &[0, 0, 0xf, 0xff, 0xff])].concat(),
            Self::NeverEnds => frame::of(frame::DATA, 0, 1, &[0; 16]),
            Self::Oversized => [call(), data(0, &[0, 0xff, 0xff, 0xff, 0xff])].concat(),
            Self::RapidReset => {
                [call(), frame::of(frame::RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
            }
            Self::EndlessHeaders if number == 0 => headers(0),
            Self::EndlessHeaders => {
                frame::of(frame::CONTINUATION, 0, 1, &literal("x-more", &"x".repeat(100)))
            }
            Self::Pings => frame::of(frame::PING, 0, 0, &[0; 8]),
        }
    }
}

/// The client preface of HTTP/2. Its settings allow no byte of content.
fn greeting() -> Vec<u8> {
    let no_window = [0, 4, 0, 0, 0, 0];
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame::of(frame::SETTINGS, 0, 0, &no_window)]
        .concat()
}

/// Headers of a call that viewers may make.
fn request() -> Vec<u8> {
    let post_by_https = vec![0x83, 0x87];
    let named = [
        (":path", "/offload.v1.Operator/ListVfs"),
        (":authority", "dpu-1"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    named.iter().fold(post_by_https, |all, (name, value)| [all, literal(name, value)].concat())
}

/// A header in HPACK's literal form.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// A foreign TLS client with the certificate of the viewer `guest`. Its output is discarded.
fn client(lab: &Lab) -> Child {
    let pki = &lab.pki;
    lab.card
        .host
        .command("openssl")
        .args(["s_client", "-quiet", "-tls1_3", "-alpn", "h2", "-connect", "192.168.100.2:7443"])
        .arg("-CAfile")
        .arg(pki.ca())
        .arg("-cert")
        .arg(pki.certificate("viewer", "guest"))
        .arg("-key")
        .arg(pki.key("viewer", "guest"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("start openssl")
}

/// Concurrent hostile peers: fewer than the limit of connections for each identity.
const PEERS: usize = 6;

/// How long the other clients are observed.
const WATCHED: Duration = Duration::from_secs(4);

/// Limit for serving another client, on a machine that the peers share.
const BOUND: Duration = Duration::from_secs(40);

/// Peers with a valid certificate misbehave, and all other clients are served.
///
/// # Panics
/// If a client is not served.
pub fn misbehaving_peers_do_not_block_clients(lab: &Lab, misbehaviour: Misbehaviour) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = End(&over);
        let harm = || misbehave(lab, misbehaviour, &over);
        let peers: Vec<_> = (0..PEERS).map(|_| scope.spawn(harm)).collect();
        let served = others_are_served(lab);
        drop(end);
        let connections: usize = peers.into_iter().map(|peer| peer.join().unwrap()).sum();
        assert!(served > 0 && connections >= PEERS, "{served} served, {connections} connections");
        figure(connections, "connections of hostile peers with a certificate");
    });
}

/// Misbehaves until it is over, with a new connection after each that is closed. Returns the number of connections.
fn misbehave(lab: &Lab, misbehaviour: Misbehaviour, over: &AtomicBool) -> usize {
    let mut connections = 0;
    while !over.load(Ordering::Relaxed) {
        connections += 1;
        let mut client = client(lab);
        let mut stdin = client.stdin.take().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| send_all(&mut stdin, misbehaviour));
            while !over.load(Ordering::Relaxed) && client.try_wait().unwrap().is_none() {
                thread::park_timeout(Duration::from_millis(10));
            }
            // The client may have ended.
            let _ = client.kill();
        });
        client.wait().unwrap();
    }
    connections
}

/// Sends until the server accepts no more.
fn send_all(to: &mut impl Write, misbehaviour: Misbehaviour) {
    let write = |to: &mut dyn Write, bytes: &[u8]| -> io::Result<()> { to.write_all(bytes) };
    if write(to, &greeting()).is_ok() {
        for number in 0.. {
            if write(to, &misbehaviour.payload(number)).is_err() {
                return;
            }
        }
    }
}

/// Attaches and detaches for a while. Returns the number of calls.
///
/// # Panics
/// If a call is not served in time.
pub fn others_are_served(lab: &Lab) -> usize {
    let begun = Stopwatch::start();
    let mut served = 0;
    while begun.elapsed() < WATCHED {
        let pod = Netns::new("pod");
        for verb in ["ADD", "DEL"] {
            // The peers also use the machine's processors: a runtime may have to repeat its call.
            wait_for(&format!("a good {verb}"), BOUND, || {
                let answer = lab.call(verb, "blue", &pod, "eth0");
                answer.status.success().then_some(())
            });
        }
        served += 1;
    }
    served
}
