//! Reports VFs that the kubelet gave to pods which do not use them.
//!
//! A pod that requests a VF but attaches to a network of another pool gets another VF. Its container then has the
//! address of a VF that is not in the pod, and no other pod can have that VF.

use std::{collections::BTreeMap, sync::Arc};

use offload_proto::{
    FindingCode,
    v1::{Finding, Pod},
};
use vf_alloc::Device;

use super::vfio::Choice;
use crate::agent::vfs::{Phase, Record};

/// Findings by attachment id.
pub(super) type Unused = BTreeMap<String, Finding>;

/// The findings of the last two checks.
#[derive(Debug, Default)]
pub(super) struct UnusedVfs {
    seen: Unused,
    reported: Unused,
}

impl UnusedVfs {
    /// Takes the findings of a check and returns those that the previous check had too. Multus creates a pod's
    /// interfaces one after the other, so that the VF may belong to one that follows.
    pub(super) fn learn(&mut self, now: Unused) -> Vec<Finding> {
        let mut lasting = now.clone();
        lasting.retain(|id, _| self.seen.contains_key(id));
        for (id, found) in lasting.iter().filter(|(id, _)| !self.reported.contains_key(*id)) {
            tracing::warn!(
                attachment = id,
                found = found.message,
                "a pod does not use a VF that the kubelet gave it"
            );
        }
        (self.seen, self.reported) = (now, lasting);
        self.reported.values().cloned().collect()
    }
}

/// Finds pods with VFs of the kubelet that no record of the pod holds. Pods without an attachment are ignored.
pub(super) fn unused(given: &[(Pod, Vec<Choice>)], records: &[Arc<Record>]) -> Unused {
    let found = given.iter().filter_map(|(pod, vfs)| unused_by(pod, vfs, records));
    found.map(|found| (found.subject.clone(), found)).collect()
}

fn unused_by(pod: &Pod, choices: &[Choice], records: &[Arc<Record>]) -> Option<Finding> {
    let Pod { namespace, name, .. } = pod;
    let is_its = |record: &&Arc<Record>| {
        let labels = record.attachment.pod.as_ref();
        labels.is_some_and(|it| (&it.namespace, &it.name) == (namespace, name))
    };
    let its: Vec<_> = records.iter().filter(is_its).collect();
    let is_used = |vf: &Device| its.iter().any(|record| record.device() == vf);
    let unused = choices.iter().filter(|choice| !choice.vfs().any(is_used));
    let unused: Vec<_> = unused.flat_map(Choice::vfs).map(Device::as_str).collect();
    let live = its.iter().filter(|record| record.phase == Phase::Live);
    let first = live.min_by_key(|record| record.key().interface_name)?;
    if unused.is_empty() {
        return None;
    }
    let message = format!(
        "the kubelet gave pod {namespace}/{name} VF {}, which none of its interfaces uses: {} is on VF {}, of network {}",
        unused.join(" and "),
        first.key().interface_name,
        first.device(),
        first.attachment.network
    );
    Some(FindingCode::KubeletVfUnused.of(first.id(), message))
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use crate::agent::{logged::logged, vfs::record};

    fn pod(name: &str) -> Pod {
        Pod { namespace: "shop".into(), name: name.into(), uid: String::new() }
    }

    /// An interface of the pod `cart-0` on the VF `pci-ID`.
    fn interface(id: &str, name: &str) -> Arc<Record> {
        let mut record = record(id, "c");
        record.attachment.pod = Some(pod("cart-0"));
        record.attachment.network = "blue".into();
        record.attachment.key.as_mut().unwrap().interface_name = name.into();
        Arc::new(record)
    }

    #[test]
    fn vf_without_interface_is_unused() {
        let records = [interface("b", "net1"), interface("a", "eth0")];
        let found = |vfs: &[&str]| {
            let vfs = vfs.iter().map(|vf| Device::from(*vf).into()).collect();
            unused(&[(pod("cart-0"), vfs)], &records)
        };
        assert_eq!(found(&["pci-a", "pci-b"]), Unused::new());
        let unused = &found(&["pci-b", "pci-7"])["a"];
        assert_eq!(unused.code, FindingCode::KubeletVfUnused.as_str());
        for named in ["shop/cart-0", "VF pci-7,", "eth0 is on VF pci-a", "network blue"] {
            assert!(unused.message.contains(named), "{named}: {unused:?}");
        }
    }

    #[test]
    fn vf_of_a_used_group_is_used() {
        let records = [interface("a", "eth0")];
        let group = |vf: &str, other: &str| Choice { vf: vf.into(), others: vec![other.into()] };
        let found = |choice| unused(&[(pod("cart-0"), vec![choice])], &records).len();
        assert_eq!(found(group("pci-7", "pci-a")), 0);
        assert_eq!(found(group("pci-7", "pci-8")), 1);
    }

    #[test]
    fn pod_without_attachment_is_ignored() {
        let given = [(pod("other"), vec![Device::from("pci-7").into()])];
        assert_eq!(unused(&given, &[interface("a", "eth0")]), Unused::new());
        let mut leaving = Record::clone(&interface("a", "eth0"));
        leaving.phase = Phase::Releasing;
        let given = [(pod("cart-0"), vec![Device::from("pci-7").into()])];
        assert_eq!(unused(&given, &[Arc::new(leaving)]), Unused::new());
    }

    #[test]
    fn unused_vf_is_logged_once() {
        let found = FindingCode::KubeletVfUnused.of("a", "it is unused");
        let now = || Unused::from([("a".to_owned(), found.clone())]);
        let mut vfs = UnusedVfs::default();
        let mut lines = |now| logged(|| drop(vfs.learn(now)));
        assert_eq!([now(), now(), now(), now()].map(&mut lines), [0, 1, 0, 0]);
        assert_eq!([Unused::new(), now(), now()].map(&mut lines), [0, 0, 1], "it is unused again");
    }

    #[test]
    fn unused_vf_is_reported_at_second_check() {
        let found = FindingCode::KubeletVfUnused.of("a", "it is unused");
        let now = || Unused::from([("a".to_owned(), found.clone())]);
        let mut vfs = UnusedVfs::default();
        assert_eq!(vfs.learn(now()), []);
        assert_eq!(vfs.learn(now()), std::slice::from_ref(&found));
        assert_eq!(vfs.learn(Unused::new()), []);
        assert_eq!(vfs.learn(now()), []);
    }
}
