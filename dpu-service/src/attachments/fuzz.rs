//! Fuzz targets: the configuration and the journal.

use std::{path::Path, sync::LazyLock};

use bootstrap::parse_config;
use serde::{Serialize, de::DeserializeOwned};

use super::registry::Registry;
use crate::{
    attachments::Settings,
    config::Config,
    records::{self, Loaded, OpenError},
};
use model::Record;

static EXAMPLE: LazyLock<Config> = LazyLock::new(|| {
    let text = include_str!("../../../configs/dpu-service.toml");
    parse_config(text, Path::new("dpu-service.toml")).unwrap()
});

/// The service starts with every configuration that `--check-config` accepts.
#[test]
fn service_configuration() {
    fuzz::target("service_configuration", |input| {
        let Some(config) = fuzz::configuration::<Config>(input) else { return };
        match config.check() {
            Ok(()) => {
                let configuration = config.for_engine();
                Registry::restore(Loaded::default(), configuration, config.engine_settings(), 0)
                    .map(drop)
                    .unwrap();
            }
            Err(problems) => assert!(problems.0.iter().all(|problem| !problem.is_empty())),
        }
    });
}

/// Rows of the journal, one a line: the table's first letter, a blank, then the row's JSON. A row of an address in
/// cool-down is key and value instead. All rows are restored, or one is refused by name.
#[test]
fn service_journal() {
    fuzz::target("service_journal", |input| {
        let Some(loaded) = loaded(input) else { return };
        let records = loaded.attachments.clone();
        match Registry::restore(loaded, EXAMPLE.for_engine(), Settings::default(), 0) {
            Ok(mut registry) => {
                assert_eq!(registry.entries().len(), records.len());
                for (number, record) in records.iter().enumerate() {
                    assert_all_found(&registry, &records[number..]);
                    let _settings = record.port_settings();
                    assert!(record.routes().len() <= record.network.routes.len() + 2);
                    registry.free(record.id, Vec::new(), 0);
                    assert!(registry.by_vf(record.vf).is_none());
                }
            }
            Err(error) => assert!(matches!(error, OpenError::Contradiction(_)), "{error:?}"),
        }
    });
}

fn assert_all_found(registry: &Registry, records: &[Record]) {
    for record in records {
        let found = [
            registry.by_vf(record.vf),
            registry.entries().by_key(&record.key),
            registry.entries().by_mac(record.mac),
        ];
        assert!(found.iter().all(|found| found.unwrap().record().id == record.id));
    }
}

fn loaded(input: &[u8]) -> Option<Loaded> {
    let mut loaded = Loaded::default();
    for line in input.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match line.split_at_checked(2)? {
            (b"a ", row) => loaded.attachments.push(row_of(row)?),
            (b"n ", row) => loaded.networks.push(row_of(row)?),
            (b"c ", row) => {
                let end = row.iter().rposition(|byte| *byte == b' ')?;
                loaded.cooling.push(records::parse_cooling(&row[..end], &row[end + 1..])?);
            }
            _ => return None,
        }
    }
    Some(loaded)
}

/// Parses a row and checks that writing it gives the same bytes again.
fn row_of<T: Serialize + DeserializeOwned>(row: &[u8]) -> Option<T> {
    let read: T = serde_json::from_slice(row).ok()?;
    let written = serde_json::to_vec(&read).unwrap();
    let again: T = serde_json::from_slice(&written).unwrap();
    assert_eq!(serde_json::to_vec(&again).unwrap(), written);
    Some(read)
}
