//! Filters for events and audit entries.

use std::time::Duration;

use jiff::Timestamp;
use offload_proto::{Failure, v1};

use super::{invalid, label, parse, shortened};
use crate::{
    audit::AuditFilter,
    events::{EventCursor, EventFilter, EventKind, Severity},
};

pub(crate) fn event_filter(filter: Option<v1::EventFilter>) -> Result<EventFilter, Failure> {
    let filter = filter.unwrap_or_default();
    let severity = match filter.severity() {
        v1::EventSeverity::Unspecified => None,
        v1::EventSeverity::Normal => Some(Severity::Normal),
        v1::EventSeverity::Warning => Some(Severity::Warning),
    };
    Ok(EventFilter {
        since: since(filter.within_s),
        object: optional("object", filter.object)?,
        kind: event_kind(&filter.kind)?,
        severity,
    })
}

pub(crate) fn audit_filter(request: v1::ListAuditRequest) -> Result<AuditFilter, Failure> {
    Ok(AuditFilter {
        since: since(request.within_s),
        object: optional("object", request.object)?,
        operator: optional("operator", request.operator)?,
    })
}

/// A name to filter by. Empty: none.
fn optional(what: &str, name: String) -> Result<Option<String>, Failure> {
    let name = label(what, name)?;
    Ok((!name.is_empty()).then_some(name))
}

/// The time that many seconds ago. `None`: 0, which means no limit.
fn since(within_s: u64) -> Option<Timestamp> {
    let within = (within_s != 0).then(|| Duration::from_secs(within_s))?;
    Some(Timestamp::now().checked_sub(within).unwrap_or(Timestamp::MIN))
}

fn event_kind(name: &str) -> Result<Option<EventKind>, Failure> {
    if name.is_empty() {
        return Ok(None);
    }
    let unknown = || invalid(format!("there are no events of kind {}", shortened(name)));
    EventKind::named(name).ok_or_else(unknown).map(Some)
}

pub(crate) fn event_cursor(cursor: &v1::EventCursor) -> Result<EventCursor, Failure> {
    let boot = parse("boot", &cursor.boot, "a UUID")?;
    Ok(EventCursor { boot, revision: cursor.revision })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_age_reaches_the_oldest_time() {
        assert_eq!([since(0), since(u64::MAX)], [None, Some(Timestamp::MIN)]);
    }
}
