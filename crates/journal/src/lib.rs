//! A durable table of records with group commit.
#![deny(missing_docs)]
