//! All callers and their pods.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use tempfile::TempDir;

use super::{
    caller::{Caller, Common, World},
    ledger::{Kind, Ledger},
    plan::{CALLERS, PODS, Round},
    verification::ReferencePods,
    xdp,
};
use crate::Host;

/// Networks with a permanent pod that answers the traffic of others.
const REFERENCES: [&str; 4] = ["blue", "green", "wire", "tiny"];

/// All callers.
#[derive(Debug)]
pub(crate) struct Callers {
    /// The ledgers of the callers, and last that of the reference pods.
    ledgers: Vec<Ledger>,
    references: Option<ReferencePods>,
    xdp: Option<(TempDir, PathBuf)>,
    common: Common,
}

impl Callers {
    /// Callers with new pods, spread over the hosts, with or without reference pods.
    pub(crate) fn new(hosts: usize, has_references: bool) -> Self {
        let ledger = |caller: usize, pods: &[Kind]| {
            Ledger::new(caller, caller % hosts, pods.iter().copied())
        };
        let mut ledgers: Vec<_> = (0..CALLERS).map(|caller| ledger(caller, &PODS)).collect();
        let references = [Kind::OneByOne; REFERENCES.len()];
        ledgers.extend(has_references.then(|| ledger(CALLERS, &references)));
        let xdp = xdp::may_be_attached().then(xdp::dropping_program);
        Self { ledgers, references: None, xdp, common: Common::default() }
    }

    pub(crate) fn ledgers(&self) -> &[Ledger] {
        &self.ledgers
    }

    pub(crate) fn common(&self) -> &Common {
        &self.common
    }

    /// Attaches the reference pods, if there are any.
    pub(crate) fn attach_references(&mut self, hosts: &[&Host]) {
        // During their own attach there is nothing to reach.
        self.references = None;
        self.each(hosts, |mut caller| {
            if caller.ledger.caller == CALLERS {
                caller.attach_first_interfaces(&REFERENCES);
            }
        });
        self.references = self.ledgers.get(CALLERS).map(ReferencePods::of_pods);
    }

    /// Runs each caller in turn while no faults are injected.
    pub(crate) fn each(&mut self, hosts: &[&Host], work: impl Fn(Caller<'_>)) {
        let Self { ledgers, references, xdp, common } = self;
        for ledger in ledgers {
            let host = hosts[ledger.host];
            let references = references.as_ref();
            let world = World { host, common, references, xdp: path_of(xdp), quiet: true };
            work(Caller { ledger, world });
        }
    }

    /// All callers carry out the round at the same time. `meanwhile` runs until they are done.
    pub(crate) fn perform(
        &mut self,
        hosts: &[&Host],
        round: &Round,
        meanwhile: impl FnOnce(&Common, &AtomicBool) + Send,
    ) {
        let Self { ledgers, references, xdp, common } = self;
        let (common, references, xdp) = (&*common, references.as_ref(), path_of(xdp));
        let done = &AtomicBool::new(false);
        thread::scope(|scope| {
            let meanwhile = scope.spawn(move || meanwhile(common, done));
            let start = |(ledger, operations)| {
                let ledger: &mut Ledger = ledger;
                let operations: &Vec<_> = operations;
                let host = hosts[ledger.host];
                let world = World { host, common, references, xdp, quiet: round.is_quiet() };
                scope.spawn(move || {
                    let mut caller = Caller { ledger, world };
                    operations.iter().for_each(|operation| caller.perform(*operation));
                })
            };
            let callers: Vec<_> = ledgers.iter_mut().zip(&round.operations).map(start).collect();
            let ended: Vec<_> = callers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Release);
            meanwhile.join().expect("the faults");
            ended.into_iter().for_each(|ended| ended.expect("a caller"));
        });
    }

    /// After a reboot of a host, its pods have ended and new ones begin.
    pub(crate) fn replace_pods_of(&mut self, host: usize) {
        let is_of_host = |ledger: &&mut Ledger| ledger.host == host;
        for ledger in self.ledgers.iter_mut().filter(is_of_host) {
            let containers = ledger.sandboxes().map(|sandbox| sandbox.container.as_str());
            self.common.forget_all(containers);
            ledger.replace_all_pods();
        }
    }
}

fn path_of(program: &Option<(TempDir, PathBuf)>) -> &str {
    program.as_ref().and_then(|(_, path)| path.to_str()).unwrap_or_default()
}
