//! State of the reconciler: the fabric's problem, the latest pass, and requests for a thorough pass.

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

#[derive(Debug)]
pub(super) struct ReconcilerState {
    pub(super) fabric_problem: Mutex<Option<FabricProblem>>,
    /// When the latest pass ended.
    pub(super) ended_at: Mutex<Instant>,
    /// Requests a thorough pass: a host or the fabric reported something that a survey of links does not show. A
    /// request during a pass starts another one afterwards.
    pub(super) thorough: Notify,
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
