//! Random operations by several callers while programs are killed, the network is cut and the card is
//! reset; every so often all comes to rest, and what was promised is compared with what is there.
//!
//! What is done is drawn from a seed, so that it can be done again; in which order the kernel lets the
//! callers go is its own affair.

mod audit;
mod caller;
mod chaos;
mod cleanliness;
mod dice;
mod hazards;
mod ledger;
mod plan;
mod proof;
mod tricks;
#[path = "../../../crates/netlink/tests/support/xdp.rs"]
mod xdp;

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};

use tempfile::TempDir;

pub use self::hazards::Hazard;
use self::{
    audit::Originals,
    caller::{Caller, Common},
    chaos::{Chaos, Points, Toll},
    dice::Dice,
    ledger::Ledger,
    plan::{CALLERS, PODS, Round},
    proof::{Ports, References},
};
use crate::{
    DpuPlan, Fleet, Settings,
    breach::{Breach, Harm},
};

/// VFs of all hosts: fewer than interfaces, so that they run out at times.
const VFS: u32 = 20;
/// What the hosts are called. There are no more.
const HOSTS: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Networks whose pods prove theirs by traffic to a pod that is always there.
const REFERENCES: [&str; 4] = ["blue", "green", "wire", "tiny"];

/// What came of a soak. Its text is the last line that `hack/soak` prints.
#[derive(Debug)]
pub struct Outcome {
    operations: usize,
    toll: Toll,
    counts: Counts,
    breaches: Vec<Breach>,
}

/// What its pods and callers have done besides.
#[derive(Clone, Debug, Default)]
struct Counts {
    hostile: u64,
    dead: u64,
    suspensions: u64,
    pings: u64,
    /// What they have tried on their interfaces, and whether the kernel let it pass.
    tricks: BTreeMap<&'static str, bool>,
}

impl Outcome {
    /// Whether nothing is broken.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.breaches.is_empty()
    }

    /// What pods have tried on their interfaces in vain.
    pub fn refused_tricks(&self) -> impl Iterator<Item = &'static str> {
        let refused = self.counts.tricks.iter().filter(|(_, passed)| !**passed);
        refused.map(|(trick, _)| *trick)
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
        let Counts { hostile, dead, suspensions, pings, .. } = &self.counts;
        write!(
            out,
            "{} operations, {} kills, {} cuts, {hostile} hostile pods, {dead} dead callers, \
             {suspensions} suspensions, {pings} pings: {} lost, {} leaked, {} doubled, {} unclean, \
             {} without network",
            self.operations,
            self.toll.kills,
            self.toll.cuts,
            count(Harm::Lost),
            count(Harm::Leaked),
            count(Harm::Doubled),
            count(Harm::Unclean),
            count(Harm::WithoutNetwork)
        )
    }
}

/// A soak that goes on.
#[derive(Debug)]
pub struct Soak {
    fleet: Fleet,
    hazards: Vec<Hazard>,
    /// Of each caller, and at last of the references.
    ledgers: Vec<Ledger>,
    references: Option<References>,
    originals: Originals,
    xdp: Option<(TempDir, PathBuf)>,
    common: Common,
    dice: Dice,
    points: Points,
    started: Instant,
    planned: usize,
    outcome: Outcome,
    rounds: usize,
}

impl Soak {
    /// Brings a DPU and so many hosts up, 1 to 3, on which `operations` are going to be done, with these
    /// hazards.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn start(hosts: usize, operations: usize, seed: u64, hazards: &[Hazard]) -> Self {
        let mut fleet = fleet_of(&HOSTS[..hosts]);
        fleet.keep_folder(true);
        let outcome = Outcome {
            operations: 0,
            toll: Toll::default(),
            counts: Counts::default(),
            breaches: Vec::new(),
        };
        let mut soak = Self {
            hazards: hazards.to_vec(),
            ledgers: Vec::new(),
            references: None,
            originals: Originals::of(&fleet),
            xdp: xdp::may_be_attached().then(xdp::dropping_program),
            common: Common::default(),
            dice: Dice::new(seed),
            points: Points::ask(),
            started: Instant::now(),
            planned: operations,
            outcome,
            rounds: 0,
            fleet,
        };
        soak.begin();
        soak
    }

    /// Where configuration, logs and state are. They stay there if the soak ends badly.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.fleet.path().to_owned()
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
        let round = Round::draw(&mut self.dice, left, self.fleet.agents.len(), &self.hazards);
        self.rounds += 1;
        if let Some(host) = round.reboots {
            self.reboot(host);
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
        self.fleet.keep_folder(!self.outcome.is_good());
        self.outcome
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> String {
        let Outcome { operations, toll, counts, .. } = &self.outcome;
        let per_second = *operations as f64 / self.started.elapsed().as_secs_f64();
        format!(
            "{operations} of {} operations in {} rounds, {} kills, {} cuts, {} delays, {} failed steps, \
             {} card resets, {} hostile pods with {} tricks, {} dead callers, {} suspensions, {} pings; \
             {per_second:.0} operations a second",
            self.planned,
            self.rounds,
            toll.kills,
            toll.cuts,
            toll.delays,
            toll.failed_steps,
            toll.resets,
            counts.hostile,
            counts.tricks.values().filter(|passed| **passed).count(),
            counts.dead,
            counts.suspensions,
            counts.pings
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
        let xdp = xdp_of(&self.xdp);
        let references = self.references.as_ref();
        let (sites, machines) = self.fleet.split();
        let (common, sites, done) = (&self.common, &sites, &done);
        let toll = &mut self.outcome.toll;
        let mut chaos = Chaos { machines, points: &self.points, toll, common };
        thread::scope(|scope| {
            let chaos = scope.spawn(move || chaos.wreak(&round.faults, done));
            let callers: Vec<_> = self
                .ledgers
                .iter_mut()
                .zip(&round.operations)
                .map(|(ledger, operations)| {
                    let site = &sites[ledger.host];
                    scope.spawn(move || {
                        let mut caller = Caller { ledger, site, common, references, xdp, quiet };
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
        self.fleet.wait_until_good();
        self.by_each_caller(|mut caller| caller.settle());
        let breaches = audit::breaches(&self.fleet, &self.ledgers, &self.originals);
        let is_at_rest = breaches.is_empty();
        self.outcome.breaches.extend(breaches);
        if is_at_rest {
            self.prove_all();
            self.common.note_rest();
        }
        self.outcome.breaches.extend(self.common.take_breaches());
        self.count();
    }

    /// Each pod has its network, whatever has been repaired, and no other VF gets what is its own.
    fn prove_all(&mut self) {
        let ports = Ports::of(&self.fleet);
        self.by_each_caller(|caller| caller.prove_all(&ports));
    }

    fn count(&mut self) {
        let tally = &self.common.tally;
        let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.outcome.counts = Counts {
            hostile: number(&tally.hostile),
            dead: number(&tally.dead),
            suspensions: number(&tally.suspensions) + self.outcome.toll.suspensions,
            pings: number(&tally.pings),
            tricks: tally.tricks.lock().expect("callers that go on").clone(),
        };
    }

    fn by_each_caller(&mut self, work: impl Fn(Caller<'_>)) {
        let (sites, _) = self.fleet.split();
        for ledger in &mut self.ledgers {
            let caller = Caller {
                site: sites[ledger.host],
                ledger,
                common: &self.common,
                references: self.references.as_ref(),
                xdp: xdp_of(&self.xdp),
                quiet: true,
            };
            work(caller);
        }
    }

    /// All callers have fresh pods, spread over the hosts, and the references are attached.
    fn begin(&mut self) {
        let hosts = self.fleet.agents.len();
        self.ledgers =
            (0..CALLERS).map(|caller| Ledger::new(caller, caller % hosts, PODS)).collect();
        if self.hazards.contains(&Hazard::Traffic) {
            self.ledgers.push(Ledger::new(CALLERS, CALLERS % hosts, REFERENCES.len()));
        }
        self.attach_references();
    }

    fn attach_references(&mut self) {
        // While they are attached there are none to be reached.
        self.references = None;
        self.by_each_caller(|mut caller| {
            if caller.ledger.caller == CALLERS {
                caller.attach_first_interfaces(&REFERENCES);
            }
        });
        self.references = self.ledgers.get(CALLERS).map(References::of_pods);
    }

    /// All pods end with their host.
    fn reboot(&mut self, host: usize) {
        self.fleet.agents[host].program.crash();
        self.outcome.toll.kills += 1;
        let is_of_host = |ledger: &&mut Ledger| ledger.host == host;
        for ledger in self.ledgers.iter_mut().filter(is_of_host) {
            let containers = ledger.sandboxes().map(|sandbox| sandbox.container.as_str());
            self.common.forget_all(containers);
            ledger.begin_anew();
        }
        let agent = &mut self.fleet.agents[host];
        agent.new_boot_id(&format!("7d0c4ae0-0000-4000-9000-{:012}\n", self.rounds));
        agent.start();
        self.fleet.wait_until_good();
        // Those that stayed are as they were.
        self.attach_references();
        self.look();
    }
}

/// A DPU with these hosts, which share its VFs.
fn fleet_of(hosts: &[&'static str]) -> Fleet {
    let vfs = VFS / u32::try_from(hosts.len()).expect("few");
    let settings =
        Settings { cool_down: 1, quarantine_after: 100, proxied: true, ..Settings::with_vfs(vfs) };
    Fleet::start(&[DpuPlan { name: "dpu-1", hosts: hosts.to_vec(), settings }])
}

fn xdp_of(program: &Option<(TempDir, PathBuf)>) -> &str {
    program.as_ref().and_then(|(_, path)| path.to_str()).unwrap_or_default()
}
