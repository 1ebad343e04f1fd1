//! Arguments that select a part of the history.

use clap::Args;
use jiff::SignedDuration;
use offload_proto::{
    event::EventKind,
    v1::{EventFilter, EventSeverity},
};

use super::{Format, name, reason};

/// The arguments of `events`.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Only events of the last 10m, 2h or 3d; the default is 7d
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub(crate) since: Option<u64>,
    /// Only events about this object: an attachment's id, a VF, a network, a host or a pool
    #[arg(long, value_parser = name())]
    pub(crate) object: Option<String>,
    /// Only events of this type: normal, warning, or a kind such as HostConnected
    #[arg(long = "type", value_name = "TYPE", value_parser = event_type)]
    pub(crate) of_type: Option<String>,
    /// Continue with new events until interrupted; reconnect if the connection is lost
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Output format; with --follow, json is one line per event and yaml one document
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// The arguments of `audit`.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Only changes of the last 10m, 2h or 3d; the default is 90d
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub(crate) since: Option<u64>,
    /// Only changes of this object: a network, a VF, or the beginning of an attachment's id
    #[arg(long, value_parser = name())]
    pub(crate) object: Option<String>,
    /// Only changes by this operator, by the name in the certificate
    #[arg(long, value_parser = name())]
    pub(crate) operator: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// The reason of a change.
#[derive(Debug, Default, Args)]
pub(crate) struct Why {
    /// Reason, for the audit
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(crate) reason: Option<String>,
}

impl Why {
    pub(crate) fn text(self) -> String {
        self.reason.unwrap_or_default()
    }
}

impl Events {
    pub(crate) fn filter(&self) -> EventFilter {
        let of_type = self.of_type.clone().unwrap_or_default();
        let severity = match of_type.to_ascii_lowercase().as_str() {
            "normal" => EventSeverity::Normal,
            "warning" => EventSeverity::Warning,
            _ => EventSeverity::Unspecified,
        };
        EventFilter {
            within_s: self.since.unwrap_or_default(),
            object: self.object.clone().unwrap_or_default(),
            kind: if severity == EventSeverity::Unspecified { of_type } else { String::new() },
            severity: severity.into(),
        }
    }
}

/// A severity, or the event kind of that name in any case.
fn event_type(text: &str) -> Result<String, String> {
    let names = EventKind::ALL.iter().map(|kind| kind.as_str());
    let mut types = ["normal", "warning"].into_iter().chain(names.clone());
    types.find(|name| name.eq_ignore_ascii_case(text)).map(String::from).ok_or_else(|| {
        let kinds: Vec<_> = names.collect();
        format!("use normal, warning or one of the kinds {}", kinds.join(", "))
    })
}

/// Parses an age such as `10m` into seconds.
fn age(text: &str) -> Result<u64, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    let seconds = match days {
        Some(days) => i64::from(days) * 24 * 3600,
        None => text.parse().map_or(0, |age: SignedDuration| age.as_secs()),
    };
    let whole = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
    whole.ok_or_else(|| "it must be a length of time of 1s or more, such as 10m, 2h or 3d".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_types_have_any_case() {
        assert_eq!(event_type("Warning").unwrap(), "warning");
        assert_eq!(event_type("hostconnected").unwrap(), "HostConnected");
        assert!(event_type("nope").unwrap_err().contains("HostConnected, HostRenewed"));
    }

    #[test]
    fn ages_have_units() {
        let ages = ["30s", "10m", "2h", "1h30m", "3d"].map(age);
        assert_eq!(ages.map(Result::unwrap), [30, 600, 7200, 5400, 259_200]);
        for wrong in ["", "10", "0s", "-5m", "soon", "0d"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }
}
