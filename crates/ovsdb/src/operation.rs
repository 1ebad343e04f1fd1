//! Operations of transactions (RFC 7047, section 5.2).

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{Datum, Error, Row};

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation(pub(crate) Value);

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome(Value);

type Column<'a> = (&'a str, Datum);

impl Operation {
    /// Inserts a row. Other operations of the transaction refer to it by `name`: [`Datum::inserted`].
    pub fn insert<'a>(table: &str, name: &str, row: impl IntoIterator<Item = Column<'a>>) -> Self {
        Self(json!({"op": "insert", "table": table, "uuid-name": name, "row": columns(row)}))
    }

    /// Sets columns of a row.
    pub fn update<'a>(table: &str, id: Uuid, row: impl IntoIterator<Item = Column<'a>>) -> Self {
        Self(json!({"op": "update", "table": table, "where": is(id), "row": columns(row)}))
    }

    /// Adds members to a column.
    #[must_use]
    pub fn add_to_set(table: &str, id: Uuid, column: &str, members: &Datum) -> Self {
        mutate(table, id, &json!([column, "insert", members.0]))
    }

    /// Removes members from a column.
    #[must_use]
    pub fn remove_from_set(table: &str, id: Uuid, column: &str, members: &Datum) -> Self {
        mutate(table, id, &json!([column, "delete", members.0]))
    }

    /// Increments a number.
    #[must_use]
    pub fn increment(table: &str, id: Uuid, column: &str) -> Self {
        mutate(table, id, &json!([column, "+=", 1]))
    }

    /// Reads columns of a row, as the earlier operations leave them.
    pub fn select<'a>(table: &str, id: Uuid, columns: impl IntoIterator<Item = &'a str>) -> Self {
        let columns: Vec<_> = columns.into_iter().collect();
        Self(json!({"op": "select", "table": table, "where": is(id), "columns": columns}))
    }

    /// Requires that no row has this value in a column. Otherwise the transaction fails with [`Error::NotSame`].
    #[must_use]
    pub fn check_absent(table: &str, column: &str, datum: &Datum) -> Self {
        Self(json!({
            "op": "wait", "timeout": 0, "table": table, "where": [[column, "==", datum.0]],
            "columns": [column], "until": "==", "rows": [],
        }))
    }
}

fn columns<'a>(row: impl IntoIterator<Item = Column<'a>>) -> Map<String, Value> {
    row.into_iter().map(|(column, datum)| (column.to_owned(), datum.0)).collect()
}

fn is(id: Uuid) -> Value {
    json!([["_uuid", "==", Datum::reference(id).0]])
}

fn mutate(table: &str, id: Uuid, mutation: &Value) -> Operation {
    Operation(json!({"op": "mutate", "table": table, "where": is(id), "mutations": [mutation]}))
}

impl Outcome {
    /// Number of rows that were changed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0["count"].as_u64().unwrap_or_default()
    }

    /// The row that was inserted.
    #[must_use]
    pub fn inserted(&self) -> Option<Uuid> {
        crate::datum::referred(&self.0["uuid"])
    }

    /// The selected rows with the requested columns. Their IDs are nil.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.0["rows"].as_array().into_iter().flatten();
        let columns = rows.filter_map(|row| row.as_object().cloned());
        columns.map(|columns| Row::new(Uuid::nil(), columns)).collect()
    }

    /// The results of all operations, or the reason of the failure. A failed commit adds one more result for the whole.
    pub(crate) fn all(answer: Value) -> Result<Vec<Self>, Error> {
        let Value::Array(outcomes) = answer else {
            return Err(Error::Garbage { why: "a transaction's outcome is no list" });
        };
        let refused = outcomes.iter().find(|outcome| outcome.get("error").is_some());
        match refused {
            Some(refused) => Err(refusal(refused)),
            None => Ok(outcomes.into_iter().map(Self).collect()),
        }
    }
}

/// Converts an error value of the server.
pub(crate) fn refusal(value: &Value) -> Error {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    match (value.as_str(), text("error")) {
        (Some(error), _) => Error::Refused { error: error.to_owned(), details: String::new() },
        // Only checks (`wait` operations) time out, and theirs is 0.
        (None, error) if error == "timed out" => Error::NotSame,
        (None, error) => {
            // `io-error` is the system's reason, such as a full disk.
            let details = [text("details"), text("io-error")];
            let given = details.into_iter().filter(|details| !details.is_empty());
            Error::Refused { error, details: given.collect::<Vec<_>>().join(": ") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_refusal_has_server_sentence() {
        let refused = json!({"error": "constraint violation", "details": "no bridge"});
        let error = Outcome::all(json!([{}, refused, null])).unwrap_err();
        assert_eq!(error.to_string(), "the database refused: constraint violation (no bridge)");
        let error = Outcome::all(json!([{"error": "timed out"}, null])).unwrap_err();
        assert!(matches!(error, Error::NotSame), "{error}");
        let failed = json!({"error": "I/O error", "details": "write failed", "io-error": "No space left on device"});
        let error = Outcome::all(json!([{"count": 1}, failed])).unwrap_err();
        let reported = "the database refused: I/O error (write failed: No space left on device)";
        assert_eq!(error.to_string(), reported);
        let error = Outcome::all(json!({})).unwrap_err();
        assert!(matches!(error, Error::Garbage { .. }), "{error}");
        assert_eq!(
            refusal(&json!("unknown method")).to_string(),
            "the database refused: unknown method"
        );
    }

    #[test]
    fn transaction_outcomes_are_read() {
        let id = Uuid::nil();
        let answer =
            json!([{"uuid": ["uuid", id.to_string()]}, {"count": 2}, {"rows": [{"next_cfg": 7}]}]);
        let outcomes = Outcome::all(answer).unwrap();
        assert_eq!(outcomes[0].inserted(), Some(id));
        assert_eq!(outcomes[1].count(), 2);
        assert_eq!(outcomes[2].rows()[0].integer("next_cfg"), Some(7));
        assert_eq!(
            (outcomes[0].count(), outcomes[1].inserted(), outcomes[1].rows().len()),
            (0, None, 0)
        );
    }
}
