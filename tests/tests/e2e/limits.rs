//! Rates of pods with limits, measured on traffic by the kernel's counters of the pods' interfaces.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{FabricKind, Lab, Netns, Settings, Stopwatch, scenarios::pods::addresses, wait_for};

/// For a machine on which the senders hardly get a processor.
const LIMIT: Duration = Duration::from_secs(40);

/// Towards the pod, in bit/s. The two differ, so that neither is taken for the other.
const INGRESS: u64 = 16_000_000;
/// From the pod, in bit/s.
const EGRESS: u64 = 6_000_000;

/// What passes at once is what the rate gives in 100 ms, or 72 KiB if that is more. It may come within any window.
const fn burst(rate: u64) -> u64 {
    let largest_piece = 72 * 1024 * 8;
    if rate / 10 > largest_piece { rate / 10 } else { largest_piece }
}

/// One direction between two pods.
struct Way<'a> {
    from: &'a Netns,
    to: &'a Netns,
    address: String,
    /// In bit/s.
    rate: u64,
}

/// What `ip` says that a pod's interface has sent (`tx`) or received (`rx`), in bits.
fn bits(pod: &Netns, way: &str) -> u64 {
    let link = &pod.json("ip", &["-s", "link", "show", "dev", "eth0"])[0];
    link["stats64"][way]["bytes"].as_u64().unwrap() * 8
}

impl Way<'_> {
    /// Sends datagrams, several times as much as the limit lets pass, until it is over.
    fn flood(&self, over: &AtomicBool) {
        // 1442 bytes in a frame.
        let datagram = [0; 1400];
        let per_millisecond = (4 * self.rate).div_ceil(1442 * 8 * 1000);
        let inside = netlink::Netns::open(&self.from.path()).unwrap();
        let socket = inside.run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        let target: SocketAddr = format!("{}:9", self.address).parse().unwrap();
        while !over.load(Ordering::Relaxed) {
            for _ in 0..per_millisecond {
                // A full queue takes none for the moment.
                let _ = socket.send_to(&datagram, target);
            }
            thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Whether more than 60 % of the rate has come through in a second and more. Never is it more than the rate and
    /// a burst.
    fn keeps_its_rate(&self) -> Option<()> {
        let begun = Stopwatch::start();
        let (sent, received) = (bits(self.from, "tx"), bits(self.to, "rx"));
        let begun_at_most = Stopwatch::start();
        e2e::sleep_until_moment(Duration::from_secs(1));
        let lasted_at_least = begun_at_most.elapsed();
        let received = bits(self.to, "rx") - received;
        let lasted_at_most = begun.elapsed();
        let sent = bits(self.from, "tx") - sent;
        let given = |time: Duration| self.rate as f64 * time.as_secs_f64();
        let allowed = given(lasted_at_most) * 1.05 + burst(self.rate) as f64;
        let figures =
            format!("{received} of {sent} bits in {lasted_at_most:?} at {} bit/s", self.rate);
        println!("{figures}");
        assert!((received as f64) < allowed, "{figures}");
        let is_offered_more = sent > 2 * received;
        (is_offered_more && received as f64 > 0.6 * given(lasted_at_least)).then_some(())
    }
}

/// A lab with a network whose pods have both limits, or that towards them alone.
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

/// A pod with limits and one without send to each other as much as they can, both at once.
fn assert_rates(kind_of_fabric: FabricKind, keeps_egress: bool) {
    let lab = lab(kind_of_fabric, keeps_egress);
    let (limited, free) = (Netns::new("limited"), Netns::new("free"));
    let [of_limited, of_free] = [("limited", &limited), ("free", &free)]
        .map(|(network, pod)| addresses(&lab.add(network, pod, "eth0").result()).remove(0));
    // The two networks share their link.
    limited.ip(&["route", "add", "10.8.0.0/24", "dev", "eth0"]);
    free.ip(&["route", "add", "10.9.0.0/24", "dev", "eth0"]);
    wait_for("a way", LIMIT, || limited.pings(&of_free).then_some(()));
    let towards = Way { from: &free, to: &limited, address: of_limited, rate: INGRESS };
    let from = Way { from: &limited, to: &free, address: of_free, rate: EGRESS };
    let ways = if keeps_egress { vec![towards, from] } else { vec![towards] };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = OnDrop(&over);
        for way in &ways {
            scope.spawn(|| way.flood(&over));
        }
        let measured: Vec<_> = ways
            .iter()
            .map(|way| scope.spawn(|| wait_for("its rate", LIMIT, || way.keeps_its_rate())))
            .collect();
        for way in measured {
            way.join().unwrap();
        }
    });
    lab.assert_invariants();
}

/// A failure ends the floods, too.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn pod_receives_at_its_limit() {
    assert_rates(FabricKind::Bridge, false);
}

#[test]
fn pod_sends_and_receives_at_its_limits() {
    assert_rates(FabricKind::OpenVswitch, true);
}
