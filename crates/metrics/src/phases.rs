use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};
use traces::Instrument;

/// Upper bounds of the duration buckets, in microseconds: kernel operations take some tenths of a millisecond, waits
/// for hardware some seconds.
const BOUNDS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

fn bounds() -> impl Iterator<Item = Duration> {
    BOUNDS_US.into_iter().map(Duration::from_micros)
}

/// Durations of the phases of a repeated operation. The phases' names are fixed. Clones share the durations.
#[derive(Clone, Debug)]
pub struct Phases(Arc<[(&'static str, Mutex<PhaseDurations>)]>);

impl Phases {
    /// Creates phases with these names.
    pub fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self(names.into_iter().map(|name| (name, Mutex::default())).collect())
    }

    /// Records a duration of `phase`. An unknown phase is ignored.
    pub fn note(&self, phase: &str, duration: Duration) {
        let known = self.0.iter().find(|(name, _)| *name == phase);
        debug_assert!(known.is_some(), "{phase} is not known beforehand");
        if let Some((_, durations)) = known {
            durations.lock().note(duration);
        }
    }

    /// Runs `work` as a step of the current trace and records its duration. Cancelled work is not recorded.
    pub async fn time<W: Future>(&self, phase: &str, work: W) -> W::Output {
        let begun = Instant::now();
        let done = work.instrument(traces::step(phase)).await;
        self.note(phase, begun.elapsed());
        done
    }

    /// The durations so far, by phase.
    pub fn noted(&self) -> impl Iterator<Item = (&'static str, PhaseDurations)> {
        let read = |durations: &Mutex<PhaseDurations>| durations.lock().clone();
        self.0.iter().map(move |(name, durations)| (*name, read(durations)))
    }
}

impl EncodeMetric for Phases {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (name, durations) in self.noted() {
            durations.encode(encoder.encode_family(&[("phase", name)])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// The durations of one phase.
#[derive(Clone, Debug, Default)]
pub struct PhaseDurations {
    sum: Duration,
    /// Counts per bucket. The last one counts durations beyond all bounds.
    counts: [u64; BOUNDS_US.len() + 1],
}

impl PhaseDurations {
    fn note(&mut self, duration: Duration) {
        let bucket = bounds().take_while(|bound| *bound < duration).count();
        self.counts[bucket] += 1;
        self.sum += duration;
    }

    /// The number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all durations.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    /// The bounds from short to long, with the number of durations up to each.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let up_to = self.counts.into_iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        bounds().zip(up_to)
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = bounds().map(|bound| bound.as_secs_f64()).chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(self.counts).collect();
        encoder.encode_histogram::<NoLabelSet>(self.sum.as_secs_f64(), self.count(), &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_in_buckets_up_to_bound() {
        let phases = Phases::new(["wait", "work"]);
        for nanoseconds in [0, 100_000, 100_001, 10_000_000_000, 10_000_000_001] {
            phases.note("work", Duration::from_nanos(nanoseconds));
        }
        let noted: Vec<_> = phases.noted().collect();
        let [("wait", idle), ("work", work)] = &noted[..] else { panic!("{noted:?}") };
        assert_eq!((idle.count(), idle.sum()), (0, Duration::ZERO));
        assert_eq!((work.count(), work.sum()), (5, Duration::from_nanos(20_000_200_002)));
        let buckets: Vec<_> = work.buckets().collect();
        assert_eq!(buckets[0], (Duration::from_micros(100), 2));
        assert!(buckets[1..15].iter().all(|(_, count)| *count == 3), "{buckets:?}");
        assert_eq!(buckets[15], (Duration::from_secs(10), 4));
    }
}
