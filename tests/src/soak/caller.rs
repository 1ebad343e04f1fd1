//! A container runtime, or an operator, that does what the plan says.

mod proving;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Output,
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use serde_json::{Value, json};

use super::{
    ledger::{Ledger, Promise, State},
    plan::{Action, Death, Network, Operation, Pause, Then, Wish},
    proof::References,
    tricks::{Scene, Tricks},
};
use crate::{Answer, Call, Netns, breach::Breach, halves::Site};

/// Codes of refusals that need no fault: no such network, no VF, no address, an address or a MAC
/// address in use.
const REFUSALS: [u64; 5] = [101, 102, 103, 104, 106];

/// What all callers share.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// GC is alone, as the CNI specification asks of a runtime.
    collecting: RwLock<()>,
    /// Container and interface of all that may be attached.
    known: Mutex<BTreeSet<(String, String)>>,
    breaches: Mutex<Vec<Breach>>,
    /// VFs may be out of their pods since the last rest.
    card_was_reset: AtomicBool,
    pub(crate) tally: Tally,
}

/// What callers have done besides calls.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) hostile: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) suspensions: AtomicU64,
    pub(crate) pings: AtomicU64,
    /// What hostile pods have tried, and whether the kernel let it pass at least once.
    pub(crate) tricks: Mutex<BTreeMap<&'static str, bool>>,
}

impl Common {
    pub(crate) fn note_reset(&self) {
        self.card_was_reset.store(true, Relaxed);
    }

    /// All VFs are where they belong.
    pub(crate) fn note_rest(&self) {
        self.card_was_reset.store(false, Relaxed);
    }

    /// The host has rebooted: nothing is attached.
    pub(crate) fn forget_all(&self) {
        self.known.lock().unwrap().clear();
    }

    /// Takes what callers have found broken.
    pub(crate) fn take_breaches(&self) -> Vec<Breach> {
        std::mem::take(&mut self.breaches.lock().unwrap())
    }

    fn complain(&self, breach: Breach) {
        self.breaches.lock().unwrap().push(breach);
    }
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) site: &'a Site<'a>,
    pub(crate) common: &'a Common,
    /// Whom each pod's traffic has to reach. `None`: none is sent.
    pub(crate) references: Option<&'a References>,
    /// An object file with an XDP program, where the kernel takes one.
    pub(crate) xdp: &'a str,
    /// Nothing goes wrong: what fails now is a fault of ours.
    pub(crate) quiet: bool,
}

impl Caller<'_> {
    pub(crate) fn perform(&mut self, operation: Operation) {
        let common = self.common;
        if matches!(operation.action, Action::Collect) {
            let _alone = common.collecting.write().unwrap();
            return self.collect(operation.pod, operation.interface);
        }
        let _together = common.collecting.read().unwrap();
        self.perform_beside_others(operation);
    }

    fn perform_beside_others(&mut self, Operation { pod, interface, action }: Operation) {
        match action {
            Action::Add(network, wish) => self.add(pod, interface, network, wish),
            Action::AddTwice(network) => self.add_twice(pod, interface, network),
            Action::AddCutShort(network) => self.add_cut_short(pod, interface, network),
            Action::AddDying(network, death) => self.add_dying(pod, interface, network, death),
            Action::AddTwiceDying(network, death) => {
                self.add_twice_dying(pod, interface, network, death);
            }
            Action::DelDying(death) => self.del_dying(pod, interface, death),
            Action::AddSuspended(network, pause) => {
                self.add_suspended(pod, interface, network, pause);
            }
            Action::DelSuspended(pause) => self.del_suspended(pod, interface, pause),
            Action::Misuse(network, tricks, then) => {
                self.misuse(pod, interface, network, tricks, then);
            }
            Action::Del => self.del(pod, interface, true),
            Action::DelTwice => {
                self.del(pod, interface, true);
                self.del(pod, interface, false);
            }
            Action::DelUnknown => self.del_unknown(),
            Action::Check => self.check(pod, interface),
            Action::Status => self.status(),
            Action::EndNetns { late } => self.end_netns(pod, late),
            Action::Replace => self.ledger.replace(pod),
            Action::Release => self.release(pod, interface),
            Action::Apply => self.apply(),
            Action::Delete => self.delete(),
            Action::Collect => unreachable!("is done alone"),
        }
    }

    /// Ends what may be attached without a promise, what is misused, and all that is late.
    pub(crate) fn settle(&mut self) {
        for pod in 0..self.ledger.pods.len() {
            for interface in 0..self.ledger.pods[pod].ports.len() {
                match self.ledger.pods[pod].ports[interface].state {
                    State::Unknown => self.settle_unknown(pod, interface),
                    State::Misused => self.del(pod, interface, true),
                    _ => {}
                }
            }
        }
        self.del_late();
    }

    /// Attaches each pod's first interface, to the network of the same place.
    pub(crate) fn attach_first_interfaces(&mut self, networks: &[&'static str]) {
        for (pod, network) in networks.iter().enumerate() {
            self.add(pod, 0, Network::Configured(network), Wish::Nothing);
        }
    }

    /// Gives everything back.
    pub(crate) fn leave(&mut self) {
        for pod in 0..self.ledger.pods.len() {
            for interface in 0..self.ledger.pods[pod].ports.len() {
                self.del(pod, interface, true);
            }
        }
        self.del_late();
    }

    /// Some runtimes repeat an ADD that failed, others send DEL.
    fn settle_unknown(&mut self, pod: usize, interface: usize) {
        if pod == 0 {
            self.add(pod, interface, Network::Configured("blue"), Wish::Nothing);
        }
        if matches!(self.ledger.pods[pod].ports[interface].state, State::Unknown) {
            self.del(pod, interface, true);
        }
    }

    fn del_late(&mut self) {
        for mut sandbox in std::mem::take(&mut self.ledger.late) {
            for port in &mut sandbox.ports {
                let path = sandbox.netns.as_ref().map(Netns::path);
                let call = self.call("DEL", &port.network).of(
                    &sandbox.container,
                    path.as_deref(),
                    port.interface,
                );
                let answer = self.site.execute(&call);
                let is_gone = self.is_gone_after_del(&answer, &sandbox.container, port.interface);
                port.state = if is_gone { State::Absent } else { State::Unknown };
            }
            if sandbox.ports.iter().any(|port| !matches!(port.state, State::Absent)) {
                self.ledger.late.push(sandbox);
            }
        }
    }

    fn add(&mut self, pod: usize, interface: usize, network: Network, wish: Wish) {
        let configuration = self.wanted(pod, interface, network, wish);
        let answer = self.site.execute(&self.call_to_add(pod, interface, &configuration));
        self.note_added(pod, interface, &configuration, &answer);
    }

    fn add_twice(&mut self, pod: usize, interface: usize, network: Network) {
        let configuration = self.wanted(pod, interface, network, Wish::Nothing);
        let call = self.call_to_add(pod, interface, &configuration);
        let site = self.site;
        let (one, other) = thread::scope(|scope| {
            let one = scope.spawn(|| site.execute(&call));
            let other = site.execute(&call);
            (one.join().expect("an ADD"), other)
        });
        self.note_added_twice(pod, interface, &configuration, [one, other]);
    }

    /// Whichever failed may have come first.
    fn note_added_twice(
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
        if !self.quiet && !failed.is_empty() {
            self.ledger.pods[pod].ports[interface].doubt();
        }
    }

    fn add_dying(&mut self, pod: usize, interface: usize, network: Network, death: Death) {
        let configuration = self.wanted(pod, interface, network, Wish::Nothing);
        let call = self.call_to_add(pod, interface, &configuration);
        let answer = call.execute_and_kill(self.site.host, death.after);
        self.note_added_or_dead(pod, interface, &configuration, &answer);
        if death.then == Then::Del {
            self.del(pod, interface, true);
        }
    }

    fn add_twice_dying(&mut self, pod: usize, interface: usize, network: Network, death: Death) {
        let configuration = self.wanted(pod, interface, network, Wish::Nothing);
        let call = self.call_to_add(pod, interface, &configuration);
        let site = self.site;
        let (dying, living) = thread::scope(|scope| {
            let dying = scope.spawn(|| call.execute_and_kill(site.host, death.after));
            let living = site.execute(&call);
            (dying.join().expect("an ADD"), living)
        });
        if !dying.is_killed() {
            return self.note_added_twice(pod, interface, &configuration, [dying, living]);
        }
        self.note_added(pod, interface, &configuration, &living);
        self.note_added_or_dead(pod, interface, &configuration, &dying);
        if !self.quiet && !living.status.success() {
            self.ledger.pods[pod].ports[interface].doubt();
        }
    }

    /// What nobody was answered must not be. While its interface is in the pod, the answer may have been
    /// on its way: then the runtime has to send DEL.
    fn note_added_or_dead(
        &mut self,
        pod: usize,
        interface: usize,
        configuration: &Value,
        answer: &Answer,
    ) {
        if !answer.is_killed() {
            return self.note_added(pod, interface, configuration, answer);
        }
        self.common.tally.dead.fetch_add(1, Relaxed);
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

    fn del_dying(&mut self, pod: usize, interface: usize, death: Death) {
        let answer = self.call_to_del(pod, interface, true);
        let answer = answer.execute_and_kill(self.site.host, death.after);
        if !answer.is_killed() {
            return self.note_deleted(pod, interface, &answer);
        }
        self.common.tally.dead.fetch_add(1, Relaxed);
        let port = &mut self.ledger.pods[pod].ports[interface];
        if !matches!(port.state, State::Absent | State::Leaving) {
            port.doubt();
        }
        if death.then == Then::Del {
            self.del(pod, interface, true);
        }
    }

    fn add_suspended(&mut self, pod: usize, interface: usize, network: Network, pause: Pause) {
        let configuration = self.wanted(pod, interface, network, Wish::Nothing);
        let call = self.call_to_add(pod, interface, &configuration);
        let answer = self.execute_suspended(&call, pause);
        self.note_added(pod, interface, &configuration, &answer);
    }

    fn del_suspended(&mut self, pod: usize, interface: usize, pause: Pause) {
        let answer = self.execute_suspended(&self.call_to_del(pod, interface, true), pause);
        self.note_deleted(pod, interface, &answer);
    }

    fn execute_suspended(&self, call: &Call, pause: Pause) -> Answer {
        self.common.tally.suspensions.fetch_add(1, Relaxed);
        call.execute_suspended(self.site.host, pause.after, pause.lasting)
    }

    fn misuse(
        &mut self,
        pod: usize,
        interface: usize,
        network: Network,
        tricks: Tricks,
        then: Then,
    ) {
        self.add(pod, interface, network, Wish::Nothing);
        let sandbox = &mut self.ledger.pods[pod];
        let port = &mut sandbox.ports[interface];
        if port.promise().is_none() {
            return;
        }
        let scene =
            Scene { link: port.interface, elsewhere: self.ledger.elsewhere.name(), xdp: self.xdp };
        let played = tricks.play(&sandbox.container, &scene);
        port.state = State::Misused;
        self.common.tally.hostile.fetch_add(1, Relaxed);
        let mut known = self.common.tally.tricks.lock().unwrap();
        for (trick, passed) in played {
            *known.entry(trick).or_default() |= passed;
        }
        drop(known);
        if then == Then::Del {
            self.del(pod, interface, true);
        }
    }

    fn add_cut_short(&mut self, pod: usize, interface: usize, network: Network) {
        let configuration = self.wanted(pod, interface, network, Wish::Nothing);
        let add = self.call_to_add(pod, interface, &configuration);
        let sandbox = &self.ledger.pods[pod];
        let path = sandbox.netns.as_ref().map(Netns::path);
        let name = sandbox.ports[interface].interface;
        let del = Call::new("DEL", &configuration).of(&sandbox.container, path.as_deref(), name);
        let site = self.site;
        thread::scope(|scope| {
            scope.spawn(|| site.execute(&add));
            let _ = site.execute(&del);
        });
        self.ledger.pods[pod].ports[interface].doubt();
        self.del(pod, interface, true);
    }

    /// The configuration of the next ADD: a promised one's own again.
    fn wanted(&mut self, pod: usize, interface: usize, network: Network, wish: Wish) -> Value {
        let own = self.ledger.own_network();
        let port = &mut self.ledger.pods[pod].ports[interface];
        if let Some(promise) = port.promise() {
            return promise.configuration.clone();
        }
        let network = match network {
            Network::Configured(name) => name.to_owned(),
            Network::Own => own,
        };
        let mut configuration = self.site.configuration(&network);
        // What may be attached is in the network that it was attached to.
        if matches!(port.state, State::Absent | State::Leaving) {
            port.network = network;
        }
        match wish {
            Wish::Nothing => {}
            Wish::Mac(byte) => {
                let mac = format!("02:50:a4:00:00:{byte:02x}");
                configuration["runtimeConfig"] = json!({ "mac": mac });
            }
            Wish::Address(byte) => {
                let ips = [format!("10.1.200.{byte}/16")];
                configuration["runtimeConfig"] = json!({ "ips": ips });
            }
        }
        configuration
    }

    fn call_to_add(&self, pod: usize, interface: usize, configuration: &Value) -> Call {
        let sandbox = &self.ledger.pods[pod];
        let name = sandbox.ports[interface].interface;
        let known = (sandbox.container.clone(), name.to_owned());
        self.common.known.lock().unwrap().insert(known);
        let path = sandbox.netns.as_ref().map(Netns::path);
        Call::new("ADD", configuration).of(&sandbox.container, path.as_deref(), name)
    }

    fn note_added(&mut self, pod: usize, interface: usize, configuration: &Value, answer: &Answer) {
        let container = self.ledger.pods[pod].container.clone();
        let port = &mut self.ledger.pods[pod].ports[interface];
        let place = format!("{container} {}", port.interface);
        if !answer.status.success() {
            let (code, text) = answer.error();
            let was_promised = port.promise().is_some();
            let is_refusal = !was_promised && REFUSALS.contains(&code);
            if self.quiet && !is_refusal && port.is_certain() {
                self.common.complain(Breach::lost(format!("ADD of {place} failed: {text}")));
            }
            if !(self.quiet && is_refusal) {
                port.doubt();
            }
            return;
        }
        if matches!(port.state, State::Misused) {
            return;
        }
        let promise = Promise::new(answer.result(), configuration.clone());
        if let Some(earlier) = port.promise()
            && !earlier.equals(&promise)
        {
            let what = format!("ADD of {place} gave {earlier:?}, then {promise:?}");
            self.common.complain(Breach::doubled(what));
        }
        port.state = State::Promised(Box::new(promise));
        if let Some(network) = configuration["name"].as_str() {
            port.network = network.to_owned();
        }
        self.prove(pod, interface);
    }

    fn del(&mut self, pod: usize, interface: usize, with_netns: bool) {
        let answer = self.site.execute(&self.call_to_del(pod, interface, with_netns));
        self.note_deleted(pod, interface, &answer);
    }

    fn call_to_del(&self, pod: usize, interface: usize, with_netns: bool) -> Call {
        let sandbox = &self.ledger.pods[pod];
        let port = &sandbox.ports[interface];
        let path = sandbox.netns.as_ref().filter(|_| with_netns).map(Netns::path);
        let call = self.call("DEL", &port.network);
        call.of(&sandbox.container, path.as_deref(), port.interface)
    }

    fn note_deleted(&mut self, pod: usize, interface: usize, answer: &Answer) {
        let sandbox = &self.ledger.pods[pod];
        let name = sandbox.ports[interface].interface;
        let is_gone = self.is_gone_after_del(answer, &sandbox.container, name);
        let port = &mut self.ledger.pods[pod].ports[interface];
        if is_gone { port.state = State::Absent } else { port.doubt() }
    }

    fn is_gone_after_del(&self, answer: &Answer, container: &str, interface: &str) -> bool {
        if answer.status.success() {
            self.forget(container, interface);
            return true;
        }
        let (_, text) = answer.error();
        if self.quiet {
            let what = format!("DEL of {container} {interface} failed: {text}");
            self.common.complain(Breach::leaked(what));
        }
        false
    }

    fn forget(&self, container: &str, interface: &str) {
        let known = (container.to_owned(), interface.to_owned());
        self.common.known.lock().unwrap().remove(&known);
    }

    fn del_unknown(&self) {
        let call = self.call("DEL", "blue").of("nobody", None, "eth0");
        let answer = self.site.execute(&call);
        if !answer.status.success() && self.quiet {
            let what = format!("DEL of an unknown container failed: {:?}", answer.error());
            self.common.complain(Breach::leaked(what));
        }
    }

    fn check(&self, pod: usize, interface: usize) {
        let sandbox = &self.ledger.pods[pod];
        let port = &sandbox.ports[interface];
        let mut configuration = self.site.configuration(&port.network);
        if let Some(promise) = port.promise() {
            configuration = promise.configuration.clone();
            configuration["prevResult"] = promise.result.clone();
        }
        let path = sandbox.netns.as_ref().map(Netns::path);
        let call = Call::new("CHECK", &configuration);
        let call = call.of(&sandbox.container, path.as_deref(), port.interface);
        let answer = self.site.execute(&call);
        let place = format!("{} {}", sandbox.container, port.interface);
        match (&port.state, answer.status.success()) {
            (State::Promised(_), false) if self.quiet => {
                let what = format!("CHECK of {place} failed: {:?}", answer.error());
                self.common.complain(Breach::lost(what));
            }
            (State::Absent, true) => {
                self.common.complain(Breach::leaked(format!("{place} is given back, and checked")));
            }
            _ => {}
        }
    }

    fn status(&self) {
        let answer = self.site.execute(&self.call("STATUS", "blue"));
        if !answer.status.success() && self.quiet {
            let what = format!("STATUS is bad: {:?}", answer.error());
            self.common.complain(Breach::lost(what));
        }
    }

    /// GC of one network, whose list lacks that interface and has all others.
    fn collect(&mut self, pod: usize, interface: usize) {
        let sandbox = &self.ledger.pods[pod];
        let port = &sandbox.ports[interface];
        let stale = (sandbox.container.clone(), port.interface.to_owned());
        let mut valid = self.common.known.lock().unwrap().clone();
        valid.remove(&stale);
        let valid: Vec<_> = valid
            .into_iter()
            .map(|(container, name)| json!({ "containerID": container, "ifname": name }))
            .collect();
        let mut configuration = self.site.configuration(&port.network);
        configuration["cni.dev/valid-attachments"] = json!(valid);
        let answer = self.site.execute(&Call::new("GC", &configuration));
        let is_done = answer.status.success();
        if !is_done && self.quiet {
            let what = format!("GC failed: {:?}", answer.error());
            self.common.complain(Breach::leaked(what));
        }
        let port = &mut self.ledger.pods[pod].ports[interface];
        match &port.state {
            State::Absent => {}
            State::Promised(_) | State::Misused | State::Leaving if is_done => {
                port.state = State::Leaving;
            }
            _ => port.doubt(),
        }
    }

    fn end_netns(&mut self, pod: usize, late: bool) {
        self.ledger.pods[pod].end_netns();
        self.ledger.replace(pod);
        if !late {
            self.del_late();
        }
    }

    fn release(&mut self, pod: usize, interface: usize) {
        let sandbox = &self.ledger.pods[pod];
        let port = &sandbox.ports[interface];
        if !matches!(port.state, State::Promised(_) | State::Misused) {
            return;
        }
        let place = format!("{} {}", sandbox.container, port.interface);
        let listed = self.site.operator.dpuctl(&["get", "attachments", "-o", "json"]);
        let list: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let attachments = list["attachments"].as_array().into_iter().flatten();
        let mut own = attachments.filter(|attachment| {
            attachment["key"]["containerId"] == sandbox.container.as_str()
                && attachment["key"]["interfaceName"] == port.interface
        });
        let Some(id) = own.next().and_then(|attachment| attachment["id"].as_str()) else {
            if self.quiet || listed.status.success() {
                let what = format!("the DPU has no attachment of {place}: {listed:?}");
                self.common.complain(Breach::lost(what));
            }
            return;
        };
        let released = self.site.operator.dpuctl(&["release", id, "--reason", "soak", "--yes"]);
        self.refused_in_quiet("release", &released);
        let port = &mut self.ledger.pods[pod].ports[interface];
        if released.status.success() { port.state = State::Leaving } else { port.doubt() }
    }

    fn apply(&self) {
        let name = self.ledger.own_network();
        let network = json!({
            "name": name,
            "subnets": [{ "cidr": format!("10.{}.0.0/24", 100 + self.ledger.caller) }],
        });
        let file = self.site.folder.join(format!("{name}.json"));
        fs::write(&file, network.to_string()).expect("write a network");
        let applied = self.site.operator.dpuctl(&["apply", "-f", &text(&file)]);
        self.refused_in_quiet("apply", &applied);
    }

    fn delete(&self) {
        let name = self.ledger.own_network();
        let deleted = self.site.operator.dpuctl(&["delete", "network", &name]);
        let ports = self.ledger.sandboxes().flat_map(|sandbox| &sandbox.ports);
        let in_use = ports.filter(|port| port.network == name && port.promise().is_some()).count();
        if deleted.status.success() && in_use > 0 {
            let what = format!("network {name} was deleted with {in_use} attachments");
            self.common.complain(Breach::lost(what));
        }
    }

    fn refused_in_quiet(&self, what: &str, output: &Output) {
        if self.quiet && !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            self.common.complain(Breach::lost(format!("dpuctl {what}: {error}")));
        }
    }

    fn call(&self, verb: &str, network: &str) -> Call {
        Call::new(verb, &self.site.configuration(network))
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path of ours").to_owned()
}
