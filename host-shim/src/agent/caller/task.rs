//! The line to a task of the agent itself, which ends with the task.

use std::io;

use tokio::sync::{mpsc, oneshot};

use super::Answer;

/// Who answers.
#[derive(Debug)]
pub(super) struct TaskLine(mpsc::Sender<Told>);

/// Who waits for the answer. Once it is dropped, nobody does.
#[derive(Debug)]
pub(in crate::agent) struct Ear(mpsc::Receiver<Told>);

#[derive(Debug)]
struct Told {
    answer: Answer,
    heard: oneshot::Sender<()>,
}

pub(super) fn line() -> (TaskLine, Ear) {
    let (mouth, ear) = mpsc::channel(1);
    (TaskLine(mouth), Ear(ear))
}

impl Ear {
    /// Waits for the answer. `None`: whoever was to give it has ended without one.
    pub(in crate::agent) async fn hear(mut self) -> Option<Answer> {
        let Told { answer, heard } = self.0.recv().await?;
        // Whoever answers may have waited too long for this.
        let _ = heard.send(());
        Some(answer)
    }
}

impl TaskLine {
    pub(super) fn has_ended(&self) -> bool {
        self.0.is_closed()
    }

    pub(super) async fn ended(&self) {
        self.0.closed().await;
    }

    /// Returns once it was heard: a task may end between the word and its hearing.
    pub(super) async fn tell(&self, answer: Answer) -> io::Result<()> {
        let (heard, hearing) = oneshot::channel();
        let told = self.0.send(Told { answer, heard }).await;
        told.map_err(|_| io::ErrorKind::BrokenPipe)?;
        hearing.await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
