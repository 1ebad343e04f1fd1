//! Tables as kubectl prints them: capital headings, no lines.

use comfy_table::{Table, presets::NOTHING};

use crate::text::printable;

/// Space between columns.
const GAP: u16 = 3;

/// Rows under headings.
pub(crate) fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(headings);
    for row in rows {
        table.add_row(row.iter().map(|cell| one_line(cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Of all columns, the first `narrow` unless wide.
pub(crate) fn narrow_or_wide(
    headings: &[&str],
    narrow: usize,
    wide: bool,
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let columns = if wide { headings.len() } else { narrow };
    table(&headings[..columns], rows.map(|row| row.into_iter().take(columns).collect()))
}

fn one_line(cell: &str) -> String {
    printable(&cell.replace('\n', " "))
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
}
