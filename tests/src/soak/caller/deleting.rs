//! DEL, at once and late.

use std::sync::atomic::Ordering::Relaxed;

use super::Caller;
use crate::{
    Answer, Call, Netns,
    soak::{
        ledger::State,
        plan::{Death, Pause, Then},
    },
};

impl Caller<'_> {
    pub(super) fn del(&mut self, pod: usize, interface: usize, with_netns: bool) {
        let answer = self.world.host.execute(&self.call_to_del(pod, interface, with_netns));
        self.note_deleted(pod, interface, &answer);
    }

    pub(super) fn del_dying(&mut self, pod: usize, interface: usize, death: Death) {
        let answer = self.call_to_del(pod, interface, true);
        let answer = answer.execute_and_kill(self.world.host.netns(), death.after);
        if !answer.is_killed() {
            return self.note_deleted(pod, interface, &answer);
        }
        self.world.common.tally.dead.fetch_add(1, Relaxed);
        let port = &mut self.ledger.pods[pod].ports[interface];
        if !matches!(port.state, State::Absent | State::Leaving) {
            port.mark_unknown();
        }
        if death.then == Then::Del {
            self.del(pod, interface, true);
        }
    }

    pub(super) fn del_suspended(&mut self, pod: usize, interface: usize, pause: Pause) {
        let answer = self.world.execute_suspended(&self.call_to_del(pod, interface, true), pause);
        self.note_deleted(pod, interface, &answer);
    }

    pub(super) fn del_late(&mut self) {
        for mut sandbox in std::mem::take(&mut self.ledger.late) {
            let called = sandbox.called().end;
            for port in &mut sandbox.ports[..called] {
                let path = sandbox.netns.as_ref().map(Netns::path);
                let call = self.world.call("DEL", &port.network).of(
                    &sandbox.container,
                    path.as_deref(),
                    port.interface,
                );
                let answer = self.world.host.execute(&call);
                let is_gone = self.world.is_gone(&answer, &sandbox.container, port.interface);
                port.state = if is_gone { State::Absent } else { State::Unknown };
            }
            sandbox.follow();
            if sandbox.ports.iter().any(|port| !matches!(port.state, State::Absent)) {
                self.ledger.late.push(sandbox);
            }
        }
    }

    pub(super) fn end_netns(&mut self, pod: usize, late: bool) {
        self.ledger.pods[pod].end_netns();
        self.ledger.replace(pod);
        if !late {
            self.del_late();
        }
    }

    pub(super) fn call_to_del(&self, pod: usize, interface: usize, with_netns: bool) -> Call {
        let sandbox = &self.ledger.pods[pod];
        let port = &sandbox.ports[interface];
        let path = sandbox.netns.as_ref().filter(|_| with_netns).map(Netns::path);
        let call = self.world.call("DEL", &port.network);
        call.of(&sandbox.container, path.as_deref(), port.interface)
    }

    pub(super) fn note_deleted(&mut self, pod: usize, interface: usize, answer: &Answer) {
        let sandbox = &self.ledger.pods[pod];
        let name = sandbox.ports[interface].interface;
        let is_gone = self.world.is_gone(answer, &sandbox.container, name);
        let port = &mut self.ledger.pods[pod].ports[interface];
        if is_gone { port.state = State::Absent } else { port.mark_unknown() }
    }
}
