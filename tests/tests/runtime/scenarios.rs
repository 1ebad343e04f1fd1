//! What holds on every runtime: each function is a test, given the runtime.

use e2e::{
    Settings,
    runtime::{Kind, Node},
};

pub(crate) fn two_pods_reach_each_other_in_both_families_and_give_everything_back(kind: Kind) {
    let node = Node::start(kind, &Settings::default());
    let pods = ["one", "two"].map(|name| node.run(name));
    for pod in &pods {
        assert!(node.inside(pod).alias.starts_with("virtual-nic "), "{:?}", node.inside(pod));
    }
    node.assert_reaches(&pods[0], &pods[1]);
    node.assert_invariants();
    for pod in &pods {
        node.runtime.stop(pod).unwrap();
        node.remove(pod);
    }
    node.assert_clean_slate();
}
