//! The state of the configured uplinks.

use netlink::{Link, Rtnl};
use offload_proto::{ConditionReason, FindingCode};

use super::Programmer;
use crate::driver::Refused;

/// A configured uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The link's name.
    pub name: String,
    /// The link's state.
    state: UplinkState,
}

/// The state of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UplinkState {
    /// The link does not exist.
    Missing,
    /// The link is not in the fabric.
    NotJoined,
    /// The link is switched off.
    Down,
    /// The link is switched on and has no carrier.
    WithoutCarrier,
    /// The link carries frames.
    Carries,
}

impl Uplink {
    /// One sentence about why the uplink does not carry frames. `None`: it does.
    pub fn problem(&self) -> Option<String> {
        let what = match self.state {
            UplinkState::Carries => return None,
            UplinkState::Missing => "does not exist",
            UplinkState::NotJoined => "is not in the fabric",
            UplinkState::Down => "is switched off",
            UplinkState::WithoutCarrier => "is switched on and has no carrier",
        };
        Some(format!("the uplink {} {what}: pods reach nothing outside by it", self.name))
    }

    /// The finding for the state.
    pub const fn finding(&self) -> Option<FindingCode> {
        match self.state {
            UplinkState::Carries => None,
            UplinkState::Missing => Some(FindingCode::UplinkMissing),
            UplinkState::NotJoined => Some(FindingCode::UplinkNotJoined),
            UplinkState::Down => Some(FindingCode::UplinkDown),
            UplinkState::WithoutCarrier => Some(FindingCode::UplinkWithoutCarrier),
        }
    }

    /// The condition's reason with the finding's code. The fabric's own condition covers an uplink that has not
    /// joined.
    pub const fn condition(&self) -> Option<ConditionReason> {
        match self.state {
            UplinkState::Carries | UplinkState::NotJoined => None,
            UplinkState::Missing => Some(ConditionReason::UplinkMissing),
            UplinkState::Down => Some(ConditionReason::UplinkDown),
            UplinkState::WithoutCarrier => Some(ConditionReason::UplinkWithoutCarrier),
        }
    }
}

impl Programmer {
    /// The uplinks of all bridges, in the configuration's order. Blocks on the kernel.
    ///
    /// # Errors
    /// When the kernel or the fabric can't be asked.
    pub fn uplink_states(&self) -> Result<Vec<Uplink>, Refused> {
        let Some(drivers) = &self.drivers else { return Ok(Vec::new()) };
        let members = drivers.fabric.members()?;
        self.uplinks_where(|link| members.contains_key(&link.index))
    }

    /// The same without checking whether the uplinks are in the fabric, which takes long with many ports. Blocks on
    /// the kernel.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn uplink_links(&self) -> Result<Vec<Uplink>, Refused> {
        self.uplinks_where(|_| true)
    }

    fn uplinks_where(&self, is_member: impl Fn(&Link) -> bool) -> Result<Vec<Uplink>, Refused> {
        let names = self.drivers.as_ref().map(|drivers| drivers.fabric.all_uplinks());
        let names = names.unwrap_or_default();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let refused = |error| Refused::new("look at the uplinks", error);
        let mut rtnl = Rtnl::open().map_err(refused)?;
        let mut look = |name: String| {
            let link = rtnl.link_by_name(&name).map_err(refused)?;
            Ok(Uplink { name, state: state_of(link.as_ref(), &is_member) })
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
    fn finding_and_condition_have_one_code() {
        for state in [UplinkState::Missing, UplinkState::Down, UplinkState::WithoutCarrier] {
            let uplink = Uplink { name: "p0".into(), state };
            let (finding, condition) = (uplink.finding().unwrap(), uplink.condition().unwrap());
            assert_eq!(finding.as_str(), condition.as_str());
        }
    }

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
