//! Labelled values for people.

use crate::{
    table::table,
    text::{one_line, or_dash},
};

/// Labelled values, one per line, in the layout of `kubectl describe`.
#[derive(Debug, Default)]
pub(crate) struct Description(String);

impl Description {
    /// Column in which values begin.
    const INDENT: usize = 15;

    pub(crate) fn field(&mut self, label: &str, value: &str) {
        let (label, indent) = (format!("{label}:"), Self::INDENT);
        self.0.push_str(&format!("{label:<indent$}{}\n", one_line(or_dash(value))));
    }

    /// As [`Self::field`], but without the line if the value is empty.
    pub(crate) fn field_if_any(&mut self, label: &str, value: &str) {
        if !value.is_empty() {
            self.field(label, value);
        }
    }

    /// One line per item, or `none`.
    pub(crate) fn list(&mut self, label: &str, items: impl IntoIterator<Item = String>) {
        let line = |item: String| format!("  {}\n", one_line(&item));
        let lines: String = items.into_iter().map(line).collect();
        match lines.is_empty() {
            true => self.field(label, "none"),
            false => self.0.push_str(&format!("{label}:\n{lines}")),
        }
    }

    /// As [`Self::list`], but nothing if there are no items.
    pub(crate) fn list_if_any(&mut self, label: &str, items: impl IntoIterator<Item = String>) {
        let mut items = items.into_iter().peekable();
        if items.peek().is_some() {
            self.list(label, items);
        }
    }

    /// A table under a heading, after an empty line. Omitted if there are no lines.
    pub(crate) fn block(&mut self, heading: &str, lines: &str) {
        if lines.is_empty() {
            return;
        }
        let heading = if heading.is_empty() { String::new() } else { format!("{heading}:\n") };
        self.0.push_str(&format!("\n{heading}{lines}"));
    }

    /// As [`Self::block`], with a table. Omitted if there are no rows.
    pub(crate) fn table(
        &mut self,
        heading: &str,
        columns: &[&str],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_some() {
            self.block(heading, &table(columns, rows));
        }
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}
