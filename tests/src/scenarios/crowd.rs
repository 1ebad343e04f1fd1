//! Concurrent callers that attach and detach pods while something else happens.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use serde_json::Value;

use super::End;
use crate::{Lab, Netns, wait_for};

/// Number of callers, and of VFs that they use.
pub const CALLERS: u32 = 4;

/// Timeout of a round of calls.
const LIMIT: Duration = Duration::from_secs(60);

/// What the callers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPattern {
    /// Attach and detach repeatedly.
    ComeAndGo,
    /// Attach repeatedly.
    Come,
    /// Detach repeatedly pods that were attached before.
    Go,
}

/// A pod of the crowd with its final state.
#[derive(Debug)]
pub struct Member {
    /// The pod.
    pub pod: Netns,
    standing: Standing,
}

/// A runtime's knowledge of a pod.
#[derive(Debug)]
enum Standing {
    Detached,
    /// The ADD was answered.
    Attached(Value),
    /// The last call failed.
    Unsure,
}

impl Member {
    fn new() -> Self {
        Self { pod: Netns::new("crowd"), standing: Standing::Detached }
    }

    /// Makes the next call. A failure is followed by a DEL, as runtimes do.
    fn call(&mut self, lab: &Lab, pattern: CallPattern) {
        let is_detached = matches!(self.standing, Standing::Detached);
        match pattern {
            CallPattern::ComeAndGo if is_detached => self.add(lab),
            CallPattern::Come => self.add(lab),
            CallPattern::ComeAndGo | CallPattern::Go => self.delete(lab),
        }
    }

    fn add(&mut self, lab: &Lab) {
        let added = lab.add("blue", &self.pod, "eth0");
        self.standing = match added.status.success() {
            true => Standing::Attached(added.result()),
            false => Standing::Unsure,
        };
    }

    fn delete(&mut self, lab: &Lab) {
        let deleted = lab.del("blue", &self.pod, "eth0");
        self.standing =
            if deleted.status.success() { Standing::Detached } else { Standing::Unsure };
    }

    /// Repeats the ADD. If the first one was answered, the answer must be the same.
    ///
    /// # Panics
    /// If the answer differs or the call fails.
    pub fn attach_again(&self, lab: &Lab) {
        let again = lab.add("blue", &self.pod, "eth0").result();
        if let Standing::Attached(first) = &self.standing {
            assert_eq!(again, *first, "{}", self.pod.name());
        }
    }

    /// Detaches the pod.
    ///
    /// # Panics
    /// If that fails.
    pub fn detach(&self, lab: &Lab) {
        lab.del("blue", &self.pod, "eth0").nothing();
    }
}

/// Runs callers while `work` runs, which begins once all of them work. Their calls may fail. Returns their final
/// states.
///
/// # Panics
/// If a caller does not start.
pub fn amid_a_crowd<T>(
    lab: &Lab,
    pattern: CallPattern,
    work: impl FnOnce(&Lab) -> T,
) -> (Vec<Member>, T) {
    let (ready, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let call_until_over = || {
        let mut member = Member::new();
        member.add(lab);
        ready.fetch_add(1, Ordering::Relaxed);
        while !over.load(Ordering::Relaxed) {
            member.call(lab, pattern);
        }
        member
    };
    thread::scope(|scope| {
        let end = End(&over);
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call_until_over)).collect();
        let all_are = || (ready.load(Ordering::Relaxed) == CALLERS).then_some(());
        wait_for("the crowd to be at work", LIMIT, all_are);
        let done = work(lab);
        drop(end);
        (callers.into_iter().map(|caller| caller.join().unwrap()).collect(), done)
    })
}

/// Runs `work` on all members at the same time.
pub fn of_each(crowd: &[Member], work: impl Fn(&Member) + Sync) {
    thread::scope(|scope| {
        for member in crowd {
            scope.spawn(|| work(member));
        }
    });
}
