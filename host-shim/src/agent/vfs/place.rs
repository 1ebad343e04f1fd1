//! Where the VF of a record is.

use netlink::{Error, Netns, Rtnl};

use super::records::Record;
use crate::vf_source::{self, VfSource};

/// Where a record's VF is.
pub(in crate::agent) enum Place {
    Host,
    Pod,
    /// In its pod, but a crash kept it from being configured.
    Unfinished,
    /// Nowhere yet: its pod's namespace is being cleaned up, or its card is being reset.
    Nowhere,
}

/// Where the VF is, as seen from its pod.
///
/// # Errors
/// The kernel's refusal.
pub(in crate::agent) fn place_in(
    source: &dyn VfSource,
    pod: &Netns,
    record: &Record,
) -> Result<Place, Error> {
    if record.original.is_handed_over {
        return Ok(Place::Pod);
    }
    let links = Rtnl::open_in(pod)?.links()?;
    Ok(match vf_source::link_of(source, &links, record.pci_address()) {
        Some(link) if link.is_up && link.name == record.key().interface_name => Place::Pod,
        Some(_) => Place::Unfinished,
        None => Place::Nowhere,
    })
}

/// Whether the VF is in its pod as far as can be seen.
pub(in crate::agent) fn is_in_pod(source: &dyn VfSource, record: &Record) -> bool {
    record
        .netns
        .living()
        .is_some_and(|pod| matches!(place_in(source, &pod, record), Ok(Place::Pod)))
}
