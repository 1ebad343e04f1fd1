//! The plan of a soak, derived from its seed alone.

use std::time::Duration;

use super::{hazards::Hazard, hostile_changes::HostileChanges, ledger::Kind};
use crate::{fault_target::FaultTarget, rng::Rng};

/// Concurrent runtimes, each with its own pods.
pub(crate) const CALLERS: usize = 6;
/// Pods of each runtime.
pub(crate) const PODS: [Kind; 3] = [Kind::OneByOne, Kind::OneByOne, Kind::AtOnce];
/// Interfaces of each pod.
pub(crate) const INTERFACES: [&str; 2] = ["eth0", "net1"];
/// Operations between two checks.
const OPERATIONS_OF_A_ROUND: usize = 50;
/// Pool changes in a round, so that about one of ten speculative moves is wrong.
const CHANGES_OF_A_ROUND: usize = 2;

/// Network of an ADD.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Network {
    /// A network of the service's configuration.
    Configured(&'static str),
    /// The caller's own network, which it applies and deletes.
    Own,
}

/// Options of an ADD in the runtime's configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddOption {
    Nothing,
    /// A MAC address with this last byte. There are few, so that some are in use.
    Mac(u8),
    /// An IPv4 address of `blue` with this last byte. There are few.
    Address(u8),
}

/// When a caller is killed after its start, and what its runtime does then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) after: Duration,
    pub(crate) then: Then,
}

/// Next call of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Del,
    Nothing,
}

/// When a program is suspended after its start, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    pub(crate) after: Duration,
    pub(crate) lasting: Duration,
}

/// What a caller does to one interface of a pod, or to all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Add(Network, AddOption),
    /// Two concurrent ADDs of the same interface.
    AddTwice(Network),
    /// An ADD, a DEL that does not wait for its answer, and another DEL.
    AddCutShort(Network),
    /// An ADD whose caller is killed, and perhaps a DEL.
    AddDying(Network, Death),
    /// Two concurrent ADDs of the same interface, one of whose callers is killed.
    AddTwiceDying(Network, Death),
    /// A DEL whose caller is killed, and perhaps another.
    DelDying(Death),
    /// An ADD whose caller is suspended.
    AddSuspended(Network, Pause),
    /// A DEL whose caller is suspended.
    DelSuspended(Pause),
    /// An ADD whose pod then changes its interface, and perhaps a DEL.
    Misuse(Network, HostileChanges, Then),
    Del,
    /// DEL twice, the second without a netns, as the kubelet does.
    DelTwice,
    /// DEL of an unknown container.
    DelUnknown,
    Check,
    /// GC whose list lacks only this interface.
    Collect,
    Status,
    /// The pod's netns ends, followed by DEL at once or late.
    EndNetns {
        late: bool,
    },
    /// The pod gets a new sandbox while the old one's DEL is late.
    Replace,
    /// The operator releases the attachment.
    Release,
    /// The operator applies the caller's own network.
    Apply,
    /// The operator deletes that network, if it is unused.
    Delete,
}

impl Action {
    /// The hazard to which it belongs.
    fn hazard(self) -> Option<Hazard> {
        match self {
            Self::AddDying(..) | Self::AddTwiceDying(..) | Self::DelDying(_) => Some(Hazard::Dying),
            Self::AddSuspended(..) | Self::DelSuspended(_) => Some(Hazard::Suspended),
            Self::Misuse(..) => Some(Hazard::Hostile),
            _ => None,
        }
    }
}

/// An action and its object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) pod: usize,
    pub(crate) interface: usize,
    pub(crate) action: Action,
}

/// A fault to inject.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// A program is killed at any moment.
    Kill(FaultTarget),
    /// A program is killed at the point with this number.
    KillAtPoint(FaultTarget, usize),
    /// The step with this number fails.
    FailStep(FaultTarget, usize),
    /// This host and the DPU do not reach each other.
    Cut(usize),
    /// Messages between this host and the DPU are delayed.
    Delay(usize),
    /// The card in this host is reset.
    ResetCard(usize),
    /// The service is killed and all cards are reset.
    RebootDpu,
    /// A program is suspended and continued.
    Suspend(FaultTarget),
    /// All programs reload their configuration, which must be harmless.
    Reload,
    /// The service's pool and offers change. Hosts learn it late, which must only slow down an ADD.
    ChangePool,
}

/// A fault with its start, counted from the previous one, and its duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) trouble: Trouble,
    pub(crate) after: Duration,
    pub(crate) lasting: Duration,
}

/// The operations between two checks.
#[derive(Debug)]
pub(crate) struct Round {
    /// This host reboots first.
    pub(crate) reboots: Option<usize>,
    /// Operations of each caller, in order.
    pub(crate) operations: [Vec<Operation>; CALLERS],
    /// Faults, in order.
    pub(crate) faults: Vec<Fault>,
}

impl Round {
    /// Draws a round of at most that many operations on these hosts. Disabling a hazard does not change the rest of the
    /// sequence.
    pub(crate) fn draw(rng: &mut Rng, at_most: usize, hosts: usize, hazards: &[Hazard]) -> Self {
        let mut operations: [Vec<Operation>; CALLERS] = Default::default();
        for _ in 0..OPERATIONS_OF_A_ROUND.min(at_most) {
            operations[rng.index(CALLERS)].push(operation(rng, hazards));
        }
        let faults = rng.weighted(&[(3, 0), (4, 1), (3, 2), (2, 3)]);
        let (reboots, host) = (rng.happens(3), rng.index(hosts));
        let mut changes: Vec<_> = (0..CHANGES_OF_A_ROUND).map(|_| change_of_pool(rng)).collect();
        changes.retain(|_| hazards.contains(&Hazard::SpeculativeMoves));
        let faults = (0..faults).map(|_| fault(rng, hosts, hazards));
        // First, because a round may end before its last fault.
        let faults = changes.into_iter().chain(faults).collect();
        Self { reboots: reboots.then_some(host), operations, faults }
    }

    /// Number of operations.
    pub(crate) fn len(&self) -> usize {
        self.operations.iter().map(Vec::len).sum()
    }

    /// Whether no fault is injected, so that every call must succeed.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_harmless = |trouble| matches!(trouble, Trouble::Reload | Trouble::ChangePool);
        self.faults.iter().all(|fault| is_harmless(fault.trouble))
    }
}

/// The rounds of a soak.
#[derive(Debug)]
pub(crate) struct Schedule {
    hazards: Vec<Hazard>,
    rng: Rng,
    planned: usize,
    rounds: usize,
}

impl Schedule {
    /// Plans rounds with this many operations in total.
    pub(crate) fn new(planned: usize, seed: u64, hazards: &[Hazard]) -> Self {
        Self { hazards: hazards.to_vec(), rng: Rng::new(seed), planned, rounds: 0 }
    }

    /// The next round after this many operations. `None`: the plan is complete.
    pub(crate) fn next(&mut self, done: usize, hosts: usize) -> Option<Round> {
        let left = self.planned - done;
        self.rounds += usize::from(left > 0);
        (left > 0).then(|| Round::draw(&mut self.rng, left, hosts, &self.hazards))
    }

    /// Whether the plan has this hazard.
    pub(crate) fn has(&self, hazard: Hazard) -> bool {
        self.hazards.contains(&hazard)
    }

    /// Number of planned operations.
    pub(crate) fn planned(&self) -> usize {
        self.planned
    }

    /// Number of rounds, including the present one.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds
    }
}

fn operation(rng: &mut Rng, hazards: &[Hazard]) -> Operation {
    let (pod, interface) = (rng.index(PODS.len()), rng.index(INTERFACES.len()));
    let network = network(rng);
    let (death, pause) = (death(rng), pause(rng));
    let (hostile_changes, then) = (HostileChanges::draw(rng), then(rng));
    let action = rng.weighted(&[
        (340, Action::Add(network, AddOption::Nothing)),
        (20, Action::Add(network, AddOption::Mac(0))),
        (20, Action::Add(Network::Configured("blue"), AddOption::Address(0))),
        (20, Action::AddTwice(network)),
        (20, Action::AddCutShort(network)),
        (25, Action::AddDying(network, death)),
        (15, Action::AddTwiceDying(network, death)),
        (15, Action::DelDying(death)),
        (10, Action::AddSuspended(network, pause)),
        (10, Action::DelSuspended(pause)),
        (80, Action::Misuse(network, hostile_changes, then)),
        (220, Action::Del),
        (40, Action::DelTwice),
        (20, Action::DelUnknown),
        (80, Action::Check),
        (20, Action::Collect),
        (50, Action::Status),
        (25, Action::EndNetns { late: false }),
        (25, Action::EndNetns { late: true }),
        (20, Action::Replace),
        (30, Action::Release),
        (30, Action::Apply),
        (20, Action::Delete),
    ]);
    let action = specified(action, rng);
    let is_left_out = action.hazard().is_some_and(|hazard| !hazards.contains(&hazard));
    Operation { pod, interface, action: if is_left_out { Action::Status } else { action } }
}

/// A moment during the call or shortly after it.
fn death(rng: &mut Rng) -> Death {
    Death { after: Duration::from_micros(rng.below(80_000)), then: then(rng) }
}

fn then(rng: &mut Rng) -> Then {
    rng.weighted(&[(1, Then::Del), (1, Then::Nothing)])
}

fn pause(rng: &mut Rng) -> Pause {
    Pause { after: Duration::from_micros(rng.below(40_000)), lasting: suspension(rng) }
}

/// Up to 3 s, mostly short. Few exceed the timeouts.
fn suspension(rng: &mut Rng) -> Duration {
    let root = rng.below(1700);
    let milliseconds = if rng.happens(3) { 12_000 } else { 100 + root * root / 1000 };
    Duration::from_millis(milliseconds)
}

fn network(rng: &mut Rng) -> Network {
    rng.weighted(&[
        (8, Network::Configured("blue")),
        (4, Network::Configured("green")),
        (2, Network::Configured("wire")),
        (1, Network::Configured("tiny")),
        (3, Network::Own),
    ])
}

/// Each option has few values.
fn specified(action: Action, rng: &mut Rng) -> Action {
    let value = u8::try_from(rng.below(12)).expect("less than 256");
    match action {
        Action::Add(network, AddOption::Mac(_)) => Action::Add(network, AddOption::Mac(value)),
        Action::Add(network, AddOption::Address(_)) => {
            Action::Add(network, AddOption::Address(value))
        }
        other => other,
    }
}

fn fault(rng: &mut Rng, hosts: usize, hazards: &[Hazard]) -> Fault {
    let host = rng.index(hosts);
    let fault_target = rng.weighted(&[(1, FaultTarget::Agent(host)), (1, FaultTarget::Service)]);
    let number = rng.index(1000);
    let trouble = rng.weighted(&[
        (30, Trouble::Kill(fault_target)),
        (30, Trouble::KillAtPoint(fault_target, number)),
        (15, Trouble::FailStep(fault_target, number)),
        (40, Trouble::Cut(host)),
        (15, Trouble::Delay(host)),
        (4, Trouble::ResetCard(host)),
        (2, Trouble::RebootDpu),
        (20, Trouble::Suspend(fault_target)),
        (15, Trouble::Reload),
    ]);
    // Most faults are short, so that calls meet their start and end. Some exceed all timeouts.
    let brief = if rng.happens(6) { 4000 } else { rng.below(300) };
    let suspension = suspension(rng);
    let after = Duration::from_millis(rng.below(600));
    match trouble {
        Trouble::Suspend(_) if hazards.contains(&Hazard::Suspended) => {
            Fault { trouble, after, lasting: suspension }
        }
        Trouble::Suspend(_) => Fault { trouble: Trouble::Reload, after, lasting: Duration::ZERO },
        _ => Fault { trouble, after, lasting: Duration::from_millis(brief) },
    }
}

/// Lasts until one of the callers makes an ADD.
fn change_of_pool(rng: &mut Rng) -> Fault {
    let [after, lasting] = [rng.below(300), 800].map(Duration::from_millis);
    Fault { trouble: Trouble::ChangePool, after, lasting }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_plan() {
        let plan = |seed| {
            let mut rng = Rng::new(seed);
            (0..20)
                .map(|_| format!("{:?}", Round::draw(&mut rng, 1000, 2, &Hazard::ALL)))
                .collect::<Vec<_>>()
        };
        assert_eq!(plan(3), plan(3));
        assert_ne!(plan(3), plan(4));
    }

    #[test]
    fn last_round_fits_remaining_operations() {
        assert_eq!(Round::draw(&mut Rng::new(1), 7, 1, &[]).len(), 7);
    }
}
