use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::{MetricType, TypedMetric, counter::ConstCounter, histogram::Histogram},
};

/// The outcome of a successful call.
pub const OK: &str = "OK";

/// The label of unknown calls.
const OTHER: &str = "other";

/// Bounds of the duration buckets, in seconds: an attach takes some milliseconds, a call that waits for a VF some
/// seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Counts the calls that a program has answered since its start, by outcome and duration. The call names are fixed, so
/// that callers cannot create any number of series.
#[derive(Debug)]
pub struct Calls {
    label: &'static str,
    known: BTreeMap<String, Answers>,
    other: Answers,
}

#[derive(Debug)]
struct Answers {
    by_outcome: Mutex<BTreeMap<&'static str, u64>>,
    durations: Histogram,
}

impl Default for Answers {
    /// A series that starts at zero shows its first call as an increase.
    fn default() -> Self {
        let by_outcome = Mutex::new(BTreeMap::from([(OK, 0)]));
        Self { by_outcome, durations: Histogram::new(BOUNDS) }
    }
}

impl Calls {
    /// Counts calls of the `known` names, with the label `label`, such as `method`.
    pub fn new(label: &'static str, known: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let known = known.into_iter().map(|name| (name.into(), Answers::default())).collect();
        Self { label, known, other: Answers::default() }
    }

    /// Counts a call of `what` with its `outcome`, which is [`OK`] or a stable code, and its `duration`.
    pub fn note(&self, what: &str, outcome: &'static str, duration: Duration) {
        let answers = self.known.get(what).unwrap_or(&self.other);
        let mut by_outcome = answers.by_outcome.lock();
        *by_outcome.entry(outcome).or_default() += 1;
        drop(by_outcome);
        answers.durations.observe(duration.as_secs_f64());
    }

    fn all(&self) -> impl Iterator<Item = (&str, &Answers)> {
        let known = self.known.iter().map(|(name, answers)| (name.as_str(), answers));
        known.chain([(OTHER, &self.other)])
    }
}

/// The numbers of calls as a metric.
#[derive(Debug)]
pub(crate) struct Numbers(pub(crate) Arc<Calls>);

impl EncodeMetric for Numbers {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (what, answers) in self.0.all() {
            let by_outcome = answers.by_outcome.lock().clone();
            for (outcome, number) in by_outcome {
                let labels = [(self.0.label, what), ("outcome", outcome)];
                ConstCounter::new(number).encode(encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// The durations of calls as a metric.
#[derive(Debug)]
pub(crate) struct Durations(pub(crate) Arc<Calls>);

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (what, answers) in self.0.all() {
            let labels = [(self.0.label, what)];
            answers.durations.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        Histogram::TYPE
    }
}
