//! `dpuctl audit`: lists changes with author and reason.

use std::collections::BTreeSet;

use jiff::Timestamp;
use offload_proto::v1::{AuditEntry, ListAuditRequest, operator_client::OperatorClient};
use serde_json::{Map, Value};

use crate::{
    arguments::Audit,
    client::Client,
    console::Console,
    error::CallError,
    format::{Audience, print_encoded},
    table::narrow_or_wide,
    text::{age, or_dash},
};

/// Longest value in the table, in characters.
const LONGEST_VALUE: usize = 24;

pub(crate) async fn audit(
    client: &mut Client,
    wanted: Audit,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let request = ListAuditRequest {
        within_s: wanted.since.unwrap_or_default(),
        object: wanted.object.unwrap_or_default(),
        operator: wanted.operator.unwrap_or_default(),
    };
    let listed = client.call(OperatorClient::list_audit, request).await?;
    match print_encoded(&listed, wanted.output, console)? {
        Audience::Programs => Ok(()),
        Audience::People { .. } if listed.entries.is_empty() => console.note("No changes."),
        Audience::People { wide } => {
            console.print(&audit_table(&listed.entries, wide, client.now()))
        }
    }
}

fn audit_table(entries: &[AuditEntry], wide: bool, now: Timestamp) -> String {
    let headings = ["AGE", "BY", "ACTION", "OBJECT", "CHANGE", "REASON", "TIME"];
    let row = |entry: &AuditEntry| {
        vec![
            age(&entry.time, now),
            entry.author.clone(),
            entry.action.clone(),
            entry.object.clone(),
            or_dash(&change(&entry.before, &entry.after)).into(),
            or_dash(&entry.reason).into(),
            entry.time.clone(),
        ]
    };
    narrow_or_wide(&headings, 6, wide, entries.iter().map(row))
}

/// The fields that differ, such as `mtu 1500 -> 1400`. Empty: the object was created or deleted.
fn change(before: &str, after: &str) -> String {
    let (Some(before), Some(after)) = (fields(before), fields(after)) else {
        return String::new();
    };
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differ = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let shown = differ.map(|key| {
        let (before, after) = (value(before.get(key)), value(after.get(key)));
        format!("{key} {before} -> {after}")
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn fields(json: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(json).ok()
}

fn value(value: Option<&Value>) -> String {
    let text = match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    if text.chars().count() <= LONGEST_VALUE {
        return text;
    }
    text.chars().take(LONGEST_VALUE).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_fields_are_shown() {
        let before = r#"{"mtu":1500,"name":"blue","vlan":null}"#;
        let after = r#"{"mtu":1400,"name":"blue","vlan":7,"nat":true}"#;
        assert_eq!(change(before, after), "mtu 1500 -> 1400, nat - -> true, vlan - -> 7");
        assert_eq!(change("", after), "");
        let long = r#"{"name":"a-name-that-is-longer-than-any-cell"}"#;
        assert!(change(r#"{"name":"b"}"#, long).ends_with('…'));
    }
}
