use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mtls::Credentials;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, text},
    metrics::{MetricType, TypedMetric, counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::{Registry, Unit},
};

use crate::{
    Calls, Phases,
    calls::{Durations, Numbers},
};

const PREFIX: &str = "dpu_offload";

/// A label's name and value. Values must come from a bounded set, such as states or names in the configuration: a
/// monitoring system keeps a series for each.
pub type Label = (&'static str, String);

/// Creates a label.
#[must_use]
pub fn label(name: &'static str, value: &str) -> Label {
    (name, value.to_owned())
}

/// The metrics of one scrape. Families are shown in the order in which they are added. Help texts are one clause
/// without a final stop.
#[derive(Debug)]
pub struct Page(Registry);

impl Page {
    /// An empty page of `program`, with its `version`.
    #[must_use]
    pub fn of(program: &'static str, version: &'static str) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let build = Info::new([("program", program), ("version", version)]);
        registry.register("build", "The program that runs", build);
        Self(registry)
    }

    /// Adds a gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.0.register(name, help, ConstGauge::new(value));
    }

    /// Adds gauges with labels.
    pub fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = ([Label; N], u64)>,
    ) {
        self.0.register(name, help, Series::of(ConstGauge::new, series));
    }

    /// Adds a counter, shown as `<name>_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.0.register(name, help, ConstCounter::new(value));
    }

    /// Adds counters with labels, shown as `<name>_total`.
    pub fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = ([Label; N], u64)>,
    ) {
        self.0.register(name, help, Series::of(ConstCounter::new, series));
    }

    /// Adds calls: `<scope>_calls_total` and `<scope>_call_duration_seconds`.
    pub fn calls(&mut self, scope: &str, help: &str, calls: &Arc<Calls>) {
        self.0.register(format!("{scope}_calls"), help, Numbers(Arc::clone(calls)));
        self.0.register_with_unit(
            format!("{scope}_call_duration"),
            "Time from the call to its answer",
            Unit::Seconds,
            Durations(Arc::clone(calls)),
        );
    }

    /// Adds phases: `<scope>_phase_duration_seconds`.
    pub fn phases(&mut self, scope: &str, help: &str, phases: &Phases) {
        let name = format!("{scope}_phase_duration");
        self.0.register_with_unit(name, help, Unit::Seconds, phases.clone());
    }

    /// Adds the expiry of the certificates in force, and the times from which warnings start, at most `ahead` of it.
    pub fn certificates(&mut self, credentials: &Credentials, ahead: Duration) {
        let certificates = [("own", credentials.validity()), ("ca", credentials.ca_validity())];
        self.timestamps(
            "certificate_not_after",
            "When the certificate in force expires",
            certificates.map(|(which, validity)| (which, validity.not_after)),
        );
        self.timestamps(
            "certificate_warning",
            "When the certificate in force must be renewed",
            certificates.map(|(which, validity)| (which, validity.warning_at(ahead))),
        );
    }

    fn timestamps(&mut self, name: &str, help: &str, times: [(&str, SystemTime); 2]) {
        let series = times.map(|(which, time)| {
            let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            ([("certificate", which.to_owned())], since_1970.as_secs())
        });
        let gauges = Series::of(ConstGauge::new, series);
        self.0.register_with_unit(format!("{name}_timestamp"), help, Unit::Seconds, gauges);
    }

    /// Encodes the page.
    ///
    /// # Errors
    /// If a value cannot be encoded, which no page causes.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.0)?;
        Ok(text)
    }
}

/// The numbers of one family with their labels.
#[derive(Debug)]
struct Series<M, const N: usize>(Vec<([Label; N], M)>);

impl<M, const N: usize> Series<M, N> {
    fn of(number: fn(u64) -> M, series: impl IntoIterator<Item = ([Label; N], u64)>) -> Self {
        Self(series.into_iter().map(|(labels, value)| (labels, number(value))).collect())
    }
}

impl<M: EncodeMetric + TypedMetric, const N: usize> EncodeMetric for Series<M, N> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, number) in &self.0 {
            let labels = labels.each_ref().map(|(name, value)| (*name, value.as_str()));
            number.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}
