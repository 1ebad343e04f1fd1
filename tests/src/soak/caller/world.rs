//! Surroundings of a caller.

use std::{process::Output, sync::atomic::Ordering::Relaxed};

use super::Common;
use crate::{
    Answer, Call, Host,
    soak::{plan::Pause, verification::ReferencePods},
    violation::Violation,
};

/// Surroundings of a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World<'a> {
    pub(crate) host: &'a Host,
    pub(crate) common: &'a Common,
    /// Target of each pod's traffic. `None`: no traffic is sent.
    pub(crate) references: Option<&'a ReferencePods>,
    /// An object file with an XDP program, if the kernel accepts one.
    pub(crate) xdp: &'a str,
    /// No fault is injected: every failure is a violation.
    pub(crate) quiet: bool,
}

impl World<'_> {
    pub(super) fn call(&self, verb: &str, network: &str) -> Call {
        Call::new(verb, &self.host.configuration(network))
    }

    pub(super) fn execute_suspended(&self, call: &Call, pause: Pause) -> Answer {
        self.common.tally.suspensions.fetch_add(1, Relaxed);
        call.execute_suspended(self.host.netns(), pause.after, pause.lasting)
    }

    pub(super) fn status(&self) {
        let answer = self.host.execute(&self.call("STATUS", "blue"));
        if !answer.status.success() && self.quiet {
            let what = format!("STATUS is bad: {:?}", answer.error());
            self.common.complain(Violation::lost(what));
        }
    }

    pub(super) fn del_unknown(&self) {
        let call = self.call("DEL", "blue").of("nobody", None, "eth0");
        let answer = self.host.execute(&call);
        if !answer.status.success() && self.quiet {
            let what = format!("DEL of an unknown container failed: {:?}", answer.error());
            self.common.complain(Violation::leaked(what));
        }
    }

    /// Whether the answer to a DEL says that the interface is gone.
    pub(super) fn is_gone(&self, answer: &Answer, container: &str, interface: &str) -> bool {
        if answer.status.success() {
            self.common.forget(container, interface);
            return true;
        }
        let (_, text) = answer.error();
        if self.quiet {
            let what = format!("DEL of {container} {interface} failed: {text}");
            self.common.complain(Violation::leaked(what));
        }
        false
    }

    /// Without faults `dpuctl` must succeed.
    pub(super) fn note_done(&self, what: &str, output: &Output) {
        if self.quiet && !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            self.common.complain(Violation::lost(format!("dpuctl {what}: {error}")));
        }
    }
}
