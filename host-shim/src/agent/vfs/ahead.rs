//! The move first: VFs begin to move into their pod before the DPU has said that they are the pod's.
//!
//! They are taken of those that the DPU has offered. As everything that a crash must not lose, that is recorded: as a
//! guess, a record with an id of its own. The record of the DPU's answer takes its place, or the VF goes home. Until
//! then the pod sees a link that is down and has nothing of an attachment.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use netlink::Netns;
use offload_proto::Failure;
use vf_alloc::VfOffer;

use super::{
    cleanliness::Cleanliness,
    drafts::Drafts,
    host::Host,
    intake::open_pod,
    intake_failure::not_moved,
    move_failure::failure_among,
    move_turns::Way,
    numbers::Numbers,
    records::{PodNetns, Record},
};
use crate::{
    agent::kill_points::KillPoint,
    mover::{Namespace, Namespaces, VfMove},
    protocol::AddRequest,
};

/// A VF offer that a request took and holds by a [claim](super::claims).
#[derive(Clone, Debug)]
pub(in crate::agent) struct Guess {
    pub request: AddRequest,
    pub offer: VfOffer,
}

/// How long the parts of a move ahead took.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::agent) struct MovedAhead {
    /// From when it was begun until the move itself could begin.
    pub before: Duration,
    /// The moves.
    pub moving: Duration,
}

/// Moves VFs ahead.
#[derive(Debug)]
pub(in crate::agent) struct Ahead {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    numbers: Arc<Numbers>,
    drafts: Drafts,
    right: AtomicU64,
    wrong: AtomicU64,
}

impl Ahead {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        numbers: &Arc<Numbers>,
        boot_id: String,
    ) -> Self {
        Self {
            host: Arc::clone(host),
            cleanliness: Arc::clone(cleanliness),
            numbers: Arc::clone(numbers),
            drafts: Drafts::new(host, cleanliness, boot_id),
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

    /// Records speculative attaches and moves their VFs into the pod, down and under their own names; unfit ones are
    /// left out. `names` are those that the pod's interfaces get, the group key's first. The caller holds the keys'
    /// locks. `is_awaited` reports whether the attach is still awaited; it is called when the move's turn has come.
    ///
    /// Failures before the record is written are ignored: no VF moves speculatively, and the normal attach path reports
    /// them.
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
        // As in a normal attach, the number of VFs stays and none is reset until there are records.
        let _vfs_stay = self.numbers.vfs_stay().await;
        let devices: Vec<_> = guesses.iter().map(|guess| guess.offer.device.clone()).collect();
        let _not_renewed = self.host.lock_free_vfs(&devices).await;
        let this = Arc::clone(self);
        let work = move || {
            let record = || this.record(&guesses, &names, &netns);
            let recorded =
                is_awaited().and_then(|()| traces::step("speculative_record").in_scope(record));
            match recorded {
                Ok((records, moves)) => move_now(&records, moves, &names, began),
                Err(failure) => {
                    tracing::debug!(%failure, "no speculative move is started");
                    Ok(MovedAhead::default())
                }
            }
        };
        self.host.move_vf(Way::In, work).await?
    }

    /// Writes the speculative records and builds the moves at the same time; no move has begun.
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
        KillPoint::AttachSpeculationRecorded.pass();
        for record in &records {
            self.host.records().keep(record);
            self.cleanliness.proofs().forget(record.device());
        }
        Ok((records, moves))
    }

    /// What is to be recorded of those VFs that are fit. One that does not have its own name is not.
    fn draft(
        &self,
        guesses: &[Guess],
        names: &[String],
        netns: &PodNetns,
        pod: &mut Namespace,
    ) -> Result<Vec<Arc<Record>>, Failure> {
        let devices = guesses.iter().map(|guess| &guess.offer.device);
        let originals: Vec<_> =
            devices.filter_map(|device| self.cleanliness.originals().get(device)).collect();
        let own_names = originals.iter().map(|original| original.name.as_str());
        let present = self.host.links_called(own_names).map_err(not_moved)?;
        let in_pod = pod.names().map_err(not_moved)?;
        let draft = |guess: &Guess| {
            let Guess { request, offer } = guess;
            let mut record = self.drafts.draft_guess(request, offer, netns, &present)?;
            let is_led = |lead: &&String| **lead != record.key().interface_name;
            record.attachment.group_interface =
                names.first().filter(is_led).cloned().unwrap_or_default();
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
    if records.is_empty() {
        return Ok(MovedAhead::default());
    }
    let before = began.elapsed();
    let all: Vec<_> = records.iter().map(|record| &**record).collect();
    let moved = VfMove::move_speculatively(moves, names);
    moved.map_err(|failed| failure_among(&all, &failed))?;
    KillPoint::AttachSpeculationMoved.pass();
    Ok(MovedAhead { before, moving: began.elapsed().saturating_sub(before) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::vfs::{
            records::{self, tests::record},
            room::tests::vfs,
        },
        protocol::Key,
    };

    #[tokio::test]
    async fn record_replaces_the_speculative_record() {
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
}
