//! The host's own upper devices on links of its namespace. Listing all links at each ADD takes longer the more VFs
//! there are, and holds RTNL against moves. So links are listed once, and then followed by kernel events.

use std::collections::HashMap;

use netlink::{Error, Link, LinkChanges, LinkEvent, Netns, Rtnl};
use parking_lot::Mutex;

use crate::vf_source::is_stacked_by_host;

/// The links of the host's namespace that are stacked on others there.
#[derive(Debug, Default)]
pub(super) struct StackedByHost {
    /// Locked while events are read or all links are listed. `None`: events were lost, or no list was needed yet.
    followed: Mutex<Option<Followed>>,
}

/// Those that there were when they were listed last, and what has been told since. The kernel does not tell that what
/// one is stacked on has moved to another namespace or has another index: a VF that was away is looked at as a whole once
/// it is back, and what is stacked on it then is known by its [proof](super::proofs).
#[derive(Debug)]
struct Followed {
    changes: LinkChanges,
    /// By their index.
    stacked: HashMap<u32, Link>,
}

impl StackedByHost {
    /// Those that there are now.
    ///
    /// # Errors
    /// When they can't be listed.
    pub(super) fn now(&self, host: &Netns) -> Result<Vec<Link>, Error> {
        let mut kept = self.followed.lock();
        let current = kept.take().map(Followed::follow).transpose()?.flatten();
        let followed = match current {
            Some(followed) => followed,
            None => Followed::begin(host)?,
        };
        let links = followed.stacked.values().cloned().collect();
        *kept = Some(followed);
        Ok(links)
    }
}

impl Followed {
    fn begin(host: &Netns) -> Result<Self, Error> {
        // Before the listing, so that nothing is missed in between.
        let changes = LinkChanges::open(host)?;
        let links = Rtnl::open_in(host)?.links()?.into_iter();
        let stacked = links.filter(is_stacked_by_host).map(|link| (link.index, link)).collect();
        Ok(Self { changes, stacked })
    }

    /// Notes what was told since. `None`: not all was.
    fn follow(mut self) -> Result<Option<Self>, Error> {
        for event in self.changes.take()? {
            match event {
                LinkEvent::Changed(link) if is_stacked_by_host(&link) => {
                    self.stacked.insert(link.index, *link);
                }
                LinkEvent::Changed(link) => _ = self.stacked.remove(&link.index),
                LinkEvent::Gone { index, .. } => _ = self.stacked.remove(&index),
                LinkEvent::PortChanged { .. } => {}
                LinkEvent::Missed => return Ok(None),
            }
        }
        Ok(Some(self))
    }
}
