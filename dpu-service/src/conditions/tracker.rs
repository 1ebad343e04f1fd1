//! When faults begin and end to change a condition. Pure: the caller passes the time.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Instant,
};

use jiff::Timestamp;
use offload_proto::{
    ConditionReason,
    condition::AS_EXPECTED,
    v1::{ConditionStatus, ConditionType},
};

use super::fault::Fault;

/// A moment on the monotonic clock and on the wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) instant: Instant,
    pub(super) time: Timestamp,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self { instant: Instant::now(), time: Timestamp::now() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) kind: ConditionType,
    pub(crate) status: ConditionStatus,
    pub(crate) reason: &'static str,
    /// The object. Empty: the condition's type as a whole.
    pub(crate) object: String,
    /// One sentence. Empty if the condition is true.
    pub(crate) message: String,
    pub(crate) since: Timestamp,
    pub(crate) checked: Timestamp,
    /// Whether pods lose traffic, or new ones cannot start.
    pub(crate) affects_pods: bool,
}

impl Condition {
    /// The only condition of a service that could not open its journal.
    pub(crate) fn not_serving() -> Self {
        let reason = ConditionReason::NotServing;
        let now = Timestamp::now();
        Self {
            kind: reason.condition(),
            status: reason.status(),
            reason: reason.as_str(),
            object: "dpu".into(),
            message: String::new(),
            since: now,
            checked: now,
            affects_pods: reason.affects_pods(),
        }
    }
}

/// Current faults, and those that ended a moment ago.
#[derive(Debug)]
pub(super) struct Tracker {
    faults: BTreeMap<(ConditionReason, String), Tracked>,
    /// Time since when no fault of a type is shown. Types that never had one are missing.
    true_since: BTreeMap<i32, Timestamp>,
    started: Timestamp,
    checked: Timestamp,
    first_look: Option<Instant>,
}

#[derive(Debug)]
struct Tracked {
    message: String,
    began: Moment,
    seen: Instant,
    /// The fault has held long enough to change its condition.
    is_shown: bool,
}

impl Tracker {
    pub(super) const fn new(now: Moment) -> Self {
        Self {
            faults: BTreeMap::new(),
            true_since: BTreeMap::new(),
            started: now.time,
            checked: now.time,
            first_look: None,
        }
    }

    /// Processes the complete list of current faults. Returns the conditions that changed.
    pub(super) fn observe(&mut self, found: Vec<Fault>, now: Moment) -> Vec<Condition> {
        self.checked = now.time;
        self.first_look.get_or_insert(now.instant);
        found.into_iter().for_each(|fault| self.note(fault, now));
        let mut turned = self.begun(now);
        turned.extend(self.ended(now));
        turned
    }

    /// Joins two faults with the same object and reason into one, with both messages.
    fn note(&mut self, fault: Fault, now: Moment) {
        let Fault { reason, object, message } = fault;
        match self.faults.entry((reason, object)) {
            Entry::Vacant(entry) => {
                let (began, seen) = (now, now.instant);
                entry.insert(Tracked { message, began, seen, is_shown: false });
            }
            // A second fault of this object and reason in the same look.
            Entry::Occupied(mut entry) if entry.get().seen == now.instant => {
                let tracked = entry.get_mut();
                if !tracked.message.contains(&message) {
                    tracked.message = format!("{}; {message}", tracked.message);
                }
            }
            Entry::Occupied(mut entry) => {
                let tracked = entry.get_mut();
                (tracked.message, tracked.seen) = (message, now.instant);
            }
        }
    }

    /// Shows faults that have held long enough. Returns their conditions.
    fn begun(&mut self, now: Moment) -> Vec<Condition> {
        let mut begun = Vec::new();
        for ((reason, object), tracked) in &mut self.faults {
            let has_held = now.instant - tracked.began.instant >= reason.begins_after();
            if !tracked.is_shown && tracked.seen == now.instant && has_held {
                tracked.is_shown = true;
                begun.push(condition(*reason, object, tracked, now.time));
            }
        }
        begun
    }

    /// Forgets faults that have been gone long enough. Returns true conditions for those that were shown, unless the
    /// object has another fault of the same type.
    fn ended(&mut self, now: Moment) -> Vec<Condition> {
        let mut over = BTreeSet::new();
        self.faults.retain(|(reason, object), tracked| {
            let gone = now.instant - tracked.seen;
            let is_over =
                tracked.seen != now.instant && (!tracked.is_shown || gone >= reason.ends_after());
            if is_over && tracked.is_shown {
                over.insert((reason.condition(), object.clone()));
            }
            !is_over
        });
        let mut ended = Vec::new();
        for (kind, object) in over {
            if self.shown(kind).next().is_none() {
                self.true_since.insert(kind.into(), now.time);
            }
            if !self.shown(kind).any(|other| *other == object) {
                ended.push(self.as_true(kind, object, now.time));
            }
        }
        ended
    }

    fn shown(&self, kind: ConditionType) -> impl Iterator<Item = &String> {
        let is_it = move |((reason, _), tracked): &(&(ConditionReason, String), &Tracked)| {
            tracked.is_shown && reason.condition() == kind
        };
        self.faults.iter().filter(is_it).map(|((_, object), _)| object)
    }

    /// The conditions, in the order of their types.
    pub(super) fn conditions(&self, has_no_cards: bool) -> Vec<Condition> {
        let mut all = Vec::new();
        for kind in ConditionType::ALL {
            let shown = self
                .faults
                .iter()
                .filter(|((reason, _), tracked)| tracked.is_shown && reason.condition() == kind);
            let before = all.len();
            let checked = self.checked;
            all.extend(shown.map(|((reason, object), it)| condition(*reason, object, it, checked)));
            // Without cards `Offloaded` has no meaning.
            if all.len() == before && !(kind == ConditionType::Offloaded && has_no_cards) {
                let since = self.true_since.get(&kind.into()).copied().unwrap_or(self.started);
                let as_true = || self.as_true(kind, String::new(), since);
                all.push(self.undecided(kind).unwrap_or_else(as_true));
            }
        }
        all
    }

    /// A condition of unknown status: the first look found a fault of the type that has not held long enough yet. The
    /// condition was never known to be true.
    fn undecided(&self, kind: ConditionType) -> Option<Condition> {
        let is_undecided =
            |tracked: &Tracked| !tracked.is_shown && Some(tracked.began.instant) == self.first_look;
        let ((reason, object), tracked) = self
            .faults
            .iter()
            .find(|((reason, _), tracked)| reason.condition() == kind && is_undecided(tracked))?;
        let fault = condition(*reason, object, tracked, self.checked);
        Some(Condition { status: ConditionStatus::Unknown, ..fault })
    }

    const fn as_true(&self, kind: ConditionType, object: String, since: Timestamp) -> Condition {
        Condition {
            kind,
            status: ConditionStatus::True,
            reason: AS_EXPECTED,
            object,
            message: String::new(),
            since,
            checked: self.checked,
            affects_pods: false,
        }
    }
}

fn condition(
    reason: ConditionReason,
    object: &str,
    tracked: &Tracked,
    checked: Timestamp,
) -> Condition {
    Condition {
        kind: reason.condition(),
        status: reason.status(),
        reason: reason.as_str(),
        object: object.to_owned(),
        message: tracked.message.clone(),
        since: tracked.began.time,
        checked,
        affects_pods: reason.affects_pods(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const REASON: ConditionReason = ConditionReason::UplinkDown;

    fn down(object: &str) -> Vec<Fault> {
        vec![Fault { reason: REASON, object: object.into(), message: "no carrier".into() }]
    }

    fn text(tracker: &Tracker) -> Vec<Condition> {
        let all = tracker.conditions(true).into_iter();
        all.filter(|condition| condition.kind == REASON.condition()).collect()
    }

    struct Clock(Moment);

    impl Clock {
        fn after(&self, milliseconds: u64) -> Moment {
            let later = Duration::from_millis(milliseconds);
            let Moment { instant, time } = self.0;
            Moment { instant: instant + later, time: time + later }
        }
    }

    #[test]
    fn condition_turns_false_after_its_fault_has_held() {
        let clock = Clock(Moment::now());
        let mut tracker = Tracker::new(clock.0);
        tracker.observe(Vec::new(), Moment::now());
        assert_eq!(tracker.observe(down("uplink/p0"), clock.after(0)), []);
        assert_eq!(text(&tracker)[0].status, ConditionStatus::True);
        let turned = tracker.observe(down("uplink/p0"), clock.after(1000));
        assert_eq!(turned, text(&tracker));
        let expected = (ConditionStatus::False, "UPLINK_DOWN", "uplink/p0", clock.0.time);
        let Condition { status, reason, object, since, .. } = &turned[0];
        assert_eq!((*status, *reason, &**object, *since), expected);
        assert_eq!(tracker.observe(down("uplink/p0"), clock.after(1500)), [], "it turns once");
    }

    #[test]
    fn fault_of_the_first_look_is_unknown() {
        let clock = Clock(Moment::now());
        let mut tracker = Tracker::new(clock.0);
        assert_eq!(tracker.observe(down("uplink/p0"), clock.after(0)), [], "nothing has turned");
        let Condition { status, reason, object, message, .. } = &text(&tracker)[0];
        assert_eq!((*status, *reason), (ConditionStatus::Unknown, "UPLINK_DOWN"));
        assert_eq!((object.as_str(), message.as_str()), ("uplink/p0", "no carrier"));
        tracker.observe(down("uplink/p0"), clock.after(1000));
        assert_eq!(text(&tracker)[0].status, ConditionStatus::False);

        let mut tracker = Tracker::new(clock.0);
        tracker.observe(down("uplink/p0"), clock.after(0));
        assert_eq!(tracker.observe(Vec::new(), clock.after(500)), []);
        assert_eq!(text(&tracker)[0].status, ConditionStatus::True);
    }

    #[test]
    fn a_fault_that_passes_turns_nothing() {
        let clock = Clock(Moment::now());
        let mut tracker = Tracker::new(clock.0);
        for at in [0, 1000, 2000, 3000] {
            assert_eq!(tracker.observe(down("uplink/p0"), clock.after(at)), []);
            assert_eq!(tracker.observe(Vec::new(), clock.after(at + 500)), []);
        }
    }

    #[test]
    fn condition_turns_true_after_its_fault_has_ended() {
        let clock = Clock(Moment::now());
        let mut tracker = Tracker::new(clock.0);
        for at in [0, 1000] {
            tracker.observe(down("uplink/p0"), clock.after(at));
        }
        assert_eq!(tracker.observe(Vec::new(), clock.after(2900)), []);
        assert_eq!(tracker.observe(down("uplink/p0"), clock.after(2950)), [], "it flaps");
        assert_eq!(tracker.observe(Vec::new(), clock.after(4900)), []);
        assert_eq!(text(&tracker)[0].since, clock.0.time);
        let turned = tracker.observe(Vec::new(), clock.after(4950));
        assert_eq!(turned[0].status, ConditionStatus::True);
        let since = clock.after(4950).time;
        assert_eq!(
            (text(&tracker)[0].status, text(&tracker)[0].since),
            (ConditionStatus::True, since)
        );
    }

    #[test]
    fn each_object_has_a_condition_of_its_own() {
        let clock = Clock(Moment::now());
        let mut tracker = Tracker::new(clock.0);
        let both = || [down("uplink/p0"), down("uplink/p1")].concat();
        tracker.observe(both(), clock.after(0));
        assert_eq!(tracker.observe(both(), clock.after(1000)).len(), 2);
        tracker.observe(down("uplink/p1"), clock.after(3000));
        let objects: Vec<_> = text(&tracker).into_iter().map(|it| it.object).collect();
        assert_eq!(objects, ["uplink/p1"]);
    }

    #[test]
    fn object_with_another_fault_is_not_true() {
        let clock = Clock(Moment::now());
        let mut tracker = Tracker::new(clock.0);
        let fault = |reason| vec![Fault::of_dpu(reason, "the certificate")];
        let statuses = |tracker: &mut Tracker, found, at| {
            let turned = tracker.observe(found, clock.after(at));
            turned.iter().map(|it| (it.status, it.reason)).collect::<Vec<_>>()
        };
        let expiring = fault(ConditionReason::CertificateExpiring);
        assert_eq!(statuses(&mut tracker, expiring, 0).len(), 1);
        let expired = fault(ConditionReason::CertificateExpired);
        let turned = statuses(&mut tracker, expired, 1000);
        assert_eq!(turned, [(ConditionStatus::False, "CERTIFICATE_EXPIRED")]);
        assert_eq!(
            statuses(&mut tracker, Vec::new(), 2000),
            [(ConditionStatus::True, AS_EXPECTED)]
        );
    }

    #[test]
    fn faults_of_one_object_are_joined() {
        let clock = Clock(Moment::now());
        let mut tracker = Tracker::new(clock.0);
        let tell = |message: &str| Fault::of_dpu(ConditionReason::GatewayBroken, message);
        tracker.observe(vec![tell("one"), tell("other"), tell("one")], clock.after(0));
        let broken = tracker.conditions(true).into_iter().find(|it| it.object == "dpu").unwrap();
        assert_eq!(broken.message, "one; other");
    }

    #[test]
    fn cards_are_left_out_where_there_are_none() {
        let tracker = Tracker::new(Moment::now());
        let kinds = |has_no_cards| tracker.conditions(has_no_cards).len();
        assert_eq!(
            (kinds(false), kinds(true)),
            (ConditionType::ALL.len(), ConditionType::ALL.len() - 1)
        );
    }
}
