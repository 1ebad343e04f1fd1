//! Random operations by several callers while programs are killed, the network is cut and the card is
//! reset; every so often all comes to rest, and what was promised is compared with what is there.
//!
//! What is done is drawn from a seed, so that it can be done again; in which order the kernel lets the
//! callers go is its own affair.

mod audit;
mod caller;
mod chaos;
mod dice;
mod ledger;
mod plan;

use std::{
    fmt,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use self::{
    caller::{Caller, Common},
    chaos::{Chaos, Points, Toll},
    dice::Dice,
    ledger::Ledger,
    plan::{CALLERS, PODS, Round},
};
use crate::{
    Lab, Settings,
    breach::{Breach, Harm},
};

/// VFs of the card: fewer than interfaces, so that they run out at times.
const VFS: u32 = 20;

/// What came of a soak. Its text is the last line that `hack/soak` prints.
#[derive(Debug)]
pub struct Outcome {
    operations: usize,
    toll: Toll,
    breaches: Vec<Breach>,
}

impl Outcome {
    /// Whether nothing is lost, leaked or doubled.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.breaches.is_empty()
    }

    /// What is broken, a line each.
    #[must_use]
    pub fn breaches(&self) -> String {
        self.breaches.iter().map(|breach| format!("{breach}\n")).collect()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |harm| self.breaches.iter().filter(|breach| breach.harm == harm).count();
        write!(
            out,
            "{} operations, {} kills, {} cuts: {} lost, {} leaked, {} doubled",
            self.operations,
            self.toll.kills,
            self.toll.cuts,
            count(Harm::Lost),
            count(Harm::Leaked),
            count(Harm::Doubled)
        )
    }
}

/// A soak that goes on.
#[derive(Debug)]
pub struct Soak {
    lab: Lab,
    ledgers: Vec<Ledger>,
    common: Common,
    dice: Dice,
    points: Points,
    started: Instant,
    planned: usize,
    outcome: Outcome,
    rounds: usize,
}

impl Soak {
    /// Brings a lab up in which `operations` are going to be done.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(operations: usize, seed: u64) -> Self {
        let settings = Settings {
            cool_down: 1,
            quarantine_after: 100,
            proxied: true,
            ..Settings::with_vfs(VFS)
        };
        let mut lab = Lab::start(&settings);
        lab.keep_folder(true);
        let outcome = Outcome { operations: 0, toll: Toll::default(), breaches: Vec::new() };
        Self {
            ledgers: (0..CALLERS).map(|caller| Ledger::new(caller, PODS)).collect(),
            common: Common::default(),
            dice: Dice::new(seed),
            points: Points::ask(),
            started: Instant::now(),
            planned: operations,
            outcome,
            rounds: 0,
            lab,
        }
    }

    /// Where configuration, logs and state are. They stay there if the soak ends badly.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.lab.path().to_owned()
    }

    /// Does the next round; whether there was one, and all is good.
    ///
    /// # Panics
    /// When a program does not come up again, or crashes by itself.
    pub fn advance(&mut self) -> bool {
        let left = self.planned - self.outcome.operations;
        if left == 0 || !self.outcome.is_good() {
            return false;
        }
        let round = Round::draw(&mut self.dice, left);
        self.rounds += 1;
        if round.host_reboots {
            self.reboot_host();
        }
        self.run(&round);
        self.outcome.operations += round.len();
        self.look();
        true
    }

    /// Gives everything back and looks at it a last time.
    ///
    /// # Panics
    /// As [`Self::advance`].
    #[must_use]
    pub fn end(mut self) -> Outcome {
        if self.outcome.is_good() {
            self.by_each_caller(|mut caller| caller.leave());
            self.look();
        }
        self.lab.keep_folder(!self.outcome.is_good());
        self.outcome
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> String {
        let Outcome { operations, toll, .. } = &self.outcome;
        let per_second = *operations as f64 / self.started.elapsed().as_secs_f64();
        format!(
            "{operations} of {} operations in {} rounds, {} kills, {} cuts, {} delays, {} failed steps, \
             {} card resets; {per_second:.0} operations a second",
            self.planned,
            self.rounds,
            toll.kills,
            toll.cuts,
            toll.delays,
            toll.failed_steps,
            toll.resets
        )
    }

    /// How many rounds there were, the present one included.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// How many operations are done.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.outcome.operations
    }

    fn run(&mut self, round: &Round) {
        let done = AtomicBool::new(false);
        let quiet = round.is_quiet();
        let (site, machines) = self.lab.split();
        let mut chaos = Chaos { machines, points: &self.points, toll: &mut self.outcome.toll };
        let (common, site, done) = (&self.common, &site, &done);
        thread::scope(|scope| {
            let chaos = scope.spawn(move || chaos.wreak(&round.faults, done));
            let callers: Vec<_> = self
                .ledgers
                .iter_mut()
                .zip(&round.operations)
                .map(|(ledger, operations)| {
                    scope.spawn(move || {
                        let mut caller = Caller { ledger, site, common, quiet };
                        operations.iter().for_each(|operation| caller.perform(*operation));
                    })
                })
                .collect();
            let ended: Vec<_> = callers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Release);
            chaos.join().expect("the faults");
            ended.into_iter().for_each(|ended| ended.expect("a caller"));
        });
    }

    /// Brings all to rest, and compares.
    fn look(&mut self) {
        self.lab.wait_until_good();
        self.by_each_caller(|mut caller| caller.settle());
        self.outcome.breaches.extend(self.common.take_breaches());
        self.outcome.breaches.extend(audit::breaches(&self.lab, &self.ledgers));
    }

    fn by_each_caller(&mut self, work: impl Fn(Caller<'_>)) {
        let (site, _) = self.lab.split();
        for ledger in &mut self.ledgers {
            work(Caller { ledger, site: &site, common: &self.common, quiet: true });
        }
    }

    /// All pods end with the host.
    fn reboot_host(&mut self) {
        self.lab.agent.crash();
        self.outcome.toll.kills += 1;
        self.common = Common::default();
        for ledger in &mut self.ledgers {
            *ledger = Ledger::new(ledger.caller, PODS);
        }
        self.lab.new_boot_id(&format!("7d0c4ae0-0000-4000-9000-{:012}\n", self.rounds));
        self.lab.start_agent();
        self.look();
    }
}
