//! Where the VF of a record is.

use netlink::{Error, Link, Netns, Rtnl};

use super::{host::Host, records::Record};
use crate::{
    mover::inspect,
    vf_source::{self, VfSource},
};

/// Where a record's VF is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum VfLocation {
    Host,
    Pod,
    /// In its pod, but a crash kept it from being configured.
    Unfinished,
    /// Nowhere yet: its pod's namespace is being cleaned up, or its card is being reset.
    Nowhere,
}

impl Host {
    /// Where the VF of a record is, and whether its pod's namespace is still there.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn locate(&self, record: &Record) -> Result<(VfLocation, bool), Error> {
        let pod = record.netns.living();
        if record.original.is_handed_over {
            let location = if pod.is_some() { VfLocation::Pod } else { VfLocation::Host };
            return Ok((location, pod.is_some()));
        }
        if record.key().is_of_host_port() && pod.is_some() {
            return Ok((self.locate_host_port(record)?, true));
        }
        let name = Some(record.original.name.as_str());
        let mut host = self.rtnl()?;
        if vf_source::find(self.source(), &mut host, record.device(), name)?.is_some() {
            return Ok((VfLocation::Host, pod.is_some()));
        }
        match pod {
            Some(pod) => Ok((location_in(self.source(), &pod, record)?, true)),
            None => Ok((VfLocation::Nowhere, false)),
        }
    }

    /// Locates a host port, which is in place only when it is complete. For a pod's interface that is the pod's
    /// decision; host ports are never attached again by a runtime.
    fn locate_host_port(&self, record: &Record) -> Result<VfLocation, Error> {
        let location = location_in(self.source(), self.netns(), record)?;
        let inspected = self.move_of(record).map(|spec| inspect(&spec, self.netns(), None));
        Ok(match (location, inspected) {
            (VfLocation::Pod, Ok(Ok(Some(_)))) => VfLocation::Unfinished,
            _ => location,
        })
    }

    /// Whether the VF of a record is in its pod, as far as can be seen.
    pub(in crate::agent) fn is_in_pod(&self, record: &Record) -> bool {
        let is_there =
            |pod: &Netns| matches!(location_in(self.source(), pod, record), Ok(VfLocation::Pod));
        record.netns.living().is_some_and(|pod| is_there(&pod))
    }

    /// Whether the VF of a record is in its pod, if perhaps unfinished.
    pub(in crate::agent) fn is_in_netns_of_pod(&self, record: &Record) -> bool {
        use VfLocation::{Pod, Unfinished};
        let is_there =
            |pod: &Netns| matches!(location_in(self.source(), pod, record), Ok(Pod | Unfinished));
        record.netns.living().is_some_and(|pod| is_there(&pod))
    }
}

/// Where the VF is, as seen from its pod.
///
/// # Errors
/// The kernel's refusal.
fn location_in(source: &dyn VfSource, pod: &Netns, record: &Record) -> Result<VfLocation, Error> {
    if record.original.is_handed_over {
        return Ok(VfLocation::Pod);
    }
    let links = Rtnl::open_in(pod)?.links()?;
    let key = record.key();
    let is_whole = |link: &Link| {
        let is_tuned = key.is_of_host_port() && link.mtu != record.attachment.mtu;
        link.is_up && link.name == key.interface_name && !is_tuned
    };
    Ok(match vf_source::link_of(source, &links, record.device()) {
        Some(link) if is_whole(link) => VfLocation::Pod,
        Some(_) => VfLocation::Unfinished,
        None => VfLocation::Nowhere,
    })
}
