//! The client's replica of the monitored tables.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::datum::{members, pairs, referred};

/// The content of the monitored tables, as of the server's latest update.
#[derive(Debug, Default)]
pub struct Replica {
    tables: HashMap<String, Table>,
    version: u64,
}

#[derive(Debug, Default)]
struct Table {
    rows: HashMap<Uuid, Row>,
    /// Rows by their column `name`.
    names: HashMap<String, Uuid>,
}

/// The column with a row's name.
const NAME: &str = "name";

/// A row. A column that is absent or has another type reads as empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    id: Uuid,
    columns: Map<String, Value>,
    /// Referenced rows by column, indexed because a bridge may have ten thousand ports and callers ask for one.
    references: HashMap<String, HashSet<Uuid>>,
}

impl Replica {
    /// All rows of a table, unordered.
    pub fn rows(&self, table: &str) -> impl Iterator<Item = &Row> {
        self.tables.get(table).into_iter().flat_map(|table| table.rows.values())
    }

    /// The row of a table with this ID.
    #[must_use]
    pub fn row(&self, table: &str, id: Uuid) -> Option<&Row> {
        self.tables.get(table)?.rows.get(&id)
    }

    /// A row of a table whose column `name` has this value.
    #[must_use]
    pub fn named(&self, table: &str, name: &str) -> Option<&Row> {
        let table = self.tables.get(table)?;
        table.rows.get(table.names.get(name)?)
    }

    /// Counts the server's updates.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Applies the server's updates (RFC 7047, section 4.1.6). `None`: they are malformed.
    pub(crate) fn apply(&mut self, updates: &Value) -> Option<()> {
        for (table, rows) in updates.as_object()? {
            let table = self.tables.entry(table.clone()).or_default();
            for (id, update) in rows.as_object()? {
                let id = id.parse().ok()?;
                let columns = update.as_object()?.get("new").map(Value::as_object);
                match columns {
                    Some(columns) => table.insert(Row::new(id, columns?.clone())),
                    None => table.remove(id),
                }
            }
        }
        self.version += 1;
        Some(())
    }
}

impl Table {
    fn insert(&mut self, row: Row) {
        self.remove(row.id);
        self.names.insert(row.text(NAME).to_owned(), row.id);
        self.rows.insert(row.id, row);
    }

    fn remove(&mut self, id: Uuid) {
        let Some(row) = self.rows.remove(&id) else { return };
        let name = row.text(NAME);
        // One update may report the new owner of a name before the removal of the old one.
        if self.names.get(name) == Some(&id) {
            self.names.remove(name);
        }
    }
}

impl Row {
    pub(crate) fn new(id: Uuid, columns: Map<String, Value>) -> Self {
        let references = |(name, value): (&String, &Value)| {
            let all: HashSet<_> = members(value).iter().filter_map(referred).collect();
            (!all.is_empty()).then(|| (name.clone(), all))
        };
        let references = columns.iter().filter_map(references).collect();
        Self { id, columns, references }
    }

    /// The ID of the row.
    #[must_use]
    pub const fn id(&self) -> Uuid {
        self.id
    }

    /// The string in a column.
    #[must_use]
    pub fn text(&self, column: &str) -> &str {
        self.members(column).first().and_then(Value::as_str).unwrap_or_default()
    }

    /// The integer in a column.
    #[must_use]
    pub fn integer(&self, column: &str) -> Option<i64> {
        self.members(column).first()?.as_i64()
    }

    /// The integers in a column.
    pub fn integers(&self, column: &str) -> impl Iterator<Item = i64> {
        self.members(column).iter().filter_map(Value::as_i64)
    }

    /// The boolean in a column.
    #[must_use]
    pub fn flag(&self, column: &str) -> Option<bool> {
        self.members(column).first()?.as_bool()
    }

    /// The rows that a column refers to, unordered.
    pub fn references(&self, column: &str) -> impl Iterator<Item = Uuid> {
        self.references.get(column).into_iter().flatten().copied()
    }

    /// Whether a column refers to this row. Takes constant time.
    #[must_use]
    pub fn refers(&self, column: &str, id: Uuid) -> bool {
        self.references.get(column).is_some_and(|all| all.contains(&id))
    }

    /// The string pairs in a column.
    #[must_use]
    pub fn map(&self, column: &str) -> BTreeMap<&str, &str> {
        self.columns.get(column).into_iter().flat_map(pairs).collect()
    }

    fn members(&self, column: &str) -> &[Value] {
        self.columns.get(column).map_or(&[], members)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ONE: &str = "00000000-0000-0000-0000-000000000001";

    fn one() -> Uuid {
        ONE.parse().unwrap()
    }

    #[test]
    fn replica_follows_inserts_updates_and_deletes() {
        let mut replica = Replica::default();
        replica.apply(&json!({"Port": {ONE: {"new": {"name": "p0", "tag": 7}}}})).unwrap();
        let port = replica.row("Port", one()).unwrap();
        assert_eq!((port.text("name"), port.integer("tag")), ("p0", Some(7)));
        let update =
            json!({"Port": {ONE: {"old": {"tag": 7}, "new": {"name": "p0", "tag": ["set", []]}}}});
        replica.apply(&update).unwrap();
        assert_eq!(replica.rows("Port").next().unwrap().integer("tag"), None);
        replica.apply(&json!({"Port": {ONE: {"old": {"name": "p0"}}}})).unwrap();
        assert_eq!(replica.rows("Port").count(), 0);
        assert_eq!(replica.version(), 3);
    }

    #[test]
    fn row_is_found_by_current_name() {
        let mut replica = Replica::default();
        let two = ONE.replace('1', "2");
        let mut found = |updates: Value| {
            replica.apply(&json!({ "Port": updates })).unwrap();
            ["p0", "p1"].map(|name| replica.named("Port", name).map(Row::id))
        };
        let (one, other) = (Some(one()), two.parse().ok());
        assert_eq!(found(json!({ONE: {"new": {"name": "p0"}}})), [one, None]);
        assert_eq!(found(json!({ONE: {"new": {"name": "p1"}}})), [None, one]);
        let taken_over = json!({&two: {"new": {"name": "p1"}}, ONE: {"old": {}}});
        assert_eq!(found(taken_over), [None, other]);
        let given_back = json!({&two: {"old": {}}, ONE: {"new": {"name": "p1"}}});
        assert_eq!(found(given_back), [None, one]);
        assert_eq!(replica.named("Bridge", "p1"), None);
    }

    #[test]
    fn malformed_update_is_refused() {
        for update in
            [json!(7), json!({"Port": 7}), json!({"Port": {"x": {}}}), json!({"Port": {ONE: 7}})]
        {
            assert_eq!(Replica::default().apply(&update), None, "{update}");
        }
    }

    #[test]
    fn column_of_other_type_reads_empty() {
        let columns = json!({
            "name": 7, "tag": "x", "trunks": ["set", [1, "x", 3]], "ports": ["set", [["uuid", ONE], ["uuid", "x"]]],
            "external_ids": ["map", [["a", "b"], ["c"]]], "up": true, "several": ["set", ["a", 1, "b"]],
        });
        let row = Row::new(one(), columns.as_object().unwrap().clone());
        assert_eq!((row.text("name"), row.integer("tag"), row.flag("up")), ("", None, Some(true)));
        assert_eq!(row.integers("trunks").collect::<Vec<_>>(), [1, 3]);
        assert_eq!(row.references("ports").collect::<Vec<_>>(), [one()]);
        assert_eq!([one(), Uuid::nil()].map(|id| row.refers("ports", id)), [true, false]);
        assert_eq!(row.map("external_ids"), [("a", "b")].into());
        assert_eq!((row.text("none"), row.map("name").len(), row.flag("name")), ("", 0, None));
    }
}
