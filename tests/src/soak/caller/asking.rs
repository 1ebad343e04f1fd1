//! CHECK and GC.

use serde_json::json;

use super::Caller;
use crate::{Call, Netns, soak::ledger::State, violation::Violation};

impl Caller<'_> {
    pub(super) fn check(&self, pod: usize, interface: usize) {
        let sandbox = &self.ledger.pods[pod];
        let port = &sandbox.ports[interface];
        let mut configuration = self.world.host.configuration(&port.network);
        if let Some(grant) = port.grant() {
            configuration = grant.configuration.clone();
            configuration["prevResult"] = grant.result.clone();
        }
        let path = sandbox.netns.as_ref().map(Netns::path);
        let call = Call::new("CHECK", &configuration);
        let call = call.of(&sandbox.container, path.as_deref(), port.interface);
        let answer = self.world.host.execute(&call);
        let place = format!("{} {}", sandbox.container, port.interface);
        match (&port.state, answer.status.success()) {
            (State::Granted(_), false) if self.world.quiet => {
                let what = format!("CHECK of {place} failed: {:?}", answer.error());
                self.world.common.complain(Violation::lost(what));
            }
            (State::Absent, true) => {
                self.world
                    .common
                    .complain(Violation::leaked(format!("{place} is given back, and checked")));
            }
            _ => {}
        }
    }

    /// GC of one network, whose list contains all interfaces but this one.
    pub(super) fn collect(&mut self, pod: usize, interface: usize) {
        let sandbox = &self.ledger.pods[pod];
        let port = &sandbox.ports[interface];
        let stale = (sandbox.container.clone(), port.interface.to_owned());
        let mut valid = self.world.common.known.lock().clone();
        valid.remove(&stale);
        let valid: Vec<_> = valid
            .into_iter()
            .map(|(container, name)| json!({ "containerID": container, "ifname": name }))
            .collect();
        let mut configuration = self.world.host.configuration(&port.network);
        configuration["cni.dev/valid-attachments"] = json!(valid);
        let answer = self.world.host.execute(&Call::new("GC", &configuration));
        let is_done = answer.status.success();
        if !is_done && self.world.quiet {
            let what = format!("GC failed: {:?}", answer.error());
            self.world.common.complain(Violation::leaked(what));
        }
        let port = &mut self.ledger.pods[pod].ports[interface];
        match &port.state {
            State::Absent => {}
            State::Granted(_) | State::Misused | State::Leaving if is_done => {
                port.state = State::Leaving;
            }
            _ => port.mark_unknown(),
        }
    }
}
