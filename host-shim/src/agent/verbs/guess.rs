//! Which VFs an ADD begins to move before the DPU has said which are the pod's.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use offload_proto::{Failure, Reason};
use tokio::time::timeout;
use vf_alloc::Device;

use super::doors::Doors;
use crate::{
    agent::{
        defect::locked,
        dpu::Established,
        vfs::{Claimed, Condition, Guess, Phase, Record, Unnamed},
    },
    protocol::{AddRequest, Key},
};

/// The point at which a test has a guess be wrong.
const WRONG_GUESS: &str = "guess";

/// What an ADD keeps to itself until its VFs are recorded, or given back.
#[derive(Debug, Default)]
pub(super) struct Kept {
    claims: Vec<Claimed>,
    unnamed: Option<Unnamed>,
}

impl Kept {
    /// Lets go of all, and has the requests name no VF but those to be avoided.
    pub(super) fn name_none(&mut self, doors: &Doors, requests: &mut [AddRequest]) {
        *self = Self::default();
        requests.iter_mut().for_each(|request| request.wish = None);
        self.avoid_others(doors, requests);
    }

    /// Whether the DPU can have given a VF to nobody else.
    fn can_move(&self, device: &Device, session: &Established) -> bool {
        let is_it = |claimed: &Claimed| claimed.device() == device && claimed.is_unrivalled();
        self.claims.iter().any(is_it) && !session.is_kept(device)
    }

    fn avoid_others(&mut self, doors: &Doors, requests: &mut [AddRequest]) {
        let (unnamed, others) = doors.vfs.claims().begin_unnamed();
        self.unnamed = Some(unnamed);
        for request in requests.iter_mut().filter(|request| request.wish.is_none()) {
            request.avoided.clone_from(&others);
        }
    }
}

/// Has each request name the VF that the DPU is to give: the one that it has already, the one that pod or kubelet has
/// chosen, or one of its network's pool. Where there is none to name, as the DPU does not tell which VFs it gives out or
/// none is free, it names those that it must not be given.
///
/// # Errors
/// [`Reason::VfNotFree`]: a chosen VF is another ADD's.
pub(super) async fn keep_vfs(
    doors: &Doors,
    session: &Established,
    requests: &mut [AddRequest],
    kept: &mut Kept,
) -> Result<(), Failure> {
    for request in requests.iter_mut() {
        if let Some(record) = doors.vfs.records().by_key(&request.key) {
            request.wish = Some(record.device().clone());
            continue;
        }
        let claimed = match &request.device {
            Some(chosen) => Some(claim_chosen(doors, chosen).await?),
            None => claim_open(doors, session, &request.network),
        };
        request.wish = claimed.as_ref().map(|claimed| claimed.device().clone());
        kept.claims.extend(claimed);
    }
    if requests.iter().any(|request| request.wish.is_none()) {
        kept.avoid_others(doors, requests);
    }
    Ok(())
}

fn claim_open(doors: &Doors, session: &Established, network: &str) -> Option<Claimed> {
    doors.vfs.claims().claim(&session.pool_of(network), |device| session.is_kept(device))
}

async fn claim_chosen(doors: &Doors, chosen: &Device) -> Result<Claimed, Failure> {
    let held = || {
        let message = format!("VF {chosen} is held for another pod, whose ADD is under way");
        Failure::new(Reason::VfNotFree, message)
    };
    let claimed = timeout(doors.timeouts.vf_return(), doors.vfs.claims().claim_named(chosen)).await;
    let claimed = claimed.map_err(|_| held())?;
    // One that was not given it, and has not got it home.
    match doors.vfs.records().by_device(chosen).filter(|record| record.is_guess) {
        Some(_) => Err(held()),
        None => Ok(claimed),
    }
}

/// The VFs that are moved before the DPU has answered: of new attachments, where they would not move for nothing, and the
/// DPU can't have given them to another.
pub(super) fn guesses(
    doors: &Doors,
    session: &Established,
    requests: &[AddRequest],
    kept: &mut Kept,
) -> Vec<Guess> {
    // Looked at behind the claims: who gives something back has told that before another may claim its VF.
    if is_owed(doors) {
        return Vec::new();
    }
    let is_wanted = |request: &&AddRequest| {
        let is_new = doors.vfs.records().by_key(&request.key).is_none();
        is_new && !doors.refusing.is_refusing(&request.network)
    };
    let mut guesses = Vec::new();
    for request in requests.iter().filter(is_wanted) {
        let mut device = request.wish.clone();
        if saga::goes_wrong(WRONG_GUESS)
            && let Some(other) = claim_open(doors, session, &request.network)
        {
            device = Some(other.device().clone());
            kept.claims.push(other);
        }
        let device = device.filter(|device| kept.can_move(device, session));
        guesses.extend(device.map(|device| Guess { request: request.clone(), device }));
    }
    guesses
}

/// Whether the DPU may hold something that is given back, and of which nobody here knows the VF.
fn is_owed(doors: &Doors) -> bool {
    // With a guess goes what the DPU has made of its key, and of those that it leads.
    let mut guesses = doors.vfs.records().guesses().into_iter();
    !doors.dpu.calls().undelivered_keys().is_empty()
        || guesses.any(|guess| guess.phase == Phase::Releasing)
}

/// Takes the VF home that is guessed for a key, if it is another than the one `given`. Nobody has it on the DPU, which
/// hears of it by the next inventory.
///
/// # Errors
/// [`Reason::Releasing`]: it is not back, or not as it was. Its record stays, and tells what is to be taken back.
pub(super) async fn take_home_unless(
    doors: &Doors,
    key: &Key,
    given: &Device,
) -> Result<(), Failure> {
    match doors.vfs.records().guess_of(key) {
        Some(guess) if guess.device() != given => {
            tracing::info!(%key, %given, guessed = %guess.device(), "the guess was wrong");
            doors.vfs.ahead().count(false);
            take_home(doors, guess).await
        }
        Some(_) => {
            doors.vfs.ahead().count(true);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Likewise whichever it is.
///
/// # Errors
/// As [`take_home_unless`].
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
        format!("VF {}, which was moved before the DPU gave another, {how}", guess.device());
    Err(Failure::new(Reason::Releasing, message))
}

/// What the DPU refuses every pod that asks for the network. All else is about the one that asked, or passes by itself.
const REFUSALS: [Reason; 10] = [
    Reason::NetworkUnknown,
    Reason::NetworkNotAllowed,
    Reason::PoolPinnedOnly,
    Reason::VfsExhausted,
    Reason::AddressesExhausted,
    Reason::FabricFull,
    Reason::PortsUnreadable,
    Reason::ProgrammingFailed,
    Reason::JournalUnavailable,
    Reason::Draining,
];

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

    /// The DPU has granted these requests, or why not.
    pub(super) fn note(&self, requests: &[AddRequest], why_not: Option<&Failure>) {
        let mut refusing = locked(&self.0);
        let networks = requests.iter().map(|request| &request.network);
        match why_not {
            None => networks.for_each(|network| drop(refusing.take(network))),
            Some(failure) if !REFUSALS.contains(&failure.reason) => {}
            Some(_) => {
                if refusing.len() >= Self::MOST {
                    refusing.clear();
                }
                refusing.extend(networks.cloned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::vfs::record;

    fn to(network: &str) -> AddRequest {
        let key: Key = record("a", "c").key();
        AddRequest::plain(key, "/run/netns/a".into(), network.into())
    }

    fn refused() -> Failure {
        Failure::new(Reason::VfsExhausted, "all VFs are in use")
    }

    #[test]
    fn a_network_that_refuses_is_guessed_for_again_once_it_does_not() {
        let refusing = Refusing::default();
        refusing.note(&[to("blue"), to("red")], Some(&refused()));
        assert!(refusing.is_refusing("blue") && refusing.is_refusing("red"));
        refusing.note(&[to("blue")], None);
        assert!(!refusing.is_refusing("blue") && refusing.is_refusing("red"));
        for of_one_pod in [Reason::DeadlineExceeded, Reason::AddressInUse, Reason::VfNotFree] {
            refusing.note(&[to("blue")], Some(&Failure::new(of_one_pod, "refused")));
            assert!(!refusing.is_refusing("blue"), "{of_one_pod:?}");
        }
    }

    #[test]
    fn however_many_networks_refuse_only_so_many_are_remembered() {
        let refusing = Refusing::default();
        for number in 0..=Refusing::MOST {
            refusing.note(&[to(&number.to_string())], Some(&refused()));
        }
        assert!(refusing.is_refusing(&Refusing::MOST.to_string()) && !refusing.is_refusing("0"));
    }
}
