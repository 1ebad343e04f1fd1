//! Invariants of a node on which the kubelet runs the pods.

use std::{collections::BTreeMap, path::Path};

use super::{Cluster, node::show_logs};
use crate::{Enforcement, Scene, runtime::Cri};

/// containerd's socket, as the kubelet knows it.
const CONTAINERD: &str = "/run/containerd/containerd.sock";

impl Cluster {
    /// Asserts the five invariants after waiting for background work.
    ///
    /// # Panics
    /// If one is still broken, naming each breach.
    pub fn assert_invariants(&self) {
        self.scene().assert_invariants();
    }

    fn scene(&self) -> Scene<'_> {
        let cri = Cri::new(Path::new(CONTAINERD));
        let links = || self.dpu.json("ip", &["-d", "link", "show"]);
        Scene {
            host: &self.host,
            not_pods: Vec::new(),
            pods: Some(Box::new(move || pods(&cri))),
            clean: &self.clean,
            operator: self.operator(),
            enforcement: Enforcement::Representors(Box::new(links)),
        }
    }
}

/// Network namespaces of pods by name, with their sandboxes. One that has ended is listed for a while.
fn pods(cri: &Cri) -> BTreeMap<String, String> {
    let ids = cri.ids().unwrap().into_iter();
    let netns = |id: &String| {
        let path = cri.netns(id)?;
        let name = Path::new(&path).file_name()?.to_str()?.to_owned();
        Path::new("/run/netns").join(&name).exists().then_some(name)
    };
    ids.filter_map(|id| Some((netns(&id)?, id))).collect()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show_logs();
        }
    }
}
