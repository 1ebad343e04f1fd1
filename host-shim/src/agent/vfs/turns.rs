//! Turns at the kernel: how many threads may wait for it, and for what.

use std::sync::Arc;

use offload_proto::Failure;
use tokio::{sync::Semaphore, task::spawn_blocking};

use super::move_turns::{MOVES, MoveTurns, Way};
use crate::agent::defect::defect;

/// Looks at the kernel at the same time, of which the keeper, who may have many, has one.
const LOOKS: usize = 2;

/// VFs that were moved ahead and are being configured at the same time: were they to wait for a turn at moving, each
/// pod would wait for the moves of all that came after it.
const FINISHES: usize = 2;

/// Threads for blocking work: moves, their ends and reads; one each for restores, resets and walks through namespaces;
/// some for short work without turns, such as addresses' state and other plugins' files and interfaces.
pub(in crate::agent) const BLOCKING_THREADS: usize = MOVES + FINISHES + LOOKS + 3 + 4;

/// The turns that are left.
#[derive(Debug)]
pub(super) struct Turns {
    moves: Arc<MoveTurns>,
    finishes: Semaphore,
    looks: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            moves: Arc::default(),
            finishes: Semaphore::new(FINISHES),
            looks: Semaphore::new(LOOKS),
        }
    }
}

impl Turns {
    /// Looks at the kernel on a thread that may block, when it is its turn. However many looks wait, the
    /// moves have their threads.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let _turn = self.looks.acquire().await.map_err(|error| defect(&error))?;
        spawn_blocking(traces::in_span(work)).await.map_err(|error| defect(&error))
    }

    /// Moves a VF on a thread of its own, when it is its turn.
    pub(super) async fn move_vf<T: Send + 'static>(
        &self,
        way: Way,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let _turn = self.moves.turn(way).await?;
        spawn_blocking(traces::in_span(work)).await.map_err(|error| defect(&error))
    }

    /// Configures a VF after a speculative move.
    pub(super) async fn finish_move<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let _turn = self.finishes.acquire().await.map_err(|error| defect(&error))?;
        spawn_blocking(traces::in_span(work)).await.map_err(|error| defect(&error))
    }
}
