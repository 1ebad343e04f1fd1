//! Fuzz targets: the agent's configuration, records and gRPC headers.

use std::str;

use super::{
    authority::rewritten,
    config::Config,
    vfs::{RecordsError, read},
};

#[test]
fn agent_configuration() {
    fuzz::target("agent_configuration", |input| {
        if let Some(config) = fuzz::configuration::<Config>(input) {
            // Any configuration may be refused, but none may panic.
            drop(config.check());
        }
    });
}

/// A record reads back as written; the error of a damaged one names it.
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

/// Rewritten headers stay unchanged when rewritten again.
#[test]
fn grpc_headers() {
    fuzz::target("grpc_headers", |input| {
        if let Some(block) = rewritten(input) {
            assert_eq!(rewritten(&block).as_ref(), Some(&block));
        }
    });
}
