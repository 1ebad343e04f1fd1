//! What several callers want at once, done by one of them for all.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A door that one goes through at a time. Who finds it taken waits, together with all others who come meanwhile: the
/// next through it does what they all want, at once, and each is told the outcome.
///
/// The lock of the turn is held while that is done. The others are held for no longer than a look at a list, and
/// neither while the turn is waited for.
#[derive(Debug)]
pub(super) struct Together<J, O> {
    gathering: Mutex<Arc<Batch<J, O>>>,
    turn: Mutex<()>,
}

#[derive(Debug)]
struct Batch<J, O> {
    jobs: Mutex<Vec<J>>,
    outcome: OnceLock<O>,
}

impl<J, O> Default for Batch<J, O> {
    fn default() -> Self {
        Self { jobs: Mutex::default(), outcome: OnceLock::new() }
    }
}

impl<J, O> Default for Together<J, O> {
    fn default() -> Self {
        Self { gathering: Mutex::default(), turn: Mutex::default() }
    }
}

impl<J, O: Clone> Together<J, O> {
    /// The outcome of `work`, done by whichever caller on the jobs of all that have come together, `job` among them.
    pub(super) fn outcome(&self, job: J, work: impl FnOnce(&[J]) -> O) -> O {
        let batch = self.enter(job);
        let _turn = lock(&self.turn);
        // Should the work panic, the next caller of the same batch does it.
        batch.outcome.get_or_init(|| work(&self.close(&batch))).clone()
    }

    fn enter(&self, job: J) -> Arc<Batch<J, O>> {
        let gathering = lock(&self.gathering);
        lock(&gathering.jobs).push(job);
        Arc::clone(&gathering)
    }

    /// Who comes from now on gathers anew.
    fn close<'a>(&self, batch: &'a Arc<Batch<J, O>>) -> MutexGuard<'a, Vec<J>> {
        let mut gathering = lock(&self.gathering);
        if Arc::ptr_eq(&gathering, batch) {
            *gathering = Arc::default();
        }
        lock(&batch.jobs)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::mpsc,
        thread,
    };

    use super::*;

    #[test]
    fn who_comes_meanwhile_is_served_at_once_and_by_one() {
        let together: Together<u32, Vec<u32>> = Together::default();
        let waiting = || lock(&lock(&together.gathering).jobs).len();
        let (begun, go_on) = (mpsc::channel(), mpsc::channel::<()>());
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                let (begun, go_on) = (begun.0, go_on.1);
                together.outcome(0, |jobs| {
                    begun.send(()).unwrap();
                    go_on.recv().unwrap();
                    jobs.to_vec()
                })
            });
            begun.1.recv().unwrap();
            let others: Vec<_> = (1..9)
                .map(|job| {
                    let together = &together;
                    scope.spawn(move || together.outcome(job, <[u32]>::to_vec))
                })
                .collect();
            while waiting() < 8 {
                thread::yield_now();
            }
            go_on.0.send(()).unwrap();
            assert_eq!(first.join().unwrap(), [0]);
            for other in others {
                let mut served = other.join().unwrap();
                served.sort_unstable();
                assert_eq!(served, [1, 2, 3, 4, 5, 6, 7, 8]);
            }
        });
    }

    #[test]
    fn work_that_panics_is_not_lost_to_others() {
        let together: Together<u32, usize> = Together::default();
        let batch = together.enter(1);
        let panicking = || together.outcome(2, |_| panic!("in a test"));
        assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
        assert_eq!(batch.outcome.get(), None);
        assert_eq!(together.outcome(3, <[u32]>::len), 1, "a batch of its own");
        assert_eq!(*batch.outcome.get_or_init(|| together.close(&batch).len()), 2);
    }
}
