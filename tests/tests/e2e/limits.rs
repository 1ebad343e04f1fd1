//! Rates of limited pods, measured by the kernel's counters of the pods' interfaces.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    FabricKind, Lab, Netns, Settings, Stopwatch,
    scenarios::{End, pods::addresses},
    wait_for,
};

/// Timeout for a machine on which the senders hardly get processor time.
const LIMIT: Duration = Duration::from_secs(60);

/// Towards the pod, in bit/s. Both limits differ, so that they cannot be confused.
const INGRESS: u64 = 16_000_000;
/// From the pod, in bit/s.
const EGRESS: u64 = 6_000_000;

/// Burst: what the rate allows in 100 ms, at least 72 KiB. It may fall into any window.
const fn burst(rate: u64) -> u64 {
    let largest_piece = 72 * 1024 * 8;
    if rate / 10 > largest_piece { rate / 10 } else { largest_piece }
}

/// One direction between two pods.
struct Direction<'a> {
    from: &'a Netns,
    to: &'a Netns,
    address: String,
    /// In bit/s.
    rate: u64,
}

/// Bits that a pod's interface has sent (`tx`) or received (`rx`), as in `ip`.
fn bits(pod: &Netns, direction: &str) -> u64 {
    let link = &pod.json("ip", &["-s", "link", "show", "dev", "eth0"])[0];
    link["stats64"][direction]["bytes"].as_u64().unwrap() * 8
}

/// Traffic in one direction, in bits. The counters of both ends are not read at the same moment.
#[derive(Debug)]
struct Measured {
    sent: u64,
    received: u64,
    lasted_at_least: Duration,
    lasted_at_most: Duration,
}

impl Direction<'_> {
    /// Sends several times as many datagrams as the limit allows, until it is over.
    fn flood(&self, over: &AtomicBool) {
        // 1442 bytes in a frame.
        let datagram = [0; 1400];
        let per_millisecond = (4 * self.rate).div_ceil(1442 * 8 * 1000);
        let socket = self.from.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let target: SocketAddr = format!("{}:9", self.address).parse().unwrap();
        while !over.load(Ordering::Relaxed) {
            for _ in 0..per_millisecond {
                // A full queue accepts none at the moment.
                let _ = socket.send_to(&datagram, target);
            }
            thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Measures for three seconds or slightly more, of which a burst is a small part.
    fn measure_rate(&self) -> Measured {
        let begun = Stopwatch::start();
        let (sent, received) = (bits(self.from, "tx"), bits(self.to, "rx"));
        let begun_at_most = Stopwatch::start();
        e2e::sleep_until_moment(Duration::from_secs(3));
        let lasted_at_least = begun_at_most.elapsed();
        let received = bits(self.to, "rx") - received;
        let lasted_at_most = begun.elapsed();
        let sent = bits(self.from, "tx") - sent;
        Measured { sent, received, lasted_at_least, lasted_at_most }
    }

    /// Repeats the measurement until the sender had enough processor time: it offered more than twice the received
    /// traffic, and more than 85 % of the rate arrived. No measurement may exceed the rate plus a burst.
    fn assert_rate(&self) {
        wait_for("its rate", LIMIT, || {
            let measured = self.measure_rate();
            println!("{measured:?} at {} bit/s", self.rate);
            let given = |time: Duration| self.rate as f64 * time.as_secs_f64();
            let received = measured.received as f64;
            let allowed = given(measured.lasted_at_most) * 1.05 + burst(self.rate) as f64;
            assert!(received < allowed, "{measured:?} at {} bit/s", self.rate);
            let is_offered_more = measured.sent > 2 * measured.received;
            (is_offered_more && received > 0.85 * given(measured.lasted_at_least)).then_some(())
        });
    }
}

/// A lab with a network whose pods have both limits, or only the one towards them.
fn lab(kind_of_fabric: FabricKind, keeps_egress: bool) -> Lab {
    let egress = if keeps_egress { format!(", egress_rate = {EGRESS}") } else { String::new() };
    let limited = format!(
        "[[network]]\nname = \"limited\"\nbandwidth = {{ ingress_rate = {INGRESS}{egress} }}\n\
         [[network.subnets]]\ncidr = \"10.9.0.0/24\"\n\
         [[network]]\nname = \"free\"\n[[network.subnets]]\ncidr = \"10.8.0.0/24\"\n"
    );
    let mut settings = Settings { kind_of_fabric, ..Settings::with_vfs(2) };
    settings.networks.push_str(&limited);
    Lab::start(&settings)
}

/// A pod with limits and one without send to each other as fast as they can, at the same time.
fn assert_rates(kind_of_fabric: FabricKind, keeps_egress: bool) {
    let lab = lab(kind_of_fabric, keeps_egress);
    let (limited, free) = (Netns::new("limited"), Netns::new("free"));
    let [of_limited, of_free] = [("limited", &limited), ("free", &free)]
        .map(|(network, pod)| addresses(&lab.add(network, pod, "eth0").result()).remove(0));
    // Both networks share their link.
    limited.ip(&["route", "add", "10.8.0.0/24", "dev", "eth0"]);
    free.ip(&["route", "add", "10.9.0.0/24", "dev", "eth0"]);
    wait_for("a route", LIMIT, || limited.pings(&of_free).then_some(()));
    let towards = Direction { from: &free, to: &limited, address: of_limited, rate: INGRESS };
    let from = Direction { from: &limited, to: &free, address: of_free, rate: EGRESS };
    let directions = if keeps_egress { vec![towards, from] } else { vec![towards] };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = End(&over);
        for direction in &directions {
            scope.spawn(|| direction.flood(&over));
        }
        let measured: Vec<_> =
            directions.iter().map(|direction| scope.spawn(|| direction.assert_rate())).collect();
        for direction in measured {
            direction.join().unwrap();
        }
    });
    lab.assert_invariants();
}

#[test]
fn pod_receives_at_its_limit() {
    assert_rates(FabricKind::Bridge, false);
}

#[test]
fn pod_sends_and_receives_at_its_limits() {
    assert_rates(FabricKind::OpenVswitch, true);
}
