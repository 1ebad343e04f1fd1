//! CHECK: is what an ADD made still in place?

use std::time::Duration;

use netlink::MacAddress;
use offload_proto::{Failure, Reason};

use super::{doors::Doors, led};
use crate::{
    agent::vfs::{Phase, Record},
    mover::{Plan, cut_off},
    protocol::{CheckRequest, ExpectedInterface, Key},
};

/// Serves a CHECK of an attachment and its group members: compares the record, the previous result, the pod's interface
/// and the DPU's eswitch. Returns a warning if the interface matches the previous result and the pod is still cut off.
///
/// # Errors
/// The first problem.
pub(in crate::agent) async fn check(
    doors: &Doors,
    request: CheckRequest,
) -> Result<Option<String>, Failure> {
    let _keys = led::lock(doors, &request.key).await;
    let record = doors.vfs.records().by_key(&request.key).ok_or_else(|| {
        let message = format!("the agent has no attachment {}", request.key);
        Failure::new(Reason::AttachmentUnknown, message)
    })?;
    let lead = ExpectedInterface {
        interface_name: request.key.interface_name.clone(),
        mac: request.mac,
        addresses: request.addresses,
        device: None,
    };
    let mut warning = check_one(doors, &record, &lead, &request.netns).await?;
    let is_recorded = |key: &Key| doors.vfs.records().by_key(key).is_some();
    check_all_there(&request.key, &request.others, is_recorded)?;
    for record in doors.vfs.records().led_by(&request.key) {
        let recorded = request.by_record.then(|| ExpectedInterface::of_nothing(&record.key()));
        let promise = promise_of(&record.key(), &request.others, recorded)?;
        let its = check_one(doors, &record, &promise, &request.netns).await?;
        warning = warning.or(its);
    }
    for delegated in doors.delegates.led_by(&request.key) {
        let recorded = request.by_record.then(|| delegated.promise());
        let promise = promise_of(&delegated.key, &request.others, recorded)?;
        doors.delegates.check(&delegated, &promise).await?;
    }
    Ok(warning)
}

/// That nothing which came with the attachment was given back by itself, as by an operator. What other plugins of a
/// chain have told is theirs: it has no device.
fn check_all_there(
    lead: &Key,
    told: &[ExpectedInterface],
    is_recorded: impl Fn(&Key) -> bool,
) -> Result<(), Failure> {
    let functions = told.iter().filter(|told| told.device.is_some());
    let mut keys =
        functions.map(|told| Key { interface_name: told.interface_name.clone(), ..lead.clone() });
    match keys.find(|key| !is_recorded(key)) {
        Some(gone) => Err(failed(&gone, "it was released alone")),
        None => Ok(()),
    }
}

/// What the previous result says of an interface that is led, or else what is recorded, if that counts.
fn promise_of(
    key: &Key,
    told: &[ExpectedInterface],
    recorded: Option<ExpectedInterface>,
) -> Result<ExpectedInterface, Failure> {
    let told = told.iter().find(|it| it.interface_name == key.interface_name).cloned();
    told.or(recorded).ok_or_else(|| failed(key, "prevResult does not have it"))
}

async fn check_one(
    doors: &Doors,
    record: &Record,
    promise: &ExpectedInterface,
    netns: &str,
) -> Result<Option<String>, Failure> {
    let mac = compare_promise(promise, netns, record)?;
    inspect(doors, record, mac).await?;
    doors.dpu.calls().check(&record.key(), record.id()).await?;
    let warning = mac.and_then(|mac| warning_of(record, mac));
    if let Some(warning) = &warning {
        tracing::warn!(
            attachment = record.id(),
            warning,
            "the pod is cut off although the CHECK succeeds"
        );
    }
    Ok(warning)
}

/// That a chained plugin has given the interface a MAC address which cuts the pod off. The previous result has that
/// address, so that the runtime has got what it asked for, and CHECK succeeds.
fn warning_of(record: &Record, mac: MacAddress) -> Option<String> {
    let plan = Plan::new(&record.attachment, Duration::ZERO).ok()?;
    let is_forwarded = plan.admits(Some(mac));
    (!is_forwarded)
        .then(|| format!("attachment {}: {}", record.key(), cut_off(Some(mac), plan.mac)))
}

/// Compares what the pod has with the record, and its MAC address with `mac` where a previous result names one.
pub(super) async fn inspect(
    doors: &Doors,
    record: &Record,
    mac: Option<MacAddress>,
) -> Result<(), Failure> {
    let key = record.key();
    let netns = record.netns.living().ok_or_else(|| {
        failed(&key, &format!("its network namespace {} has ended", record.netns.path))
    })?;
    let difference = doors.vfs.inspect(record, netns, mac).await?;
    difference.map_or(Ok(()), |what| Err(failed(&key, &what)))
}

/// Compares the record with what the runtime was promised and where it says the pod is. Returns the MAC address that
/// the interface has to have: chained plugins may have given it another one than the DPU.
fn compare_promise(
    promise: &ExpectedInterface,
    netns: &str,
    record: &Record,
) -> Result<Option<MacAddress>, Failure> {
    let key = &record.key();
    match record.phase {
        Phase::Attaching => return Err(failed(key, "its ADD was not answered yet")),
        Phase::Releasing => return Err(failed(key, "it is being released")),
        Phase::Live => {}
    }
    if netns != record.netns.path {
        let message = format!("it is in the network namespace {}, not {netns}", record.netns.path);
        return Err(failed(key, &message));
    }
    let mac = promise.mac.as_ref().map(|mac| mac.parse()).transpose();
    let mac = mac.map_err(|error| failed(key, &format!("prevResult: {error}")))?;
    let held = &record.attachment.addresses;
    let strange =
        promise.addresses.iter().find(|wanted| !held.iter().any(|held| held.address == **wanted));
    strange.map_or(Ok(mac), |address| Err(failed(key, &format!("it does not hold {address}"))))
}

fn failed(key: &Key, what: &str) -> Failure {
    Failure::new(Reason::CheckFailed, format!("attachment {key} is not in order: {what}"))
}

#[cfg(test)]
mod tests {
    use offload_proto::v1;

    use super::*;
    use crate::agent::vfs::record;

    const NETNS: &str = "/run/netns/a";

    fn promise() -> ExpectedInterface {
        ExpectedInterface {
            interface_name: "eth0".into(),
            mac: Some("02:00:00:00:00:0A".into()),
            addresses: vec!["10.0.0.5/24".into()],
            device: None,
        }
    }

    #[test]
    fn interface_released_alone_fails_check() {
        let device = Some("0000:03:00.2".to_owned());
        let of = |interface_name: &str, device: Option<String>| ExpectedInterface {
            interface_name: interface_name.into(),
            device,
            ..promise()
        };
        let told = [of("net1", device.clone()), of("net2", device), of("veth0", None)];
        let lead = record("a", "c").key();
        assert_eq!(check_all_there(&lead, &told, |_| true).map_err(|it| it.message), Ok(()));
        let failure =
            check_all_there(&lead, &told, |key| key.interface_name != "net2").unwrap_err();
        assert!(failure.message.contains("net2") && failure.reason == Reason::CheckFailed);
    }

    fn checked(
        promise: &ExpectedInterface,
        netns: &str,
        phase: Phase,
    ) -> Result<Option<MacAddress>, String> {
        let mut record = Record { phase, ..record("a", "c") };
        record.attachment.mac = "02:00:00:00:00:0a".into();
        record.attachment.addresses =
            vec![v1::Address { address: "10.0.0.5/24".into(), gateway: String::new() }];
        compare_promise(promise, netns, &record).map_err(|failure| failure.message)
    }

    #[test]
    fn only_dropped_macs_are_warned_of() {
        let (own, other) = (MacAddress([2, 0, 0, 0, 0, 10]), MacAddress([2, 0, 0, 0, 0, 11]));
        let mut record = record("a", "c");
        record.attachment.mac = own.to_string();
        assert_eq!(warning_of(&record, own), None);
        let warning = warning_of(&record, other).unwrap();
        assert!(warning.contains("runtimeConfig.mac"), "{warning}");
        record.attachment.allowed_sources = vec!["10.0.0.9/32".into(), other.to_string()];
        assert_eq!(warning_of(&record, other), None);
        let free = v1::Attachment { anti_spoofing: "off".into(), ..record.attachment.clone() };
        record.attachment = v1::Attachment { allowed_sources: Vec::new(), ..free };
        assert_eq!(warning_of(&record, other), None);
    }

    #[test]
    fn unchanged_interface_passes_check() {
        let own = MacAddress([2, 0, 0, 0, 0, 10]);
        assert_eq!(checked(&promise(), NETNS, Phase::Live), Ok(Some(own)));
    }

    #[test]
    fn each_difference_from_prev_result_is_reported() {
        assert!(checked(&promise(), "/b", Phase::Live).unwrap_err().contains("not /b"));
        let told = |promise: ExpectedInterface| checked(&promise, NETNS, Phase::Live).unwrap_err();
        let no_mac = Some("eth0".into());
        assert!(told(ExpectedInterface { mac: no_mac, ..promise() }).contains("prevResult"));
        let addresses = vec!["10.0.0.6/24".into()];
        assert!(told(ExpectedInterface { addresses, ..promise() }).contains("10.0.0.6/24"));
        assert!(
            checked(&promise(), NETNS, Phase::Releasing).unwrap_err().contains("being released")
        );
    }
}
