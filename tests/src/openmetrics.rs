//! A parser of OpenMetrics text by the specification, independent of the product's encoder. It refuses what the
//! specification forbids.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read, Write},
    net::TcpStream,
    time::Duration,
};

use crate::{METRICS, Netns};

/// Timeout of a scrape.
const LIMIT: Duration = Duration::from_secs(30);

/// Metric families of a scrape, by name.
pub type Exposition = BTreeMap<String, Family>;

/// A metric family.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Family {
    /// Type, such as `counter`.
    pub kind: String,
    /// Help text.
    pub help: String,
    /// Unit, or empty.
    pub unit: String,
    /// Values of its samples.
    pub samples: BTreeMap<Sample, f64>,
}

/// Identity of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// Name of the family, perhaps with a suffix.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// Scrapes the program in `netns`. `None`: no program listens there.
///
/// # Panics
/// If the answer is not a valid page.
#[must_use]
pub fn scrape(netns: &Netns) -> Option<Exposition> {
    let answer = ask(netns, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").ok()?;
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    Some(parse(text).unwrap_or_else(|error| panic!("{error}\n{text}")))
}

/// The program's complete answer in `netns` to a request, until it closes the connection.
///
/// # Errors
/// No program listens, or there is no answer.
///
/// # Panics
/// If the namespace cannot be entered.
pub fn ask(netns: &Netns, request: &str) -> io::Result<String> {
    ask_at(netns, METRICS, request)
}

/// The complete answer of the program that listens at an address in `netns`.
///
/// # Errors
/// No program listens, or there is no answer.
///
/// # Panics
/// If the namespace cannot be entered.
pub fn ask_at(netns: &Netns, address: &str, request: &str) -> io::Result<String> {
    let mut stream = netns.run(|| TcpStream::connect(address))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The sum of a family's samples with this name suffix that have at least these labels.
#[must_use]
pub fn value(
    page: &Exposition,
    family: &str,
    suffix: &str,
    labels: &[(&str, &str)],
) -> Option<f64> {
    let name = format!("{family}{suffix}");
    let is_meant = |sample: &&Sample| {
        let has =
            |(label, value): &(&str, &str)| sample.labels.get(*label).is_some_and(|it| it == value);
        sample.name == name && labels.iter().all(has)
    };
    let samples = &page.get(family)?.samples;
    let meant: Vec<_> = samples.keys().filter(is_meant).map(|sample| samples[sample]).collect();
    (!meant.is_empty()).then(|| meant.iter().sum())
}

/// Parses a complete page.
///
/// # Errors
/// What is wrong, and in which line or family.
pub fn parse(text: &str) -> Result<Exposition, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it does not end with # EOF")?;
    let mut families = Exposition::new();
    let mut current = String::new();
    for line in body.split_terminator('\n') {
        let at_line = |problem: &str| format!("{problem}: {line}");
        match line.strip_prefix("# ") {
            Some(metadata) => {
                let name = metadata.split(' ').nth(1).ok_or_else(|| at_line("no name"))?;
                if name != current {
                    current = name.to_owned();
                    let earlier = families.insert(current.clone(), Family::default());
                    if earlier.is_some() || !is_name(name) {
                        return Err(at_line("not a new family"));
                    }
                }
                let family = families.entry(current.clone()).or_default();
                describe(family, metadata).ok_or_else(|| at_line("not metadata"))?;
            }
            None => {
                let (sample, value) = sample(line).ok_or_else(|| at_line("not a sample"))?;
                let family = families.get_mut(&current).ok_or_else(|| at_line("no family"))?;
                if !belongs(&sample, value, &current, &family.kind) {
                    return Err(at_line("not a sample of its family"));
                }
                if family.samples.insert(sample, value).is_some() {
                    return Err(at_line("twice"));
                }
            }
        }
    }
    for (name, family) in &families {
        check(name, family).map_err(|problem| format!("{name}: {problem}"))?;
    }
    Ok(families)
}

/// Reads a metadata line such as `TYPE name gauge`. Each kind occurs once, before all samples.
fn describe(family: &mut Family, metadata: &str) -> Option<()> {
    let mut words = metadata.splitn(3, ' ');
    let (keyword, text) = (words.next()?, words.nth(1)?);
    let place = match keyword {
        "TYPE" => &mut family.kind,
        "HELP" => &mut family.help,
        "UNIT" => &mut family.unit,
        _ => return None,
    };
    let is_first = place.is_empty() && family.samples.is_empty();
    *place = text.to_owned();
    is_first.then_some(())
}

/// Parses a line such as `name{label="value"} 1`, without timestamp and exemplar.
fn sample(line: &str) -> Option<(Sample, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            let is_new = labels.insert(label.to_owned(), value).is_none();
            if !is_new || !is_name(label) || label.contains(':') {
                return None;
            }
            rest = after.strip_prefix(',').unwrap_or(after);
            // A comma is followed by another label.
            if after.starts_with(',') == rest.starts_with('}') {
                return None;
            }
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ')?;
    let is_number = !value.is_empty() && !value.contains(' ');
    let value = is_number.then(|| value.parse().ok())??;
    is_name(name).then(|| (Sample { name: name.to_owned(), labels }, value))
}

/// The text up to the closing quotation mark, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    loop {
        match characters.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match characters.next()?.1 {
                'n' => '\n',
                escaped @ ('"' | '\\') => escaped,
                _ => return None,
            }),
            (_, character) => value.push(character),
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(is_letter) && text.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

fn belongs(sample: &Sample, value: f64, family: &str, kind: &str) -> bool {
    let Some(suffix) = sample.name.strip_prefix(family) else { return false };
    let counts = value >= 0.0 && value.is_finite();
    match kind {
        "gauge" => suffix.is_empty(),
        "info" => suffix == "_info" && value == 1.0,
        "counter" => suffix == "_total" && counts,
        "histogram" => match suffix {
            "_bucket" => sample.labels.contains_key("le") && counts,
            "_sum" | "_count" => !sample.labels.contains_key("le") && counts,
            _ => false,
        },
        _ => false,
    }
}

fn check(name: &str, family: &Family) -> Result<(), String> {
    if !["gauge", "info", "counter", "histogram"].contains(&family.kind.as_str()) {
        return Err(format!("it has no type that is known: {:?}", family.kind));
    }
    if family.help.is_empty() {
        return Err("it has no help".into());
    }
    if !family.unit.is_empty() && !name.ends_with(&format!("_{}", family.unit)) {
        return Err("its name does not end with its unit".into());
    }
    if name.ends_with("_total") || name.ends_with("_info") {
        return Err("its name ends with the suffix of a sample".into());
    }
    if family.kind == "histogram" { check_histogram(name, family) } else { Ok(()) }
}

/// Buckets are cumulative, and the last one counts everything.
fn check_histogram(name: &str, family: &Family) -> Result<(), String> {
    let without_bound = |sample: &Sample| {
        let mut labels = sample.labels.clone();
        labels.remove("le");
        labels
    };
    let all: BTreeSet<_> = family.samples.keys().map(without_bound).collect();
    for labels in all {
        let value = |suffix: &str| {
            let sample = Sample { name: format!("{name}{suffix}"), labels: labels.clone() };
            family.samples.get(&sample).copied().ok_or(format!("no {suffix} of {labels:?}"))
        };
        value("_sum")?;
        let count = value("_count")?;
        let buckets = family.samples.iter().filter(|(sample, _)| without_bound(sample) == labels);
        let buckets = buckets.filter_map(|(sample, value)| {
            let bound: f64 = sample.labels.get("le")?.parse().ok()?;
            Some((bound, *value))
        });
        let mut buckets: Vec<_> = buckets.collect();
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let is_cumulative = buckets.is_sorted_by(|one, other| one.0 < other.0 && one.1 <= other.1);
        if !is_cumulative || buckets.last() != Some(&(f64::INFINITY, count)) {
            return Err(format!("its buckets of {labels:?} are {buckets:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a A thing.\n# TYPE a gauge\na{x=\"1\",y=\"\\\"\\\\\\n}\"} 2.5\na 1\n\
        # TYPE c counter\n# HELP c C.\nc_total 1\n\
        # TYPE d_seconds histogram\n# UNIT d_seconds seconds\n# HELP d_seconds D.\n\
        d_seconds_bucket{le=\"0.5\"} 1\nd_seconds_bucket{le=\"+Inf\"} 2\n\
        d_seconds_count 2\nd_seconds_sum 1.5\n# EOF\n";

    #[test]
    fn valid_openmetrics_are_read() {
        let families = parse(GOOD).unwrap();
        assert_eq!(families.keys().collect::<Vec<_>>(), ["a", "c", "d_seconds"]);
        let values: Vec<_> = families["a"].samples.values().collect();
        assert_eq!(values, [&1.0, &2.5]);
        let labels = &families["a"].samples.keys().nth(1).unwrap().labels;
        assert_eq!(labels["y"], "\"\\\n}");
    }

    #[test]
    fn invalid_openmetrics_are_refused() {
        let wrongs = [
            ("# EOF\n", "# EOF"),
            ("# EOF\n", ""),
            ("a 1\n", "a 1\na 1\n"),
            ("a 1\n", "a\n"),
            ("a 1\n", "a 1 5\n"),
            ("a 1\n", "a  1\n"),
            ("a 1\n", "b 1\n"),
            ("a 1\n", "\n"),
            ("a 1\n", "# EOF\na 1\n"),
            ("x=\"1\",y", "x=\"1\",x"),
            ("x=\"1\",y", "x=\"1\"y"),
            ("x=\"1\",y", "0=\"1\",y"),
            ("}\"} 2.5", "}\",} 2.5"),
            ("}\"} 2.5", "} 2.5"),
            ("\\n}", "\\t}"),
            ("TYPE a gauge", "TYPE a thing"),
            ("# HELP c C.\n", ""),
            ("# HELP c C.\n", "# HELP c C.\n# HELP c C.\n"),
            ("# TYPE c counter", "# TYPE a counter"),
            ("c_total 1", "c 1"),
            ("c_total 1", "c_total -1"),
            ("c_total 1\n", "c_total 1\n# UNIT c x\n"),
            ("seconds seconds", "seconds bytes"),
            ("le=\"0.5\"} 1", "le=\"0.5\"} 3"),
            ("d_seconds_count 2", "d_seconds_count 3"),
            ("d_seconds_sum 1.5\n", ""),
        ];
        for (good, wrong) in wrongs {
            let text = GOOD.replacen(good, wrong, 1);
            assert_ne!(text, GOOD, "{good}");
            assert!(parse(&text).is_err(), "{wrong:?} is taken for good");
        }
    }
}
