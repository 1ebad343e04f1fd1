//! Results of address probes of one attachment: other machines that use its addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use netlink::MacAddress;
use tokio::time::Instant;

/// Time until the next probe after a conflict or a probe that could not be sent.
const AGAIN: Duration = Duration::from_secs(30);

/// Other users of each address, by MAC address.
pub(crate) type Users = BTreeMap<IpAddr, BTreeSet<MacAddress>>;

#[derive(Debug, Default)]
pub(crate) struct Conflicts {
    /// When the latest probe ended. `None`: not probed since the service or the attachment started.
    probed_at: Option<Instant>,
    /// Whether any probe could be sent.
    are_known: bool,
    users: Users,
}

impl Conflicts {
    pub(crate) const fn users(&self) -> &Users {
        &self.users
    }

    pub(crate) const fn are_new(&self) -> bool {
        self.probed_at.is_none()
    }

    /// Whether to probe now: once, and then periodically while there is a conflict or probes cannot be sent.
    pub(crate) fn are_due(&self) -> bool {
        let is_settled = self.are_known && self.users.is_empty();
        self.probed_at.is_none_or(|at| !is_settled && at.elapsed() >= AGAIN)
    }

    /// See [`super::Entry::note_probed`].
    pub(super) fn note(&mut self, found: Option<Users>) -> Users {
        self.probed_at = Some(Instant::now());
        let Some(found) = found else { return Users::new() };
        self.are_known = true;
        let before = std::mem::replace(&mut self.users, found);
        let gone = before.keys().filter(|address| !self.users.contains_key(address));
        let gone = gone.map(|address| (*address, BTreeSet::new()));
        // A machine that answers from changing MAC addresses is reported only once.
        let begun = self.users.iter().filter(|(address, _)| !before.contains_key(address));
        gone.chain(begun.map(|(address, users)| (*address, users.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(last: u8) -> Users {
        let address = [10, 1, 0, 2].into();
        Users::from([(address, BTreeSet::from([MacAddress([2, 0, 0, 0, 0, last])]))])
    }

    fn without_users() -> Users {
        users(1).into_keys().map(|address| (address, BTreeSet::new())).collect()
    }

    #[test]
    fn only_beginnings_and_ends_are_news() {
        let mut conflicts = Conflicts::default();
        assert_eq!(conflicts.note(Some(Users::new())), Users::new());
        assert_eq!(conflicts.note(Some(users(1))), users(1));
        assert_eq!(conflicts.note(Some(users(1))), Users::new());
        assert_eq!(conflicts.note(Some(users(2))), Users::new());
        assert_eq!(conflicts.note(None), Users::new(), "an uplink that is down clears nothing");
        assert_eq!(conflicts.users(), &users(2));
        assert_eq!(conflicts.note(Some(Users::new())), without_users());
        assert_eq!(conflicts.users(), &Users::new());
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_due_again_in_conflict() {
        let mut conflicts = Conflicts::default();
        for found in [None, Some(users(1)), None] {
            assert!(conflicts.are_due());
            let _ = conflicts.note(found);
            assert!(!conflicts.are_due() && !conflicts.are_new());
            tokio::time::advance(AGAIN).await;
        }
        let _ = conflicts.note(Some(Users::new()));
        tokio::time::advance(AGAIN).await;
        assert!(!conflicts.are_due());
    }
}
