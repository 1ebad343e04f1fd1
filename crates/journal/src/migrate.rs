//! Migrates the tables of an earlier version to the newest, step by step.

use redb::{Database, WriteTransaction};

use crate::{
    Schema, Tables,
    error::Cause,
    metadata::{METADATA, VERSION, definition, rows},
};

/// Runs the last `steps` migrations of `schema` in one transaction: all or none.
pub(crate) fn migrate(database: &Database, schema: &Schema, steps: usize) -> Result<(), Cause> {
    let transaction = database.begin_write()?;
    let mut tables = read(&transaction, schema)?;
    let first = schema.migrations.len().saturating_sub(steps);
    for migration in &schema.migrations[first..] {
        migration(&mut tables)?;
    }
    write(&transaction, &tables)?;
    transaction
        .open_table(definition(METADATA))?
        .insert(VERSION, schema.version.to_string().as_bytes())?;
    transaction.commit()?;
    Ok(())
}

fn read(transaction: &WriteTransaction, schema: &Schema) -> Result<Tables, Cause> {
    let mut tables = Tables::new();
    for name in schema.tables {
        tables.insert(*name, rows(&transaction.open_table(definition(name))?)?);
    }
    Ok(tables)
}

fn write(transaction: &WriteTransaction, tables: &Tables) -> Result<(), Cause> {
    for (name, rows) in tables {
        let mut table = transaction.open_table(definition(name))?;
        table.retain(|_, _| false)?;
        for (key, value) in rows {
            table.insert(key.as_slice(), value.as_slice())?;
        }
    }
    Ok(())
}
