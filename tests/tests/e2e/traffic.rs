//! Traffic counters of pods for operators and monitoring.

use std::{
    process::{Child, Stdio},
    time::Duration,
};

use e2e::{Lab, Netns, Settings, openmetrics, scenarios::pods::addresses, wait_for};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

fn settings() -> Settings {
    Settings { has_metrics: true, has_attachment_metrics: true, ..Settings::default() }
}

/// A pod's attachment.
struct Attached {
    pod: Netns,
    id: String,
    representor: String,
    address: String,
}

impl Attached {
    fn new(lab: &Lab, label: &str) -> Self {
        let pod = Netns::new(label);
        let address = addresses(&lab.add("blue", &pod, "eth0").result()).remove(0);
        let attachments = lab.operator().get("attachments");
        let is_its = |it: &&Value| it["key"]["containerId"] == pod.name();
        let id = attachments.iter().find(is_its).unwrap()["id"].as_str().unwrap().to_owned();
        let vfs = lab.operator().get("vfs");
        let vf = vfs.iter().find(|vf| vf["attachmentId"] == id).unwrap();
        let representor = vf["representor"].as_str().unwrap().to_owned();
        Self { pod, id, representor, address }
    }

    /// Sends five packets to an address with another source than its own.
    fn sends_for_another(&self, to: &str) {
        self.pod.ip(&["address", "add", "10.1.77.77/16", "dev", "eth0"]);
        let mut ping = self.pod.command("ping");
        ping.args(["-n", "-q", "-c", "5", "-i", "0.02", "-W", "1", "-I", "10.1.77.77", to]);
        assert!(!ping.output().unwrap().status.success(), "it was let pass");
        self.pod.ip(&["address", "delete", "10.1.77.77/16", "dev", "eth0"]);
    }

    /// Sends to an address a hundred times a second until it is killed.
    fn goes_on_sending(&self, to: &str) -> Child {
        let mut ping = self.pod.command("ping");
        ping.args(["-n", "-q", "-i", "0.01", "-s", "1000", to]).stdout(Stdio::null());
        ping.spawn().unwrap()
    }
}

/// Sent and received bytes and packets, as the pod sees it.
type Carried = [u64; 4];

fn kernel_counts(lab: &Lab, of: &Attached) -> Carried {
    let link = &lab.card.dpu.json("ip", &["-s", "link", "show", "dev", &of.representor])[0];
    [("rx", "bytes"), ("rx", "packets"), ("tx", "bytes"), ("tx", "packets")]
        .map(|(way, unit)| link["stats64"][way][unit].as_u64().unwrap())
}

fn number(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap()
}

/// Counters of `dpuctl top -o json`, with the guard's drops.
fn top_counts(lab: &Lab, of: &Attached) -> (Carried, u64) {
    let look = lab.operator().output(&["top", "--once", "-o", "json"]);
    let look: Value = serde_json::from_str(&look).unwrap();
    let attachments = look["attachments"].as_array().unwrap();
    let found = attachments.iter().find(|it| it["attachmentId"] == of.id).unwrap();
    let carried = ["sentBytes", "sentPackets", "receivedBytes", "receivedPackets"]
        .map(|name| number(&found["counters"], name));
    (carried, number(&found["counters"], "guardDrops"))
}

fn metrics_counts(lab: &Lab, of: &Attached) -> Option<(Carried, u64)> {
    let page = openmetrics::scrape(&lab.card.dpu)?;
    let value = |name: &str, labels: &[(&str, &str)]| {
        let family = format!("dpu_offload_service_attachment_{name}");
        let labels = [labels, &[("attachment", of.id.as_str()), ("network", "blue")]].concat();
        openmetrics::value(&page, &family, "_total", &labels)
    };
    let names = ["sent_bytes", "sent_packets", "received_bytes", "received_packets"];
    let carried = names.map(|name| value(name, &[]));
    let drops = value("dropped_packets", &[("cause", "guard")])?;
    assert_eq!(value("dropped_packets", &[("cause", "ingress_limit")]), Some(0.0));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers")]
    let whole = |value: f64| value as u64;
    Some((carried.map(|value| whole(value.unwrap())), whole(drops)))
}

#[test]
fn pod_counters_match_the_kernel() {
    let lab = Lab::start(&settings());
    let [one, other] = ["one", "other"].map(|label| Attached::new(&lab, label));
    let (before, drops_before) = top_counts(&lab, &one);
    assert!(one.pod.pings(&other.address));
    one.sends_for_another(&other.address);
    // Pods send something by themselves now and then: all four readings must fall into a quiet moment.
    wait_for("all to tell the same", LIMIT, || {
        let kernel = kernel_counts(&lab, &one);
        let (top, drops) = top_counts(&lab, &one);
        let described = lab.operator().output(&["describe", "attachment", &one.id]);
        let is_described = described.contains(&format!(" in {} packets\n", kernel[1]))
            && described.contains(&format!("\nGuard drops:   {drops}\n"))
            && described.contains("\nIn hardware:   no\n");
        let is_same = top == kernel && is_described && metrics_counts(&lab, &one)? == (top, drops);
        let have_grown = top.iter().zip(before).all(|(now, before)| *now >= before + 3);
        (is_same && have_grown && drops >= drops_before + 5).then_some(())
    });
    let (_, of_other) = top_counts(&lab, &other);
    assert!(of_other < drops_before + 5, "{of_other} were others'");
    lab.assert_invariants();
}

#[test]
fn top_sorts_pods_by_rate() {
    let lab = Lab::start(&settings());
    let [idle, one, other] = ["idle", "one", "other"].map(|label| Attached::new(&lab, label));
    let mut sending = one.goes_on_sending(&other.address);
    wait_for("the two to be seen sending", LIMIT, || {
        let table = lab.operator().output(&["top", "--once", "--interval", "1", "-o", "wide"]);
        let rows: Vec<Vec<_>> =
            table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        let is_last = idle.id.starts_with(rows[2][0]);
        // A hundred packets of 1042 bytes a second, as far as this machine can.
        let is_sending = rows[..2].iter().all(|row| row[5] == "kB" && row[7] == "kB");
        let packets: u64 = rows[0][rows[0].len() - 2].parse().unwrap();
        (rows.len() == 3 && is_last && is_sending && (10..=200).contains(&packets)).then_some(())
    });
    sending.kill().unwrap();
    sending.wait().unwrap();
}

#[test]
fn attachment_without_port_has_no_counters() {
    let mut lab = Lab::start(&settings());
    let attached = Attached::new(&lab, "pod");
    assert!(metrics_counts(&lab, &attached).is_some());
    // Nothing repairs it here.
    lab.card.program.crash();
    lab.card.dpu.ip(&["link", "delete", &attached.representor]);
    wait_for("its port is gone", LIMIT, || {
        let look = lab.operator().output(&["top", "--once", "-o", "json"]);
        let look: Value = serde_json::from_str(&look).unwrap();
        look["attachments"][0]["counters"].is_null().then_some(())
    });
    wait_for("its metrics are gone", LIMIT, || {
        metrics_counts(&lab, &attached).is_none().then_some(())
    });
    assert!(!lab.operator().output(&["describe", "attachment", &attached.id]).contains("Sent:"));
}

#[test]
fn attachment_metrics_are_optional() {
    let lab = Lab::start(&Settings { has_metrics: true, ..Settings::default() });
    let attached = Attached::new(&lab, "pod");
    let request = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    let is_attached = |page: &str| page.contains("service_attachments{state=\"attached\"} 1\n");
    let page = wait_for("it to be counted", LIMIT, || {
        openmetrics::ask(&lab.card.dpu, request).ok().filter(|page| is_attached(page))
    });
    for secret in [&*attached.id, attached.pod.name(), "service_attachment_"] {
        assert!(!page.contains(secret), "{secret}: {page}");
    }
}
