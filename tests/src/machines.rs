//! A DPU's part of a fleet, split in two: hosts for callers, and the programs that tests stop and start at the same
//! time.

use std::{path::PathBuf, time::Duration};

use nix::sys::signal::Signal;

use crate::{
    Card, Dpu, FaultAction, Host, Program, Proxy, Settings, eventually, fault_target::FaultTarget,
    faults,
};

/// Timeout for the start of a program.
const START: Duration = Duration::from_secs(3);

/// The service, and the programs of each host.
#[derive(Debug)]
pub(crate) struct Machines<'a> {
    pub(crate) hosts: Vec<HostMachines<'a>>,
    pub(crate) dpu: &'a mut Dpu,
}

/// The programs of one host.
#[derive(Debug)]
pub(crate) struct HostMachines<'a> {
    pub(crate) host: &'a Host,
    pub(crate) agent: &'a mut Program,
    pub(crate) card: &'a mut Card,
    /// Present if the host is proxied.
    pub(crate) proxy: Option<&'a Proxy>,
}

impl Machines<'_> {
    pub(crate) fn program(&mut self, fault_target: FaultTarget) -> &mut Program {
        match fault_target {
            FaultTarget::Agent(host) => self.hosts[host].agent,
            FaultTarget::Service => &mut self.dpu.service,
        }
    }

    pub(crate) fn start(&mut self, fault_target: FaultTarget) {
        match fault_target {
            FaultTarget::Agent(host) => {
                let HostMachines { host, agent, .. } = &mut self.hosts[host];
                **agent = host.start_agent(None);
            }
            FaultTarget::Service => self.dpu.start(),
        }
    }

    pub(crate) fn reload(&self) {
        let agents = self.hosts.iter().map(|host| &*host.agent);
        agents.chain([&self.dpu.service]).for_each(reload);
    }

    /// Changes the service's configuration and reloads it.
    pub(crate) fn configure_service(&mut self, change: impl FnOnce(&mut Settings)) {
        self.dpu.configure(change);
        reload(&self.dpu.service);
    }

    pub(crate) fn reset_card(&mut self, host: usize) {
        let HostMachines { host, card, .. } = &mut self.hosts[host];
        card.reset(host.path());
    }

    /// Makes all agents trace the points that they pass. Returns the files.
    pub(crate) fn trace_agents(&self) -> Vec<PathBuf> {
        let hosts = self.hosts.iter().enumerate();
        let trace = |(number, one): (usize, &HostMachines<'_>)| {
            faults::trace(one.host.path(), FaultTarget::Agent(number).program())
        };
        hosts.map(trace).collect()
    }

    pub(crate) fn arm(
        &self,
        fault_target: FaultTarget,
        action: FaultAction,
        step: &str,
    ) -> PathBuf {
        let folder = match fault_target {
            FaultTarget::Agent(host) => self.hosts[host].host.path(),
            FaultTarget::Service => self.dpu.path(),
        };
        faults::arm(folder, fault_target.program(), action, step)
    }
}

/// Reloads like a service manager: not before the program is ready.
fn reload(program: &Program) {
    let is_up = || program.catches(Signal::SIGHUP).then_some(());
    if eventually(START, is_up).is_some() {
        program.signal(Signal::SIGHUP);
    }
}
