//! What a database has of the tables that are wanted.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::datum::{members, pairs, referred};

/// What the database has of the tables that are wanted, as the server told last.
#[derive(Debug, Default)]
pub struct Replica {
    tables: HashMap<String, Table>,
    version: u64,
}

#[derive(Debug, Default)]
struct Table {
    rows: HashMap<Uuid, Row>,
    /// By the column that tables have for names.
    names: HashMap<String, Uuid>,
}

/// The column that holds what a row is called, in tables whose rows are called something.
const NAME: &str = "name";

/// A row. A column that is not there, or holds something else than is asked for, reads as empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    id: Uuid,
    columns: Map<String, Value>,
    /// The rows that columns refer to: a bridge may have ten thousand ports, and is asked for one.
    references: HashMap<String, HashSet<Uuid>>,
}

impl Replica {
    /// All rows of a table, in no order.
    pub fn rows(&self, table: &str) -> impl Iterator<Item = &Row> {
        self.tables.get(table).into_iter().flat_map(|table| table.rows.values())
    }

    /// The row of a table with that identity.
    #[must_use]
    pub fn row(&self, table: &str, id: Uuid) -> Option<&Row> {
        self.tables.get(table)?.rows.get(&id)
    }

    /// The row of a table whose column `name` holds that text. Of several it is any.
    #[must_use]
    pub fn named(&self, table: &str, name: &str) -> Option<&Row> {
        let table = self.tables.get(table)?;
        table.rows.get(table.names.get(name)?)
    }

    /// Counts what the server has told.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Takes over what the server tells (RFC 7047, section 4.1.6). `None`: it makes no sense.
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
        // One update may tell of a row that goes after it has told of one that has taken its name.
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

    /// Its identity.
    #[must_use]
    pub const fn id(&self) -> Uuid {
        self.id
    }

    /// The text of a column.
    #[must_use]
    pub fn text(&self, column: &str) -> &str {
        self.members(column).first().and_then(Value::as_str).unwrap_or_default()
    }

    /// The texts of a column.
    pub fn texts(&self, column: &str) -> impl Iterator<Item = &str> {
        self.members(column).iter().filter_map(Value::as_str)
    }

    /// The number of a column.
    #[must_use]
    pub fn integer(&self, column: &str) -> Option<i64> {
        self.members(column).first()?.as_i64()
    }

    /// The numbers of a column.
    pub fn integers(&self, column: &str) -> impl Iterator<Item = i64> {
        self.members(column).iter().filter_map(Value::as_i64)
    }

    /// The truth of a column.
    #[must_use]
    pub fn flag(&self, column: &str) -> Option<bool> {
        self.members(column).first()?.as_bool()
    }

    /// The rows that a column refers to, in no order.
    pub fn references(&self, column: &str) -> impl Iterator<Item = Uuid> {
        self.references.get(column).into_iter().flatten().copied()
    }

    /// Whether a column refers to that row, however many others it refers to.
    #[must_use]
    pub fn refers(&self, column: &str, id: Uuid) -> bool {
        self.references.get(column).is_some_and(|all| all.contains(&id))
    }

    /// The texts of a column by their names.
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
    fn rows_come_change_and_go() {
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
    fn a_row_is_found_by_the_name_that_it_has_now() {
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
    fn what_makes_no_sense_is_told() {
        for update in
            [json!(7), json!({"Port": 7}), json!({"Port": {"x": {}}}), json!({"Port": {ONE: 7}})]
        {
            assert_eq!(Replica::default().apply(&update), None, "{update}");
        }
    }

    #[test]
    fn a_column_of_another_shape_reads_as_empty() {
        let columns = json!({
            "name": 7, "tag": "x", "trunks": ["set", [1, "x", 3]], "ports": ["set", [["uuid", ONE], ["uuid", "x"]]],
            "external_ids": ["map", [["a", "b"], ["c"]]], "up": true, "several": ["set", ["a", 1, "b"]],
        });
        let row = Row::new(one(), columns.as_object().unwrap().clone());
        assert_eq!((row.text("name"), row.integer("tag"), row.flag("up")), ("", None, Some(true)));
        assert_eq!(row.integers("trunks").collect::<Vec<_>>(), [1, 3]);
        assert_eq!(row.references("ports").collect::<Vec<_>>(), [one()]);
        assert_eq!([one(), Uuid::nil()].map(|id| row.refers("ports", id)), [true, false]);
        assert_eq!(row.texts("several").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(row.map("external_ids"), [("a", "b")].into());
        assert_eq!((row.text("none"), row.map("name").len(), row.flag("name")), ("", 0, None));
    }
}
