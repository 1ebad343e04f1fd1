//! Rate limits of what pods receive.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
    time::Duration,
};

use drivers::eswitch::Eswitch;
use model::{Bandwidth, PortSettings, TotalRate};
use serde_json::Value;
use test_clock::Stopwatch;

use crate::veth_dpu::{Dpu, On, Pod};

#[test]
fn rates_towards_the_pod_are_limited() {
    let dpu = Dpu::new();
    let pod = dpu.plug(0);
    let port = dpu.representor(&pod);
    let with = |bandwidth| PortSettings { bandwidth, ..pod.settings.clone() };
    let limited = with(Bandwidth { ingress_rate: 10_000_000, ..Bandwidth::default() });
    for _ in 0..2 {
        dpu.eswitch.set_rate(&port, &limited).unwrap();
        let queue = dpu.netns.json("tc -j qdisc show dev pf0vf0")[0].clone();
        assert_eq!((&queue["kind"], &queue["options"]["rate"]), (&"tbf".into(), &1_250_000.into()));
    }
    assert!(dpu.eswitch.rate(&port, &limited).unwrap().in_place);
    assert!(!dpu.eswitch.rate(&port, &pod.settings).unwrap().in_place);
    let fast = with(Bandwidth { ingress_rate: 100_000_000_000, ..Bandwidth::default() });
    dpu.eswitch.set_rate(&port, &fast).unwrap();
    assert!(dpu.eswitch.rate(&port, &fast).unwrap().in_place);

    for _ in 0..2 {
        dpu.eswitch.clear_rate(&port).unwrap();
        let queue = dpu.netns.json("tc -j qdisc show dev pf0vf0")[0].clone();
        assert_ne!(queue["kind"], "tbf");
    }
    assert!(dpu.eswitch.rate(&port, &pod.settings).unwrap().in_place);
}

#[test]
fn rate_tree_settings_are_refused_without_one() {
    let dpu = Dpu::new();
    let pod = dpu.plug(0);
    let refused = |settings| dpu.eswitch.check(&settings).unwrap_err().to_string();
    let bandwidth = Bandwidth { egress_share: 3_000_000, ..Bandwidth::default() };
    let share = PortSettings { bandwidth, ..pod.settings.clone() };
    for named in ["egress share", "3000000 bit/s", "no rate tree"] {
        assert!(refused(share.clone()).contains(named), "{named}");
    }
    let total_egress = Some(TotalRate { network: "blue".into(), rate: 9_000_000 });
    let total = PortSettings { total_egress, ..pod.settings.clone() };
    for named in ["total egress", "9000000 bit/s", "no rate tree"] {
        assert!(refused(total.clone()).contains(named), "{named}");
    }
    let capabilities = dpu.eswitch.capabilities();
    for name in ["egress-share", "egress-total"] {
        let found = capabilities.iter().find(|capability| capability.name == name).unwrap();
        assert!(!found.available && found.detail.contains("no rate tree"), "{}", found.detail);
    }
    assert_eq!(dpu.eswitch.check(&pod.settings), Ok(()));
}

#[test]
fn a_limited_pod_receives_no_faster() {
    On::EVERY.into_iter().for_each(receives_no_faster);
}

fn receives_no_faster(on: On) {
    let dpu = Dpu::on(on, &[]);
    dpu.prepare().unwrap();
    let (one, mut two) = (dpu.plug(0), dpu.plug(1));
    two.settings.bandwidth =
        Bandwidth { ingress_rate: 1_000_000, ingress_burst: 16_000, ..Bandwidth::default() };
    dpu.program(&one);
    dpu.program(&two);
    one.reaches("10.9.0.2");
    // 40 frames of 1428 bytes are 457 kbit: nearly half a second at 1 Mbit/s, where an unlimited
    // veth pair takes next to nothing. The queue holds 50 ms, so most of them are dropped.
    let flood = "ping -q -f -c 40 -s 1400 -W 1 10.9.0.2";
    let mut words = flood.split(' ');
    let mut ping = Command::new(words.next().unwrap());
    let output = one.netns.netns.run(|| ping.args(words).output().unwrap()).unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let sent = dpu.netns.json("tc -s -j qdisc show dev pf0vf1")[0].clone();
    let held_up = sent["overlimits"].as_u64().unwrap();
    assert!(held_up > 0, "{sent} {report}");
}

/// The bursts that containerd and CRI-O pass with every limit, in bits.
const BURSTS_OF_RUNTIMES: [u64; 2] = [4_294_967_295, 34_359_738_359];

#[test]
fn burst_does_not_exceed_the_limit() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (one, mut two) = (dpu.plug(0), dpu.plug(1));
    dpu.program(&one);
    two.settings.mtu = 9000;
    two.netns.run("ip link set eth0 mtu 9000");
    let rates = [64_000, 1_000_000, 10_000_000, 1_000_000_000, 40_000_000_000];
    for (rate, burst) in rates.iter().flat_map(|rate| BURSTS_OF_RUNTIMES.map(|b| (*rate, b))) {
        two.settings.bandwidth =
            Bandwidth { ingress_rate: rate, ingress_burst: burst, ..Bandwidth::default() };
        dpu.program(&two);
        let queue = &dpu.netns.json("tc -j qdisc show dev pf0vf1")[0]["options"].clone();
        // The kernel needs room for frames; it reports the burst rounded.
        let few_frames = 2 * 9018;
        let at_most = |ms: u64| (rate / 8 * ms / 1000).max(few_frames) * 101 / 100;
        let burst = queue["burst"].as_u64().unwrap();
        assert!((9018..=at_most(100)).contains(&burst), "{rate}: {queue}");
        // For a queue larger than the burst, it reports how long the rest waits.
        let rest = |latency: &Value| rate / 8 * latency.as_u64().unwrap() / 1_000_000 + burst;
        let waiting = queue["limit"].as_u64().unwrap_or_else(|| rest(&queue["lat"]));
        assert!((9018..=at_most(50)).contains(&waiting), "{rate}: {queue}");
        let port = dpu.representor(&two);
        assert!(dpu.eswitch.rate(&port, &two.settings).unwrap().in_place);
    }

    // A limit that another program changed, or an earlier version set, is not in place.
    dpu.netns.run("tc qdisc replace dev pf0vf1 root tbf rate 40gbit burst 1g limit 1g");
    let port = dpu.representor(&two);
    assert!(!dpu.eswitch.rate(&port, &two.settings).unwrap().in_place);
}

#[test]
fn a_limited_pod_answers_under_a_flood() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (one, mut two) = (dpu.plug(0), dpu.plug(1));
    two.settings.bandwidth = Bandwidth {
        ingress_rate: 10_000_000,
        ingress_burst: BURSTS_OF_RUNTIMES[0],
        ..Bandwidth::default()
    };
    dpu.program(&one);
    dpu.program(&two);
    one.reaches("10.9.0.2");
    let listener = two.netns.netns.run(|| TcpListener::bind("10.9.0.2:5001").unwrap()).unwrap();
    let mut sender = one.netns.netns.run(|| TcpStream::connect("10.9.0.2:5001").unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let begun = Stopwatch::start();
    let flood = thread::spawn(move || while sender.write_all(&[0; 65536]).is_ok() {});
    let drain = thread::spawn(move || {
        let (mut buffer, mut received) = (vec![0; 65536], 0);
        while begun.elapsed() < Duration::from_secs(3) {
            received += receiver.read(&mut buffer).unwrap();
        }
        (received, begun.elapsed())
    });
    let (answers, slowest) = ping_times(&one, "10.9.0.2");
    let (received, elapsed) = drain.join().unwrap();
    flood.join().unwrap();
    let allowed = 10_000_000.0 / 8.0 * (elapsed.as_secs_f64() + 0.15);
    assert!((received as f64) < allowed * 1.05, "{received} bytes in {elapsed:?}");
    assert!(answers >= 5, "{answers} of 10 pings were answered");
    assert!(slowest < 200.0, "a ping took {slowest} ms");
}

/// Ten pings: the number of answers, and the longest time in milliseconds.
fn ping_times(from: &Pod, address: &str) -> (usize, f64) {
    let mut ping = Command::new("ping");
    ping.args(["-c", "10", "-i", "0.2", "-W", "2", address]);
    let output = from.netns.netns.run(|| ping.output().unwrap()).unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let time = |line: &str| line.split("time=").nth(1)?.split(' ').next()?.parse::<f64>().ok();
    let times: Vec<_> = report.lines().filter_map(time).collect();
    (times.len(), times.into_iter().fold(0.0, f64::max))
}
