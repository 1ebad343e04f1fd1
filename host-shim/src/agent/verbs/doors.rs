//! What every verb works through.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::{phases::VerbPhases, refusing::Refusing};
use crate::agent::{config::Timeouts, delegates::Delegates, dpu::Dpu, vfs::Vfs};

/// What a verb needs of other modules.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Doors {
    /// The host's VFs.
    pub vfs: Arc<Vfs>,
    /// The DPU that they belong to.
    pub dpu: Arc<Dpu>,
    /// The interfaces that other plugins make.
    pub delegates: Arc<Delegates>,
    /// The networks for which no VF is moved ahead.
    pub refusing: Arc<Refusing>,
    /// Where the time of all this goes.
    pub phases: VerbPhases,
    /// Work that is finished before the agent ends.
    pub tasks: TaskTracker,
    /// How long things may take.
    pub timeouts: Timeouts,
}

#[cfg(test)]
pub(in crate::agent) mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::{
        agent::{
            dpu::tests::config,
            vfs::tests::{vfs, vfs_of},
        },
        vf_source::VfSource,
    };

    /// Doors to a host without VFs and a DPU without a session, and the folder of the host's records.
    pub(in crate::agent) fn doors() -> (Doors, TempDir) {
        with(vfs())
    }

    /// The same with a card of that kind.
    pub(in crate::agent) fn doors_of(source: Arc<dyn VfSource>) -> (Doors, TempDir) {
        with(vfs_of(source))
    }

    fn with((vfs, folder): (Arc<Vfs>, TempDir)) -> (Doors, TempDir) {
        let (config, timeouts) = (config(), config().timeouts);
        let dpu = Arc::new(Dpu::new(config, "boot".into(), Arc::clone(&vfs)));
        let delegates = Delegates::open(None, folder.path().join("delegates")).unwrap();
        let delegates = Arc::new(delegates);
        let (refusing, phases) = (Arc::default(), VerbPhases::default());
        let tasks = TaskTracker::new();
        (Doors { vfs, dpu, delegates, refusing, phases, tasks, timeouts }, folder)
    }
}
