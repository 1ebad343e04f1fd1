//! Traffic of attachments, the busiest first.

use std::{cmp::Reverse, collections::BTreeMap};

use offload_proto::v1::{
    AttachmentTraffic, ListTrafficRequest, ListTrafficResponse, PortCounters,
    operator_client::OperatorClient,
};

use super::{Look, seconds_between};
use crate::{
    arguments::Top,
    client::Client,
    error::CallError,
    get::check_filters,
    rows::{in_hardware, shorten_ids, whom},
    table::narrow_or_wide,
    text::{bytes, printable, vf_name},
};

impl Look for ListTrafficResponse {
    async fn take(client: &mut Client, what: &Top) -> Result<Self, CallError> {
        let network = what.network.clone().unwrap_or_default();
        let host = what.host.clone().unwrap_or_default();
        let question = ListTrafficRequest { network: network.clone(), host: host.clone() };
        let traffic = client.call(OperatorClient::list_traffic, question).await?;
        if traffic.attachments.is_empty() {
            check_filters(client, &network, &host).await?;
        }
        Ok(traffic)
    }

    fn table(&self, before: &Self, lines: usize, wide: bool) -> String {
        rate_table(before, self, lines, wide)
    }

    fn nothing(&self) -> Option<&'static str> {
        self.attachments.is_empty().then_some("No attachments.")
    }

    /// Why there are no numbers.
    fn warning(&self) -> Option<String> {
        let why = &self.unknown;
        (!why.is_empty()).then(|| printable(&format!("warning: what is sent is not known: {why}")))
    }
}

/// Traffic per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rates {
    sent_bytes: u64,
    sent_packets: u64,
    received_bytes: u64,
    received_packets: u64,
}

impl Rates {
    /// Rates between two samples. A recreated port counts from zero and shows zero until the next sample.
    fn between(before: &PortCounters, now: &PortCounters, seconds: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "for people, and no number is negative"
        )]
        let in_a_second =
            |before: u64, now: u64| (now.saturating_sub(before) as f64 / seconds).round() as u64;
        Self {
            sent_bytes: in_a_second(before.sent_bytes, now.sent_bytes),
            sent_packets: in_a_second(before.sent_packets, now.sent_packets),
            received_bytes: in_a_second(before.received_bytes, now.received_bytes),
            received_packets: in_a_second(before.received_packets, now.received_packets),
        }
    }

    fn bytes(self) -> u64 {
        self.sent_bytes.saturating_add(self.received_bytes)
    }
}

/// The rates of the attachments that both samples contain. New ones start with the next sample.
fn rates_by_id<'a>(
    before: &'a ListTrafficResponse,
    now: &'a ListTrafficResponse,
) -> BTreeMap<&'a str, Rates> {
    let Some(seconds) = seconds_between(&before.time, &now.time) else { return BTreeMap::new() };
    let counters = |it: &'a AttachmentTraffic| Some((&*it.attachment_id, it.counters.as_ref()?));
    let earlier: BTreeMap<_, _> = before.attachments.iter().filter_map(counters).collect();
    let rates = |(id, counters): (&'a str, &PortCounters)| {
        Some((id, Rates::between(earlier.get(id)?, counters, seconds)))
    };
    now.attachments.iter().filter_map(counters).filter_map(rates).collect()
}

/// At most `lines` rows, the busiest first.
fn rate_table(
    before: &ListTrafficResponse,
    now: &ListTrafficResponse,
    lines: usize,
    wide: bool,
) -> String {
    let headings = [
        "ATTACHMENT",
        "POD",
        "NETWORK",
        "VF",
        "SENT/S",
        "RECEIVED/S",
        "GUARD DROPS",
        "ALLOW DROPS",
        "LIMIT DROPS",
        "HARDWARE",
        "HOST",
        "PACKETS SENT/S",
        "PACKETS RECEIVED/S",
    ];
    let rates = rates_by_id(before, now);
    let rates = |it: &AttachmentTraffic| rates.get(&*it.attachment_id).copied();
    let mut attachments: Vec<_> = now.attachments.iter().collect();
    // Equally busy attachments keep their order, the oldest first.
    attachments.sort_by_key(|it| Reverse(rates(it).map(Rates::bytes)));
    let row = |it: &AttachmentTraffic| {
        let rate = |of: fn(Rates) -> u64, shown: fn(u64) -> String| {
            rates(it).map_or_else(|| "-".into(), |rates| shown(of(rates)))
        };
        let counter = |shown: fn(&PortCounters) -> String| {
            it.counters.as_ref().map_or_else(|| "-".into(), shown)
        };
        vec![
            it.attachment_id.clone(),
            whom(it.key.as_ref(), it.pod.as_ref()),
            it.network.clone(),
            vf_name(it.vf.as_ref()),
            rate(|rates| rates.sent_bytes, bytes),
            rate(|rates| rates.received_bytes, bytes),
            counter(|counters| counters.guard_drops.to_string()),
            counter(|counters| counters.allow_drops.to_string()),
            counter(|counters| {
                (counters.ingress_limit_drops + counters.egress_limit_drops).to_string()
            }),
            counter(in_hardware),
            it.host.clone(),
            rate(|rates| rates.sent_packets, |number| number.to_string()),
            rate(|rates| rates.received_packets, |number| number.to_string()),
        ]
    };
    let mut rows: Vec<_> = attachments.into_iter().map(row).collect();
    shorten_ids(&mut rows, 0);
    narrow_or_wide(&headings, 10, wide, rows.into_iter().take(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(id: &str, counters: Option<PortCounters>) -> AttachmentTraffic {
        AttachmentTraffic { attachment_id: id.into(), counters, ..AttachmentTraffic::default() }
    }

    fn look(time: &str, sent: &[(&str, u64)]) -> ListTrafficResponse {
        let attachments = sent.iter().map(|(id, sent_bytes)| {
            let counters = PortCounters { sent_bytes: *sent_bytes, ..PortCounters::default() };
            traffic(id, Some(counters))
        });
        ListTrafficResponse {
            time: time.into(),
            attachments: attachments.collect(),
            ..ListTrafficResponse::default()
        }
    }

    /// The ids of the rows, with the bytes sent per second.
    fn rows(before: &ListTrafficResponse, now: &ListTrafficResponse) -> Vec<(String, String)> {
        let table = rate_table(before, now, usize::MAX, false);
        let row = |line: &str| {
            let mut columns = line.split("   ").map(str::trim).filter(|column| !column.is_empty());
            (columns.next().unwrap().to_owned(), columns.nth(2).unwrap().to_owned())
        };
        table.lines().skip(1).map(row).collect()
    }

    fn expected(rows: &[(&str, &str)]) -> Vec<(String, String)> {
        rows.iter().map(|(id, sent)| ((*id).to_owned(), (*sent).to_owned())).collect()
    }

    #[test]
    fn busiest_come_first_and_new_last() {
        let before = look("2026-03-01T12:00:00Z", &[("a", 1000), ("b", 1000), ("reset", 9000)]);
        let now = look(
            "2026-03-01T12:00:02.5Z",
            &[("a", 1000), ("reset", 10), ("b", 3_501_000), ("new", 7000)],
        );
        let rows = rows(&before, &now);
        let all = [("b", "1.40 MB"), ("a", "0 B"), ("reset", "0 B"), ("new", "-")];
        assert_eq!(rows, expected(&all));
        assert_eq!(rate_table(&before, &now, 1, false).lines().count(), 2);
    }

    #[test]
    fn a_clock_that_was_set_makes_no_rates() {
        let (before, now) = (look("2026-03-01T12:00:00Z", &[("a", 1)]), look("", &[("a", 2)]));
        assert_eq!(rows(&before, &now), expected(&[("a", "-")]));
        let earlier = look("2026-03-01T11:59:59Z", &[("a", 2)]);
        assert_eq!(rows(&before, &earlier), expected(&[("a", "-")]));
        assert_eq!(rows(&before, &before.clone()), expected(&[("a", "-")]));
    }

    #[test]
    fn reason_without_counters_is_shown() {
        let look = |unknown: &str| ListTrafficResponse { unknown: unknown.into(), ..look("", &[]) };
        assert_eq!(look("").warning(), None);
        let shown = look("can't ask\u{1b}").warning().unwrap();
        assert!(
            shown.starts_with("warning: ") && shown.ends_with(": can't ask\u{fffd}"),
            "{shown}"
        );
    }

    #[test]
    fn attachment_without_port_has_no_numbers() {
        let now = ListTrafficResponse {
            time: "2026-03-01T12:00:00Z".into(),
            attachments: vec![traffic("a", None)],
            ..ListTrafficResponse::default()
        };
        let table = rate_table(&now, &now, 9, true);
        let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[0], "a");
        assert!(row.len() == 11 && row[1..].iter().all(|shown| *shown == "-"), "{row:?}");
    }
}
