//! The one table of nftables that is ours: replaced as a whole, and only when it has to be.
//!
//! As long as nobody has changed nftables, the table is as it was. After somebody has, it is compared
//! with what was there when it was put into force, and replaced if it differs, whatever was changed. It
//! is not known what was there if somebody changed nftables at the very moment; then it is replaced once
//! more by the next pass.

use netlink::nftables::{Contents, Nftables, Table};

use super::plan::TABLE;
use crate::driver::Refused;

/// The table, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct OurTable {
    socket: Option<Nftables>,
    in_force: Option<InForce>,
}

/// A table that was put into force.
#[derive(Debug)]
struct InForce {
    table: Table,
    generation: u32,
    contents: Contents,
}

impl OurTable {
    /// Puts `table` into force unless it is. Says whether a stranger had changed it.
    pub(super) fn put(&mut self, table: Table) -> Result<bool, Refused> {
        let refused = |error| Refused::new("put the rules into force", error);
        let socket = open(&mut self.socket)?;
        let is_same = self.in_force.as_ref().is_some_and(|in_force| in_force.table == table);
        if is_same && is_whole(socket, self.in_force.as_mut()).map_err(refused)? {
            return Ok(false);
        }
        self.in_force = None;
        self.in_force = replace(socket, table).map_err(refused)?;
        Ok(is_same)
    }

    /// Whether there is one, be it of an earlier life of the service.
    pub(super) fn is_there(&mut self) -> Result<bool, Refused> {
        let there = open(&mut self.socket)?.has(TABLE);
        there.map_err(|error| Refused::new("ask nftables", error))
    }

    /// Takes the table away, which is there.
    pub(super) fn remove(&mut self) -> Result<(), Refused> {
        self.in_force = None;
        let deleted = open(&mut self.socket)?.delete(TABLE);
        deleted.map_err(|error| Refused::new("delete the table", error))
    }
}

fn open(socket: &mut Option<Nftables>) -> Result<&mut Nftables, Refused> {
    if let Some(open) = socket {
        return Ok(open);
    }
    let opened = Nftables::open().map_err(|error| Refused::new("ask nftables", error))?;
    Ok(socket.insert(opened))
}

fn is_whole(socket: &mut Nftables, in_force: Option<&mut InForce>) -> Result<bool, netlink::Error> {
    let Some(in_force) = in_force else { return Ok(false) };
    let generation = socket.generation()?;
    if generation == in_force.generation {
        return Ok(true);
    }
    let is_whole = socket.contents(&in_force.table)? == Some(in_force.contents);
    if is_whole {
        in_force.generation = generation;
    }
    Ok(is_whole)
}

/// `None`: it is in force, but what the kernel has of it can't be told from a stranger's change.
fn replace(socket: &mut Nftables, table: Table) -> Result<Option<InForce>, netlink::Error> {
    let before = socket.generation()?;
    socket.replace(&table)?;
    let contents = socket.contents(&table)?;
    let generation = socket.generation()?;
    let is_alone = generation == before.wrapping_add(1);
    Ok(contents.filter(|_| is_alone).map(|contents| InForce { table, generation, contents }))
}
