//! Concurrent callers, as a busy runtime has.

use std::{
    iter,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{sample::Sample, timing::Pauses};

/// The operation on the pod of a number.
pub(crate) type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// Callers that share a queue of operations.
pub(crate) struct Crew<'a> {
    numbers: Range<usize>,
    next: AtomicUsize,
    callers: usize,
    work: Work<'a>,
    is_done: AtomicBool,
    done: Mutex<Vec<Done>>,
}

/// A finished operation.
struct Done {
    end: Instant,
    took: Duration,
}

impl<'a> Crew<'a> {
    pub(crate) fn new(callers: usize, numbers: Range<usize>, work: Work<'a>) -> Self {
        Self {
            next: AtomicUsize::new(numbers.start),
            numbers,
            callers,
            work,
            is_done: AtomicBool::new(false),
            done: Mutex::default(),
        }
    }

    fn take(&self) -> Option<usize> {
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|it| *it < self.numbers.end)
    }

    /// Takes operations until none is left. Those that begin while `is_alone` are not counted.
    fn call(&self, pauses: &Pauses, is_alone: &dyn Fn() -> bool) {
        for number in iter::from_fn(|| self.take()) {
            pauses.wait(number);
            let (counts, begin) = (!is_alone(), Instant::now());
            (self.work)(number);
            let end = Instant::now();
            if counts {
                self.done.lock().push(Done { end, took: end - begin });
            }
        }
        self.is_done.store(true, Ordering::Relaxed);
    }

    fn sample(self, start: Instant) -> Sample {
        let done = self.done.into_inner();
        let end = done.iter().map(|done| done.end).max().expect("work that counts");
        Sample::of_callers(done.iter().map(|done| done.took).collect(), end - start)
    }
}

/// Runs all crews at the same time. Operations that begin after another crew has finished are not counted.
pub(crate) fn at_once<const COUNT: usize>(
    crews: [Crew<'_>; COUNT],
    pauses: &Pauses,
) -> [Sample; COUNT] {
    let start = Instant::now();
    let is_alone = |index: usize| {
        let mut others = crews.iter().enumerate().filter(|(other, _)| *other != index);
        others.any(|(_, other)| other.is_done.load(Ordering::Relaxed))
    };
    thread::scope(|scope| {
        for (index, crew) in crews.iter().enumerate() {
            for _ in 0..crew.callers {
                scope.spawn(move || crew.call(pauses, &|| is_alone(index)));
            }
        }
    });
    crews.map(|crew| crew.sample(start))
}
