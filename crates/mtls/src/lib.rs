//! Identities, certificates and their reload.
#![deny(missing_docs)]
