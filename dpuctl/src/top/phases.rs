//! The phases of attaching and detaching, with their durations.

use offload_proto::v1::{
    DurationBucket, ListPhasesRequest, ListPhasesResponse, PhaseDurations,
    operator_client::OperatorClient,
};

use super::{Look, seconds_between};
use crate::{
    arguments::Top, client::Client, error::CallError, table::narrow_or_wide, text::duration,
};

/// The phase that covers the whole operation.
const TOTAL: &str = "total";

impl Look for ListPhasesResponse {
    async fn take(client: &mut Client, _: &Top) -> Result<Self, CallError> {
        client.call(OperatorClient::list_phases, ListPhasesRequest {}).await
    }

    /// Lists all phases in the DPU's order.
    fn table(&self, before: &Self, _: usize, wide: bool) -> String {
        let headings = ["OPERATION", "PHASE", "RATE", "P50", "P99", "SHARE", "COUNT", "MEAN"];
        let seconds = seconds_between(&before.time, &self.time);
        let phases = between(before, self);
        let whole = |of: &PhaseDurations| {
            let total = |it: &&PhaseDurations| it.operation == of.operation && it.phase == TOTAL;
            phases.iter().find(total).map(|it| it.sum_ns as f64).filter(|sum| *sum > 0.0)
        };
        let rows = phases.iter().map(|it| {
            vec![
                it.operation.clone(),
                it.phase.clone(),
                or_dash(seconds.map(|seconds| format!("{:.2}/s", it.count as f64 / seconds))),
                or_dash(quantile(it, 0.5)),
                or_dash(quantile(it, 0.99)),
                or_dash(whole(it).map(|whole| format!("{:.0}%", it.sum_ns as f64 / whole * 100.0))),
                it.count.to_string(),
                or_dash(it.sum_ns.checked_div(it.count).map(duration)),
            ]
        });
        narrow_or_wide(&headings, 6, wide, rows)
    }
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".into())
}

fn between(before: &ListPhasesResponse, now: &ListPhasesResponse) -> Vec<PhaseDurations> {
    let since = |now: &PhaseDurations| {
        let is_same =
            |it: &&PhaseDurations| (&it.operation, &it.phase) == (&now.operation, &now.phase);
        // A restarted service counts from zero.
        let earlier = |it: &&PhaseDurations| it.count <= now.count;
        let before = before.phases.iter().find(is_same).filter(earlier);
        before.map_or_else(|| now.clone(), |before| difference(before, now))
    };
    now.phases.iter().map(since).collect()
}

fn difference(before: &PhaseDurations, now: &PhaseDurations) -> PhaseDurations {
    let buckets = before.buckets.iter().zip(&now.buckets).map(|(before, now)| DurationBucket {
        count: now.count.saturating_sub(before.count),
        upper_bound_ns: now.upper_bound_ns,
    });
    PhaseDurations {
        count: now.count - before.count,
        sum_ns: now.sum_ns.saturating_sub(before.sum_ns),
        buckets: buckets.collect(),
        ..now.clone()
    }
}

/// Upper limit for a share of all durations, assuming that those of a bucket are spread evenly. `None`: there are none.
fn quantile(of: &PhaseDurations, share: f64) -> Option<String> {
    let rank = Some(of.count as f64 * share).filter(|rank| *rank > 0.0)?;
    let (mut shorter, mut lower_bound) = (0.0, 0.0);
    for bucket in &of.buckets {
        let (count, upper_bound) = (bucket.count as f64, bucket.upper_bound_ns as f64);
        if count >= rank {
            let within = (rank - shorter) / (count - shorter);
            return Some(shown(lower_bound + (upper_bound - lower_bound) * within));
        }
        (shorter, lower_bound) = (count, upper_bound);
    }
    Some(format!(">{}", shown(lower_bound)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "for people, and no duration is negative"
)]
fn shown(nanoseconds: f64) -> String {
    duration(nanoseconds.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A phase with the given counts in the buckets of 1 ms, 2.5 ms, 10 ms and beyond.
    fn phase(name: &str, sum_ns: u64, [one, two, ten, longer]: [u64; 4]) -> PhaseDurations {
        let bucket = |upper_bound_ns, count| DurationBucket { upper_bound_ns, count };
        let buckets = vec![
            bucket(1_000_000, one),
            bucket(2_500_000, one + two),
            bucket(10_000_000, one + two + ten),
        ];
        let count = one + two + ten + longer;
        let (operation, phase) = ("attach".into(), name.into());
        PhaseDurations { operation, phase, count, sum_ns, buckets }
    }

    fn look(second: u32, phases: &[PhaseDurations]) -> ListPhasesResponse {
        ListPhasesResponse {
            time: format!("2026-03-01T12:00:{second:02}Z"),
            phases: phases.to_vec(),
        }
    }

    #[test]
    fn quantiles_are_interpolated_in_their_bucket() {
        let quantiles = |counts| {
            let phase = phase("work", 0, counts);
            [0.5, 0.99].map(|share| quantile(&phase, share).unwrap_or_else(|| "-".into()))
        };
        assert_eq!(quantiles([0; 4]), ["-", "-"]);
        assert_eq!(quantiles([1, 0, 0, 0]), ["500 us", "990 us"]);
        assert_eq!(quantiles([50, 50, 0, 0]), ["1.00 ms", "2.47 ms"]);
        assert_eq!(quantiles([0, 98, 2, 0]), ["1.76 ms", "6.25 ms"]);
        assert_eq!(quantiles([0, 0, 1, 1]), ["10.0 ms", ">10.0 ms"]);
        assert_eq!(
            quantile(&PhaseDurations { count: 1, ..Default::default() }, 0.5).unwrap(),
            ">0 ns"
        );
    }

    #[test]
    fn table_covers_two_samples() {
        let before = look(0, &[phase("wait", 7, [9, 9, 0, 1]), phase(TOTAL, 90, [0, 19, 0, 0])]);
        let wait = phase("wait", 7 + 1_500_000, [9, 13, 0, 1]);
        let total = phase(TOTAL, 90 + 6_000_000, [0, 21, 2, 0]);
        let now = look(8, &[wait, total]);
        assert_eq!(
            now.table(&before, 0, true),
            "\
OPERATION   PHASE   RATE     P50       P99       SHARE   COUNT   MEAN
attach      wait    0.50/s   1.75 ms   2.48 ms   25%     4       375 us
attach      total   0.50/s   2.50 ms   9.85 ms   100%    4       1.50 ms
"
        );
        assert_eq!(
            now.table(&now, 0, false),
            "\
OPERATION   PHASE   RATE   P50   P99   SHARE
attach      wait    -      -     -     -
attach      total   -      -     -     -
"
        );
    }

    #[test]
    fn restarted_service_counts_from_zero() {
        let before = look(0, &[phase(TOTAL, 90_000_000, [0, 0, 9, 0])]);
        let restarted = look(4, &[phase(TOTAL, 500_000, [1, 0, 0, 0])]);
        let table = restarted.table(&before, 0, true);
        let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
        let expected = "attach total 0.25/s 500 us 990 us 100% 1 500 us";
        assert_eq!(row.join(" "), expected);
    }
}
