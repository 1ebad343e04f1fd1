//! Which VFs an ADD takes of those that the DPU has offered, to begin to move them before the DPU has answered.

use std::{mem, sync::Arc};

use netlink::NetnsId;
use offload_proto::{Failure, Reason};
use vf_alloc::{Device, VfOffer};

use super::{doors::Doors, release::forget};
use crate::{
    agent::{
        dpu::Established,
        vfs::{Claimed, Condition, Guess, Record},
    },
    protocol::AddRequest,
};

/// What an ADD has taken, until that is recorded or given up.
#[derive(Debug, Default)]
pub(super) struct Taken(Vec<(VfOffer, Claimed)>);

impl Taken {
    /// Takes a offered VF for each request that is new and has none: the one that pod or kubelet has chosen, if it is
    /// offered, or one of the network's pool. The others ask for whichever the DPU gives them. Returns whether there
    /// are no others.
    pub(super) fn take(
        &mut self,
        doors: &Doors,
        session: &Established,
        requests: &mut [AddRequest],
    ) -> bool {
        let claim = |device: &Device| doors.vfs.claims().try_claim(device);
        let has_none = |request: &&mut AddRequest| {
            request.offered.is_none() && doors.vfs.records().by_key(&request.key).is_none()
        };
        let mut have_all = true;
        for request in requests.iter_mut().filter(has_none) {
            let found = match &request.interface.device {
                Some(chosen) => session.take_chosen(chosen, claim),
                None => session.take_of_network(&request.interface.network, claim),
            };
            request.offered = found.as_ref().map(|(offer, _)| offer.clone());
            have_all &= found.is_some();
            self.0.extend(found);
        }
        have_all
    }

    /// Gives up what was taken for these requests.
    pub(super) fn give_up(&mut self, doors: &Doors, requests: &mut [AddRequest]) {
        requests.iter_mut().for_each(|request| request.offered = None);
        mem::take(self).tell(doors);
    }

    /// Tells the DPU that what was taken is not used, but for what is recorded: of that the record's end tells.
    pub(super) fn tell(self, doors: &Doors) {
        let (offers, claims): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        let is_unrecorded =
            |offer: &VfOffer| doors.vfs.records().by_device(&offer.device).is_none();
        let declined_offers: Vec<_> = offers.into_iter().filter(is_unrecorded).collect();
        // First: once the DPU has heard it, they may be taken again.
        drop(claims);
        doors.dpu.reports().report_declined(&declined_offers);
    }
}

/// What is moved ahead for these requests to a namespace: where it would not move for nothing.
pub(super) fn guesses(doors: &Doors, requests: &[AddRequest], netns: NetnsId) -> Vec<Guess> {
    if doors.vfs.host().is_own_netns(netns) {
        return Vec::new();
    }
    let guess = |request: &AddRequest| {
        let offer = request.offered.clone()?;
        let is_given = !doors.refusing.is_refusing(&request.interface.network);
        is_given.then(|| Guess { request: request.clone(), offer })
    };
    requests.iter().filter_map(guess).collect()
}

/// The DPU has given the VFs that were moved ahead.
pub(super) fn count_right(doors: &Doors, requests: &[AddRequest]) {
    let guesses = requests.iter().filter_map(|request| doors.vfs.records().guess_of(&request.key));
    guesses.for_each(|_| doors.vfs.ahead().count(true));
}

/// Takes the VFs home that were moved ahead for these requests, as the DPU does not give them.
///
/// # Errors
/// [`Reason::Releasing`]: one is not back, or not as it was. Its record stays, and tells what is to be taken back.
pub(super) async fn take_all_home(doors: &Doors, requests: &[AddRequest]) -> Result<(), Failure> {
    for request in requests {
        if let Some(guess) = doors.vfs.records().guess_of(&request.key) {
            doors.vfs.ahead().count(false);
            take_home(doors, guess).await?;
        }
    }
    Ok(())
}

async fn take_home(doors: &Doors, guess: Arc<Record>) -> Result<(), Failure> {
    let (guess, home) = doors.vfs.homecoming().bring(guess, doors.timeouts.vf_return()).await;
    let how = match home {
        Ok(Condition::Clean) => {
            forget(doors, &guess);
            return Ok(());
        }
        Ok(Condition::Different(what)) => format!("is back, but differs from its baseline: {what}"),
        Err(failure) => format!("is not back: {failure}"),
    };
    let message = format!("VF {} of a speculative move that the DPU refused {how}", guess.device());
    Err(Failure::new(Reason::Releasing, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::{verbs::tests::doors, vfs::record},
        protocol::Key,
    };

    fn to(network: &str) -> AddRequest {
        let key: Key = record("a", "c").key();
        AddRequest::plain(key, "/run/netns/a".into(), network.into())
    }

    /// The hello of a new session listed the VF as in use, and no link event corrects that.
    #[tokio::test]
    async fn declined_offers_are_reported() {
        let (doors, _folder) = doors();
        let device = Device::from("pci-c");
        let claimed = doors.vfs.claims().try_claim(&device).unwrap();
        let offer = VfOffer { device: device.clone(), number: 1 };
        let mut requests = [AddRequest { offered: Some(offer.clone()), ..to("blue") }];
        assert!(!doors.dpu.reports().is_inventory_wanted());
        Taken(vec![(offer, claimed)]).give_up(&doors, &mut requests);
        assert!(doors.dpu.reports().is_inventory_wanted());
        assert!(requests[0].offered.is_none() && doors.vfs.claims().try_claim(&device).is_some());
    }
}
