//! The database in the file.

use std::path::Path;

use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, StorageError, TableError,
    WriteTransaction,
};

use crate::{
    Change, OpenError, Outlives, Rows, Schema,
    metadata::{METADATA, NAME, VERSION, definition, rows},
    migrate::migrate,
    storage::StorageBackend,
    syncs::{Switched, Syncs},
};

/// Memory limit of redb's page cache, in bytes.
pub(crate) const CACHE: usize = 512 * 1024;

pub(crate) struct Store {
    database: Database,
    tables: &'static [&'static str],
    commits: Outlives,
    syncs: Syncs,
}

impl Store {
    /// Opens the database in `backend`, and creates it if `backend` is empty. Repairs it first after an unclean end.
    pub(crate) fn open(
        backend: impl StorageBackend,
        path: &Path,
        schema: &Schema,
        commits: Outlives,
    ) -> Result<Self, OpenError> {
        let place = path.to_owned();
        let syncs = Syncs::default();
        let backend = Switched { backend, syncs: syncs.clone() };
        let database = Builder::new()
            .set_cache_size(CACHE)
            .set_repair_callback(move |_| {
                tracing::warn!(path = %place.display(), "the journal was not closed; repairing it");
            })
            .create_with_backend(backend)
            .map_err(|error| explain(error, path, schema))?;
        let transaction = database.begin_read().map_err(|error| OpenError::damaged(path, error))?;
        let found = check_owner(&transaction, path, schema)?;
        drop(transaction);
        let steps = usize::try_from(schema.version - found).unwrap_or(usize::MAX);
        if steps > 0 {
            tracing::info!(path = %path.display(), from = found, to = schema.version, "migrating the journal");
            // A power cut leaves the tables either unchanged or migrated.
            migrate(&database, schema, steps).map_err(|source| OpenError::Migration {
                path: path.to_owned(),
                found,
                source,
            })?;
        }
        Ok(Self { database, tables: schema.tables, commits, syncs })
    }

    pub(crate) fn create(backend: impl StorageBackend, schema: &Schema) -> Result<(), redb::Error> {
        let database = Builder::new().set_cache_size(CACHE).create_with_backend(backend)?;
        let transaction = database.begin_write()?;
        for table in schema.tables {
            transaction.open_table(definition(table))?;
        }
        {
            let mut own = transaction.open_table(definition(METADATA))?;
            own.insert(NAME, schema.name.as_bytes())?;
            own.insert(VERSION, schema.version.to_string().as_bytes())?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// A change that no reader sees.
    pub(crate) fn probe() -> Change {
        Change::put(METADATA, *b"probe", *b"")
    }

    /// Makes all `changes`, or none. Appends the inverse of each to `undo`, to be applied from its end to its
    /// start.
    pub(crate) fn apply(
        &self,
        changes: &[Change],
        undo: &mut Vec<Change>,
    ) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        // By table, because redb refuses a second open handle of a table in a transaction.
        for table in self.tables.iter().copied().chain([METADATA]) {
            let mut of_table = changes.iter().filter(|change| change.table == table).peekable();
            if of_table.peek().is_some() {
                change_table(&transaction, table, of_table, undo)?;
            }
        }
        transaction.commit()?;
        // The first commit was synced in any case: see [`Syncs`].
        self.syncs.set(self.commits == Outlives::Machine);
        Ok(())
    }

    pub(crate) fn read_all(&self, table: &'static str) -> Result<Rows, redb::Error> {
        let transaction = self.database.begin_read()?;
        let table = match transaction.open_table(definition(table)) {
            Ok(table) => table,
            // The schema has grown since the file was created.
            Err(TableError::TableDoesNotExist(_)) => return Ok(Rows::new()),
            Err(error) => return Err(error.into()),
        };
        Ok(rows(&table)?)
    }
}

impl Drop for Store {
    /// Dropping the database after this marks its file as closed. That write must be synced.
    fn drop(&mut self) {
        self.syncs.set(true);
    }
}

fn change_table<'a>(
    transaction: &WriteTransaction,
    name: &'static str,
    changes: impl Iterator<Item = &'a Change>,
    undo: &mut Vec<Change>,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(definition(name))?;
    for Change { key, value, .. } in changes {
        let before = match value {
            Some(value) => table.insert(key.as_slice(), value.as_slice())?,
            None => table.remove(key.as_slice())?,
        };
        let before = before.map(|before| before.value().to_vec());
        undo.push(Change { table: name, key: key.clone(), value: before });
    }
    Ok(())
}

/// Returns the schema version. Refuses a database of another program, of a newer version, or of one too old to migrate.
pub(crate) fn check_owner(
    transaction: &ReadTransaction,
    path: &Path,
    schema: &Schema,
) -> Result<u32, OpenError> {
    let foreign =
        |found: String| OpenError::Foreign { path: path.to_owned(), expected: schema.name, found };
    let own = match transaction.open_table(definition(METADATA)) {
        Ok(own) => own,
        Err(TableError::Storage(error)) => return Err(OpenError::damaged(path, error)),
        Err(_) => return Err(foreign("another program's database".into())),
    };
    let text = |key: &[u8]| {
        let value = own.get(key).map_err(|error| OpenError::damaged(path, error))?;
        Ok(value.map(|value| String::from_utf8_lossy(value.value()).into_owned()))
    };
    let name = text(NAME)?.unwrap_or_default();
    if name != schema.name {
        return Err(foreign(format!("one of {name:?}")));
    }
    let version = text(VERSION)?.unwrap_or_default();
    let migrations = u32::try_from(schema.migrations.len()).unwrap_or(u32::MAX);
    let oldest = schema.version.saturating_sub(migrations);
    match version.parse::<u32>() {
        Ok(found) if (oldest..=schema.version).contains(&found) => Ok(found),
        Ok(found) if found < oldest => {
            Err(OpenError::TooOld { path: path.to_owned(), found, oldest })
        }
        Ok(found) => Err(OpenError::Newer { path: path.to_owned(), found, known: schema.version }),
        Err(_) => Err(foreign(format!("one of schema version {version:?}"))),
    }
}

/// Converts redb's error of opening a file.
pub(crate) fn explain(error: DatabaseError, path: &Path, schema: &Schema) -> OpenError {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse { path },
        // redb's own I/O errors, such as for a wrong magic number, have no OS error number.
        DatabaseError::Storage(StorageError::Io(source)) if source.raw_os_error().is_some() => {
            OpenError::Io { doing: "read", path, source }
        }
        DatabaseError::UpgradeRequired(version) => OpenError::Foreign {
            path,
            expected: schema.name,
            found: format!("a database of redb format {version}"),
        },
        error => OpenError::Damaged { path, source: error.into() },
    }
}
