//! Output: Markdown tables, and each row as a line of JSON in a file on request.

use std::{fs::File, io::Write, path::Path};

use serde_json::{Map, Value, json};

/// All tables of a run.
pub(crate) struct Report {
    /// File to which each row is also appended.
    file: Option<File>,
    rows: Vec<Value>,
}

impl Report {
    pub(crate) fn to(file: Option<&Path>) -> Self {
        let open = |path| File::options().create(true).append(true).open(path).unwrap();
        Self { file: file.map(open), rows: Vec::new() }
    }

    /// The rows of all tables so far, each with its table's title, and with columns as keys.
    pub(crate) fn rows(&self) -> &[Value] {
        &self.rows
    }

    /// Prints the heading and header of a table, whose rows follow.
    pub(crate) fn table<'a>(&'a mut self, title: &str, columns: &[&str]) -> Table<'a> {
        println!("\n### {title}\n\n| {} |", columns.join(" | "));
        println!("|{}", "---|".repeat(columns.len()));
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Table { report: self, title: title.to_owned(), columns }
    }
}

pub(crate) struct Table<'a> {
    report: &'a mut Report,
    title: String,
    columns: Vec<String>,
}

impl Table<'_> {
    pub(crate) fn row(&mut self, row: Row) {
        assert_eq!(row.0.len(), self.columns.len(), "cells of {:?}", self.title);
        let printed: Vec<_> = row.0.iter().map(Cell::printed).collect();
        println!("| {} |", printed.join(" | "));
        let cells = self.columns.iter().cloned().zip(row.0.into_iter().map(Cell::into_json));
        let mut object = Map::from_iter([("table".to_owned(), json!(self.title))]);
        object.extend(cells);
        let object = Value::Object(object);
        if let Some(file) = &mut self.report.file {
            writeln!(file, "{object}").unwrap();
        }
        self.report.rows.push(object);
    }
}

/// Cells from left to right.
#[derive(Default)]
pub(crate) struct Row(Vec<Cell>);

impl Row {
    pub(crate) fn of(first: impl Into<Cell>) -> Self {
        Self::default().and(first)
    }

    pub(crate) fn and(self, cell: impl Into<Cell>) -> Self {
        self.and_all([cell.into()])
    }

    pub(crate) fn and_some(self, cell: Option<impl Into<Cell>>) -> Self {
        self.and(cell.map_or(Cell::Nothing, Into::into))
    }

    pub(crate) fn and_all(mut self, cells: impl IntoIterator<Item = Cell>) -> Self {
        self.0.extend(cells);
        self
    }
}

pub(crate) enum Cell {
    Text(String),
    /// Printed with two decimals.
    Figure(f64),
    /// Printed without decimals.
    Whole(f64),
    Count(usize),
    Nothing,
}

impl Cell {
    fn printed(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Figure(figure) => format!("{figure:.2}"),
            Self::Whole(figure) => format!("{figure:.0}"),
            Self::Count(count) => count.to_string(),
            Self::Nothing => String::new(),
        }
    }

    fn into_json(self) -> Value {
        match self {
            Self::Text(text) => text.into(),
            Self::Figure(figure) | Self::Whole(figure) => figure.into(),
            Self::Count(count) => count.into(),
            Self::Nothing => Value::Null,
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(figure: f64) -> Self {
        Self::Figure(figure)
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}
