//! The sentences in which an examination tells what it has found.

use offload_proto::{
    FindingCode,
    v1::{ExaminedVf, Finding, VfPlace},
};

use crate::{
    agent::vfs::Record,
    vf_source::{OtherVf, VfIdentity, Whereabouts},
};

/// That a VF has no netdev that could be had.
pub(super) fn finding_of_other(other: &OtherVf) -> Option<Finding> {
    let VfIdentity { id, device } = &other.identity;
    let subject = id.to_string();
    match other.whereabouts {
        Whereabouts::HandedOver(_) => None,
        Whereabouts::Unbound => {
            Some(FindingCode::VfUnbound.of(subject, format!("{device} has no driver")))
        }
        Whereabouts::Elsewhere => {
            let message = format!(
                "{device} has a driver, but its netdev is in no network namespace that the agent can \
                 search"
            );
            Some(FindingCode::VfNowhere.of(subject, message))
        }
    }
}

/// That a pod's VF is not in it.
pub(in crate::agent::upkeep) fn vf_missing(record: &Record, vf: &ExaminedVf) -> Finding {
    let (address, key, place) = (record.device(), record.key(), place_of(vf));
    let message = format!("VF {address} of {key} is not in its pod, but {place}");
    FindingCode::PodVfMissing.of(record.id(), message)
}

/// The interface in a pod has a problem.
pub(in crate::agent::upkeep) fn pod_differs(record: &Record, what: &str) -> Finding {
    FindingCode::PodDiffers.of(record.id(), format!("the pod of {}: {what}", record.key()))
}

/// What an attachment waits for that is being given back; `differing`: how its VF, which is home, is
/// not as it was.
pub(super) fn release_pending(record: &Record, vf: &ExaminedVf, differing: &str) -> Finding {
    let (address, place) = (record.device(), place_of(vf));
    let why = match vf.place() {
        _ if !differing.is_empty() => {
            format!("its VF {address} differs from its baseline: {differing}")
        }
        _ if record.is_returned => "the DPU has not confirmed it".into(),
        VfPlace::Host => format!("its VF {address}, {place}, is not ready yet"),
        _ => format!("its VF {address} is not back yet, but {place}"),
    };
    FindingCode::ReleasePending
        .of(record.id(), format!("{} is being released, and {why}", record.key()))
}

fn place_of(vf: &ExaminedVf) -> String {
    match vf.place() {
        VfPlace::Host => format!("in the host's network namespace as {}", vf.netdev),
        VfPlace::Elsewhere => format!("in the network namespace {} as {}", vf.netns, vf.netdev),
        VfPlace::Pod => "still in its pod".into(),
        VfPlace::Unbound => "without a driver".into(),
        _ => "nowhere to be found".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::agent::vfs::record;

    #[test]
    fn pending_release_names_its_obstacle() {
        let waiting = record("a", "c");
        let home = Record { is_returned: true, ..waiting.clone() };
        let at = |place: VfPlace| ExaminedVf {
            place: place.into(),
            netns: "/run/netns/foreign".into(),
            netdev: "net1".into(),
            ..ExaminedVf::default()
        };
        let device = waiting.device().to_string();
        let cases: [(_, _, _, &[&str]); 6] = [
            (&home, VfPlace::Host, "", &[]),
            (&waiting, VfPlace::Host, "mtu 9000", &[&device, "mtu 9000"]),
            (&waiting, VfPlace::Host, "", &[&device, "net1"]),
            (&waiting, VfPlace::Elsewhere, "", &[&device, "/run/netns/foreign", "net1"]),
            (&waiting, VfPlace::Pod, "", &[&device]),
            (&waiting, VfPlace::Nowhere, "", &[&device]),
        ];
        let messages: BTreeSet<_> = cases
            .into_iter()
            .map(|(record, place, differing, values)| {
                let told = release_pending(record, &at(place), differing).message;
                assert!(told.contains("c/eth0"), "{told}");
                values.iter().for_each(|value| assert!(told.contains(value), "{value}: {told}"));
                told
            })
            .collect();
        assert_eq!(messages.len(), cases.len(), "each case has a message of its own: {messages:?}");
    }
}
