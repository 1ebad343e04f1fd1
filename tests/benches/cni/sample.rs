//! Durations and what to say about them.

use std::{
    fs,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Of a kernel's clock of 250 Hz.
const TWO_TICKS: Duration = Duration::from_millis(8);

/// Durations of one kind of work.
#[derive(Default)]
pub(crate) struct Sample {
    durations: Vec<Duration>,
    /// From the first beginning to the last end, where callers overlap.
    elapsed: Option<Duration>,
}

impl Sample {
    /// Does the work and adds how long it took.
    pub(crate) fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = work();
        self.durations.push(start.elapsed());
        value
    }

    /// Likewise at a random phase of the kernel's clock, as users come: who begins when the last one has ended is
    /// locked to the tick with which that did.
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing is waited for but a moment of the clock"
    )]
    pub(crate) fn time_apart<T>(&mut self, work: impl FnOnce() -> T) -> T {
        thread::sleep(rand::random_range(Duration::ZERO..TWO_TICKS));
        self.time(work)
    }

    /// A sample of durations that somebody else measured.
    pub(crate) fn of(durations: impl Iterator<Item = Duration>) -> Self {
        Self { durations: durations.collect(), elapsed: None }
    }

    /// In the order they were measured.
    pub(crate) fn durations(&self) -> &[Duration] {
        &self.durations
    }

    /// Does `count` pieces of work, `callers` at a time.
    pub(crate) fn by_callers(callers: usize, count: usize, work: &(dyn Fn(usize) + Sync)) -> Self {
        let (next, sample) = (AtomicUsize::new(0), Mutex::new(Self::default()));
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..callers {
                scope.spawn(|| {
                    let mut own = Self::default();
                    while let number @ 0.. = next.fetch_add(1, Ordering::Relaxed)
                        && number < count
                    {
                        own.time(|| work(number));
                    }
                    sample.lock().unwrap().durations.append(&mut own.durations);
                });
            }
        });
        Self { elapsed: Some(start.elapsed()), ..sample.into_inner().unwrap() }
    }

    /// The median in milliseconds.
    pub(crate) fn p50(&self) -> f64 {
        self.percentile(50)
    }

    /// The cells `p50 | p99` of a table.
    pub(crate) fn cells(&self) -> String {
        format!("{:.2} | {:.2}", self.p50(), self.percentile(99))
    }

    /// The cells `p50 | p99 | per s` of a table.
    pub(crate) fn row(&self) -> String {
        let elapsed = self.elapsed.unwrap_or_else(|| self.durations.iter().sum());
        let rate = self.durations.len() as f64 / elapsed.as_secs_f64();
        format!("{} | {rate:.0}", self.cells())
    }

    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.durations.clone();
        sorted.sort_unstable();
        sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1000.0
    }
}

/// Processor, cores and kernel.
pub(crate) fn machine() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap();
    let models = processors.lines().filter_map(|line| line.strip_prefix("model name"));
    let models: Vec<_> = models.map(|rest| rest.trim_start_matches([' ', '\t', ':'])).collect();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let model = models.first().copied().unwrap_or(std::env::consts::ARCH);
    let cores = thread::available_parallelism().unwrap();
    format!("{cores} cores of {model}, Linux {}", kernel.trim())
}
