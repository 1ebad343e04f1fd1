//! A lab in two halves: what callers use, and what others stop and start meanwhile.

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

/// What callers use.
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

/// What is stopped and started.
#[derive(Debug)]
pub(crate) struct Machines<'a> {
    pub(crate) agent: &'a mut Program,
    pub(crate) service: &'a mut Program,
    pub(crate) card: &'a mut Program,
    pub(crate) host: &'a Netns,
    pub(crate) dpu: &'a Netns,
    pub(crate) plan: card::Plan,
    /// Of a lab that is proxied.
    pub(crate) proxy: Option<&'a Proxy>,
    pub(crate) folder: &'a Path,
}

impl Machines<'_> {
    pub(crate) fn program(&mut self, victim: Victim) -> &mut Program {
        match victim {
            Victim::Agent => self.agent,
            Victim::Service => self.service,
        }
    }

    pub(crate) fn start(&mut self, victim: Victim) {
        match victim {
            Victim::Agent => *self.agent = lab::start_agent(self.host, self.folder),
            Victim::Service => *self.service = lab::start_service(self.dpu, self.folder),
        }
    }

    /// As service managers do: not before a program is up.
    pub(crate) fn reload(&self) {
        for program in [&*self.agent, &*self.service] {
            let is_up = || program.catches(Signal::SIGHUP).then_some(());
            if eventually(START, is_up).is_some() {
                program.signal(Signal::SIGHUP);
            }
        }
    }

    pub(crate) fn reset_card(&mut self) {
        card::reset(self.card, self.host, self.dpu, self.plan, self.folder);
    }

    pub(crate) fn arm(&self, victim: Victim, how: &str, step: &str) -> PathBuf {
        lab::arm(self.folder, victim.program(), how, step)
    }
}
