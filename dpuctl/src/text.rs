//! Formatting for people.

use jiff::Timestamp;
pub(crate) use offload_proto::form::seconds;
use offload_proto::v1::{HostStatus, Vf};
use vf_alloc::FunctionId;

/// The text without control characters, which could command a terminal: pods and hosts choose their own names. Line
/// breaks stay, because the program's own texts contain them.
pub(crate) fn printable(text: &str) -> String {
    bootstrap::printable(text, &['\n'])
}

/// As [`printable`], without line breaks.
pub(crate) fn one_line(text: &str) -> String {
    bootstrap::printable(&text.replace('\n', " "), &[])
}

/// The text, or `usual` if it is empty.
pub(crate) fn or<'a>(text: &'a str, usual: &'a str) -> &'a str {
    if text.is_empty() { usual } else { text }
}

pub(crate) fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

pub(crate) fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// How much of an attachment's id distinguishes it from most others. Ids begin with the millisecond of their creation,
/// in 12 digits and a hyphen.
pub(crate) const SHORT_ID: usize = 13;

/// Shortens an attachment's id. Other names stay as they are.
pub(crate) fn short_id(name: &str) -> &str {
    const LENGTH: usize = 36;
    let is_id = name.len() == LENGTH && name.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if is_id { name.get(..SHORT_ID).unwrap_or(name) } else { name }
}

/// The VF's name, such as `pf0vf3`.
pub(crate) fn vf_name(vf: Option<&Vf>) -> String {
    let id = vf.and_then(|vf| FunctionId::from_numbers(vf.controller, vf.pf, vf.vf).ok());
    id.map_or_else(|| "-".into(), |id| id.to_string())
}

pub(crate) fn vf_message(id: FunctionId) -> Vf {
    Vf {
        controller: id.pf.controller,
        pf: id.pf.pf.into(),
        vf: id.vf.into(),
        device: String::new(),
    }
}

/// A number such as `254`. Very large numbers are rounded to a power of two: `~2^64`. The largest
/// number stands for all larger ones.
pub(crate) fn count(number: u64) -> String {
    const COUNTABLE: u64 = 1_000_000_000;
    if number < COUNTABLE {
        return number.to_string();
    }
    if number == u64::MAX {
        return ">=2^64".into();
    }
    // The next power is nearer if the bit below the highest is set.
    let highest = number.ilog2();
    let exponent = highest + u32::from(number >> (highest - 1) & 1 == 1);
    format!("~2^{exponent}")
}

/// The time from `since` (RFC 3339) to `now`, such as `5m12s`, `3h4m` or `12d`.
pub(crate) fn age(since: &str, now: Timestamp) -> String {
    let Ok(since) = since.parse::<Timestamp>() else { return "-".into() };
    let elapsed = now.duration_since(since).as_secs();
    seconds(u64::try_from(elapsed).unwrap_or_default())
}

/// An enum's value for people: `ATTACHMENT_STATE_HOST_REMOVED` becomes `HostRemoved`.
pub(crate) fn state(value: &str, prefix: &str) -> String {
    words(value, prefix).map(capitalised).collect()
}

/// An enum's value as a phrase: `VF_PLACE_HANDED_OVER` becomes `Handed over`.
pub(crate) fn phrase(value: &str, prefix: &str) -> String {
    capitalised(&words(value, prefix).collect::<Vec<_>>().join(" "))
}

fn words<'a>(value: &'a str, prefix: &str) -> impl Iterator<Item = &'a str> {
    value.strip_prefix(prefix).unwrap_or(value).split('_')
}

fn capitalised(text: &str) -> String {
    let (first, rest) = text.split_at(text.len().min(1));
    format!("{first}{}", rest.to_ascii_lowercase())
}

/// Bits per second, such as `250M`. 0 means no limit.
pub(crate) fn rate(bits: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    if bits == 0 {
        return "unlimited".into();
    }
    let unit = UNITS.iter().find(|(size, _)| bits.is_multiple_of(*size));
    unit.map_or_else(|| bits.to_string(), |(size, unit)| format!("{}{unit}", bits / size))
}

/// Bytes in three digits, such as `1.25 MB`.
pub(crate) fn bytes(number: u64) -> String {
    three_digits(number, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Nanoseconds in three digits, such as `1.25 ms`.
pub(crate) fn duration(nanoseconds: u64) -> String {
    three_digits(nanoseconds, &["ns", "us", "ms", "s"])
}

/// Uses the largest unit that is reached. Each unit is a thousand of the one before.
fn three_digits(number: u64, units: &[&str]) -> String {
    let mut unit = 0;
    let mut divisor = 1;
    while number / divisor >= 1000 && unit + 1 < units.len() {
        divisor *= 1000;
        unit += 1;
    }
    let (whole, rest) = (number / divisor, number % divisor);
    match whole {
        _ if unit == 0 => format!("{whole} {}", units[unit]),
        0..10 => format!("{whole}.{:02} {}", rest / (divisor / 100), units[unit]),
        10..100 => format!("{whole}.{} {}", rest / (divisor / 10), units[unit]),
        _ => format!("{whole} {}", units[unit]),
    }
}

pub(crate) fn host_state(host: &HostStatus) -> String {
    let state = if host.connected { "Connected" } else { "Disconnected" };
    if host.maintenance { format!("{state},Maintenance") } else { state.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let ages = [
            ("2026-03-01T11:59:57Z", "3s"),
            ("2026-03-01T11:54:48Z", "5m12s"),
            ("2026-03-01T08:56:00Z", "3h4m"),
            ("2026-02-17T00:00:00Z", "12d"),
            ("2026-03-01T12:00:05Z", "0s"),
            ("", "-"),
        ];
        for (since, expected) in ages {
            assert_eq!(age(since, now), expected, "{since}");
        }
    }

    #[test]
    fn huge_counts_are_powers_of_two() {
        let counts = [
            (0, "0"),
            (65_533, "65533"),
            (999_999_999, "999999999"),
            (u64::from(u32::MAX) - 5, "~2^32"),
            (5 << 30, "~2^32"),
            (6 << 30, "~2^33"),
            (u64::MAX - 5, "~2^64"),
            (u64::MAX, ">=2^64"),
        ];
        for (number, expected) in counts {
            assert_eq!(count(number), expected);
        }
    }

    #[test]
    fn states_and_rates_read_well() {
        assert_eq!(state("ATTACHMENT_STATE_RELEASING", "ATTACHMENT_STATE_"), "Releasing");
        assert_eq!(state("ATTACHMENT_STATE_HOST_REMOVED", "ATTACHMENT_STATE_"), "HostRemoved");
        assert_eq!(rate(0), "unlimited");
        assert_eq!(rate(250_000_000), "250M");
        assert_eq!(rate(1_500), "1500");
    }

    #[test]
    fn numbers_of_bytes_have_three_digits() {
        let shown = [0, 999, 1000, 1_259_999, 12_999_999, 999_999_999, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.00 kB", "1.25 MB", "12.9 MB", "999 MB", "18.4 EB"]);
    }

    #[test]
    fn durations_have_three_digits() {
        let shown = [0, 999, 1_000, 12_599_999, 2_500_000_000, 7_200_000_000_000].map(duration);
        assert_eq!(shown, ["0 ns", "999 ns", "1.00 us", "12.5 ms", "2.50 s", "7200 s"]);
    }

    #[test]
    fn only_ids_are_shortened() {
        assert_eq!(short_id("0190aaaa-bbbb-7000-8000-000000000001"), "0190aaaa-bbbb");
        assert_eq!(short_id("pf0vf3"), "pf0vf3");
        assert_eq!(
            short_id("a-host-whose-name-is-as-long-as-an-i"),
            "a-host-whose-name-is-as-long-as-an-i"
        );
    }

    #[test]
    fn vfs_are_named_both_ways() {
        let id: FunctionId = "c1pf0vf3".parse().unwrap();
        assert_eq!(vf_name(Some(&vf_message(id))), "c1pf0vf3");
        assert_eq!(vf_name(None), "-");
    }
}
