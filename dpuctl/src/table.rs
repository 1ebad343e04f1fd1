//! Tables in kubectl's layout: capital headings, no lines.

use unicode_width::UnicodeWidthStr;

use crate::{colour, text::one_line};

/// Spaces between columns.
const GAP: usize = 3;

/// The column with coloured words.
pub(crate) const STATE: &str = "STATE";

pub(crate) fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    Layout::new(headings).with_headings(rows.into_iter().collect())
}

/// A table of all columns if `wide`, else of the first `narrow`.
pub(crate) fn narrow_or_wide(
    headings: &[&str],
    narrow: usize,
    wide: bool,
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let columns = if wide { headings.len() } else { narrow };
    // Cells beyond the last heading are not printed.
    table(&headings[..columns], rows)
}

/// Column widths, which grow with what is printed and never shrink.
pub(crate) struct Layout<'a> {
    headings: &'a [&'a str],
    widths: Vec<usize>,
}

impl<'a> Layout<'a> {
    pub(crate) fn new(headings: &'a [&'a str]) -> Self {
        Self { headings, widths: vec![0; headings.len()] }
    }

    pub(crate) fn widen(&mut self, column: usize, cell: &str) {
        self.widths[column] = self.widths[column].max(cell.width());
    }

    /// The headings with `rows` below them.
    pub(crate) fn with_headings(&mut self, mut rows: Vec<Vec<String>>) -> String {
        rows.insert(0, self.headings.iter().map(ToString::to_string).collect());
        self.rows(rows)
    }

    /// The `rows` without headings, one line each.
    pub(crate) fn rows(&mut self, mut rows: Vec<Vec<String>>) -> String {
        for row in &mut rows {
            for (cell, width) in row.iter_mut().zip(&mut self.widths) {
                *cell = one_line(cell);
                *width = (*width).max(cell.width());
            }
        }
        rows.iter().map(|row| self.line(row)).collect()
    }

    fn line(&self, row: &[String]) -> String {
        let mut line = String::new();
        for ((cell, heading), width) in row.iter().zip(self.headings).zip(&self.widths) {
            let is_state = *heading == STATE;
            line += &if is_state { colour::state(cell) } else { cell.clone() };
            line += &" ".repeat(width - cell.width() + GAP);
        }
        format!("{}\n", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_trails() {
        let rows = [vec!["a".into(), "long value".into()], vec!["longer".into(), "b\nc".into()]];
        assert_eq!(
            table(&["NAME", "VALUE"], rows),
            "NAME     VALUE\na        long value\nlonger   b c\n"
        );
    }

    #[test]
    fn coloured_and_wide_cells_stay_aligned() {
        let rows = [["Attached", "x"], ["New", "y"], ["\u{4f4d}\u{7f6e}", "z"]];
        let rows = rows.map(|row| row.map(String::from).to_vec());
        let coloured = table(&["STATE", "VF"], rows);
        assert!(coloured.contains(&colour::state("Attached")), "{coloured}");
        let plain = "STATE      VF\nAttached   x\nNew        y\n\u{4f4d}\u{7f6e}       z\n";
        assert_eq!(colour::without(&coloured), plain);
    }

    #[test]
    fn later_rows_keep_the_columns() {
        let mut layout = Layout::new(&["NAME", "VF"]);
        let row = |name: &str| vec![vec![name.to_owned(), "pf0vf1".into()]];
        assert_eq!(layout.with_headings(row("longer")), "NAME     VF\nlonger   pf0vf1\n");
        assert_eq!(layout.rows(row("a")), "a        pf0vf1\n");
    }
}
