//! The names of further interfaces without a requested name: the DPU's networks set their prefix. Interfaces of other
//! plugins keep the name of the plugin's configuration.

use std::{collections::BTreeSet, sync::Arc};

use offload_proto::{Failure, Reason};

use super::doors::Doors;
use crate::{
    agent::vfs::Record,
    protocol::{AddRequest, FurtherInterface, Key},
};

/// The ADD of what the DPU makes, with the names that its interfaces get. One that is there keeps the name that it has,
/// whatever its network says by now.
///
/// # Errors
/// The DPU can't be reached.
pub(super) async fn named(doors: &Doors, asked: &AddRequest) -> Result<AddRequest, Failure> {
    if asked.further.iter().all(|one| one.place.is_none()) {
        return Ok(asked.clone());
    }
    let there = doors.vfs.records().led_by(&asked.key);
    let session = doors.dpu.session().current(doors.timeouts.reconnect()).await?;
    let further = names(&asked.further, &there, |network| session.interface_prefix(network));
    Ok(AddRequest { further, ..asked.clone() })
}

/// The interfaces with their names: of those that are there, each is one's at most.
fn names(
    asked: &[FurtherInterface],
    there: &[Arc<Record>],
    prefix: impl Fn(&str) -> Option<String>,
) -> Vec<FurtherInterface> {
    let mut named = asked.to_vec();
    let is_asked_for =
        |name: &str| asked.iter().any(|one| one.place.is_none() && one.interface_name == name);
    let there = there.iter().map(|one| (one.attachment.network.clone(), one.key().interface_name));
    let mut left: Vec<_> = there.filter(|(_, name)| !is_asked_for(name)).collect();
    let mut unnamed: Vec<_> = named.iter_mut().filter(|one| one.place.is_some()).collect();
    for is_its in [is_of_place, is_of_network] {
        unnamed.retain_mut(|one| {
            let found = left.iter().position(|(network, name)| is_its(one, network, name));
            found.map(|found| one.interface_name = left.remove(found).1).is_none()
        });
    }
    for one in unnamed {
        if let (Some(place), Some(prefix)) = (one.place, prefix(&one.interface.network)) {
            one.interface_name = format!("{prefix}{place}");
        }
    }
    named
}

/// Whether what is there is of the interface's network and place: its name is the place's number behind a prefix.
fn is_of_place(one: &FurtherInterface, network: &str, name: &str) -> bool {
    let place = one.place.map(|place| place.to_string()).unwrap_or_default();
    let prefix = name.strip_suffix(&place);
    is_of_network(one, network, name)
        && prefix.is_some_and(|prefix| !prefix.ends_with(|last: char| last.is_ascii_digit()))
}

fn is_of_network(one: &FurtherInterface, network: &str, _: &str) -> bool {
    one.interface.network == network
}

/// Refuses two interfaces of one name.
pub(super) fn check_distinct(lead: &Key, names: &[String]) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => {
            let container = &lead.container_id;
            let message = format!(
                "two interfaces of {container} would be named {name}, by the request and the interface_prefix of \
                 their networks: ask for another name"
            );
            Err(Failure::new(Reason::InvalidRequest, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use model::InterfaceRequest;

    use super::*;
    use crate::agent::vfs::record;

    fn of(place: Option<u32>, name: &str, network: &str) -> FurtherInterface {
        let interface = InterfaceRequest { network: network.into(), ..Default::default() };
        let interface_name = name.into();
        FurtherInterface { interface_name, place, interface, ..FurtherInterface::default() }
    }

    fn there(name: &str, network: &str) -> Arc<Record> {
        let mut record = record(name, "c");
        record.attachment.network = network.into();
        if let Some(key) = &mut record.attachment.key {
            key.interface_name = name.into();
        }
        Arc::new(record)
    }

    fn names_of(asked: &[FurtherInterface], there: &[Arc<Record>]) -> Vec<String> {
        let prefix = |network: &str| (network == "green").then(|| "data".to_owned());
        names(asked, there, prefix).into_iter().map(|one| one.interface_name).collect()
    }

    #[test]
    fn network_prefixes_unnamed_interfaces() {
        let asked =
            [of(Some(1), "net1", "green"), of(None, "wire", "green"), of(Some(3), "net3", "blue")];
        assert_eq!(names_of(&asked, &[]), ["data1", "wire", "net3"]);
    }

    #[test]
    fn existing_interface_keeps_its_name() {
        let [first, second] = [of(Some(1), "net1", "green"), of(Some(2), "net2", "green")];
        let both = [first, second.clone()];
        // Records are ordered by key, not by name.
        let before = [there("net2", "green"), there("net1", "green")];
        assert_eq!(names_of(&both, &before), ["net1", "net2"]);
        assert_eq!(names_of(&both, &before[..1]), ["data1", "net2"]);
        // After a prefix that ends in a digit the index is ambiguous.
        let before = [there("v21", "green"), there("v22", "green")];
        assert_eq!(names_of(&both, &before), ["v21", "v22"]);
        let before = [there("net2", "red"), there("old2", "green")];
        let named = [of(None, "old2", "green"), second];
        assert_eq!(names_of(&named, &before), ["old2", "data2"]);
    }
}
