//! A call of a task of the agent. It ends with the task.

use std::io;

use tokio::sync::{mpsc, oneshot};

use super::Answer;

/// The sender of the answer.
#[derive(Debug)]
pub(super) struct TaskCall(mpsc::Sender<Delivery>);

/// The receiver of the answer. Dropping it ends the call.
#[derive(Debug)]
pub(in crate::agent) struct AnswerReceiver(mpsc::Receiver<Delivery>);

#[derive(Debug)]
struct Delivery {
    answer: Answer,
    received: oneshot::Sender<()>,
}

pub(super) fn call() -> (TaskCall, AnswerReceiver) {
    let (sender, receiver) = mpsc::channel(1);
    (TaskCall(sender), AnswerReceiver(receiver))
}

impl AnswerReceiver {
    /// Waits for the answer. `None`: the sender was dropped without one.
    pub(in crate::agent) async fn receive(mut self) -> Option<Answer> {
        let Delivery { answer, received } = self.0.recv().await?;
        // The sender may have stopped waiting for the confirmation.
        let _ = received.send(());
        Some(answer)
    }
}

impl TaskCall {
    pub(super) fn has_ended(&self) -> bool {
        self.0.is_closed()
    }

    pub(super) async fn ended(&self) {
        self.0.closed().await;
    }

    /// Returns when the task has received the answer: the task may end with the answer in the channel.
    pub(super) async fn send(&self, answer: Answer) -> io::Result<()> {
        let (received, receiving) = oneshot::channel();
        let sent = self.0.send(Delivery { answer, received }).await;
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        receiving.await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
