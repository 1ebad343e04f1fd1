//! Checks of a `hack/card-check` report.

use std::collections::BTreeMap;

/// Rows with times.
const TIMES: [&str; 5] = [
    "CNI ADD",
    "CNI DEL",
    "floor on the host: bare netlink into the pod, with two processes of ip",
    "floor on the host: back, with one process of ip",
    "floor on the DPU: bare netlink, representor into a bridge and out",
];

/// The rows of a report's tables, by their first cell, without headings.
#[must_use]
pub fn rows(report: &str) -> BTreeMap<&str, &str> {
    let lines = report.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = lines.filter_map(|line| line.split_once(" | "));
    rows.filter(|(first, _)| !["setting", "what", "---"].contains(first)).collect()
}

/// Checks that every setting works and every time was measured. Each exception names a setting that may be unsupported,
/// with the start of its result.
///
/// # Panics
/// If a row contains another result.
pub fn assert_complete(report: &str, exceptions: &[(&str, &str)]) {
    let mut rows = rows(report);
    for time in TIMES {
        let row = rows.remove(time).unwrap_or_else(|| panic!("no {time:?} in:\n{report}"));
        let (median, _) = row.split_once(" | ").unwrap_or_else(|| panic!("{time}: {row}"));
        assert!(median.parse::<f64>().is_ok_and(|median| median > 0.0), "{time}: {row}");
    }
    assert!(rows.len() > 10, "{report}");
    for (setting, result) in rows {
        let is_exception =
            |(of, beginning): &(&str, &str)| *of == setting && result.starts_with(beginning);
        let is_known = result == "works" || exceptions.iter().any(is_exception);
        assert!(is_known, "{setting}: {result} in:\n{report}");
    }
}
