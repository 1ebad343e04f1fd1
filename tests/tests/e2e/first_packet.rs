//! The first packets of a pod: none is lost, although its port forwards only after its VF is up.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Answer, Call, FaultAction, Lab, Netns, Settings, Stopwatch, TIME_LIMIT, Timeouts,
    scenarios::End, wait_for,
};
use serde_json::Value;

/// Ports for each family: an IPv6 socket receives both.
const PORTS: [u16; 2] = [7004, 7006];

/// Shorter than the second after which the kernel repeats a neighbour solicitation.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Number of attaches, unless `OFFLOAD_FIRST_PACKETS` sets it.
const ATTACHES: usize = 60;

/// A socket of each family in a namespace, which may have no addresses yet.
struct Sockets([UdpSocket; 2]);

impl Sockets {
    fn of(netns: &Netns) -> Self {
        let open = |(address, port): (&str, u16)| {
            let socket = UdpSocket::bind((address, port)).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        };
        Self(netns.run(|| [("0.0.0.0", PORTS[0]), ("::", PORTS[1])].map(open)))
    }

    fn send(&self, to: &[String; 2], number: usize) {
        for ((socket, address), port) in self.0.iter().zip(to).zip(PORTS) {
            socket.send_to(&number.to_ne_bytes(), (address.as_str(), port)).unwrap();
        }
    }

    /// Number of families in which this packet does not arrive.
    fn lost(&self, number: usize) -> usize {
        let comes = |socket: &UdpSocket| {
            let mut packet = [0; 8];
            while socket.recv(&mut packet).is_ok() {
                if packet == number.to_ne_bytes() {
                    return true;
                }
            }
            false
        };
        self.0.iter().filter(|socket| !comes(socket)).count()
    }
}

/// An address of each family.
fn addresses(answer: &Answer) -> [String; 2] {
    let result = answer.result();
    let address =
        |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    let both: Vec<_> = result["ips"].as_array().unwrap().iter().map(address).collect();
    both.try_into().unwrap()
}

fn links(pod: &Netns) -> Vec<String> {
    let name = |link: &Value| link["ifname"].as_str().unwrap().to_owned();
    pod.json("ip", &["link", "show"]).iter().map(name).collect()
}

/// Runs `work` beside three busy loops.
fn under_load(work: impl FnOnce()) {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = End(&ended);
        for _ in 0..3 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        work();
    });
}

#[test]
fn first_packets_arrive_in_both_families() {
    let attaches = std::env::var("OFFLOAD_FIRST_PACKETS");
    let attaches = attaches.map_or(ATTACHES, |number| number.parse().unwrap());
    let lab = Lab::start(&Settings::default());
    let peer = Netns::new("peer");
    let peers = addresses(&lab.add("blue", &peer, "eth0"));
    let peer_sockets = Sockets::of(&peer);
    under_load(|| {
        let (mut lost, mut latest) = (Vec::new(), Duration::ZERO);
        for number in 0..attaches {
            let pod = Netns::new("pod");
            let sockets = Sockets::of(&pod);
            let added = lab.add("blue", &pod, "eth0");
            let answered = Stopwatch::start();
            let pods = addresses(&added);
            sockets.send(&peers, number);
            peer_sockets.send(&pods, number);
            latest = latest.max(answered.elapsed());
            let missing = [peer_sockets.lost(number), sockets.lost(number)];
            if missing != [0, 0] {
                lost.push((number, missing));
            }
            lab.del("blue", &pod, "eth0").nothing();
        }
        println!("{attaches} attaches; the last packet was sent {latest:?} after the answer");
        assert!(lost.is_empty(), "first packets of {} pods were lost: {lost:?}", lost.len());
    });
    lab.assert_invariants();
}

/// The caller dies while the agent waits for the pod's port. The agent undoes the ADD, although no DPU answers.
#[test]
fn dead_caller_frees_the_vf() {
    let timeouts = Timeouts::from("reconnect_ms = 3000");
    let mut lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    let stayed = stays_after_its_caller(&mut lab, &Netns::new("pod"));
    // Less than the agent's timeout for the next service.
    assert!(stayed < Duration::from_secs(2), "{stayed:?}");
}

/// How long a VF stays in a pod after the caller died, and before it the service that was asked about the port.
fn stays_after_its_caller(lab: &mut Lab, pod: &Netns) -> Duration {
    lab.arm("dpu-service", FaultAction::Kill, "attach-awaited");
    let call = Call::new("ADD", &lab.configuration("blue"));
    let mut plugin = call.of(pod.name(), Some(&pod.path()), "eth0").begin(&lab.card.host);
    wait_for("the service to die", TIME_LIMIT, || lab.service.is_over().then_some(()));
    let died = Stopwatch::start();
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    wait_for("the VF to leave the pod", TIME_LIMIT, || (links(pod) == ["lo"]).then_some(()));
    let stayed = died.unstalled();
    lab.start_service();
    lab.wait_until_good();
    lab.assert_clean_slate();
    stayed
}

/// The service dies from the host's question about the pod's port. The next service is asked.
#[test]
fn first_packets_survive_service_end() {
    let timeouts = Timeouts::from("reconnect_ms = 3000");
    let mut lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    let [peer, pod] = ["peer", "pod"].map(Netns::new);
    let peers = addresses(&lab.add("blue", &peer, "eth0"));
    let [peer_sockets, sockets] = [&peer, &pod].map(Sockets::of);
    lab.arm("dpu-service", FaultAction::Kill, "attach-awaited");
    let (next, added) = thread::scope(|scope| {
        let adding = scope.spawn(|| lab.add("blue", &pod, "eth0"));
        wait_for("the service to die", TIME_LIMIT, || lab.service.is_over().then_some(()));
        // Start it at once: the ADD waits at most `reconnect_ms`, and a service on Open vSwitch starts slowly.
        let trace = lab.trace("dpu-service");
        let next = lab.another_service();
        let added = adding.join().unwrap();
        let passed = std::fs::read_to_string(trace).unwrap();
        assert!(passed.lines().any(|point| point == "attach-awaited"), "{passed}");
        (next, added)
    });
    let pods = addresses(&added);
    sockets.send(&peers, 0);
    peer_sockets.send(&pods, 0);
    assert_eq!([peer_sockets.lost(0), sockets.lost(0)], [0, 0]);
    lab.service = next;
    lab.assert_invariants();
}
