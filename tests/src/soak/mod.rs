//! Random operations by several callers while programs are killed, the network is cut and the card is
//! reset; every so often all comes to rest, and what was promised is compared with what is there.
//!
//! `callers` call, `chaos` breaks what is around them, and at each rest `audit` and `proof` check.
//!
//! What is done is drawn from a seed, so that it can be done again; in which order the kernel lets the
//! callers go is its own affair.

mod audit;
mod caller;
mod callers;
mod chaos;
mod cleanliness;
mod guesses;
mod hazards;
mod ledger;
mod others;
mod outcome;
mod plan;
mod proof;
mod tricks;
#[path = "../../../crates/netlink/tests/support/xdp.rs"]
mod xdp;

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use self::{
    audit::Originals,
    callers::Callers,
    chaos::{Chaos, Points},
    guesses::GuessesByAgent,
    outcome::Counts,
    plan::{Round, Schedule},
    proof::Ports,
};
pub use self::{hazards::Hazard, outcome::Outcome};
use crate::{
    Crowd, CrowdSize, DpuPlan, Fleet, Manners, Settings, SlowService, Stopwatch,
    scenarios::delegates::Others,
};

/// VFs of all hosts: fewer than interfaces, so that they run out at times.
const VFS: u32 = 20;
/// What the hosts are called. There are no more.
const HOSTS: [&str; 3] = ["node-1", "node-2", "node-3"];

/// Hosts that are played, beside those.
const CROWD: CrowdSize = CrowdSize { hosts: 8, pods: 4 };
/// So that they load the service, and leave the machine to those.
const CROWDS_MANNERS: Manners = Manners { pause: Duration::from_millis(400), faults: true };

/// A soak that goes on.
#[derive(Debug)]
pub struct Soak {
    /// The network of another plugin.
    _others: Others,
    crowd: Option<Crowd>,
    fleet: Fleet,
    callers: Callers,
    schedule: Schedule,
    points: Points,
    originals: Originals,
    guesses: GuessesByAgent,
    started: Stopwatch,
    outcome: Outcome,
}

impl Soak {
    /// Brings a DPU and so many hosts up, 1 to 3, on which `operations` are going to be done, with these
    /// hazards, and perhaps a service that is slow.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn start(
        hosts: usize,
        operations: usize,
        seed: u64,
        hazards: &[Hazard],
        slow: Option<&Arc<SlowService>>,
    ) -> Self {
        let others = Others::with_links(others::NETWORK, others::LEASED);
        let has_crowd = hazards.contains(&Hazard::Crowd);
        let mut fleet = fleet_of(&HOSTS[..hosts], has_crowd, slow.cloned(), &others);
        if let Some(slow) = slow {
            slow.assert_slows(&fleet.dpus[0].service);
        }
        fleet.keep_folder(true);
        let mut soak = Self {
            crowd: has_crowd.then(|| fleet.play_crowd(CROWD, seed)),
            callers: Callers::new(hosts, hazards.contains(&Hazard::Traffic)),
            schedule: Schedule::new(operations, seed, hazards),
            points: Points::ask(),
            originals: Originals::of(&fleet),
            guesses: GuessesByAgent::default(),
            started: Stopwatch::start(),
            outcome: Outcome::default(),
            fleet,
            _others: others,
        };
        soak.callers.attach_references(&soak.fleet.hosts());
        soak
    }

    /// Has each record between hosts and DPU take so long on its way from now on, in either direction.
    pub fn delay(&self, latency: Duration) {
        self.fleet.delay(latency);
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
        if !self.outcome.is_good() {
            return false;
        }
        let (done, hosts) = (self.outcome.operations, self.fleet.agents.len());
        let Some(round) = self.schedule.next(done, hosts) else { return false };
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
            self.callers.each(&self.fleet.hosts(), |mut caller| caller.leave());
            self.crowd.iter_mut().for_each(Crowd::leave);
            self.look();
        }
        self.outcome.miss_faults();
        if self.schedule.has(Hazard::Guesses) {
            self.outcome.miss_wrong_guesses();
        }
        if self.crowd.is_some() {
            self.outcome.miss_idle_crowd();
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
            "{operations} of {} operations in {} rounds, {} kills, {} cuts, {} delays, {} failed steps, {} of {} armed faults, \
             {} card resets, {} hostile pods with {} tricks, {} dead callers, {} suspensions, \
             {} of {} guesses wrong, {} calls of a crowd, {} pings; {per_second:.0} operations a second",
            self.schedule.planned(),
            self.schedule.rounds(),
            toll.kills,
            toll.cuts,
            toll.delays,
            toll.failed_steps,
            toll.struck,
            toll.armed,
            toll.resets,
            counts.hostile,
            counts.tricks.values().filter(|passed| **passed).count(),
            counts.dead,
            counts.suspensions,
            counts.guesses.wrong,
            counts.guesses.all(),
            counts.calls_of_crowd,
            counts.pings
        )
    }

    /// How many rounds there were, the present one included.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.schedule.rounds()
    }

    /// How many operations are done.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.outcome.operations
    }

    fn run(&mut self, round: &Round) {
        let Self { crowd, fleet, callers, points, outcome, .. } = self;
        let (hosts, machines) = fleet.split();
        let toll = &mut outcome.toll;
        callers.perform(&hosts, round, |common, done| {
            let over = || done.load(Ordering::Acquire);
            thread::scope(|scope| {
                let play = |crowd: &mut Crowd| crowd.play(CROWDS_MANNERS, over);
                scope.spawn(move || crowd.iter_mut().for_each(play));
                Chaos { machines, points, toll, common }.wreak(&round.faults, done);
            });
        });
    }

    /// Brings all to rest, and compares.
    fn look(&mut self) {
        self.fleet.wait_until_good();
        self.callers.each(&self.fleet.hosts(), |mut caller| caller.settle());
        self.crowd.iter_mut().for_each(Crowd::settle);
        let Self { fleet, callers, crowd, originals, .. } = self;
        let breaches = audit::breaches(fleet, callers.ledgers(), crowd.as_ref(), originals);
        let is_at_rest = breaches.is_empty();
        self.outcome.breaches.extend(breaches);
        if is_at_rest {
            self.prove_all();
            self.callers.common().note_rest();
        }
        let common = self.callers.common();
        self.outcome.breaches.extend(common.take_breaches());
        let guesses = self.guesses.ask(&self.fleet);
        let calls = self.crowd.iter_mut().map(|crowd| crowd.take_tally().granted()).sum::<usize>();
        let calls = self.outcome.counts.calls_of_crowd + calls;
        self.outcome.counts = Counts::of(&common.tally, &self.outcome.toll, guesses, calls);
    }

    /// Each pod has its network, whatever has been repaired, and no other VF gets what is its own.
    fn prove_all(&mut self) {
        let ports = Ports::of(&self.fleet);
        self.callers.each(&self.fleet.hosts(), |caller| caller.prove_all(&ports));
    }

    /// All pods end with their host.
    fn reboot(&mut self, host: usize) {
        self.fleet.agents[host].program.crash();
        self.outcome.toll.kills += 1;
        self.callers.begin_anew_on(host);
        let agent = &mut self.fleet.agents[host];
        agent.new_boot_id(&format!("7d0c4ae0-0000-4000-9000-{:012}\n", self.schedule.rounds()));
        agent.start();
        self.fleet.wait_until_good();
        // Those that stayed are as they were.
        self.callers.attach_references(&self.fleet.hosts());
        self.look();
    }
}

/// A DPU with these hosts, which share its VFs, and perhaps a crowd, which has its own.
fn fleet_of(
    hosts: &[&'static str],
    has_crowd: bool,
    slow: Option<Arc<SlowService>>,
    others: &Others,
) -> Fleet {
    let vfs = VFS / u32::try_from(hosts.len()).expect("few");
    let settings = Settings {
        cool_down: 1,
        quarantine_after: 100,
        proxied: true,
        has_metrics: true,
        service: if has_crowd { CROWD.sections() } else { String::new() },
        slow,
        ..Settings::with_vfs(vfs)
    };
    let mut settings = others.in_lab(&settings);
    settings.networks.push_str(&others::leased_network());
    Fleet::start(&[DpuPlan { name: "dpu-1", hosts: hosts.to_vec(), settings }])
}
