//! A DPU and its hosts in two halves: hosts, which callers use, and what others stop and start meanwhile.

use std::{path::PathBuf, time::Duration};

use nix::sys::signal::Signal;

use crate::{
    Card, Dpu, FaultAction, Host, Program, Proxy, Settings, eventually, faults, victim::Victim,
};

/// How long a program may take to be up.
const START: Duration = Duration::from_secs(3);

/// What is stopped and started: the service, and what each host has.
#[derive(Debug)]
pub(crate) struct Machines<'a> {
    pub(crate) hosts: Vec<HostMachines<'a>>,
    pub(crate) dpu: &'a mut Dpu,
}

/// What is stopped and started of one host.
#[derive(Debug)]
pub(crate) struct HostMachines<'a> {
    pub(crate) host: &'a Host,
    pub(crate) agent: &'a mut Program,
    pub(crate) card: &'a mut Card,
    /// Of one that is proxied.
    pub(crate) proxy: Option<&'a Proxy>,
}

impl Machines<'_> {
    pub(crate) fn program(&mut self, victim: Victim) -> &mut Program {
        match victim {
            Victim::Agent(host) => self.hosts[host].agent,
            Victim::Service => &mut self.dpu.service,
        }
    }

    pub(crate) fn start(&mut self, victim: Victim) {
        match victim {
            Victim::Agent(host) => {
                let HostMachines { host, agent, .. } = &mut self.hosts[host];
                **agent = host.start_agent(None);
            }
            Victim::Service => self.dpu.start(),
        }
    }

    pub(crate) fn reload(&self) {
        let agents = self.hosts.iter().map(|host| &*host.agent);
        agents.chain([&self.dpu.service]).for_each(reload);
    }

    /// Has the service read a configuration that is changed like this.
    pub(crate) fn configure_service(&mut self, change: impl FnOnce(&mut Settings)) {
        self.dpu.configure(change);
        reload(&self.dpu.service);
    }

    pub(crate) fn reset_card(&mut self, host: usize) {
        let HostMachines { host, card, .. } = &mut self.hosts[host];
        card.reset(host.path());
    }

    /// Has all agents write down the points that they pass, and returns where.
    pub(crate) fn trace_agents(&self) -> Vec<PathBuf> {
        let hosts = self.hosts.iter().enumerate();
        let trace = |(number, one): (usize, &HostMachines<'_>)| {
            faults::trace(one.host.path(), Victim::Agent(number).program())
        };
        hosts.map(trace).collect()
    }

    pub(crate) fn arm(&self, victim: Victim, action: FaultAction, step: &str) -> PathBuf {
        let folder = match victim {
            Victim::Agent(host) => self.hosts[host].host.path(),
            Victim::Service => self.dpu.path(),
        };
        faults::arm(folder, victim.program(), action, step)
    }
}

/// As service managers do: not before a program is up.
fn reload(program: &Program) {
    let is_up = || program.catches(Signal::SIGHUP).then_some(());
    if eventually(START, is_up).is_some() {
        program.signal(Signal::SIGHUP);
    }
}
