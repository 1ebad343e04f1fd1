//! Thousands of hostile connections: other clients are served, and memory is bounded.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use e2e::{
    Lab, Program, Settings,
    scenarios::{
        figure,
        floods::{Misbehaviour, misbehaving_peers_do_not_block_clients, others_are_served},
    },
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// More MiB than either program needs for its limit of concurrent work.
const MOST_MEMORY_MIB: usize = 160;

fn assert_memory_is_bounded(program: &Program) {
    let peak = program.peak_memory_kib() / 1024;
    assert!(peak < MOST_MEMORY_MIB, "{peak} MiB");
}

fn raise_file_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

/// The start of a TLS handshake of 512 bytes.
const HALF_OPEN: [u8; 9] = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc];

#[test]
fn slow_handshakes_do_not_block_clients() {
    const CROWD: usize = 2000;
    raise_file_limit();
    let lab = Lab::start(&Settings::default());
    let address: SocketAddr = "192.168.100.2:7443".parse().unwrap();
    let connect = || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
        // The earliest connections are closed already.
        let _ = stream.write_all(&HALF_OPEN);
        stream
    };
    let mut crowd: Vec<_> = lab.card.host.run(|| (0..CROWD).map(|_| connect()).collect());
    let (over, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while end.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                crowd.iter_mut().for_each(|stream| drop(stream.write(&[0])));
            }
        });
        let served = others_are_served(&lab);
        drop(over);
        assert!(served > 0);
    });
    figure(CROWD, "handshakes that never end");
    assert_memory_is_bounded(&lab.service);
    lab.assert_clean_slate();
}

fn peers_that_misbehave(misbehaviour: Misbehaviour) {
    let lab = Lab::start(&Settings::default());
    misbehaving_peers_do_not_block_clients(&lab, misbehaviour);
    assert_memory_is_bounded(&lab.service);
    lab.assert_clean_slate();
}

#[test]
fn unread_answers_do_not_block_clients() {
    peers_that_misbehave(Misbehaviour::NeverReads);
}

#[test]
fn endless_messages_do_not_block_clients() {
    peers_that_misbehave(Misbehaviour::NeverEnds);
}

#[test]
fn oversized_messages_do_not_block_clients() {
    peers_that_misbehave(Misbehaviour::Oversized);
}

#[test]
fn reset_streams_do_not_block_clients() {
    peers_that_misbehave(Misbehaviour::RapidReset);
}

#[test]
fn endless_headers_do_not_block_clients() {
    peers_that_misbehave(Misbehaviour::EndlessHeaders);
}

#[test]
fn endless_pings_do_not_block_clients() {
    peers_that_misbehave(Misbehaviour::Pings);
}

#[test]
fn thousand_agent_connections_do_not_block_callers() {
    const SILENT: usize = 900;
    const SLOW: usize = 80;
    const ENDLESS: usize = 20;
    raise_file_limit();
    let lab = Lab::start(&Settings::default());
    let connect = || UnixStream::connect(lab.socket()).unwrap();
    let silent: Vec<_> = (0..SILENT).map(|_| connect()).collect();
    let mut slow: Vec<_> = (0..SLOW).map(|_| connect()).collect();
    let endless: Vec<_> = (0..ENDLESS).map(|_| connect()).collect();
    let (over, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while end.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                slow.iter_mut().for_each(|stream| drop(stream.write(b" ")));
            }
        });
        for mut stream in endless {
            scope.spawn(move || {
                while stream.write_all(&[b' '; 4096]).is_ok() {}
                let _ = stream.read(&mut [0; 1]);
            });
        }
        let served = others_are_served(&lab);
        drop(over);
        assert!(served > 0);
    });
    drop(silent);
    figure(SILENT + SLOW + ENDLESS, "hostile connections to the agent's socket");
    assert_memory_is_bounded(&lab.agent);
    lab.assert_clean_slate();
}
