//! Results of a host's examination, and comparison of its records with the journal.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;
use netlink::MacAddress;
use offload_proto::{
    FindingCode,
    v1::{Finding, Repair, VfPlace},
};
use vf_alloc::{Device, FunctionId};

use model::{AttachmentId, Record};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examination {
    pub vfs: Vec<ExaminedVf>,
    /// Number of VFs that did not fit into the answer.
    pub vfs_left_out: u32,
    pub findings: Vec<Finding>,
    /// Number of findings that did not fit into the answer.
    pub findings_left_out: u32,
    /// Recent repairs by the host's agent, oldest first.
    pub repairs: Vec<Repair>,
}

/// A VF as its host found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExaminedVf {
    pub vf: FunctionId,
    /// Its device on the host. Empty: not reported.
    pub device: Device,
    pub place: VfPlace,
    /// Name of its netdev in that place.
    pub netdev: String,
    /// Path of the network namespace, unless it is the host's.
    pub netns: String,
    /// What the host itself uses it for. Empty: it does not.
    pub use_by_host: String,
    /// The agent's record that holds it.
    pub record: Option<HostRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRecord {
    pub id: AttachmentId,
    /// What the record holds. `None`: it has no MAC address, as that of a VF without a netdev whose ADD was not
    /// answered.
    pub holdings: Option<Holdings>,
}

/// What a host's record holds in addition to its VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    pub mac: MacAddress,
    /// The addresses with the prefix lengths of their subnets.
    pub addresses: Vec<IpNetwork>,
}

impl ExaminedVf {
    /// Compares the host's record of an attachment with the journal's.
    pub(crate) fn difference_from(&self, journal: &Record) -> Option<Finding> {
        let mut findings = Vec::new();
        let mut compare = |what: &str, host: String, dpu: String| {
            if host != dpu {
                findings.push(format!("{what} {host} on the host and {dpu} on the DPU"));
            }
        };
        compare("VF", self.vf.to_string(), journal.vf.to_string());
        if let Some(Holdings { mac, addresses }) = self.record.as_ref()?.holdings.as_ref() {
            compare("MAC address", mac.to_string(), journal.mac.to_string());
            let leases = journal.leases.iter().map(|lease| lease.address);
            compare("addresses", listed(addresses.iter().copied()), listed(leases));
        }
        let message = format!("the records of {} differ: {}", journal.key, findings.join("; "));
        (!findings.is_empty()).then(|| FindingCode::RecordsDiffer.of(journal.id, message))
    }
}

/// Sorted, because hosts report addresses in any order.
fn listed(addresses: impl Iterator<Item = IpNetwork>) -> String {
    let texts: Vec<_> =
        addresses.collect::<BTreeSet<_>>().iter().map(ToString::to_string).collect();
    if texts.is_empty() { "none".into() } else { texts.join(", ") }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;
    use model::{AttachmentKey, Bandwidth, HostName, Lease, Phase};

    /// A change to a valid record.
    type Change = fn(&mut Record);

    /// An attachment of node-1.
    pub(crate) fn record() -> Record {
        let lease = |address: &str| Lease { address: address.parse().unwrap(), gateway: None };
        Record {
            id: AttachmentId("0190aaaa-bbbb-7000-8000-000000000001".parse().unwrap()),
            key: AttachmentKey {
                host: HostName("node-1".into()),
                container_id: "c1".into(),
                interface_name: "eth0".into(),
            },
            phase: Phase::Held,
            pod: offload_proto::v1::Pod::default(),
            vf: "pf0vf3".parse().unwrap(),
            device: "0000:03:00.4".into(),
            mac: "02:00:00:00:00:07".parse().unwrap(),
            leases: vec![lease("10.1.0.5/24"), lease("fd00:1::5/64")],
            further_leases: Vec::new(),
            bandwidth: Bandwidth::default(),
            port_mappings: Vec::new(),
            asked_sources: [].into(),
            families: None,
            network: Arc::new(toml::from_str("name = 'blue'").unwrap()),
            named_networks: [].into(),
            group_interface: None,
            boot_id: "boot".into(),
            created_at: 0,
        }
    }

    /// The VF in its pod, as a host with this record finds it.
    pub(crate) fn examined(record: &Record) -> ExaminedVf {
        let addresses = record.leases.iter().rev().map(|lease| lease.address).collect();
        let holdings = Some(Holdings { mac: record.mac, addresses });
        ExaminedVf {
            vf: record.vf,
            device: record.device.clone(),
            place: VfPlace::Pod,
            netdev: "eth0".into(),
            netns: "/run/netns/a".into(),
            use_by_host: String::new(),
            record: Some(HostRecord { id: record.id, holdings }),
        }
    }

    #[test]
    fn order_of_addresses_is_no_difference() {
        assert_eq!(examined(&record()).difference_from(&record()), None);
        let mut unanswered = examined(&record());
        unanswered.record.as_mut().unwrap().holdings = None;
        assert_eq!(unanswered.difference_from(&record()), None);
    }

    #[test]
    fn differing_records_are_shown_with_both_values() {
        let changes: [(Change, &str); 4] = [
            (|host| host.vf.vf = 9, "VF pf0vf9 on the host and pf0vf3 on the DPU"),
            (|host| host.mac.0[5] = 9, "MAC address 02:00:00:00:00:09 on the host"),
            (
                |host| host.leases.truncate(1),
                "addresses 10.1.0.5/24 on the host and 10.1.0.5/24, fd00:1::5/64 on the DPU",
            ),
            (|host| host.leases.clear(), "addresses none on the host"),
        ];
        for (change, words) in changes {
            let mut host = record();
            change(&mut host);
            let found = examined(&host).difference_from(&record()).unwrap();
            assert_eq!((found.code, found.subject), ("RECORDS_DIFFER".into(), host.id.to_string()));
            assert!(found.message.contains(words), "{} does not tell {words}", found.message);
        }
    }
}
