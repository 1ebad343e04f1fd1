//! ADD: alone, twice at once, killed, suspended and misused.

use std::{sync::atomic::Ordering::Relaxed, thread};

use serde_json::{Value, json};

use super::Caller;
use crate::{
    Answer, Call, Netns,
    soak::{
        hostile_changes::{HostileChanges, Scene},
        ledger::{Grant, Kind, State},
        plan::{AddOption, Death, Network, Pause, Then},
    },
    violation::Violation,
};

/// Error codes that occur without a fault: no such network, no VF, no address, an address or a MAC address in use.
const REFUSALS: [u64; 5] = [101, 102, 103, 104, 106];

impl Caller<'_> {
    pub(super) fn add(
        &mut self,
        pod: usize,
        interface: usize,
        network: Network,
        option: AddOption,
    ) {
        let configuration = self.wanted(pod, interface, network, option);
        let answer = self.world.host.execute(&self.call_to_add(pod, interface, &configuration));
        self.note_added(pod, interface, &configuration, &answer);
    }

    pub(super) fn add_twice(&mut self, pod: usize, interface: usize, network: Network) {
        let configuration = self.wanted(pod, interface, network, AddOption::Nothing);
        let call = self.call_to_add(pod, interface, &configuration);
        let host = self.world.host;
        let (one, other) = thread::scope(|scope| {
            let one = scope.spawn(|| host.execute(&call));
            let other = host.execute(&call);
            (one.join().expect("an ADD"), other)
        });
        self.note_added_twice(pod, interface, &configuration, [one, other]);
    }

    /// The failed one of two ADDs may have been served first.
    pub(super) fn note_added_twice(
        &mut self,
        pod: usize,
        interface: usize,
        configuration: &Value,
        answers: [Answer; 2],
    ) {
        let (failed, added): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| !answer.status.success());
        for answer in failed.iter().chain(&added) {
            self.note_added(pod, interface, configuration, answer);
        }
        if !self.world.quiet && !failed.is_empty() {
            self.ledger.pods[pod].ports[interface].mark_unknown();
        }
    }

    pub(super) fn add_dying(
        &mut self,
        pod: usize,
        interface: usize,
        network: Network,
        death: Death,
    ) {
        let configuration = self.wanted(pod, interface, network, AddOption::Nothing);
        let call = self.call_to_add(pod, interface, &configuration);
        let answer = call.execute_and_kill(self.world.host.netns(), death.after);
        self.note_added_or_dead(pod, interface, &configuration, &answer);
        if death.then == Then::Del {
            self.del(pod, interface, true);
        }
    }

    pub(super) fn add_twice_dying(
        &mut self,
        pod: usize,
        interface: usize,
        network: Network,
        death: Death,
    ) {
        let configuration = self.wanted(pod, interface, network, AddOption::Nothing);
        let call = self.call_to_add(pod, interface, &configuration);
        let host = self.world.host;
        let (dying, living) = thread::scope(|scope| {
            let dying = scope.spawn(|| call.execute_and_kill(host.netns(), death.after));
            let living = host.execute(&call);
            (dying.join().expect("an ADD"), living)
        });
        if !dying.is_killed() {
            return self.note_added_twice(pod, interface, &configuration, [dying, living]);
        }
        self.note_added(pod, interface, &configuration, &living);
        self.note_added_or_dead(pod, interface, &configuration, &dying);
        if !self.world.quiet && !living.status.success() {
            self.ledger.pods[pod].ports[interface].mark_unknown();
        }
    }

    /// An unanswered attachment must not exist. While its interface is in the pod, the answer may have been on its way:
    /// then the runtime must send DEL.
    pub(super) fn note_added_or_dead(
        &mut self,
        pod: usize,
        interface: usize,
        configuration: &Value,
        answer: &Answer,
    ) {
        if !answer.is_killed() {
            return self.note_added(pod, interface, configuration, answer);
        }
        self.world.common.tally.dead.fetch_add(1, Relaxed);
        let sandbox = &mut self.ledger.pods[pod];
        let port = &mut sandbox.ports[interface];
        if matches!(port.state, State::Absent | State::Leaving) {
            let is_there = |netns: &Netns| {
                let shown = netns.command("ip").args(["link", "show", port.interface]).output();
                shown.is_ok_and(|shown| shown.status.success())
            };
            let may_be_answered =
                !answer.stdout.is_empty() || sandbox.netns.as_ref().is_some_and(is_there);
            port.state = if may_be_answered { State::Unknown } else { State::Leaving };
        }
    }

    pub(super) fn add_suspended(
        &mut self,
        pod: usize,
        interface: usize,
        network: Network,
        pause: Pause,
    ) {
        let configuration = self.wanted(pod, interface, network, AddOption::Nothing);
        let call = self.call_to_add(pod, interface, &configuration);
        let answer = self.world.execute_suspended(&call, pause);
        self.note_added(pod, interface, &configuration, &answer);
    }

    pub(super) fn add_cut_short(&mut self, pod: usize, interface: usize, network: Network) {
        let configuration = self.wanted(pod, interface, network, AddOption::Nothing);
        let add = self.call_to_add(pod, interface, &configuration);
        let sandbox = &self.ledger.pods[pod];
        let path = sandbox.netns.as_ref().map(Netns::path);
        let name = sandbox.ports[interface].interface;
        let del = Call::new("DEL", &configuration).of(&sandbox.container, path.as_deref(), name);
        let host = self.world.host;
        thread::scope(|scope| {
            scope.spawn(|| host.execute(&add));
            let _ = host.execute(&del);
        });
        self.ledger.pods[pod].ports[interface].mark_unknown();
        self.del(pod, interface, true);
    }

    pub(super) fn misuse(
        &mut self,
        pod: usize,
        interface: usize,
        network: Network,
        hostile_changes: HostileChanges,
        then: Then,
    ) {
        self.add(pod, interface, network, AddOption::Nothing);
        let sandbox = &mut self.ledger.pods[pod];
        let port = &mut sandbox.ports[interface];
        if port.grant().is_none() {
            return;
        }
        let scene = Scene {
            link: port.interface,
            elsewhere: self.ledger.elsewhere.name(),
            xdp: self.world.xdp,
        };
        let played = hostile_changes.play(&sandbox.container, &scene);
        port.state = State::Misused;
        self.world.common.tally.hostile.fetch_add(1, Relaxed);
        let mut known = self.world.common.tally.hostile_changes.lock();
        for (change, passed) in played {
            *known.entry(change).or_default() |= passed;
        }
        drop(known);
        if then == Then::Del {
            self.del(pod, interface, true);
        }
    }

    /// Configuration of the next ADD: for a granted interface, its own again.
    pub(super) fn wanted(
        &mut self,
        pod: usize,
        interface: usize,
        network: Network,
        option: AddOption,
    ) -> Value {
        let own = self.ledger.own_network();
        let port = &mut self.ledger.pods[pod].ports[interface];
        if let Some(grant) = port.grant() {
            return grant.configuration.clone();
        }
        let network = match network {
            Network::Configured(name) => name.to_owned(),
            Network::Own => own,
        };
        let mut configuration = self.world.host.configuration(&network);
        if let Some(further) = self.ledger.pods[pod].further() {
            configuration["networks"] = further;
        }
        let port = &mut self.ledger.pods[pod].ports[interface];
        // An interface that may be attached is in the network of its ADD.
        if matches!(port.state, State::Absent | State::Leaving) {
            port.network = network;
        }
        match option {
            AddOption::Nothing => {}
            AddOption::Mac(byte) => {
                let mac = format!("02:50:a4:00:00:{byte:02x}");
                configuration["runtimeConfig"] = json!({ "mac": mac });
            }
            AddOption::Address(byte) => {
                let ips = [format!("10.1.200.{byte}/16")];
                configuration["runtimeConfig"] = json!({ "ips": ips });
            }
        }
        configuration
    }

    pub(super) fn call_to_add(&self, pod: usize, interface: usize, configuration: &Value) -> Call {
        let sandbox = &self.ledger.pods[pod];
        let name = sandbox.ports[interface].interface;
        let known = (sandbox.container.clone(), name.to_owned());
        self.world.common.known.lock().insert(known);
        let path = sandbox.netns.as_ref().map(Netns::path);
        Call::new("ADD", configuration).of(&sandbox.container, path.as_deref(), name)
    }

    pub(super) fn note_added(
        &mut self,
        pod: usize,
        interface: usize,
        configuration: &Value,
        answer: &Answer,
    ) {
        let container = self.ledger.pods[pod].container.clone();
        let port = &mut self.ledger.pods[pod].ports[interface];
        let place = format!("{container} {}", port.interface);
        if !answer.status.success() {
            let (code, text) = answer.error();
            let was_granted = port.grant().is_some();
            let is_refusal = !was_granted && REFUSALS.contains(&code);
            if self.world.quiet && !is_refusal && port.is_certain() {
                self.world
                    .common
                    .complain(Violation::lost(format!("ADD of {place} failed: {text}")));
            }
            if !(self.world.quiet && is_refusal) {
                port.mark_unknown();
            }
            return;
        }
        if matches!(port.state, State::Misused) {
            return;
        }
        let grant = Grant::new(answer.result(), configuration.clone(), 0);
        if let Some(earlier) = port.grant()
            && !earlier.equals(&grant)
        {
            let what = format!("ADD of {place} gave {earlier:?}, then {grant:?}");
            self.world.common.complain(Violation::doubled(what));
        }
        port.state = State::Granted(Box::new(grant));
        if let Some(network) = configuration["name"].as_str() {
            port.network = network.to_owned();
        }
        let sandbox = &mut self.ledger.pods[pod];
        sandbox.follow();
        let verified = if sandbox.kind == Kind::AtOnce {
            0..sandbox.ports.len()
        } else {
            interface..interface + 1
        };
        verified.for_each(|interface| self.traffic_check().verify(pod, interface));
    }
}
