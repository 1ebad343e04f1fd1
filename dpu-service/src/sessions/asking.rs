//! Asks a host over its session to examine its VFs: one question at a time.

use std::sync::Arc;

use offload_proto::capability;
use tokio::sync::oneshot;
use uuid::Uuid;
use vf_alloc::Device;

use super::{
    HostCommand, Sessions,
    question::{Examined, MOST_HELD, NotExamined, Question},
};
use crate::host::{Examination, SessionId};
use model::HostName;

impl Sessions {
    /// Asks the host to examine its VFs. Waits for its answer until the session ends.
    pub(crate) async fn look(&self, host: &HostName) -> Examined {
        answered(self.ask(host, None)?).await
    }

    /// Asks the host to repair problems and then to examine its VFs. It leaves the VFs `held` alone if it has no record
    /// of them. Waits for its answer until the session ends.
    pub(crate) async fn repair(&self, host: &HostName, held: Vec<Device>) -> Examined {
        if held.len() > MOST_HELD {
            return Err(NotExamined::TooManyHeld(held.len()));
        }
        answered(self.ask(host, Some(held))?).await
    }

    /// Passes on the host's answer. An answer to no open question is dropped.
    pub(crate) fn examined(
        &self,
        host: &HostName,
        id: SessionId,
        request_id: u64,
        found: Result<Examination, String>,
    ) {
        let mut hosts = self.hosts.lock();
        let entry = hosts.get_mut(host).filter(|entry| entry.is_in(id));
        let Some(open) = entry.and_then(|entry| entry.open.as_mut()) else { return };
        let is_answered = |asked: &mut Question| asked.request_id == request_id;
        if let Some(asked) = open.asked.take_if(is_answered) {
            // The caller may have timed out.
            let _ = asked.answer.send(found.map(Arc::new).map_err(NotExamined::Failed));
        }
    }

    fn ask(
        &self,
        host: &HostName,
        repair_except: Option<Vec<Device>>,
    ) -> Result<oneshot::Receiver<Examined>, NotExamined> {
        let mut hosts = self.hosts.lock();
        let entry = hosts.get_mut(host).ok_or(NotExamined::NotConnected)?;
        let open = entry.open.as_mut().ok_or(NotExamined::NotConnected)?;
        if !open.capabilities.contains(&capability::EXAMINE) {
            return Err(NotExamined::TooOld);
        }
        if open.asked.is_some() {
            return Err(NotExamined::Busy);
        }
        let (request_id, _) = Uuid::new_v4().as_u64_pair();
        let (sender, answer) = oneshot::channel();
        open.asked = Some(Question { request_id, answer: sender });
        match entry.send(HostCommand::Examine { request_id, repair_except }) {
            true => Err(NotExamined::TakesNoCommands),
            false => Ok(answer),
        }
    }
}

async fn answered(answer: oneshot::Receiver<Examined>) -> Examined {
    // The end of the session drops the sender.
    answer.await.map_err(|_| NotExamined::SessionEnded)?
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::Duration};

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

    /// Asks, and gives up unless the answer is there at once.
    async fn ask(sessions: &Sessions) -> Option<Examined> {
        timeout(Duration::ZERO, sessions.look(&host())).await.ok()
    }

    /// The question that the host was sent, and whether it is to repair.
    fn asked_of(session: &mut Session) -> Option<(u64, bool)> {
        match session.commands.try_recv() {
            Ok(HostCommand::Examine { request_id, repair_except }) => {
                Some((request_id, repair_except.is_some()))
            }
            _ => None,
        }
    }

    fn answer(sessions: &Sessions, session: &Session, request_id: u64) {
        sessions.examined(&host(), session.id, request_id, Ok(Examination::default()));
    }

    #[tokio::test]
    async fn only_capable_agents_are_asked() {
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
    async fn host_is_asked_again_only_after_its_answer() {
        let (sessions, host) = (Sessions::default(), host());
        let mut session = open_with(&sessions, &[capability::EXAMINE]);
        assert_eq!(ask(&sessions).await, None);
        let (first, repairs) = asked_of(&mut session).unwrap();
        assert!(!repairs);
        for _ in 0..100 {
            assert_eq!(ask(&sessions).await, Some(Err(NotExamined::Busy)));
            assert_eq!(sessions.repair(&host, Vec::new()).await, Err(NotExamined::Busy));
        }
        answer(&sessions, &session, first.wrapping_add(1));
        assert_eq!(ask(&sessions).await, Some(Err(NotExamined::Busy)), "that was no answer");
        assert_eq!(asked_of(&mut session), None);
        answer(&sessions, &session, first);
        assert!(timeout(Duration::ZERO, sessions.repair(&host, Vec::new())).await.is_err());
        assert!(asked_of(&mut session).is_some_and(|(second, repairs)| second != first && repairs));
    }

    #[tokio::test]
    async fn repair_with_too_many_attachments_is_refused() {
        let (sessions, host) = (Sessions::default(), host());
        let mut session = open_with(&sessions, &[capability::EXAMINE]);
        let held = |count: usize| vec![Device::from("10000000:03:00.2"); count];
        let refused = sessions.repair(&host, held(MOST_HELD + 1)).await;
        assert_eq!(refused, Err(NotExamined::TooManyHeld(MOST_HELD + 1)));
        assert_eq!(asked_of(&mut session), None);
        let asked = timeout(Duration::ZERO, sessions.repair(&host, held(MOST_HELD))).await;
        assert!(asked.is_err());
        assert!(asked_of(&mut session).is_some());
        let held = held(MOST_HELD).iter().map(ToString::to_string).collect();
        let message = v1::Examine { held, ..v1::Examine::default() };
        assert!(encoded_len(&message) < MESSAGE_LIMIT - 1024);
    }

    #[tokio::test]
    async fn answer_of_another_session_is_dropped() {
        let (sessions, host) = (Sessions::default(), host());
        let mut older = open_with(&sessions, &[capability::EXAMINE]);
        let mut question = pin!(sessions.look(&host));
        assert!(timeout(Duration::ZERO, &mut question).await.is_err());
        let (of_older, _) = asked_of(&mut older).unwrap();
        let mut newer = open_with(&sessions, &[capability::EXAMINE]);
        assert_eq!(question.await, Err(NotExamined::SessionEnded));

        let mut question = pin!(sessions.repair(&host, Vec::new()));
        assert!(timeout(Duration::ZERO, &mut question).await.is_err());
        let (of_newer, _) = asked_of(&mut newer).unwrap();
        answer(&sessions, &newer, of_older);
        assert!(timeout(Duration::ZERO, &mut question).await.is_err(), "a late answer");
        answer(&sessions, &newer, of_newer);
        question.await.unwrap();
    }

    #[tokio::test]
    async fn failed_examination_has_its_reason() {
        let (sessions, host) = (Sessions::default(), host());
        let mut session = open_with(&sessions, &[capability::EXAMINE]);
        let mut question = pin!(sessions.look(&host));
        assert!(timeout(Duration::ZERO, &mut question).await.is_err());
        let (request_id, _) = asked_of(&mut session).unwrap();
        sessions.examined(&host, session.id, request_id, Err("busy".into()));
        assert_eq!(question.await, Err(NotExamined::Failed("busy".into())));
    }
}
