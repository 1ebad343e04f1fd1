//! Durations and their statistics.

use std::{fs, thread, time::Duration};

use e2e::Stopwatch;

use crate::table::Cell;

/// Durations of one operation.
#[derive(Clone, Default)]
pub(crate) struct Sample {
    durations: Vec<Duration>,
    /// From the first beginning to the last end, if callers overlap.
    elapsed: Option<Duration>,
}

impl Sample {
    /// Runs the function and adds its duration.
    pub(crate) fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Stopwatch::start();
        let value = work();
        self.durations.push(start.elapsed());
        value
    }

    /// A sample of durations that were measured elsewhere.
    pub(crate) fn of(durations: impl Iterator<Item = Duration>) -> Self {
        Self { durations: durations.collect(), elapsed: None }
    }

    /// A sample of overlapping callers' durations, within the elapsed time.
    pub(crate) fn of_callers(durations: Vec<Duration>, elapsed: Duration) -> Self {
        Self { durations, elapsed: Some(elapsed) }
    }

    /// Appends a later sample.
    pub(crate) fn append(&mut self, later: Self) {
        self.durations.extend(later.durations);
        self.elapsed = self.elapsed.into_iter().chain(later.elapsed).reduce(|all, it| all + it);
    }

    /// In the order of measurement.
    pub(crate) fn durations(&self) -> &[Duration] {
        &self.durations
    }

    /// The median in milliseconds.
    pub(crate) fn p50(&self) -> f64 {
        self.percentile(50)
    }

    /// The median in milliseconds, if there is any duration.
    pub(crate) fn median(&self) -> Option<f64> {
        (!self.durations.is_empty()).then(|| self.p50())
    }

    pub(crate) fn p99(&self) -> f64 {
        self.percentile(99)
    }

    /// The cells `p50 | p99` of a table.
    pub(crate) fn cells(&self) -> [Cell; 2] {
        [self.p50().into(), self.p99().into()]
    }

    /// The cells `p50 | p99 | per s` of a table.
    pub(crate) fn row(&self) -> [Cell; 3] {
        let elapsed = self.elapsed.unwrap_or_else(|| self.durations.iter().sum());
        let rate = self.durations.len() as f64 / elapsed.as_secs_f64();
        [self.p50().into(), self.p99().into(), Cell::Whole(rate)]
    }

    /// The cells of both percentiles as multiples of another sample's.
    pub(crate) fn times(&self, other: &Self) -> [Cell; 2] {
        [(self.p50() / other.p50()).into(), (self.p99() / other.p99()).into()]
    }

    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.durations.clone();
        sorted.sort_unstable();
        sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1000.0
    }
}

/// Processor, number of cores, and kernel.
pub(crate) fn machine() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap();
    let models = processors.lines().filter_map(|line| line.strip_prefix("model name"));
    let models: Vec<_> = models.map(|rest| rest.trim_start_matches([' ', '\t', ':'])).collect();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let model = models.first().copied().unwrap_or(std::env::consts::ARCH);
    let cores = thread::available_parallelism().unwrap();
    format!("{cores} cores of {model}, Linux {}", kernel.trim())
}
