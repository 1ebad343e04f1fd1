//! Random operations by several callers while programs are killed, the network is cut and the card is reset. At
//! intervals everything comes to rest, and grants are compared with the actual state.
//!
//! `callers` make calls, `chaos` injects faults, and at each rest `audit` and `traffic` check.
//!
//! All operations derive from a seed and can be repeated. The kernel's scheduling of the callers cannot.

mod audit;
mod caller;
mod callers;
mod chaos;
mod cleanliness;
mod hazards;
mod hostile_changes;
mod ledger;
mod others;
mod outcome;
mod plan;
mod speculative_moves;
mod verification;
#[path = "../../../crates/netlink/tests/support/xdp.rs"]
mod xdp;

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use self::{
    audit::Baselines,
    callers::Callers,
    chaos::{Chaos, Points},
    outcome::Counts,
    plan::{Round, Schedule},
    speculative_moves::SpeculativeMovesByAgent,
    verification::Ports,
};
pub use self::{hazards::Hazard, outcome::Outcome};
use crate::{
    Crowd, CrowdBehaviour, CrowdSize, DpuPlan, Fleet, Settings, SlowService, Stopwatch,
    scenarios::delegates::OtherPlugins,
};

/// VFs of all hosts: fewer than interfaces, so that they run out at times.
const VFS: u32 = 20;
/// Names of the hosts, and their maximum number.
const HOSTS: [&str; 3] = ["node-1", "node-2", "node-3"];

/// Simulated hosts beside those.
const CROWD: CrowdSize = CrowdSize { hosts: 8, pods: 4 };
/// Loads the service but leaves the machine to the real hosts.
const CROWD_BEHAVIOUR: CrowdBehaviour =
    CrowdBehaviour { pause: Duration::from_millis(400), faults: true };

/// A running soak.
#[derive(Debug)]
pub struct Soak {
    /// The network of another plugin.
    _others: OtherPlugins,
    crowd: Option<Crowd>,
    fleet: Fleet,
    callers: Callers,
    schedule: Schedule,
    points: Points,
    baselines: Baselines,
    speculative_moves: SpeculativeMovesByAgent,
    started: Stopwatch,
    outcome: Outcome,
}

impl Soak {
    /// Starts a DPU with 1 to 3 hosts for `operations`, with these hazards, and optionally a slow service.
    ///
    /// # Panics
    /// If they do not come up.
    #[must_use]
    pub fn start(
        hosts: usize,
        operations: usize,
        seed: u64,
        hazards: &[Hazard],
        slow: Option<&Arc<SlowService>>,
    ) -> Self {
        let others = OtherPlugins::with_links(others::NETWORK, others::LEASED);
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
            baselines: Baselines::of(&fleet),
            speculative_moves: SpeculativeMovesByAgent::default(),
            started: Stopwatch::start(),
            outcome: Outcome::default(),
            fleet,
            _others: others,
        };
        soak.callers.attach_references(&soak.fleet.hosts());
        soak
    }

    /// Delays each TLS record between hosts and DPU, in both directions.
    pub fn delay(&self, latency: Duration) {
        self.fleet.delay(latency);
    }

    /// Folder of configuration, logs and state. It stays if the soak fails.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.fleet.path().to_owned()
    }

    /// Runs the next round. Returns whether there was one and everything is in order.
    ///
    /// # Panics
    /// If a program does not start again, or crashes without a fault.
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

    /// Detaches everything and checks a last time.
    ///
    /// # Panics
    /// Like [`Self::advance`].
    #[must_use]
    pub fn end(mut self) -> Outcome {
        if self.outcome.is_good() {
            self.callers.each(&self.fleet.hosts(), |mut caller| caller.leave());
            self.crowd.iter_mut().for_each(Crowd::leave);
            self.look();
        }
        self.outcome.require_strikes();
        if self.schedule.has(Hazard::SpeculativeMoves) {
            self.outcome.require_wrong_moves();
        }
        if self.crowd.is_some() {
            self.outcome.require_crowd_grants();
        }
        self.fleet.keep_folder(!self.outcome.is_good());
        self.outcome
    }

    /// Progress, as text.
    #[must_use]
    pub fn progress(&self) -> String {
        let Outcome { operations, fault_counts, counts, .. } = &self.outcome;
        let per_second = *operations as f64 / self.started.elapsed().as_secs_f64();
        format!(
            "{operations} of {} operations in {} rounds, {} kills, {} cuts, {} delays, {} failed steps, {} of {} armed faults, \
             {} card resets, {} hostile pods with {} tricks, {} dead callers, {} suspensions, \
             {} of {} speculative moves wrong, {} calls of a crowd, {} pings; {per_second:.0} operations a second",
            self.schedule.planned(),
            self.schedule.rounds(),
            fault_counts.kills,
            fault_counts.cuts,
            fault_counts.delays,
            fault_counts.failed_steps,
            fault_counts.struck,
            fault_counts.armed,
            fault_counts.resets,
            counts.hostile,
            counts.hostile_changes.values().filter(|passed| **passed).count(),
            counts.dead,
            counts.suspensions,
            counts.speculative_moves.wrong,
            counts.speculative_moves.all(),
            counts.calls_of_crowd,
            counts.pings
        )
    }

    /// Number of rounds, including the present one.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.schedule.rounds()
    }

    /// Number of finished operations.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.outcome.operations
    }

    fn run(&mut self, round: &Round) {
        let Self { crowd, fleet, callers, points, outcome, .. } = self;
        let (hosts, machines) = fleet.split();
        let fault_counts = &mut outcome.fault_counts;
        callers.perform(&hosts, round, |common, done| {
            let over = || done.load(Ordering::Acquire);
            thread::scope(|scope| {
                let play = |crowd: &mut Crowd| crowd.play(CROWD_BEHAVIOUR, over);
                scope.spawn(move || crowd.iter_mut().for_each(play));
                Chaos { machines, points, fault_counts, common }.wreak(&round.faults, done);
            });
        });
    }

    /// Waits for rest, and compares.
    fn look(&mut self) {
        self.fleet.wait_until_good();
        self.callers.each(&self.fleet.hosts(), |mut caller| caller.settle());
        self.crowd.iter_mut().for_each(Crowd::settle);
        let Self { fleet, callers, crowd, baselines, .. } = self;
        let violations = audit::violations(fleet, callers.ledgers(), crowd.as_ref(), baselines);
        let is_at_rest = violations.is_empty();
        self.outcome.violations.extend(violations);
        if is_at_rest {
            self.verify_all();
            self.callers.common().note_rest();
        }
        let common = self.callers.common();
        self.outcome.violations.extend(common.take_breaches());
        let speculative_moves = self.speculative_moves.ask(&self.fleet);
        let calls = self.crowd.iter_mut().map(|crowd| crowd.take_tally().granted()).sum::<usize>();
        let calls = self.outcome.counts.calls_of_crowd + calls;
        self.outcome.counts =
            Counts::of(&common.tally, &self.outcome.fault_counts, speculative_moves, calls);
    }

    /// Checks that each pod has its network after repairs, and no other VF receives its traffic.
    fn verify_all(&mut self) {
        let ports = Ports::of(&self.fleet);
        self.callers.each(&self.fleet.hosts(), |caller| caller.verify_all(&ports));
    }

    /// Ends all pods of a host.
    fn reboot(&mut self, host: usize) {
        self.fleet.agents[host].program.crash();
        self.outcome.fault_counts.kills += 1;
        self.callers.replace_pods_of(host);
        let agent = &mut self.fleet.agents[host];
        agent.new_boot_id(&format!("7d0c4ae0-0000-4000-9000-{:012}\n", self.schedule.rounds()));
        agent.start();
        self.fleet.wait_until_good();
        // VFs that stayed must have their baseline.
        self.callers.attach_references(&self.fleet.hosts());
        self.look();
    }
}

/// A DPU with these hosts, which share its VFs, and optionally a crowd with its own VFs.
fn fleet_of(
    hosts: &[&'static str],
    has_crowd: bool,
    slow: Option<Arc<SlowService>>,
    others: &OtherPlugins,
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
