//! Where an attachment stands in its life, and the steps from one stage to the next.
//!
//! `Reserved → Recorded → Releasing`, and then it is gone. What matters in one stage alone lies in
//! that stage, so that nothing is, say, both in its pod and on its way back. A step that comes too
//! late, as when an attachment was released while its representor was being programmed, changes
//! nothing.

use tokio::time::Instant;

use crate::{
    host::SessionId,
    model::{AttachmentState, Phase},
};

/// Where an attachment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// In memory; its record is on its way into the journal.
    Reserved(HostWord),
    /// In the journal. Being programmed and being moved into the pod are two things: after a restart
    /// the host may tell that the pod has the VF before the representor was looked at.
    Recorded {
        /// Its representor's index, once that is known to be programmed.
        programmed: Option<u32>,
        /// What its host has said.
        host: HostWord,
    },
    /// Being given back.
    Releasing {
        /// Where the VF is. Unless it is awaited, all that is missing is the journal.
        vf: VfReturn,
        /// As in [`PodState::Awaited`].
        session: Option<SessionId>,
        /// When that began, or when the service started, if it began before.
        since: Instant,
    },
}

/// Where the VF of an attachment is that is being given back. Of two reports the greater one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VfReturn {
    /// Its host has not reported it back.
    Awaited,
    /// It no longer exists. Its host offers it again should it ever be there.
    Gone,
    /// Its host has it back, clean.
    Clean,
}

/// What a host has said of an attachment that it is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostWord {
    pod: PodState,
    /// Its hello did not know the attachment, nor had it its VF back.
    unclaimed: bool,
}

/// Whether the pod has the VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodState {
    /// Its host has not said so. In the session of its latest Attach it may be about to move the VF;
    /// `None`: that Attach came before the service started, or the host has detached it since.
    Awaited(Option<SessionId>),
    /// Its host has said so.
    HasVf,
}

impl Stage {
    /// An attachment that was just reserved, as asked for in `session`.
    pub(super) const fn reserved(session: SessionId) -> Self {
        Self::Reserved(HostWord::awaited(Some(session)))
    }

    /// What a journal tells of an attachment. What is not in there, kernel and host tell again.
    pub(super) fn restored(phase: Phase) -> Self {
        match phase {
            Phase::Held => Self::Recorded { programmed: None, host: HostWord::awaited(None) },
            Phase::Releasing => {
                let since = Instant::now();
                Self::Releasing { vf: VfReturn::Awaited, session: None, since }
            }
        }
    }

    /// What is durable of it.
    pub(super) const fn phase(self) -> Phase {
        match self {
            Self::Reserved(_) | Self::Recorded { .. } => Phase::Held,
            Self::Releasing { .. } => Phase::Releasing,
        }
    }

    /// As operators see it.
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

    /// Where the VF is of one that is being given back.
    pub(super) const fn vf_return(self) -> VfReturn {
        match self {
            Self::Releasing { vf, .. } => vf,
            Self::Reserved(_) | Self::Recorded { .. } => VfReturn::Awaited,
        }
    }

    /// When it began to be given back, or when the service started, if it began before. `None`: it did not begin.
    pub(super) const fn leaving_since(self) -> Option<Instant> {
        match self {
            Self::Releasing { since, .. } => Some(since),
            Self::Reserved(_) | Self::Recorded { .. } => None,
        }
    }

    pub(super) const fn programmed(self) -> Option<u32> {
        match self {
            Self::Recorded { programmed, .. } => programmed,
            Self::Reserved(_) | Self::Releasing { .. } => None,
        }
    }

    /// Whether the host may still be about to move the VF into the pod, in an Attach of this very
    /// session.
    pub(super) fn is_under_way(self, session: Option<SessionId>) -> bool {
        session.is_some() && self.awaited_in() == session
    }

    /// The journal has it.
    pub(super) fn record(&mut self) {
        if let Self::Reserved(host) = *self {
            *self = Self::Recorded { programmed: None, host };
        }
    }

    /// Its representor, of this index, is programmed.
    pub(super) fn program(&mut self, index: u32) {
        if let Self::Recorded { programmed, .. } = self {
            *programmed = Some(index);
        }
    }

    /// The host asks for it, in `session`: it knows it.
    pub(super) fn ask(&mut self, session: SessionId) {
        let Some(host) = self.host_mut() else { return };
        host.unclaimed = false;
        if let PodState::Awaited(known) = &mut host.pod {
            *known = Some(session);
        }
    }

    /// The host said that the pod has the VF. Tells whether that is news.
    pub(super) fn attach(&mut self) -> bool {
        let Self::Recorded { host, .. } = self else { return false };
        host.unclaimed = false;
        let is_news = host.pod != PodState::HasVf;
        host.pod = PodState::HasVf;
        is_news
    }

    /// The host's hello knows it or has its VF back, or neither. Tells whether it is news that it is
    /// unclaimed.
    pub(super) fn set_unclaimed(&mut self, unclaimed: bool) -> bool {
        let Some(host) = self.host_mut() else { return false };
        let is_news = unclaimed && !host.unclaimed;
        host.unclaimed = unclaimed;
        is_news
    }

    /// The host itself gives it back: none of its calls will move the VF any more.
    pub(super) fn give_up(&mut self) {
        let awaited = match self {
            Self::Reserved(host) | Self::Recorded { host, .. } => match &mut host.pod {
                PodState::Awaited(session) => session,
                PodState::HasVf => return,
            },
            Self::Releasing { session, .. } => session,
        };
        *awaited = None;
    }

    /// Marks it as being released. `vf` says where its VF is.
    pub(super) fn release(&mut self, vf: VfReturn) {
        let vf = vf.max(self.vf_return());
        let since = match self {
            Self::Releasing { since, .. } => *since,
            Self::Reserved(_) | Self::Recorded { .. } => Instant::now(),
        };
        *self = Self::Releasing { vf, session: self.awaited_in(), since };
    }

    fn awaited_in(self) -> Option<SessionId> {
        match self {
            Self::Releasing { session, .. } => session,
            Self::Reserved(HostWord { pod, .. })
            | Self::Recorded { host: HostWord { pod, .. }, .. } => match pod {
                PodState::Awaited(session) => session,
                PodState::HasVf => None,
            },
        }
    }

    const fn host(self) -> Option<HostWord> {
        match self {
            Self::Reserved(host) | Self::Recorded { host, .. } => Some(host),
            Self::Releasing { .. } => None,
        }
    }

    const fn host_mut(&mut self) -> Option<&mut HostWord> {
        match self {
            Self::Reserved(host) | Self::Recorded { host, .. } => Some(host),
            Self::Releasing { .. } => None,
        }
    }
}

impl HostWord {
    const fn awaited(session: Option<SessionId>) -> Self {
        Self { pod: PodState::Awaited(session), unclaimed: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the journal, programmed, and with its pod.
    fn attached(session: SessionId) -> Stage {
        let mut stage = Stage::reserved(session);
        stage.record();
        stage.program(7);
        assert!(stage.attach());
        stage
    }

    #[test]
    fn an_attachment_is_shown_as_far_as_it_has_come() {
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
    fn what_comes_after_a_release_changes_nothing_but_that_the_vf_is_back() {
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
    fn a_release_while_the_host_may_move_the_vf_stays_under_way_until_it_gives_up() {
        let session = SessionId::new();
        let mut stage = Stage::reserved(session);
        stage.record();
        stage.release(VfReturn::Awaited);
        assert!(stage.is_under_way(Some(session)) && !stage.is_under_way(None));
        stage.give_up();
        assert!(!stage.is_under_way(Some(session)));
    }

    #[test]
    fn an_attachment_is_unclaimed_until_its_host_asks_for_it_or_has_it() {
        let session = SessionId::new();
        let mut stage = attached(session);
        assert!(stage.set_unclaimed(true) && !stage.set_unclaimed(true));
        assert_eq!(stage.state(), AttachmentState::Attached);
        stage.ask(session);
        assert!(!stage.is_unclaimed() && stage.set_unclaimed(true));
        assert!(!stage.attach() && !stage.is_unclaimed());
    }

    #[test]
    fn a_reservation_has_no_representor_and_no_pod_yet() {
        let mut stage = Stage::reserved(SessionId::new());
        stage.program(7);
        assert!(!stage.attach() && stage.programmed().is_none());
    }
}
