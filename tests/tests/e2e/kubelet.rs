//! Calls of the kubelet and its runtimes beyond one ADD and one DEL.

use std::{path::Path, thread, time::Duration};

use e2e::{
    Call, Lab, Netns, Settings,
    scenarios::{outages::ids, pods::addresses},
    wait_for,
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

/// A call for a sandbox of the pod `cart`, as a Kubernetes runtime makes it.
fn of_cart(lab: &Lab, verb: &str, container: &str, netns: Option<&Path>) -> Call {
    let labels = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=1-2";
    Call::new(verb, &lab.configuration("blue"))
        .of(container, netns, "eth0")
        .with("CNI_ARGS", labels)
}

fn vf_of(result: &Value) -> &Value {
    &result["interfaces"][0]["pciID"]
}

#[test]
fn second_del_spares_next_pod_on_vf() {
    let lab = Lab::start(&Settings::with_vfs(1));
    let (old, new) = (Netns::new("old"), Netns::new("new"));
    let first = lab.add("blue", &old, "eth0").result();
    lab.del("blue", &old, "eth0").nothing();
    let second = lab.add("blue", &new, "eth0").result();
    assert_eq!(vf_of(&first), vf_of(&second), "there is but one");
    for _ in 0..2 {
        lab.execute(&of_cart(&lab, "DEL", old.name(), None)).nothing();
        lab.del("blue", &old, "eth0").nothing();
    }
    lab.assert_invariants();
    assert_eq!(lab.add("blue", &new, "eth0").result(), second);
    lab.del("blue", &new, "eth0").nothing();
    lab.assert_clean_slate();
}

/// The sandbox is replaced, and the old one is deleted much later, when its namespace is gone.
#[test]
fn late_del_spares_new_sandbox() {
    let lab = Lab::start(&Settings::default());
    let (old, new, peer) = (Netns::new("old"), Netns::new("new"), Netns::new("peer"));
    let _ = lab.add("blue", &peer, "eth0").result();
    let old_name = old.name().to_owned();
    let old_path = old.path();
    let _ = lab.execute(&of_cart(&lab, "ADD", &old_name, Some(&old.path()))).result();
    let result = lab.execute(&of_cart(&lab, "ADD", new.name(), Some(&new.path()))).result();
    let reaches = || addresses(&result).iter().all(|address| peer.pings(address));
    assert!(reaches());
    drop(old);
    wait_for("the old sandbox's release", LIMIT, || (ids(&lab).len() == 2).then_some(()));
    for netns in [Some(old_path.as_path()), None] {
        lab.execute(&of_cart(&lab, "DEL", &old_name, netns)).nothing();
        assert!(reaches());
    }
    lab.assert_invariants();
    for pod in [&new, &peer] {
        lab.del("blue", pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

/// A runtime kills the plugin after its timeout, and sends DEL while the agent continues.
#[test]
fn del_after_killed_add_leaves_nothing() {
    let lab = Lab::start(&Settings { proxied: true, ..Settings::default() });
    for records in 0..8 {
        let pod = Netns::new("pod");
        let before = lab.proxy().passed();
        let mut add = of_cart(&lab, "ADD", pod.name(), Some(&pod.path())).begin(&lab.card.host);
        wait_for("the call to get so far", LIMIT, || {
            let is_over = add.try_wait().unwrap().is_some();
            (is_over || lab.proxy().passed() >= before + records).then_some(())
        });
        // The plugin may have ended.
        let _ = add.kill();
        add.wait().unwrap();
        lab.del("blue", &pod, "eth0").nothing();
        lab.assert_clean_slate();
    }
}

#[test]
fn del_overrides_unanswered_add() {
    let lab = Lab::start(&Settings::default());
    for _ in 0..3 {
        let pod = Netns::new("pod");
        thread::scope(|scope| {
            let add = scope.spawn(|| lab.add("blue", &pod, "eth0"));
            wait_for("the DPU to have it", LIMIT, || (ids(&lab).len() == 1).then_some(()));
            lab.del("blue", &pod, "eth0").nothing();
            let _ = add.join().unwrap();
        });
        lab.assert_clean_slate();
    }
}

#[test]
fn concurrent_repeated_adds_get_same_answer() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let answers: Vec<Value> = thread::scope(|scope| {
        let adds: Vec<_> = (0..4).map(|_| scope.spawn(|| lab.add("blue", &pod, "eth0"))).collect();
        adds.into_iter().map(|add| add.join().unwrap().result()).collect()
    });
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
    assert_eq!(ids(&lab).len(), 1);
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

/// An ADD of a container whose sandbox was created again at the same path: the first namespace is gone.
#[test]
fn recreated_namespace_works_after_old_one_ended() {
    let lab = Lab::start(&Settings::default());
    let (old, new) = (Netns::new("pod"), Netns::new("pod"));
    let container = new.name();
    let _ = lab.execute(&of_cart(&lab, "ADD", container, Some(&old.path()))).result();
    let again = of_cart(&lab, "ADD", container, Some(&new.path()));
    lab.execute(&again).fails(110, &["network namespace"]);
    drop(old);
    let added = wait_for("the old namespace's VF to come home", LIMIT, || {
        Some(lab.execute(&again)).filter(|answer| answer.status.success())
    });
    let _ = added.result();
    lab.assert_invariants();
    lab.del("blue", &new, "eth0").nothing();
    lab.assert_clean_slate();
}

/// The runtime takes `eth0`'s addresses for the pod's, and would repeat an ADD without any forever.
#[test]
fn eth0_without_address_is_refused() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let on_wire = lab.configuration("wire").to_string();
    let add = of_cart(&lab, "ADD", pod.name(), Some(&pod.path())).stdin(on_wire);
    lab.execute(&add).fails(109, &["eth0 of a Kubernetes pod", "an address"]);
    lab.assert_clean_slate();
    let _ = lab.execute(&add.with("CNI_IFNAME", "net1")).result();
    lab.assert_invariants();
}
