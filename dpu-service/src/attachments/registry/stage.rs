//! The life of an attachment in memory: `Uncommitted → Recorded → Releasing`, then removed.
//!
//! Each stage owns the data that exists only in it, so an attachment cannot, say, be in its pod and be released at
//! once. A transition that comes too late, such as a release while the representor was being programmed, changes
//! nothing.

use tokio::time::Instant;

use crate::host::SessionId;
use model::{AttachmentState, Phase};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// In memory; the journal's commit is under way.
    Uncommitted(HostReport),
    /// In the journal. Programming and the pod are tracked separately: after a restart the host may report that the pod
    /// has the VF before the representor was surveyed.
    Recorded {
        /// The representor's ifindex, once it is known to be programmed.
        programmed: Option<u32>,
        host: HostReport,
    },
    Releasing {
        /// Where the VF is. Unless it is awaited, only the journal's delete is missing.
        vf: VfReturn,
        /// As in [`PodState::Awaited`].
        session: Option<SessionId>,
        /// Start of the release, or of the service if that was later.
        since: Instant,
    },
}

/// Where the VF of an attachment is during its release. Of two reports the greater one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VfReturn {
    /// The host has not reported its return.
    Awaited,
    /// The VF no longer exists. The host advertises it if it ever comes back.
    Gone,
    /// The VF is back on its host, clean.
    Clean,
}

/// What the host last reported of a held attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostReport {
    pod: PodState,
    /// The host's hello omitted the attachment, and its VF had not returned.
    unclaimed: bool,
}

/// Whether the pod has the VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodState {
    /// Not reported yet. During the session of its latest Attach the host may be about to move the VF. `None`: that
    /// Attach came before the service started, or the host has detached the attachment since.
    Awaited(Option<SessionId>),
    /// The host reported that the pod has the VF.
    HasVf,
}

impl Stage {
    /// A new reservation, requested in `session`.
    pub(super) const fn reserved(session: SessionId) -> Self {
        Self::Uncommitted(HostReport::awaited(Some(session)))
    }

    /// The stage of a recorded attachment after a restart. Kernel and host report the rest again.
    pub(super) fn restored(phase: Phase) -> Self {
        match phase {
            Phase::Held => Self::Recorded { programmed: None, host: HostReport::awaited(None) },
            Phase::Releasing => {
                let since = Instant::now();
                Self::Releasing { vf: VfReturn::Awaited, session: None, since }
            }
        }
    }

    /// The part that the journal records.
    pub(super) const fn phase(self) -> Phase {
        match self {
            Self::Uncommitted(_) | Self::Recorded { .. } => Phase::Held,
            Self::Releasing { .. } => Phase::Releasing,
        }
    }

    pub(super) fn state(self) -> AttachmentState {
        match self {
            Self::Releasing { .. } => AttachmentState::Releasing,
            _ if self.is_attached() => AttachmentState::Attached,
            _ if self.programmed().is_some() => AttachmentState::Programmed,
            _ => AttachmentState::Reserved,
        }
    }

    pub(super) fn is_attached(self) -> bool {
        self.host().is_some_and(|host| host.pod == PodState::HasVf)
    }

    pub(super) fn is_unclaimed(self) -> bool {
        self.host().is_some_and(|host| host.unclaimed)
    }

    pub(super) const fn vf_return(self) -> VfReturn {
        match self {
            Self::Releasing { vf, .. } => vf,
            Self::Uncommitted(_) | Self::Recorded { .. } => VfReturn::Awaited,
        }
    }

    pub(super) const fn releasing_since(self) -> Option<Instant> {
        match self {
            Self::Releasing { since, .. } => Some(since),
            Self::Uncommitted(_) | Self::Recorded { .. } => None,
        }
    }

    pub(super) const fn programmed(self) -> Option<u32> {
        match self {
            Self::Recorded { programmed, .. } => programmed,
            Self::Uncommitted(_) | Self::Releasing { .. } => None,
        }
    }

    pub(super) fn is_under_way(self, session: Option<SessionId>) -> bool {
        session.is_some() && self.awaited_in() == session
    }

    pub(super) fn record(&mut self) {
        // Not after a release, which may overtake the commit.
        if let Self::Uncommitted(host) = *self {
            *self = Self::Recorded { programmed: None, host };
        }
    }

    pub(super) fn program(&mut self, index: u32) {
        if let Self::Recorded { programmed, .. } = self {
            *programmed = Some(index);
        }
    }

    /// The host repeats its Attach in `session`, so it knows the attachment.
    pub(super) fn ask(&mut self, session: SessionId) {
        let Some(host) = self.host_mut() else { return };
        host.unclaimed = false;
        if let PodState::Awaited(known) = &mut host.pod {
            *known = Some(session);
        }
    }

    /// The host reported that the pod has the VF. Returns whether that is new.
    pub(super) fn attach(&mut self) -> bool {
        let Self::Recorded { host, .. } = self else { return false };
        host.unclaimed = false;
        let is_news = host.pod != PodState::HasVf;
        host.pod = PodState::HasVf;
        is_news
    }

    pub(super) fn set_unclaimed(&mut self, unclaimed: bool) -> bool {
        let Some(host) = self.host_mut() else { return false };
        let is_news = unclaimed && !host.unclaimed;
        host.unclaimed = unclaimed;
        is_news
    }

    pub(super) fn give_up(&mut self) {
        let awaited = match self {
            Self::Uncommitted(host) | Self::Recorded { host, .. } => match &mut host.pod {
                PodState::Awaited(session) => session,
                PodState::HasVf => return,
            },
            Self::Releasing { session, .. } => session,
        };
        *awaited = None;
    }

    /// Starts or continues the release. `vf` states where the VF is; an earlier report of its return is kept.
    pub(super) fn release(&mut self, vf: VfReturn) {
        // An earlier report of the return stays valid: a repeated release without one must not revert it.
        let vf = vf.max(self.vf_return());
        let since = match self {
            Self::Releasing { since, .. } => *since,
            Self::Uncommitted(_) | Self::Recorded { .. } => Instant::now(),
        };
        *self = Self::Releasing { vf, session: self.awaited_in(), since };
    }

    fn awaited_in(self) -> Option<SessionId> {
        match self {
            Self::Releasing { session, .. } => session,
            Self::Uncommitted(HostReport { pod, .. })
            | Self::Recorded { host: HostReport { pod, .. }, .. } => match pod {
                PodState::Awaited(session) => session,
                PodState::HasVf => None,
            },
        }
    }

    const fn host(self) -> Option<HostReport> {
        match self {
            Self::Uncommitted(host) | Self::Recorded { host, .. } => Some(host),
            Self::Releasing { .. } => None,
        }
    }

    const fn host_mut(&mut self) -> Option<&mut HostReport> {
        match self {
            Self::Uncommitted(host) | Self::Recorded { host, .. } => Some(host),
            Self::Releasing { .. } => None,
        }
    }
}

impl HostReport {
    const fn awaited(session: Option<SessionId>) -> Self {
        Self { pod: PodState::Awaited(session), unclaimed: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded, programmed, and in its pod.
    fn attached(session: SessionId) -> Stage {
        let mut stage = Stage::reserved(session);
        stage.record();
        stage.program(7);
        assert!(stage.attach());
        stage
    }

    #[test]
    fn state_follows_the_stage() {
        let session = SessionId::new();
        let mut stage = Stage::reserved(session);
        let mut shown = vec![stage.state()];
        stage.record();
        stage.program(7);
        shown.push(stage.state());
        assert!(stage.is_under_way(Some(session)) && stage.attach() && !stage.attach());
        assert!(!stage.is_under_way(Some(session)));
        shown.push(stage.state());
        stage.release(VfReturn::Awaited);
        shown.push(stage.state());
        assert_eq!(shown, AttachmentState::ALL[..4]);
    }

    #[test]
    fn after_a_release_only_the_vfs_return_counts() {
        let session = SessionId::new();
        let mut stage = attached(session);
        stage.release(VfReturn::Awaited);
        let releasing = stage;
        stage.record();
        stage.program(8);
        stage.ask(session);
        assert!(!stage.attach() && !stage.set_unclaimed(true));
        assert_eq!(stage, releasing);
        for vf in [VfReturn::Gone, VfReturn::Clean] {
            stage.release(vf);
            stage.release(VfReturn::Awaited);
            assert_eq!(stage.vf_return(), vf);
        }
    }

    #[test]
    fn release_is_under_way_until_the_host_detaches() {
        let session = SessionId::new();
        let mut stage = Stage::reserved(session);
        stage.record();
        stage.release(VfReturn::Awaited);
        assert!(stage.is_under_way(Some(session)) && !stage.is_under_way(None));
        stage.give_up();
        assert!(!stage.is_under_way(Some(session)));
    }

    #[test]
    fn attachment_is_unclaimed_until_its_host_claims_it() {
        let session = SessionId::new();
        let mut stage = attached(session);
        assert!(stage.set_unclaimed(true) && !stage.set_unclaimed(true));
        assert_eq!(stage.state(), AttachmentState::Attached);
        stage.ask(session);
        assert!(!stage.is_unclaimed() && stage.set_unclaimed(true));
        assert!(!stage.attach() && !stage.is_unclaimed());
    }

    #[test]
    fn reservation_is_neither_programmed_nor_attached() {
        let mut stage = Stage::reserved(SessionId::new());
        stage.program(7);
        assert!(!stage.attach() && stage.programmed().is_none());
    }
}
