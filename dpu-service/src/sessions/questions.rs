//! What a host finds of its VFs, asked over its session.
//!
//! A host looks for one at a time. Whoever only wants to know shares the look that is to begin next
//! with all who want to know, so that a repair waits for two looks at most, however many look.

use std::sync::Arc;

use offload_proto::capability;
use tokio::sync::{Mutex as Turns, OnceCell, OwnedMutexGuard as Turn, oneshot};
use uuid::Uuid;

use super::{HostCommand, Open, SessionId, Sessions};
use crate::{host::Examination, model::HostName};

/// What a host finds, or why that is not known.
pub type Examined = Result<Arc<Examination>, NotExamined>;

/// Most PCI addresses in a question, such that a message takes them.
const MOST_HELD: usize = 50_000;

/// Why it is not known what a host finds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExamined {
    /// It has no session.
    #[error("it is not connected")]
    NotConnected,
    /// Its agent does not know the question.
    #[error("its agent is of a version that can't be asked: upgrade it")]
    TooOld,
    /// Its session ended meanwhile.
    #[error("its session ended before it answered")]
    SessionEnded,
    /// It must not be asked to mend, for it can't be told what to leave alone.
    #[error("it has {0} attachments, and {MOST_HELD} are the most that can be told to it")]
    TooManyHeld(usize),
    /// It could not look, or its answer can't be read: one sentence without a final stop.
    #[error("{0}")]
    Failed(String),
}

/// What is asked in one session.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// Whose turn it is.
    turns: Arc<Turns<()>>,
    /// The look that begins next.
    next_look: Arc<OnceCell<Examined>>,
    /// What the host was asked and has not answered.
    asked: Option<Asked>,
}

/// A host looks at its VFs. Whoever asked may have given up since: it is the next one's turn only once
/// the host has answered, so that nobody can have it look more often than it is able to.
#[derive(Debug)]
struct Asked {
    /// Unique over all time, so that what was asked in another session is not answered here.
    request_id: u64,
    answer: oneshot::Sender<Examined>,
    _turn: Turn<()>,
}

impl Sessions {
    /// What the host finds of its VFs, in a look that begins after the call. Waits for it as long as
    /// the session lasts.
    ///
    /// # Errors
    /// [`NotExamined`].
    pub async fn look(&self, host: &HostName) -> Examined {
        let join = |open: &Open| (open.turns(), Arc::clone(&open.questions.next_look));
        let (turns, look) = self.examinable(host, join)?;
        let examined = look.get_or_init(|| self.ask(host, turns, || None)).await;
        examined.clone()
    }

    /// Lets the host mend what is not as it should be, but for the VFs at the PCI addresses `held`
    /// that it has no record of, and then look. Likewise.
    ///
    /// # Errors
    /// [`NotExamined`].
    pub async fn mend(&self, host: &HostName, held: impl FnOnce() -> Vec<String>) -> Examined {
        let turns = self.examinable(host, Open::turns)?;
        self.ask(host, turns, || Some(held())).await
    }

    /// The host found something. What nobody waits for any more is dropped.
    pub fn examined(
        &self,
        host: &HostName,
        id: SessionId,
        request_id: u64,
        found: Result<Examination, String>,
    ) {
        let mut hosts = self.lock();
        let entry = hosts.get_mut(host).filter(|entry| entry.is_in(id));
        let Some(open) = entry.and_then(|entry| entry.open.as_mut()) else { return };
        let is_answered = |asked: &mut Asked| asked.request_id == request_id;
        if let Some(asked) = open.questions.asked.take_if(is_answered) {
            // Whoever waited may have given up.
            let _ = asked.answer.send(found.map(Arc::new).map_err(NotExamined::Failed));
        }
    }

    fn examinable<T>(
        &self,
        host: &HostName,
        take: impl FnOnce(&Open) -> T,
    ) -> Result<T, NotExamined> {
        let hosts = self.lock();
        let open = hosts.get(host).and_then(|entry| entry.open.as_ref());
        let open = open.ok_or(NotExamined::NotConnected)?;
        if !open.capabilities.contains(&capability::EXAMINE) {
            return Err(NotExamined::TooOld);
        }
        Ok(take(open))
    }

    async fn ask(
        &self,
        host: &HostName,
        turns: Arc<Turns<()>>,
        mend_except: impl FnOnce() -> Option<Vec<String>>,
    ) -> Examined {
        let turn = turns.lock_owned().await;
        let mend_except = mend_except();
        let held = mend_except.as_ref().map_or(0, Vec::len);
        if held > MOST_HELD {
            return Err(NotExamined::TooManyHeld(held));
        }
        let answer = self.send_question(host, turn, mend_except)?;
        answer.await.map_err(|_| NotExamined::SessionEnded)?
    }

    fn send_question(
        &self,
        host: &HostName,
        turn: Turn<()>,
        mend_except: Option<Vec<String>>,
    ) -> Result<oneshot::Receiver<Examined>, NotExamined> {
        let mut hosts = self.lock();
        let entry = hosts.get_mut(host).ok_or(NotExamined::SessionEnded)?;
        let is_of_session =
            |open: &&mut Open| Arc::ptr_eq(&open.questions.turns, Turn::mutex(&turn));
        let open = entry.open.as_mut().filter(is_of_session).ok_or(NotExamined::SessionEnded)?;
        if mend_except.is_none() {
            // Whoever comes now did not see the host before this look began.
            open.questions.next_look = Arc::default();
        }
        let (request_id, _) = Uuid::new_v4().as_u64_pair();
        let (sender, answer) = oneshot::channel();
        open.questions.asked = Some(Asked { request_id, answer: sender, _turn: turn });
        entry.send(host, HostCommand::Examine { request_id, mend_except });
        Ok(answer)
    }
}

impl Open {
    fn turns(&self) -> Arc<Turns<()>> {
        Arc::clone(&self.questions.turns)
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::Duration};

    use futures::future::join_all;
    use offload_proto::{MESSAGE_LIMIT, encoded_len, v1};
    use tokio::time::timeout;

    use super::*;
    use crate::{
        host::Hello,
        sessions::{
            Session,
            tests::{hello, host},
        },
    };

    fn open_with(sessions: &Sessions, capabilities: &[&'static str]) -> Session {
        let hello = Hello { capabilities: capabilities.to_vec(), ..hello("boot", 0) };
        sessions.open(&host(), &hello).unwrap()
    }

    /// Asks, and gives up at once unless the answer is there.
    async fn ask(sessions: &Sessions) -> Option<Examined> {
        timeout(Duration::ZERO, sessions.look(&host())).await.ok()
    }

    /// The question that the host was sent, and whether it is to mend.
    fn asked_of(session: &mut Session) -> Option<(u64, bool)> {
        match session.commands.try_recv() {
            Ok(HostCommand::Examine { request_id, mend_except }) => {
                Some((request_id, mend_except.is_some()))
            }
            _ => None,
        }
    }

    fn answer(sessions: &Sessions, session: &Session, request_id: u64) {
        sessions.examined(&host(), session.id, request_id, Ok(Examination::default()));
    }

    #[tokio::test]
    async fn only_an_agent_that_can_be_asked_is_asked() {
        let sessions = Sessions::default();
        assert_eq!(ask(&sessions).await, Some(Err(NotExamined::NotConnected)));
        let mut old = open_with(&sessions, &[]);
        assert_eq!(ask(&sessions).await, Some(Err(NotExamined::TooOld)));
        assert!(old.commands.try_recv().is_err(), "it was sent nothing");
        let mut new = open_with(&sessions, &[capability::EXAMINE]);
        assert_eq!(ask(&sessions).await, None);
        assert!(asked_of(&mut new).is_some());
    }

    #[tokio::test]
    async fn a_host_is_asked_again_only_once_it_has_answered() {
        let sessions = Sessions::default();
        let mut session = open_with(&sessions, &[capability::EXAMINE]);
        for _ in 0..100 {
            assert_eq!(ask(&sessions).await, None);
        }
        let (first, _) = asked_of(&mut session).unwrap();
        assert_eq!(asked_of(&mut session), None, "those who came after it wait");
        answer(&sessions, &session, first.wrapping_add(1));
        assert_eq!(ask(&sessions).await, None);
        assert_eq!(asked_of(&mut session), None, "that was no answer");
        answer(&sessions, &session, first);
        assert_eq!(ask(&sessions).await, None);
        assert!(asked_of(&mut session).is_some_and(|(second, _)| second != first));
    }

    #[tokio::test]
    async fn a_repair_waits_for_two_looks_however_many_look() {
        let (sessions, host) = (Sessions::default(), host());
        let mut session = open_with(&sessions, &[capability::EXAMINE]);
        let mut first = pin!(sessions.look(&host));
        assert!(timeout(Duration::ZERO, &mut first).await.is_err());
        let mut viewers = pin!(join_all((0..100).map(|_| sessions.look(&host))));
        assert!(timeout(Duration::ZERO, &mut viewers).await.is_err());
        let mut repair = pin!(sessions.mend(&host, Vec::new));
        assert!(timeout(Duration::ZERO, &mut repair).await.is_err());

        let (request, _) = asked_of(&mut session).unwrap();
        answer(&sessions, &session, request);
        first.await.unwrap();
        assert!(timeout(Duration::ZERO, &mut viewers).await.is_err());
        let mut late = pin!(sessions.look(&host));
        assert!(timeout(Duration::ZERO, &mut late).await.is_err());
        let (request, mends) = asked_of(&mut session).unwrap();
        assert!(!mends, "a look that all viewers share, but for who came after it began");
        answer(&sessions, &session, request);
        assert!(viewers.await.iter().all(Result::is_ok));

        assert!(timeout(Duration::ZERO, &mut late).await.is_err());
        assert!(timeout(Duration::ZERO, &mut repair).await.is_err());
        let (request, mends) = asked_of(&mut session).unwrap();
        assert!(mends);
        answer(&sessions, &session, request);
        repair.await.unwrap();
    }

    #[tokio::test]
    async fn who_shares_a_look_gets_it_even_if_whoever_began_it_gives_up() {
        let (sessions, host) = (Sessions::default(), host());
        let mut session = open_with(&sessions, &[capability::EXAMINE]);
        let mut first = Box::pin(sessions.mend(&host, Vec::new));
        assert!(timeout(Duration::ZERO, &mut first).await.is_err());
        let mut beginner = Box::pin(sessions.look(&host));
        assert!(timeout(Duration::ZERO, &mut beginner).await.is_err());
        let mut other = pin!(sessions.look(&host));
        assert!(timeout(Duration::ZERO, &mut other).await.is_err());
        drop(beginner);
        let (request, _) = asked_of(&mut session).unwrap();
        answer(&sessions, &session, request);
        assert!(timeout(Duration::ZERO, &mut other).await.is_err());
        let (request, _) = asked_of(&mut session).unwrap();
        answer(&sessions, &session, request);
        other.await.unwrap();
    }

    #[tokio::test]
    async fn a_host_is_not_let_mend_that_can_not_be_told_what_to_leave_alone() {
        let (sessions, host) = (Sessions::default(), host());
        let mut session = open_with(&sessions, &[capability::EXAMINE]);
        let held = |count: usize| move || vec!["10000000:03:00.2".to_owned(); count];
        let refused = sessions.mend(&host, held(MOST_HELD + 1)).await;
        assert_eq!(refused, Err(NotExamined::TooManyHeld(MOST_HELD + 1)));
        assert_eq!(asked_of(&mut session), None);
        let asked = timeout(Duration::ZERO, sessions.mend(&host, held(MOST_HELD))).await;
        assert!(asked.is_err());
        assert!(asked_of(&mut session).is_some());
        let message = v1::Examine { held: held(MOST_HELD)(), ..v1::Examine::default() };
        assert!(encoded_len(&message) < MESSAGE_LIMIT - 1024);
    }

    #[tokio::test]
    async fn an_answer_comes_to_who_asked_in_that_session_or_not_at_all() {
        let (sessions, host) = (Sessions::default(), host());
        let mut older = open_with(&sessions, &[capability::EXAMINE]);
        let mut question = pin!(sessions.look(&host));
        assert!(timeout(Duration::ZERO, &mut question).await.is_err());
        let mut waiting = pin!(sessions.look(&host));
        assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
        let (of_older, _) = asked_of(&mut older).unwrap();
        let mut newer = open_with(&sessions, &[capability::EXAMINE]);
        assert_eq!(question.await, Err(NotExamined::SessionEnded));
        assert_eq!(waiting.await, Err(NotExamined::SessionEnded));

        let mut question = pin!(sessions.mend(&host, Vec::new));
        assert!(timeout(Duration::ZERO, &mut question).await.is_err());
        let (of_newer, _) = asked_of(&mut newer).unwrap();
        answer(&sessions, &newer, of_older);
        assert!(timeout(Duration::ZERO, &mut question).await.is_err(), "a late answer");
        answer(&sessions, &newer, of_newer);
        question.await.unwrap();
    }

    #[tokio::test]
    async fn why_a_host_could_not_look_is_told() {
        let (sessions, host) = (Sessions::default(), host());
        let mut session = open_with(&sessions, &[capability::EXAMINE]);
        let mut question = pin!(sessions.look(&host));
        assert!(timeout(Duration::ZERO, &mut question).await.is_err());
        let (request_id, _) = asked_of(&mut session).unwrap();
        sessions.examined(&host, session.id, request_id, Err("busy".into()));
        assert_eq!(question.await, Err(NotExamined::Failed("busy".into())));
    }
}
