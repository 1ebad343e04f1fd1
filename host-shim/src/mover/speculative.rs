//! The steps of a speculative move: only the VF and the pod's namespace are known. No step is undone. A caller that
//! drops the speculation moves the VF out like any other VF of a pod.

use std::sync::Arc;

use netlink::LinkChange;
use saga::Steps;

use super::{MoveError, VfMove, action::Action, inward};

/// Moves a VF into a pod, down and under its own name.
pub const STEPS: &Steps<VfMove, MoveError> = &[
    &Action { name: "prepare-speculative", run: inward::prepare },
    &Action { name: "move-speculative", run: change_namespace },
];

/// Changes the namespace only. A rename here would be repeated later, and each rename waits for an RCU grace period.
fn change_namespace(vf_move: &mut VfMove) -> Result<(), MoveError> {
    let Some(link) = vf_move.departing.take() else { return Err(vf_move.missing()) };
    let netns = Arc::clone(&vf_move.pod()?.netns);
    Ok(vf_move.host.rtnl.change_link(link.index, &LinkChange::new().netns(&netns))?)
}
