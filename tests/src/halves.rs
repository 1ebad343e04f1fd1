//! A DPU and its hosts in two halves: what callers use, and what others stop and start meanwhile.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    Answer, Call, Netns, Operator, Program, Proxy, card, cni, eventually, lab, victim::Victim,
};

/// How long a program may take to be up.
const START: Duration = Duration::from_secs(3);

/// What the callers of one host use.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) host: &'a Netns,
    pub(crate) folder: &'a Path,
    pub(crate) socket: PathBuf,
    pub(crate) operator: Operator<'a>,
}

impl Site<'_> {
    pub(crate) fn configuration(&self, network: &str) -> Value {
        cni::configuration(network, &self.socket)
    }

    pub(crate) fn execute(&self, call: &Call) -> Answer {
        call.execute(self.host)
    }
}

/// What is stopped and started: the service, and what each host has.
#[derive(Debug)]
pub(crate) struct Machines<'a> {
    pub(crate) hosts: Vec<HostMachines<'a>>,
    pub(crate) service: &'a mut Program,
    pub(crate) dpu: &'a Netns,
    pub(crate) folder: &'a Path,
}

/// What is stopped and started of one host.
#[derive(Debug)]
pub(crate) struct HostMachines<'a> {
    pub(crate) agent: &'a mut Program,
    pub(crate) card: &'a mut Program,
    pub(crate) netns: &'a Netns,
    pub(crate) plan: card::Plan,
    /// Of one that is proxied.
    pub(crate) proxy: Option<&'a Proxy>,
    pub(crate) folder: &'a Path,
}

impl Machines<'_> {
    pub(crate) fn program(&mut self, victim: Victim) -> &mut Program {
        match victim {
            Victim::Agent(host) => self.hosts[host].agent,
            Victim::Service => self.service,
        }
    }

    pub(crate) fn start(&mut self, victim: Victim) {
        match victim {
            Victim::Agent(host) => {
                let HostMachines { agent, netns, folder, .. } = &mut self.hosts[host];
                **agent = lab::start_agent(netns, folder);
            }
            Victim::Service => *self.service = lab::start_service(self.dpu, self.folder),
        }
    }

    /// As service managers do: not before a program is up.
    pub(crate) fn reload(&self) {
        let agents = self.hosts.iter().map(|host| &*host.agent);
        for program in agents.chain([&*self.service]) {
            let is_up = || program.catches(Signal::SIGHUP).then_some(());
            if eventually(START, is_up).is_some() {
                program.signal(Signal::SIGHUP);
            }
        }
    }

    pub(crate) fn reset_card(&mut self, host: usize) {
        let HostMachines { card, netns, plan, folder, .. } = &mut self.hosts[host];
        card::reset(card, netns, self.dpu, *plan, folder);
    }

    pub(crate) fn arm(&self, victim: Victim, how: &str, step: &str) -> PathBuf {
        let folder = match victim {
            Victim::Agent(host) => self.hosts[host].folder,
            Victim::Service => self.folder,
        };
        lab::arm(folder, victim.program(), how, step)
    }
}
