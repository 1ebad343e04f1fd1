use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::{MetricType, TypedMetric, histogram::Histogram},
};
use traces::Instrument;

/// Bounds of the buckets for durations, in seconds: what the kernel does takes some tenths of a millisecond, and what
/// waits for hardware some seconds.
const BOUNDS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

/// How long the phases of something took that a program does again and again. They are known beforehand. Clones are the
/// same phases.
#[derive(Clone, Debug)]
pub struct Phases(Arc<[(&'static str, Histogram)]>);

impl Phases {
    /// Phases of these names.
    pub fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self(names.into_iter().map(|name| (name, Histogram::new(BOUNDS))).collect())
    }

    /// A phase has taken that long. One that is not known is passed over.
    pub fn note(&self, phase: &str, duration: Duration) {
        let known = self.0.iter().find(|(name, _)| *name == phase);
        debug_assert!(known.is_some(), "{phase} is not known beforehand");
        if let Some((_, durations)) = known {
            durations.observe(duration.as_secs_f64());
        }
    }

    /// Does some work, as a step of the trace that it is part of, and notes how long it took. Work that is not finished
    /// is not noted.
    pub async fn time<W: Future>(&self, phase: &str, work: W) -> W::Output {
        let begun = Instant::now();
        let done = work.instrument(traces::step(phase)).await;
        self.note(phase, begun.elapsed());
        done
    }
}

impl EncodeMetric for Phases {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (name, durations) in &*self.0 {
            durations.encode(encoder.encode_family(&[("phase", *name)])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        Histogram::TYPE
    }
}
