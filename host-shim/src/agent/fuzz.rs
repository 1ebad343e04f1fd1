//! Hostile files, the agent's configuration and its records; and hostile headers.

use std::str;

use super::{
    authority::mended,
    config::Config,
    vfs::{RecordsError, read},
};

#[test]
fn agent_configuration() {
    fuzz::target("agent_configuration", |input| {
        if let Some(config) = fuzz::configuration::<Config>(input) {
            // It may be refused.
            drop(config.check());
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

/// Headers that were mended are good as they are.
#[test]
fn grpc_headers() {
    fuzz::target("grpc_headers", |input| {
        if let Some(block) = mended(input) {
            assert_eq!(mended(&block).as_ref(), Some(&block));
        }
    });
}
