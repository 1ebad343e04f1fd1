//! Several callers that attach and detach pods for as long as something else goes on.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use serde_json::Value;

use super::End;
use crate::{Lab, Netns, wait_for};

/// Callers at a time, and so the VFs that a crowd takes.
pub const CALLERS: u32 = 4;

/// How long a round of calls may take.
const LIMIT: Duration = Duration::from_secs(60);

/// What the callers of a crowd do with their pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Attach and detach them again and again.
    ComeAndGo,
    /// Attach them, again and again.
    Come,
    /// Detach them, again and again. They were attached before.
    Go,
}

/// A pod of the crowd, and how it stood with it when the crowd ended.
#[derive(Debug)]
pub struct Member {
    /// The pod.
    pub pod: Netns,
    standing: Standing,
}

/// What a runtime knows of a pod.
#[derive(Debug)]
enum Standing {
    Detached,
    /// As its ADD was answered.
    Attached(Value),
    /// Its last call failed.
    Unsure,
}

impl Member {
    fn new() -> Self {
        Self { pod: Netns::new("crowd"), standing: Standing::Detached }
    }

    /// Makes the call that is next. One that fails is followed by a DEL, as runtimes do.
    fn call(&mut self, lab: &Lab, habit: Habit) {
        let is_detached = matches!(self.standing, Standing::Detached);
        match habit {
            Habit::ComeAndGo if is_detached => self.add(lab),
            Habit::Come => self.add(lab),
            Habit::ComeAndGo | Habit::Go => self.delete(lab),
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

    /// Attaches the pod by the same call again. Where the first had an answer, it is the same.
    ///
    /// # Panics
    /// When it is another, or none.
    pub fn attach_again(&self, lab: &Lab) {
        let again = lab.add("blue", &self.pod, "eth0").result();
        if let Standing::Attached(first) = &self.standing {
            assert_eq!(again, *first, "{}", self.pod.name());
        }
    }

    /// Detaches the pod.
    ///
    /// # Panics
    /// When that fails.
    pub fn detach(&self, lab: &Lab) {
        lab.del("blue", &self.pod, "eth0").nothing();
    }
}

/// Lets callers do as they use to while `work` goes on; it begins once all of them are at it. Calls
/// may fail meanwhile. Returns what they have then.
///
/// # Panics
/// When a caller does not get to work.
pub fn amid_a_crowd<T>(lab: &Lab, habit: Habit, work: impl FnOnce(&Lab) -> T) -> (Vec<Member>, T) {
    let (ready, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let call_until_over = || {
        let mut member = Member::new();
        member.add(lab);
        ready.fetch_add(1, Ordering::Relaxed);
        while !over.load(Ordering::Relaxed) {
            member.call(lab, habit);
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

/// Does `work` with all members at the same time.
pub fn of_each(crowd: &[Member], work: impl Fn(&Member) + Sync) {
    thread::scope(|scope| {
        for member in crowd {
            scope.spawn(|| work(member));
        }
    });
}
