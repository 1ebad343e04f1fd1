//! Labelled values for people.

use crate::text::{or_dash, printable};

/// Labelled values, one per line, in the layout of `kubectl describe`.
#[derive(Debug, Default)]
pub(crate) struct Description(String);

impl Description {
    /// Column in which values begin.
    const INDENT: usize = 15;

    pub(crate) fn field(&mut self, label: &str, value: &str) {
        let (label, indent) = (format!("{label}:"), Self::INDENT);
        let value = or_dash(value).replace('\n', " ");
        self.0.push_str(&format!("{label:<indent$}{}\n", printable(&value)));
    }

    /// One line per item, or `none`.
    pub(crate) fn list(&mut self, label: &str, items: &[String]) {
        if items.is_empty() {
            return self.field(label, "none");
        }
        self.0.push_str(&format!("{label}:\n"));
        for item in items {
            self.0.push_str(&format!("  {}\n", printable(&item.replace('\n', " "))));
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

    pub(crate) fn finish(self) -> String {
        self.0
    }
}
