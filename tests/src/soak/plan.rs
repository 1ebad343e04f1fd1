//! What a soak does: drawn from its seed alone, so that the same seed plans the same.

use std::time::Duration;

use super::{hazards::Hazard, ledger::Kind, tricks::Tricks};
use crate::{dice::Dice, victim::Victim};

/// Runtimes that call at the same time, each with its own pods.
pub(crate) const CALLERS: usize = 6;
/// Pods of each.
pub(crate) const PODS: [Kind; 3] = [Kind::OneByOne, Kind::OneByOne, Kind::AtOnce];
/// Interfaces of each pod.
pub(crate) const INTERFACES: [&str; 2] = ["eth0", "net1"];
/// Operations until all is looked at.
const OPERATIONS_OF_A_ROUND: usize = 50;
/// How often the pool is changed meanwhile: so often that about one guess of ten is wrong.
const CHANGES_OF_A_ROUND: usize = 2;

/// What a pod is attached to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Network {
    /// One of the service's configuration.
    Configured(&'static str),
    /// The caller's own, which it applies and deletes.
    Own,
}

/// What an ADD asks for by the runtime's configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    Nothing,
    /// A MAC address with this last byte. There are few, so that they are in use at times.
    Mac(u8),
    /// An IPv4 address of `blue` with this last byte, likewise.
    Address(u8),
}

/// When a caller is killed, counted from its start, and what its runtime does then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) after: Duration,
    pub(crate) then: Then,
}

/// What a runtime does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Del,
    Nothing,
}

/// When a program is suspended, counted from its start, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    pub(crate) after: Duration,
    pub(crate) lasting: Duration,
}

/// What a caller does to one interface of one pod, or to all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Add(Network, Wish),
    /// Two ADDs of the same interface at the same time.
    AddTwice(Network),
    /// An ADD, a DEL that does not wait for its answer, and another DEL.
    AddCutShort(Network),
    /// An ADD whose caller is killed, and perhaps a DEL.
    AddDying(Network, Death),
    /// Two ADDs of the same interface at the same time, one of whose callers is killed.
    AddTwiceDying(Network, Death),
    /// A DEL whose caller is killed, and perhaps another.
    DelDying(Death),
    /// An ADD whose caller is suspended meanwhile.
    AddSuspended(Network, Pause),
    /// A DEL likewise.
    DelSuspended(Pause),
    /// An ADD whose pod then does as it likes to its interface, and perhaps a DEL.
    Misuse(Network, Tricks, Then),
    Del,
    /// DEL twice, the second without a netns, as kubelet does.
    DelTwice,
    /// DEL of a container that never was.
    DelUnknown,
    Check,
    /// GC whose list lacks this one interface.
    Collect,
    Status,
    /// The pod's netns ends with whatever is in it, and is followed by DEL at once or late.
    EndNetns {
        late: bool,
    },
    /// The pod gets a new sandbox while the old one's DEL is late.
    Replace,
    /// The operator releases the attachment.
    Release,
    /// The caller's own network is applied.
    Apply,
    /// It is deleted, if nothing uses it.
    Delete,
}

impl Action {
    /// What it is part of.
    fn hazard(self) -> Option<Hazard> {
        match self {
            Self::AddDying(..) | Self::AddTwiceDying(..) | Self::DelDying(_) => Some(Hazard::Dying),
            Self::AddSuspended(..) | Self::DelSuspended(_) => Some(Hazard::Suspended),
            Self::Misuse(..) => Some(Hazard::Hostile),
            _ => None,
        }
    }
}

/// An action and what it is done to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) pod: usize,
    pub(crate) interface: usize,
    pub(crate) action: Action,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// A program is killed at any moment.
    Kill(Victim),
    /// It is killed at the point of this number.
    KillAtPoint(Victim, usize),
    /// The step of this number fails.
    FailStep(Victim, usize),
    /// This host and the DPU don't reach each other.
    Cut(usize),
    /// What this host and the DPU send each other waits, and comes late.
    Delay(usize),
    /// The card in this host is pulled out and plugged in again.
    ResetCard(usize),
    /// The service is killed and all cards are reset.
    RebootDpu,
    /// A program is suspended, and continued.
    Suspend(Victim),
    /// All programs read their configuration again, which harms nobody.
    Reload,
    /// The service's pool is changed, and what it promises; no host hears of it at first, which makes an ADD
    /// longer, and harms nobody.
    ChangePool,
}

/// A trouble, when it begins, counted from the one before, and how long it lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) trouble: Trouble,
    pub(crate) after: Duration,
    pub(crate) lasting: Duration,
}

/// What is done until all is looked at.
#[derive(Debug)]
pub(crate) struct Round {
    /// This host reboots before all else.
    pub(crate) reboots: Option<usize>,
    /// What each caller does, in this order.
    pub(crate) operations: [Vec<Operation>; CALLERS],
    /// What goes wrong meanwhile, in this order.
    pub(crate) faults: Vec<Fault>,
}

impl Round {
    /// Draws a round of at most that many operations on so many hosts. Without a hazard the rest stays
    /// the same.
    pub(crate) fn draw(dice: &mut Dice, at_most: usize, hosts: usize, hazards: &[Hazard]) -> Self {
        let mut operations: [Vec<Operation>; CALLERS] = Default::default();
        for _ in 0..OPERATIONS_OF_A_ROUND.min(at_most) {
            operations[dice.index(CALLERS)].push(operation(dice, hazards));
        }
        let faults = dice.weighted(&[(3, 0), (4, 1), (3, 2), (2, 3)]);
        let (reboots, host) = (dice.happens(3), dice.index(hosts));
        let mut changes: Vec<_> = (0..CHANGES_OF_A_ROUND).map(|_| change_of_pool(dice)).collect();
        changes.retain(|_| hazards.contains(&Hazard::Guesses));
        let faults = (0..faults).map(|_| fault(dice, hosts, hazards));
        // First, for a round may be over before its last fault.
        let faults = changes.into_iter().chain(faults).collect();
        Self { reboots: reboots.then_some(host), operations, faults }
    }

    /// How many operations it has.
    pub(crate) fn len(&self) -> usize {
        self.operations.iter().map(Vec::len).sum()
    }

    /// Whether nothing goes wrong, so that every call has to succeed.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_harmless = |trouble| matches!(trouble, Trouble::Reload | Trouble::ChangePool);
        self.faults.iter().all(|fault| is_harmless(fault.trouble))
    }
}

/// The rounds of a soak.
#[derive(Debug)]
pub(crate) struct Schedule {
    hazards: Vec<Hazard>,
    dice: Dice,
    planned: usize,
    rounds: usize,
}

impl Schedule {
    /// Rounds of so many operations together.
    pub(crate) fn new(planned: usize, seed: u64, hazards: &[Hazard]) -> Self {
        Self { hazards: hazards.to_vec(), dice: Dice::new(seed), planned, rounds: 0 }
    }

    /// The next round when so many operations are done. `None`: that was all.
    pub(crate) fn next(&mut self, done: usize, hosts: usize) -> Option<Round> {
        let left = self.planned - done;
        self.rounds += usize::from(left > 0);
        (left > 0).then(|| Round::draw(&mut self.dice, left, hosts, &self.hazards))
    }

    /// Whether it has that hazard.
    pub(crate) fn has(&self, hazard: Hazard) -> bool {
        self.hazards.contains(&hazard)
    }

    /// How many operations it has.
    pub(crate) fn planned(&self) -> usize {
        self.planned
    }

    /// How many rounds there were, the present one included.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds
    }
}

fn operation(dice: &mut Dice, hazards: &[Hazard]) -> Operation {
    let (pod, interface) = (dice.index(PODS.len()), dice.index(INTERFACES.len()));
    let network = network(dice);
    let (death, pause) = (death(dice), pause(dice));
    let (tricks, then) = (Tricks::draw(dice), then(dice));
    let action = dice.weighted(&[
        (340, Action::Add(network, Wish::Nothing)),
        (20, Action::Add(network, Wish::Mac(0))),
        (20, Action::Add(Network::Configured("blue"), Wish::Address(0))),
        (20, Action::AddTwice(network)),
        (20, Action::AddCutShort(network)),
        (25, Action::AddDying(network, death)),
        (15, Action::AddTwiceDying(network, death)),
        (15, Action::DelDying(death)),
        (10, Action::AddSuspended(network, pause)),
        (10, Action::DelSuspended(pause)),
        (80, Action::Misuse(network, tricks, then)),
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
    let action = specified(action, dice);
    let is_left_out = action.hazard().is_some_and(|hazard| !hazards.contains(&hazard));
    Operation { pod, interface, action: if is_left_out { Action::Status } else { action } }
}

/// Amid the call, or shortly after its end.
fn death(dice: &mut Dice) -> Death {
    Death { after: Duration::from_micros(dice.below(80_000)), then: then(dice) }
}

fn then(dice: &mut Dice) -> Then {
    dice.weighted(&[(1, Then::Del), (1, Then::Nothing)])
}

fn pause(dice: &mut Dice) -> Pause {
    Pause { after: Duration::from_micros(dice.below(40_000)), lasting: suspension(dice) }
}

/// Up to 3 s, mostly short; few outlast the patience of whoever waits.
fn suspension(dice: &mut Dice) -> Duration {
    let root = dice.below(1700);
    let milliseconds = if dice.happens(3) { 12_000 } else { 100 + root * root / 1000 };
    Duration::from_millis(milliseconds)
}

fn network(dice: &mut Dice) -> Network {
    dice.weighted(&[
        (8, Network::Configured("blue")),
        (4, Network::Configured("green")),
        (2, Network::Configured("wire")),
        (1, Network::Configured("tiny")),
        (3, Network::Own),
    ])
}

/// A wish is for one of few values.
fn specified(action: Action, dice: &mut Dice) -> Action {
    let value = u8::try_from(dice.below(12)).expect("less than 256");
    match action {
        Action::Add(network, Wish::Mac(_)) => Action::Add(network, Wish::Mac(value)),
        Action::Add(network, Wish::Address(_)) => Action::Add(network, Wish::Address(value)),
        other => other,
    }
}

fn fault(dice: &mut Dice, hosts: usize, hazards: &[Hazard]) -> Fault {
    let host = dice.index(hosts);
    let victim = dice.weighted(&[(1, Victim::Agent(host)), (1, Victim::Service)]);
    let number = dice.index(1000);
    let trouble = dice.weighted(&[
        (30, Trouble::Kill(victim)),
        (30, Trouble::KillAtPoint(victim, number)),
        (15, Trouble::FailStep(victim, number)),
        (40, Trouble::Cut(host)),
        (15, Trouble::Delay(host)),
        (4, Trouble::ResetCard(host)),
        (2, Trouble::RebootDpu),
        (20, Trouble::Suspend(victim)),
        (15, Trouble::Reload),
    ]);
    // Most are short, so that calls meet both ends of them; some outlast all patience.
    let brief = if dice.happens(6) { 4000 } else { dice.below(300) };
    let suspension = suspension(dice);
    let after = Duration::from_millis(dice.below(600));
    match trouble {
        Trouble::Suspend(_) if hazards.contains(&Hazard::Suspended) => {
            Fault { trouble, after, lasting: suspension }
        }
        Trouble::Suspend(_) => Fault { trouble: Trouble::Reload, after, lasting: Duration::ZERO },
        _ => Fault { trouble, after, lasting: Duration::from_millis(brief) },
    }
}

/// For as long as it takes until one of the callers has an ADD.
fn change_of_pool(dice: &mut Dice) -> Fault {
    let [after, lasting] = [dice.below(300), 800].map(Duration::from_millis);
    Fault { trouble: Trouble::ChangePool, after, lasting }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_plans_the_same() {
        let plan = |seed| {
            let mut dice = Dice::new(seed);
            (0..20)
                .map(|_| format!("{:?}", Round::draw(&mut dice, 1000, 2, &Hazard::ALL)))
                .collect::<Vec<_>>()
        };
        assert_eq!(plan(3), plan(3));
        assert_ne!(plan(3), plan(4));
    }

    #[test]
    fn a_last_round_is_no_longer_than_what_is_left() {
        assert_eq!(Round::draw(&mut Dice::new(1), 7, 1, &[]).len(), 7);
    }
}
