//! Which VFs an ADD begins to move before the DPU has said which are the pod's.

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
        vfs::{Claimed, Condition, Guess, OpenPool, Record},
    },
    protocol::{AddRequest, Key},
};

/// The point at which a test has a guess be wrong.
const WRONG_GUESS: &str = "guess";

/// Guesses a VF for each request that is no repeat, and has the requests wish for them. Where the DPU does not tell
/// which VFs it gives out, or none is free, there is none to guess; nor where VFs would move for nothing.
pub(super) fn guess(
    doors: &Doors,
    session: &Established,
    requests: &mut [AddRequest],
) -> Vec<Guess> {
    let mut guesses = Vec::new();
    for request in requests {
        let is_repeat = doors.vfs.records().by_key(&request.key).is_some();
        if is_repeat || doors.refusing.is_refusing(&request.network) {
            continue;
        }
        let pool = match &request.device {
            Some(chosen) => Arc::new(OpenPool::of(chosen.clone())),
            None => session.pool_of(&request.network),
        };
        let Some(device) = doors.vfs.ahead().claim(&pool) else { continue };
        request.wish = Some(wish(doors, &device, &pool));
        guesses.push(Guess { request: request.clone(), device });
    }
    guesses
}

/// What the DPU is told to be wished for: the VF that is guessed, unless a test has the guess be wrong.
fn wish(doors: &Doors, guessed: &Claimed, pool: &OpenPool) -> Device {
    let other = saga::goes_wrong(WRONG_GUESS).then(|| doors.vfs.ahead().claim(pool));
    other.flatten().as_ref().unwrap_or(guessed).device().clone()
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

/// What keeps an attach from being granted without being the network's doing.
const NO_REFUSALS: [Reason; 4] =
    [Reason::DeadlineExceeded, Reason::DpuUnreachable, Reason::StaleSession, Reason::Releasing];

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

    /// The DPU has granted these requests, or why not. That nobody waits any more, or that there was no answer, says
    /// nothing of a network.
    pub(super) fn note(&self, requests: &[AddRequest], why_not: Option<&Failure>) {
        let mut refusing = locked(&self.0);
        let networks = requests.iter().map(|request| &request.network);
        match why_not {
            None => networks.for_each(|network| drop(refusing.take(network))),
            Some(failure) if NO_REFUSALS.contains(&failure.reason) => {}
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
        let gone = Failure::new(Reason::DeadlineExceeded, "the caller has ended");
        refusing.note(&[to("blue")], Some(&gone));
        assert!(!refusing.is_refusing("blue"), "that is the caller's doing");
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
