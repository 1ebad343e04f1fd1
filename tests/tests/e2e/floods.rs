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
        floods::{Malice, others_are_served, peers_that_misbehave_keep_nobody_out},
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
fn two_thousand_handshakes_of_a_byte_a_second_keep_nobody_out() {
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

fn peers_that_misbehave(malice: Malice) {
    let lab = Lab::start(&Settings::default());
    peers_that_misbehave_keep_nobody_out(&lab, malice);
    assert_memory_is_bounded(&lab.service);
    lab.assert_clean_slate();
}

#[test]
fn peers_who_never_read_keep_nobody_out() {
    peers_that_misbehave(Malice::NeverReads);
}

#[test]
fn peers_whose_message_never_ends_keep_nobody_out() {
    peers_that_misbehave(Malice::NeverEnds);
}

#[test]
fn peers_who_announce_oversized_messages_keep_nobody_out() {
    peers_that_misbehave(Malice::Oversized);
}

#[test]
fn peers_who_open_and_reset_streams_keep_nobody_out() {
    peers_that_misbehave(Malice::RapidReset);
}

#[test]
fn peers_whose_headers_never_end_keep_nobody_out() {
    peers_that_misbehave(Malice::EndlessHeaders);
}

#[test]
fn peers_who_ping_without_end_keep_nobody_out() {
    peers_that_misbehave(Malice::Pings);
}

#[test]
fn a_thousand_connections_to_the_agents_socket_keep_nobody_out_for_long() {
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
