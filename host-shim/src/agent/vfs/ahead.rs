//! The move first: VFs begin to move into their pod before the DPU has said that they are the pod's.
//!
//! Which VF that will be the host guesses, and the DPU is told as a wish. A guess is no reservation, neither here nor
//! there: it is recorded, as everything is that a crash must not lose, as a record with an id of its own; the record of
//! the DPU's answer takes its place, or it goes home. Until then the pod sees a link that is down and has nothing of
//! an attachment.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use netlink::Netns;
use offload_proto::Failure;
use vf_alloc::{Device, Policy};

use super::{
    cleanliness::Cleanliness,
    drafts::Drafts,
    host::{Host, HostLinks},
    intake::open_pod,
    intake_failure::not_moved,
    move_failure::failure_among,
    move_turns::Way,
    numbers::Numbers,
    records::{PodNetns, Record},
    renewal::Renewer,
};
use crate::{
    agent::{defect::locked, milestones::Milestone},
    mover::{Namespace, Namespaces, VfMove},
    protocol::AddRequest,
};

/// A VF that the DPU is expected to give to a request.
#[derive(Debug)]
pub(in crate::agent) struct Guess {
    pub request: AddRequest,
    pub device: Claimed,
}

/// A VF that nobody else guesses until this is dropped.
#[derive(Debug)]
pub(in crate::agent) struct Claimed {
    device: Device,
    claims: Arc<Mutex<Claims>>,
}

impl Claimed {
    /// The VF.
    pub(in crate::agent) fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        locked(&self.claims).devices.remove(&self.device);
    }
}

/// The VFs of a pool that anybody may get.
#[derive(Clone, Debug)]
pub(in crate::agent) struct OpenPool {
    /// Which PF comes first.
    pub policy: Policy,
    pub by_pf: Vec<Vec<Device>>,
}

impl Default for OpenPool {
    fn default() -> Self {
        Self { policy: Policy::Spread, by_pf: Vec::new() }
    }
}

impl OpenPool {
    /// That VF, and no other.
    pub(in crate::agent) fn of(device: Device) -> Self {
        Self { by_pf: vec![vec![device]], ..Self::default() }
    }
}

#[derive(Debug, Default)]
struct Claims {
    devices: HashSet<Device>,
    /// The one of a PF that was claimed last, by the first one: the next is one behind it, so that each rests for long.
    last: HashMap<Device, Device>,
}

impl Claims {
    /// The VFs of a PF, in turn.
    fn in_turn<'a>(&self, vfs: &'a [Device]) -> impl Iterator<Item = &'a Device> {
        let last = vfs.first().and_then(|first| self.last.get(first));
        let after_last = last.and_then(|last| vfs.iter().position(|device| device == last));
        let (before, behind) = vfs.split_at(after_last.map_or(0, |at| at + 1));
        behind.iter().chain(before)
    }
}

/// How long the parts of a move ahead took.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::agent) struct MovedAhead {
    /// From when it was begun until the move itself could begin.
    pub before: Duration,
    /// The moves.
    pub moving: Duration,
}

/// Guesses VFs, and moves them.
#[derive(Debug)]
pub(in crate::agent) struct Ahead {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    renewer: Arc<Renewer>,
    numbers: Arc<Numbers>,
    drafts: Drafts,
    claims: Arc<Mutex<Claims>>,
    right: AtomicU64,
    wrong: AtomicU64,
}

impl Ahead {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        renewer: &Arc<Renewer>,
        numbers: &Arc<Numbers>,
        boot_id: String,
    ) -> Self {
        Self {
            host: Arc::clone(host),
            cleanliness: Arc::clone(cleanliness),
            renewer: Arc::clone(renewer),
            numbers: Arc::clone(numbers),
            drafts: Drafts::new(host, cleanliness, boot_id),
            claims: Arc::default(),
            right: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
        }
    }

    /// The DPU has given the VF that was guessed, or another one.
    pub(in crate::agent) fn count(&self, is_right: bool) {
        let count = if is_right { &self.right } else { &self.wrong };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many guesses were right, and how many were wrong.
    pub(in crate::agent) fn counts(&self) -> (u64, u64) {
        (self.right.load(Ordering::Relaxed), self.wrong.load(Ordering::Relaxed))
    }

    /// One of these VFs that nobody has or guesses, and that was clean when it was looked at last. Whether it is so still
    /// is seen when it is about to move. Only one whose port the DPU has, which nothing passes until that is programmed:
    /// what a PF keeps a pod to is set on the VF itself, and before it moves.
    pub(in crate::agent) fn claim(&self, pool: &OpenPool) -> Option<Claimed> {
        let mut claims = locked(&self.claims);
        let is_to_be_had = |device: &&Device| {
            !claims.devices.contains(*device)
                && self.host.records().by_device(device).is_none()
                && !self.renewer.is_under_way(device)
                && self.cleanliness.proofs().was_proven(device)
                && self.host.source().pf_port(device).is_none()
        };
        let vfs = match &pool.by_pf[..] {
            [only] => only,
            several => {
                // As the DPU chooses.
                let free = |vfs: &&Vec<Device>| vfs.iter().filter(is_to_be_had).count();
                let having = several.iter().filter(|vfs| free(vfs) > 0);
                match pool.policy {
                    Policy::Spread => having.min_by_key(|vfs| Reverse(free(vfs))),
                    Policy::Pack => having.min_by_key(free),
                }?
            }
        };
        let device = claims.in_turn(vfs).find(is_to_be_had)?.clone();
        claims.devices.insert(device.clone());
        claims.last.insert(vfs[0].clone(), device.clone());
        Some(Claimed { device, claims: Arc::clone(&self.claims) })
    }

    /// Records the guesses and moves the VFs into the pod, switched off and under their own names; those that are not
    /// fit are left out. `names` are those that the pod's interfaces get, whether a VF is guessed for each or not; the
    /// first one leads. Whoever calls holds the keys' locks. `is_awaited` tells whether anybody waits for that still,
    /// or else why not, and is asked once it is their turn.
    ///
    /// What is in the way before anything is recorded is nothing to fail for: no VF moves ahead then, and whoever goes on
    /// meets it, too.
    ///
    /// # Errors
    /// Why a move failed. What was recorded is to be taken back.
    pub(in crate::agent) async fn begin(
        self: &Arc<Self>,
        guesses: Vec<Guess>,
        names: Vec<String>,
        netns: PodNetns,
        is_awaited: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) -> Result<MovedAhead, Failure> {
        if guesses.is_empty() {
            return Ok(MovedAhead::default());
        }
        let began = Instant::now();
        // As for an intake: the number of VFs stays, and none of these is made anew, until there are records.
        let _vfs_stay = self.numbers.vfs_stay().await;
        let devices: Vec<_> = guesses.iter().map(|guess| guess.device.device().clone()).collect();
        let _not_renewed = self.host.lock_free_vfs(&devices).await;
        let this = Arc::clone(self);
        let work = move || {
            let recorded = is_awaited().and_then(|()| this.record(&guesses, &names, &netns));
            // From here on the records keep others from the VFs.
            drop(guesses);
            match recorded {
                Ok((records, moves)) => move_now(&records, moves, &names, began),
                Err(failure) => {
                    tracing::debug!("no VF is moved ahead: {failure}");
                    Ok(MovedAhead::default())
                }
            }
        };
        self.host.move_vf(Way::In, work).await?
    }

    /// Records the guesses that are fit, and begins the moves meanwhile, of which nothing is done yet.
    fn record(
        &self,
        guesses: &[Guess],
        names: &[String],
        netns: &PodNetns,
    ) -> Result<(Vec<Arc<Record>>, Vec<VfMove>), Failure> {
        let mut pod = open_pod(netns)?;
        let records = self.draft(guesses, names, netns, &mut pod)?;
        if records.is_empty() {
            return Ok((records, Vec::new()));
        }
        let written = self.host.records().write_all(&records);
        let moves: Result<Vec<_>, _> =
            records.iter().map(|record| self.begin_move(record, &pod.netns)).collect();
        written.wait()?;
        let moves = moves.inspect_err(|_| {
            records.iter().for_each(|record| self.host.records().remove(record.id()));
        })?;
        Milestone::AttachGuessed.pass();
        for record in &records {
            self.host.records().keep(record);
            self.cleanliness.proofs().forget(record.device());
        }
        Ok((records, moves))
    }

    /// What is to be recorded of those VFs that are fit.
    fn draft(
        &self,
        guesses: &[Guess],
        names: &[String],
        netns: &PodNetns,
        pod: &mut Namespace,
    ) -> Result<Vec<Arc<Record>>, Failure> {
        let present =
            HostLinks::of(&mut self.host.rtnl().map_err(not_moved)?).map_err(not_moved)?;
        let in_pod = pod.names().map_err(not_moved)?;
        let draft = |guess: &Guess| {
            let device = guess.device.device();
            let mut record = self.drafts.draft_guess(&guess.request, device, netns, &present)?;
            let is_led = |lead: &&String| **lead != record.key().interface_name;
            record.attachment.lead = names.first().filter(is_led).cloned().unwrap_or_default();
            // It keeps its own name for now.
            let own = &record.original.name;
            (!in_pod.contains(own) && !names.contains(own)).then(|| Arc::new(record))
        };
        Ok(guesses.iter().filter_map(draft).collect())
    }

    fn begin_move(&self, record: &Record, pod: &Arc<Netns>) -> Result<VfMove, Failure> {
        let namespaces = Namespaces::open(self.host.netns(), Some(Arc::clone(pod)));
        Ok(VfMove::new(self.host.move_of(record)?, namespaces.map_err(not_moved)?))
    }
}

/// Makes the moves of guesses that are recorded.
fn move_now(
    records: &[Arc<Record>],
    moves: Vec<VfMove>,
    names: &[String],
    began: Instant,
) -> Result<MovedAhead, Failure> {
    let before = began.elapsed();
    let all: Vec<_> = records.iter().map(|record| &**record).collect();
    let moved = VfMove::move_ahead_together(moves, names);
    moved.map_err(|failed| failure_among(&all, &failed))?;
    if !records.is_empty() {
        Milestone::AttachAhead.pass();
    }
    Ok(MovedAhead { before, moving: began.elapsed().saturating_sub(before) })
}

#[cfg(test)]
mod tests {
    use vf_alloc::FunctionId;

    use super::*;
    use crate::{
        agent::vfs::{
            proofs::Seen,
            records::{self, tests::record},
            room::{Vfs, tests::vfs},
        },
        protocol::Key,
        vf_source::VfIdentity,
    };

    fn pool(by_pf: &[&[&str]], policy: Policy) -> OpenPool {
        let of_pf = |names: &&[&str]| names.iter().map(|name| Device::from(*name)).collect();
        OpenPool { policy, by_pf: by_pf.iter().map(of_pf).collect() }
    }

    /// Has the VFs count as clean.
    fn prove(vfs: &Vfs, pool: &OpenPool) {
        for device in pool.by_pf.iter().flatten() {
            let vf = VfIdentity { id: FunctionId::local(0, 1), device: device.clone() };
            let seen = Seen::new(vf, 7, Instant::now(), Vec::new()).made_just_now();
            assert!(vfs.cleanliness().proofs().conclude(seen, &Arc::default()).is_empty());
        }
    }

    #[tokio::test]
    async fn a_vf_is_guessed_by_one_at_a_time_and_each_has_its_turn() {
        let (vfs, _folder) = vfs();
        let pool = pool(&[&["pci-a", "pci-b", "pci-c"]], Policy::Spread);
        assert!(vfs.ahead().claim(&pool).is_none(), "none was looked at");
        prove(&vfs, &pool);
        let claim = || vfs.ahead().claim(&pool).map(|claimed| claimed.device().to_string());
        assert_eq!(
            [claim(), claim(), claim(), claim()].map(Option::unwrap),
            ["pci-a", "pci-b", "pci-c", "pci-a"]
        );
        let held = vfs.ahead().claim(&pool).unwrap();
        assert_eq!(held.device().as_str(), "pci-b");
        records::tests::keep(vfs.records(), record("c", "holder"));
        assert_eq!([claim(), claim()].map(Option::unwrap), ["pci-a", "pci-a"], "one is left");
        drop(held);
        assert_eq!(claim().unwrap(), "pci-b");
        assert!(vfs.ahead().claim(&OpenPool::of("pci-c".into())).is_none());
        assert!(vfs.ahead().claim(&OpenPool::default()).is_none());
    }

    #[tokio::test]
    async fn of_several_pfs_the_one_is_guessed_that_the_pool_prefers() {
        for (policy, chosen) in [(Policy::Spread, "pci-c"), (Policy::Pack, "pci-a")] {
            let (vfs, _folder) = vfs();
            let pool = pool(&[&["pci-a", "pci-b"], &["pci-c", "pci-d", "pci-e"], &[]], policy);
            prove(&vfs, &pool);
            assert_eq!(vfs.ahead().claim(&pool).unwrap().device().as_str(), chosen);
        }
    }

    #[tokio::test]
    async fn a_record_takes_the_place_of_the_guess_at_its_vf() {
        let (vfs, _folder) = vfs();
        let guess = Record { is_guess: true, ..record("a", "c") };
        let key: Key = guess.key();
        records::tests::keep(vfs.records(), guess.clone());
        assert!(vfs.records().guess_of(&key).is_some());
        let mut answered = Record { is_guess: false, ..guess.clone() };
        answered.attachment.id = "answered".into();
        records::tests::keep(vfs.records(), answered);
        assert!(
            vfs.records().by_id(guess.id()).is_none() && vfs.records().guess_of(&key).is_none()
        );
        for found in [vfs.records().by_key(&key), vfs.records().by_device(guess.device())] {
            assert_eq!(found.unwrap().id(), "answered");
        }
    }

    /// The DPU has given it to another attach of the host, which waits for no longer than the guess lasts.
    #[tokio::test]
    async fn whoever_is_given_a_guessed_vf_waits_until_the_guess_has_ended() {
        let (vfs, _folder) = vfs();
        let guess = Record { is_guess: true, ..record("a", "guesser") };
        let (device, key) = (guess.device().clone(), guess.key());
        let other = record("b", "other").key();
        records::tests::keep(vfs.records(), guess.clone());
        let limit = Duration::from_secs(10);
        let own = vfs.records().without_other_guess(&device, &key);
        tokio::time::timeout(limit, own).await.expect("its own guess is no hindrance");
        let waiting = vfs.records().without_other_guess(&device, &other);
        let ends = async {
            tokio::task::yield_now().await;
            vfs.records().remove(guess.id());
        };
        let both = async { tokio::join!(waiting, ends) };
        tokio::time::timeout(limit, both).await.expect("the guess has ended");
    }
}
