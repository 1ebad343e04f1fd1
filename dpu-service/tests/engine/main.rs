//! The engine of attachments with a real journal and a card in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod addresses;
mod attach;
mod detach;
mod failures;
mod fairness;
mod fake_kernel;
mod fleet;
mod hello;
mod history;
mod layer2_domains;
mod networks;
mod offers;
mod other_host;
mod outdated;
mod pooled;
mod random;
mod records;
mod removal;
mod rights;
mod routing;
mod scale;
mod several;
mod together;
mod upkeep;
mod versions;
mod warnings;
mod world;
