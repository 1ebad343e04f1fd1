//! Hostile files: the agent's configuration and its records.

use std::{path::Path, str};

use bootstrap::{ConfigError, parse_config};

use super::{
    config::Config,
    records::{RecordsError, read},
};

/// Longest sentence on a configuration, in bytes.
const LONGEST_MESSAGE: usize = 2048;

#[test]
fn agent_configuration() {
    fuzz::target("agent_configuration", |input| {
        let Ok(text) = str::from_utf8(input) else { return };
        match parse_config::<Config>(text, Path::new("a.toml")) {
            Ok(config) => drop(config.check()),
            Err(ConfigError::Invalid { line, column, message, .. }) => {
                assert!((1..=text.lines().count() + 1).contains(&line), "line {line}: {message}");
                assert!((1..=text.len() + 1).contains(&column), "column {column}: {message}");
                assert!(message.len() <= LONGEST_MESSAGE, "{} bytes: {message}", message.len());
            }
            Err(other) => panic!("{other}"),
        }
    });
}

/// A record that was read is written as it was, and one that can't be read is named.
#[test]
fn agent_record() {
    fuzz::target("agent_record", |input| match read(b"id", input) {
        Ok(record) => {
            let row = serde_json::to_vec(&*record).unwrap();
            let again = serde_json::to_vec(&*read(b"id", &row).unwrap()).unwrap();
            assert_eq!(str::from_utf8(&again), str::from_utf8(&row));
        }
        Err(error) => assert!(matches!(error, RecordsError::Damaged { id, .. } if id == "id")),
    });
}
