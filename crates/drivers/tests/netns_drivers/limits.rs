//! Limits of what pods send, for cards that do not limit it: measured with `ping` on each fabric.

use std::process::Command;

use drivers::fabric::EgressLimit;
use model::Bandwidth;
use test_clock::{Stopwatch, wait_until};

use crate::veth_dpu::{Dpu, On, Pod, can};

/// The answered share of 200 packets that `ping` sends as fast as it may, with 1400 bytes of data.
fn answered(from: &Pod, to: &str) -> f64 {
    let mut ping = Command::new("ping");
    ping.args(["-q", "-f", "-c", "200", "-s", "1400", "-W", "1", to]);
    let output = from.netns.netns.run(|| ping.output().unwrap()).unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let received = report.split(" received").next().unwrap().rsplit(' ').next();
    received.unwrap().parse().unwrap_or_else(|_| panic!("{report}"))
}

/// Limits the representor of a joined pod, as the steps do.
fn limit(dpu: &Dpu, pod: &Pod, bandwidth: Bandwidth) -> EgressLimit {
    let limit = EgressLimit::of(&bandwidth).unwrap();
    dpu.fabric.check_egress_limit(&limit).unwrap();
    dpu.fabric.set_egress_limit(&dpu.representor(pod), &limit).unwrap();
    limit
}

fn is_limited(dpu: &Dpu, pod: &Pod, wanted: Option<&EgressLimit>) -> bool {
    dpu.fabric.egress_limit(&dpu.representor(pod), wanted).unwrap().in_place
}

/// The fabrics that can limit here. The bridge may refuse by name instead.
fn limiting() -> impl Iterator<Item = Dpu> {
    On::EVERY.into_iter().map(|on| (on, Dpu::on(on, &[]))).filter_map(|(on, dpu)| {
        dpu.prepare().unwrap();
        let is_able = can(&*dpu.fabric, "egress-limit");
        let limit = EgressLimit { rate: 5_000_000, burst: 600_000 };
        match dpu.fabric.check_egress_limit(&limit) {
            Ok(()) => assert!(is_able),
            Err(refused) => {
                assert!(!is_able && on == On::Bridge, "Open vSwitch can on any kernel");
                let reported = refused.to_string();
                let named = "5000000 bit/s";
                assert!(
                    reported.contains(named) && reported.contains("CONFIG_NET_ACT_POLICE"),
                    "{reported}"
                );
            }
        }
        is_able.then_some(dpu)
    })
}

#[test]
fn egress_limit_and_burst_hold() {
    const PACKET_BITS: f64 = 1442.0 * 8.0;
    for dpu in limiting() {
        let (one, two) = (dpu.plug(0), dpu.plug(1));
        dpu.program(&one);
        dpu.program(&two);
        one.reaches("10.9.0.2");
        assert!(answered(&one, "10.9.0.2") > 150.0);

        let limit = limit(&dpu, &one, Bandwidth { egress_rate: 8_000, ..Bandwidth::default() });
        dpu.forget_decisions();
        let begun = Stopwatch::start();
        let passed = answered(&one, "10.9.0.2");
        let allowed = limit.burst as f64 + 8_000.0 * begun.elapsed().as_secs_f64();
        assert!(passed * PACKET_BITS < allowed * 1.05, "{passed} in {:?}", begun.elapsed());
        assert!(passed > 30.0, "a burst passes: {passed}");
        assert!(answered(&two, "fd09::1") < 150.0, "answers count, too");

        dpu.fabric.clear_egress_limit(&dpu.representor(&one)).unwrap();
        dpu.forget_decisions();
        assert!(answered(&one, "10.9.0.2") > 150.0);
    }
}

#[test]
fn limit_is_set_changed_read_and_removed() {
    for dpu in limiting() {
        let pod = dpu.plug(0);
        let port = dpu.representor(&pod);
        dpu.fabric.clear_egress_limit(&port).unwrap();
        dpu.program(&pod);
        let bandwidth = |egress_rate, egress_burst| Bandwidth {
            egress_rate,
            egress_burst,
            ..Bandwidth::default()
        };
        assert!(is_limited(&dpu, &pod, None));
        let mut before = None;
        for bandwidth in [
            bandwidth(8_000, 0),
            bandwidth(100_000_000, 0),
            bandwidth(100_000_000, 8_000_000),
            bandwidth(100_000_000_000, u64::MAX),
        ] {
            for _ in 0..2 {
                let limit = limit(&dpu, &pod, bandwidth);
                assert!(is_limited(&dpu, &pod, Some(&limit)), "{limit}");
                assert!(!is_limited(&dpu, &pod, None));
                assert!(!is_limited(&dpu, &pod, before.as_ref()));
                assert!(dpu.fabric.guard(&port, &pod.settings).unwrap().in_place, "{limit}");
            }
            before = EgressLimit::of(&bandwidth);
        }
        for _ in 0..2 {
            dpu.fabric.clear_egress_limit(&port).unwrap();
            assert!(is_limited(&dpu, &pod, None));
        }
        assert!(dpu.fabric.guard(&port, &pod.settings).unwrap().in_place);

        let limit = limit(&dpu, &pod, bandwidth(1_000_000, 0));
        dpu.netns.run("ip link delete pf0vf0");
        dpu.fabric.clear_egress_limit(&port).unwrap();
        dpu.plug_into(&pod);
        // Open vSwitch reports the port's new number with a delay.
        wait_until("the port is refused", || dpu.fabric.set_egress_limit(&port, &limit).is_err());
        dpu.program(&pod);
        // Open vSwitch removes the former port's meter with a delay, too.
        wait_until("no limit is left", || is_limited(&dpu, &pod, None));
    }
}
