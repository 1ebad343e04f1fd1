//! Which VFs an ADD takes of those that the DPU has promised, to begin to move them before the DPU has answered.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use offload_proto::{Failure, Reason};
use vf_alloc::Device;

use super::doors::Doors;
use crate::{
    agent::{
        defect::locked,
        dpu::Established,
        vfs::{Claimed, Condition, Guess, Record},
    },
    protocol::AddRequest,
};

/// What an ADD has taken, until that is recorded or at home again.
#[derive(Debug, Default)]
pub(super) struct Taken(Vec<Claimed>);

impl Taken {
    /// Whether one was taken of which there is no record, so that nobody tells the DPU that it is at home.
    pub(super) fn has_unrecorded(&self, doors: &Doors) -> bool {
        let records = doors.vfs.records();
        self.0.iter().any(|claimed| records.by_device(claimed.device()).is_none())
    }
}

/// Takes a promised VF for each request that is new: the one that pod or kubelet has chosen, if it is promised, or one of
/// the network's pool. The others ask for whichever the DPU gives them.
pub(super) fn take_promised(
    doors: &Doors,
    session: &Established,
    requests: &mut [AddRequest],
    taken: &mut Taken,
) {
    let claim = |device: &Device| doors.vfs.claims().try_claim(device);
    let is_new = |request: &&mut AddRequest| doors.vfs.records().by_key(&request.key).is_none();
    for request in requests.iter_mut().filter(is_new) {
        let found = match &request.device {
            Some(chosen) => session.take_promised(|vf| vf.device == *chosen, claim),
            None => session
                .pool_of(&request.network)
                .and_then(|pool| session.take_promised(|vf| vf.pools.contains(&pool), claim)),
        };
        request.promised = None;
        if let Some((claimed, number)) = found {
            request.promised = Some((claimed.device().clone(), number));
            taken.0.push(claimed);
        }
    }
}

/// Whether there are promised VFs that are perhaps of the network's pool: of a network that came a moment ago it is not
/// known which one that is.
pub(super) fn is_promised_more(session: &Established, network: &str) -> bool {
    let pool = session.pool_of(network);
    session.has_promised(|vf| pool.as_ref().is_none_or(|pool| vf.pools.contains(pool)))
}

/// Whether the VF that pod or kubelet has chosen is promised by now, and was not when it was asked for.
pub(super) fn is_promised_now(session: &Established, request: &AddRequest) -> bool {
    let chosen = request.device.as_ref().filter(|_| request.promised.is_none());
    chosen.is_some_and(|chosen| session.has_promised(|vf| vf.device == *chosen))
}

/// What is moved ahead for these requests: where it would not move for nothing.
pub(super) fn guesses(doors: &Doors, requests: &[AddRequest]) -> Vec<Guess> {
    let guess = |request: &AddRequest| {
        let (device, _) = request.promised.clone()?;
        let is_given = !doors.refusing.is_refusing(&request.network);
        is_given.then(|| Guess { request: request.clone(), device })
    };
    requests.iter().filter_map(guess).collect()
}

/// The DPU has given the VFs that were moved ahead.
pub(super) fn count_right(doors: &Doors, requests: &[AddRequest]) {
    let guesses = requests.iter().filter_map(|request| doors.vfs.records().guess_of(&request.key));
    guesses.for_each(|_| doors.vfs.ahead().count(true));
}

/// Takes the VFs home that were moved ahead for these requests, as the DPU does not give them. It knows that they are this
/// host's still, and hears by the next inventory that they are back.
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
            doors.vfs.homecoming().forget(&guess);
            return Ok(());
        }
        Ok(Condition::Different(what)) => format!("is back, but not as it was: {what}"),
        Err(failure) => format!("is not back: {failure}"),
    };
    let message =
        format!("VF {}, which was moved before the DPU refused it, {how}", guess.device());
    Err(Failure::new(Reason::Releasing, message))
}

/// The networks that refused to be attached to last. Who is refused tries again and again.
#[derive(Debug, Default)]
pub(in crate::agent) struct Refusing(Mutex<HashSet<String>>);

impl Refusing {
    /// So many networks are remembered at once: pods may ask for any name.
    const MOST: usize = 1000;

    /// Whether the network's last answer was a refusal.
    fn is_refusing(&self, network: &str) -> bool {
        locked(&self.0).contains(network)
    }

    /// The DPU has granted these requests, or not.
    pub(super) fn note(&self, requests: &[AddRequest], are_granted: bool) {
        let mut refusing = locked(&self.0);
        let networks = requests.iter().map(|request| &request.network);
        if are_granted {
            return networks.for_each(|network| drop(refusing.take(network)));
        }
        if refusing.len() >= Self::MOST {
            refusing.clear();
        }
        refusing.extend(networks.cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agent::vfs::record, protocol::Key};

    fn to(network: &str) -> AddRequest {
        let key: Key = record("a", "c").key();
        AddRequest::plain(key, "/run/netns/a".into(), network.into())
    }

    #[test]
    fn a_network_refuses_until_it_grants() {
        let refusing = Refusing::default();
        refusing.note(&[to("blue"), to("red")], false);
        assert!(refusing.is_refusing("blue") && refusing.is_refusing("red"));
        refusing.note(&[to("blue")], true);
        assert!(!refusing.is_refusing("blue") && refusing.is_refusing("red"));
    }

    #[test]
    fn however_many_networks_refuse_only_so_many_are_remembered() {
        let refusing = Refusing::default();
        for number in 0..=Refusing::MOST {
            refusing.note(&[to(&number.to_string())], false);
        }
        assert!(refusing.is_refusing(&Refusing::MOST.to_string()) && !refusing.is_refusing("0"));
    }
}
