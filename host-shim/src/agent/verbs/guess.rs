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

/// Takes the VF home that is guessed for a key, if it is another than the one `given`. The DPU knows nothing of it, and
/// need not be told.
///
/// # Errors
/// [`Reason::Releasing`]: it is not back. Its record stays, and tells what is to be taken back.
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
    let what = match home {
        Ok(Condition::Clean) => {
            doors.vfs.homecoming().forget(&guess);
            return Ok(());
        }
        Ok(Condition::Different(what)) => what,
        Err(failure) => failure.message,
    };
    let message = format!("VF {}, which was guessed, is not back: {what}", guess.device());
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

    /// The DPU has answered these requests, or has not.
    pub(super) fn note(&self, requests: &[AddRequest], is_refused: bool) {
        let mut refusing = locked(&self.0);
        for AddRequest { network, .. } in requests {
            if !is_refused {
                refusing.remove(network);
            } else if refusing.len() < Self::MOST {
                refusing.insert(network.clone());
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

    #[test]
    fn a_network_that_refuses_is_guessed_for_again_once_it_does_not() {
        let refusing = Refusing::default();
        refusing.note(&[to("blue"), to("red")], true);
        assert!(refusing.is_refusing("blue") && refusing.is_refusing("red"));
        refusing.note(&[to("blue")], false);
        assert!(!refusing.is_refusing("blue") && refusing.is_refusing("red"));
    }

    #[test]
    fn however_many_networks_refuse_only_so_many_are_remembered() {
        let refusing = Refusing::default();
        for number in 0..=Refusing::MOST {
            refusing.note(&[to(&number.to_string())], true);
        }
        assert!(refusing.is_refusing("0") && !refusing.is_refusing(&Refusing::MOST.to_string()));
    }
}
