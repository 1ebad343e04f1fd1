//! State of the reconciler: the fabric's problem, the latest pass, and requests for a thorough pass.

use std::{mem, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

#[derive(Debug)]
pub(super) struct ReconcilerState {
    fabric_problem: Mutex<Option<FabricProblem>>,
    ended_at: Mutex<Instant>,
    /// Requests a thorough pass: a host or the fabric reported something that a survey of links does not show.
    thorough: Notify,
}

/// What the fabric lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FabricProblem {
    /// One sentence.
    pub(super) what: String,
    /// Whether ports can still be programmed.
    pub(super) is_partial: bool,
}

impl Default for ReconcilerState {
    fn default() -> Self {
        Self {
            fabric_problem: Mutex::default(),
            ended_at: Mutex::new(Instant::now()),
            thorough: Notify::new(),
        }
    }
}

impl ReconcilerState {
    pub(super) fn fabric_problem(&self) -> Option<FabricProblem> {
        self.fabric_problem.lock().clone()
    }

    /// Stores the fabric's problem and returns the previous one.
    pub(super) fn set_fabric_problem(
        &self,
        problem: Option<FabricProblem>,
    ) -> Option<FabricProblem> {
        let mut before = self.fabric_problem.lock();
        mem::replace(&mut before, problem)
    }

    pub(super) fn note_end(&self) {
        *self.ended_at.lock() = Instant::now();
    }

    pub(super) fn since_end(&self) -> Duration {
        self.ended_at.lock().elapsed()
    }

    /// Requests a thorough pass. A request during a pass starts another one afterwards.
    pub(super) fn request_thorough(&self) {
        self.thorough.notify_one();
    }

    pub(super) async fn thorough_requested(&self) {
        self.thorough.notified().await;
    }
}
