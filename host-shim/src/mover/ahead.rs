//! The steps of a move of which nothing is known yet but which VF it is, and into which pod. None is undone: whoever
//! takes them back moves the VF out, as one that was in its pod.

use std::sync::Arc;

use netlink::LinkChange;
use saga::{Step, Steps};

use super::{MoveError, VfMove, inward};

/// Moves a VF into a pod, switched off and under its own name.
pub const STEPS: &Steps<VfMove, MoveError> = &[&PrepareAhead, &MoveAhead];

/// Switches the VF off and takes the alternative names off it that would be in the move's way.
struct PrepareAhead;

impl Step<VfMove> for PrepareAhead {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "prepare-ahead"
    }

    fn run(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        inward::prepare(vf_move)
    }
}

/// The one move, of the namespace alone: a name would be changed once more later, and each change waits for all CPUs.
struct MoveAhead;

impl Step<VfMove> for MoveAhead {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "move-ahead"
    }

    fn run(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        let Some(link) = vf_move.departing.take() else { return Err(vf_move.missing()) };
        let netns = Arc::clone(&vf_move.pod()?.netns);
        Ok(vf_move.host.rtnl.change_link(link.index, &LinkChange::new().netns(&netns))?)
    }
}
