//! How the reconciler stands, for whoever waits for it or looks after it.

use std::{
    mem,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// The latest pass of the reconciler, and what it should look at next.
#[derive(Debug)]
pub(super) struct ReconcilerState {
    /// What the fabric lacks. `None`: nothing.
    fabric_problem: Mutex<Option<FabricProblem>>,
    /// When the latest pass ended.
    ended_at: Mutex<Instant>,
    /// A host said something, or the fabric, which one look at all links does not tell.
    close_look: Notify,
}

/// What the fabric lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FabricProblem {
    /// One sentence.
    pub(super) what: String,
    /// Whether ports can be programmed all the same.
    pub(super) is_partial: bool,
}

impl Default for ReconcilerState {
    fn default() -> Self {
        Self {
            fabric_problem: Mutex::default(),
            ended_at: Mutex::new(Instant::now()),
            close_look: Notify::new(),
        }
    }
}

impl ReconcilerState {
    pub(super) fn fabric_problem(&self) -> Option<FabricProblem> {
        self.fabric_problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what the fabric lacks, and returns what it lacked before.
    pub(super) fn set_fabric_problem(
        &self,
        problem: Option<FabricProblem>,
    ) -> Option<FabricProblem> {
        let mut before = self.fabric_problem.lock().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut before, problem)
    }

    pub(super) fn note_end(&self) {
        *self.ended_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn since_end(&self) -> Duration {
        self.ended_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Wakes the reconciler; one that works now looks again afterwards.
    pub(super) fn look_closely(&self) {
        self.close_look.notify_one();
    }

    pub(super) async fn close_look_wanted(&self) {
        self.close_look.notified().await;
    }
}
