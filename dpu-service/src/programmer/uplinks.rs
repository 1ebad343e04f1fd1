//! The links that lead outside, as the kernel has them.

use netlink::{Link, Rtnl};

use super::Programmer;
use crate::driver::Refused;

/// A link that the configuration names as an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uplink {
    /// Its name.
    pub(crate) name: String,
    /// How it is.
    pub(crate) state: UplinkState,
}

/// How an uplink is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UplinkState {
    /// There is no such link.
    Missing,
    /// It is not in the fabric.
    NotJoined,
    /// It is switched off.
    Down,
    /// It is switched on, and has no carrier.
    WithoutCarrier,
    /// It carries frames.
    Carries,
}

impl Programmer {
    /// The uplinks of all bridges, in the configuration's order. Blocks on the kernel.
    ///
    /// # Errors
    /// When the kernel or the fabric can't be asked.
    pub(crate) fn uplink_states(&self) -> Result<Vec<Uplink>, Refused> {
        let Some(drivers) = &self.drivers else { return Ok(Vec::new()) };
        let names = drivers.fabric.all_uplinks();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let members = drivers.fabric.members()?;
        let refused = |error| Refused::new("look at the uplinks", error);
        let mut rtnl = Rtnl::open().map_err(refused)?;
        let mut look = |name: String| {
            let link = rtnl.link_by_name(&name).map_err(refused)?;
            let is_member = |link: &Link| members.contains_key(&link.index);
            Ok(Uplink { name, state: state_of(link.as_ref(), is_member) })
        };
        names.into_iter().map(&mut look).collect()
    }
}

fn state_of(link: Option<&Link>, is_member: impl Fn(&Link) -> bool) -> UplinkState {
    match link {
        None => UplinkState::Missing,
        Some(link) if !is_member(link) => UplinkState::NotJoined,
        Some(link) if !link.is_up => UplinkState::Down,
        Some(link) if !link.is_running => UplinkState::WithoutCarrier,
        Some(_) => UplinkState::Carries,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uplinks_first_lack_is_its_state() {
        let state = |is_up, is_running, is_member| {
            let mut link = Link::default();
            (link.is_up, link.is_running) = (is_up, is_running);
            state_of(Some(&link), |_| is_member)
        };
        assert_eq!(state_of(None, |_| true), UplinkState::Missing);
        assert_eq!(state(true, true, false), UplinkState::NotJoined);
        assert_eq!(state(false, false, true), UplinkState::Down);
        assert_eq!(state(true, false, true), UplinkState::WithoutCarrier);
        assert_eq!(state(true, true, true), UplinkState::Carries);
    }
}
