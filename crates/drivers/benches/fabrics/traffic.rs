//! What passes between two pods: on each fabric, guarded, and on a plain Linux bridge with bare veth pairs, in turn.
//!
//! Checksums are computed by the pods: Open vSwitch's userspace datapath passes on unfinished ones.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use crate::{
    median,
    support::TestNetns,
    time,
    veth_dpu::{Dpu, On, Pod},
};

const ROUNDS: usize = 3;
const STREAM: Duration = Duration::from_secs(1);
const ECHOES: usize = 2000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Two pods that reach each other, and what joins them.
struct Pair {
    name: String,
    pods: [Pod; 2],
    _dpu: Dpu,
}

impl Pair {
    fn on(on: On) -> Self {
        let dpu = Dpu::on(on, &[]);
        dpu.prepare().unwrap();
        let pods = [dpu.plug(0), dpu.plug(1)];
        pods.iter().for_each(|pod| dpu.program(pod));
        Self { name: format!("{on:?}"), pods, _dpu: dpu }.ready()
    }

    fn plain() -> Self {
        let dpu = Dpu::new();
        dpu.netns.run("ip link add br0 type bridge");
        dpu.netns.run("ip link set br0 up");
        let pods = [dpu.plug(0), dpu.plug(1)];
        for pod in &pods {
            dpu.netns.run(&format!("ip link set {} master br0 up", pod.settings.vf));
        }
        Self { name: "a plain Linux bridge".into(), pods, _dpu: dpu }.ready()
    }

    fn ready(self) -> Self {
        self.pods.iter().for_each(|pod| drop(pod.netns.run("ethtool -K eth0 tx off")));
        self.pods[0].reaches("10.9.0.2");
        self
    }

    /// Bits per second of one TCP stream.
    fn throughput(&self) -> f64 {
        let (near, far) = (&self.pods[0].netns, &self.pods[1].netns);
        let listener = inside(far, || TcpListener::bind("10.9.0.2:0").unwrap());
        let to = listener.local_addr().unwrap();
        let reader = thread::spawn(move || read_all(&listener));
        let mut stream = inside(near, || TcpStream::connect_timeout(&to, TIMEOUT).unwrap());
        let (buffer, begun) = (vec![0; 128 << 10], Instant::now());
        while begun.elapsed() < STREAM {
            stream.write_all(&buffer).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let read = reader.join().unwrap();
        read as f64 * 8.0 / begun.elapsed().as_secs_f64()
    }

    /// How long a small datagram takes there and back.
    fn round_trip(&self) -> Duration {
        let (near, far) = (&self.pods[0].netns, &self.pods[1].netns);
        let [ours, theirs] = [(near, "10.9.0.1:0"), (far, "10.9.0.2:0")]
            .map(|(netns, at)| inside(netns, || UdpSocket::bind(at).unwrap()));
        let to = theirs.local_addr().unwrap();
        ours.set_read_timeout(Some(TIMEOUT)).unwrap();
        theirs.set_read_timeout(Some(TIMEOUT)).unwrap();
        let echoer = thread::spawn(move || (0..ECHOES).for_each(|_| echo(&theirs)));
        let round_trip = |_| time(|| ask(&ours, to));
        let round_trips: Vec<_> = (0..ECHOES).map(round_trip).collect();
        echoer.join().unwrap();
        median(round_trips.into_iter())
    }
}

pub(crate) fn print() {
    let pairs: Vec<_> = std::iter::once(Pair::plain()).chain(On::EVERY.map(Pair::on)).collect();
    let mut found = vec![(Vec::new(), Vec::new()); pairs.len()];
    for _ in 0..ROUNDS {
        for (pair, (throughputs, round_trips)) in pairs.iter().zip(&mut found) {
            throughputs.push(pair.throughput());
            round_trips.push(pair.round_trip());
        }
    }
    let found = found.into_iter().map(|(mut throughputs, round_trips)| {
        throughputs.sort_by(f64::total_cmp);
        (throughputs[ROUNDS / 2], median(round_trips.into_iter()))
    });
    let found: Vec<_> = found.collect();
    let plain = found[0];
    for (Pair { name, .. }, (throughput, round_trip)) in pairs.iter().zip(&found) {
        println!(
            "{name}: {:.2} Gbit/s, {:.2} times the plain one's; there and back {round_trip:.1?}, {:.2} times",
            throughput / 1e9,
            throughput / plain.0,
            round_trip.as_secs_f64() / plain.1.as_secs_f64()
        );
    }
}

/// A socket stays where it was made.
fn inside<T: Send>(netns: &TestNetns, work: impl FnOnce() -> T + Send) -> T {
    netns.netns.run(work).unwrap()
}

fn read_all(listener: &TcpListener) -> u64 {
    let (mut stream, _) = listener.accept().unwrap();
    let (mut buffer, mut all) = (vec![0; 128 << 10], 0);
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return all,
            read => all += read as u64,
        }
    }
}

fn ask(socket: &UdpSocket, to: SocketAddr) {
    socket.send_to(&[0; 64], to).unwrap();
    socket.recv(&mut [0; 64]).unwrap();
}

fn echo(socket: &UdpSocket) {
    let mut datagram = [0; 64];
    let (length, from) = socket.recv_from(&mut datagram).unwrap();
    socket.send_to(&datagram[..length], from).unwrap();
}
