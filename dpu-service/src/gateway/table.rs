//! Our nftables table. It is replaced as a whole, and only when necessary.
//!
//! While nftables' generation is unchanged, the table is as known. A change of elements then takes one transaction,
//! which the kernel refuses if another program was faster. After a change of the generation, the table is compared
//! with its known contents, and replaced if it differs.
//!
//! Contents are read back after a replacement. After a change of elements they are read at the next look, because a
//! pod waits for the change. If another program changes nftables before that, the contents are unknown, and the
//! table is replaced.

use bootstrap::Chain;
use netlink::nftables::{Changes, Contents, Nftables, Set, Table};

use super::names::TABLE;
use drivers::driver::Refused;

#[derive(Debug, Default)]
pub(super) struct OurTable {
    socket: Option<Nftables>,
    in_force: Option<InForce>,
}

#[derive(Debug)]
struct InForce {
    table: Table,
    generation: u32,
    /// The contents as the kernel lists them. `None`: not read yet.
    contents: Option<Contents>,
}

impl OurTable {
    /// Puts `table` into force unless it is. Returns whether another program is known to have changed it.
    pub(super) fn put(&mut self, table: Table) -> Result<bool, Refused> {
        let refused = |error| Refused::new("put the rules into force", error);
        let socket = open(&mut self.socket)?;
        // Taken, so that an error leaves the state unknown and the next call replaces the table.
        let Some(mut in_force) = self.in_force.take() else {
            self.in_force = replace(socket, table).map_err(refused)?;
            return Ok(false);
        };
        let is_same = in_force.table == table;
        let is_whole = in_force.is_whole(socket).map_err(refused)?;
        let changes = in_force.table.changes_to(&table).filter(|_| is_whole);
        if changes.is_some_and(|changes| in_force.change(socket, &changes)) {
            self.in_force = Some(in_force);
            return Ok(false);
        }
        self.in_force = replace(socket, table).map_err(refused)?;
        Ok(is_same && in_force.contents.is_some())
    }

    /// Puts the elements of `wanted` into the table in force, and removes other elements with keys of `concerned`.
    /// Returns whether it could: the table may have changed.
    pub(super) fn amend(&mut self, concerned: &[Set], wanted: &[Set]) -> Result<bool, Refused> {
        let socket = open(&mut self.socket)?;
        let Some(in_force) = &mut self.in_force else { return Ok(false) };
        let is_whole = in_force.is_whole(socket);
        let is_whole = is_whole.map_err(|error| Refused::new("look at the rules", error))?;
        let changes = in_force.table.changes_among(concerned, wanted);
        Ok(is_whole && in_force.change(socket, &changes))
    }

    /// Whether the table is unchanged. Reads its contents if they are not known.
    pub(super) fn is_in_force(&mut self) -> Result<bool, Refused> {
        let refused = |error| Refused::new("look at the rules", error);
        let socket = open(&mut self.socket)?;
        let Some(in_force) = &mut self.in_force else { return Ok(false) };
        in_force.read(socket).map_err(refused)?;
        in_force.is_whole(socket).map_err(refused)
    }

    /// Whether the table exists, possibly from an earlier run of the service.
    pub(super) fn is_there(&mut self) -> Result<bool, Refused> {
        let there = open(&mut self.socket)?.has(TABLE);
        there.map_err(|error| Refused::new("ask nftables", error))
    }

    /// Deletes the table, which must exist.
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

impl InForce {
    fn is_whole(&mut self, socket: &mut Nftables) -> Result<bool, netlink::Error> {
        let generation = socket.generation()?;
        if generation == self.generation {
            return Ok(true);
        }
        let is_whole = self.contents.is_some() && socket.contents(&self.table)? == self.contents;
        if is_whole {
            self.generation = generation;
        }
        Ok(is_whole)
    }

    /// Reads the contents if they are unknown and the generation is unchanged.
    fn read(&mut self, socket: &mut Nftables) -> Result<(), netlink::Error> {
        if self.contents.is_none() && socket.generation()? == self.generation {
            let contents = socket.contents(&self.table)?;
            // A change during the listing makes the contents uncertain.
            let is_alone = socket.generation()? == self.generation;
            self.contents = contents.filter(|_| is_alone);
        }
        Ok(())
    }

    /// Applies the changes to the unchanged table. Returns whether the kernel accepted them.
    fn change(&mut self, socket: &mut Nftables, changes: &Changes) -> bool {
        if changes.is_empty() {
            return true;
        }
        match socket.change(self.generation, &mut self.table, changes) {
            Ok(()) => {
                // The kernel skips generation 0.
                self.generation = self.generation.wrapping_add(1).max(1);
                self.contents = None;
                true
            }
            Err(error) => {
                tracing::debug!(reason = %Chain(&error), "cannot amend the rules; replacing the table");
                false
            }
        }
    }
}

/// Replaces the table. `None`: another program changed nftables at the same time, so the contents are uncertain.
fn replace(socket: &mut Nftables, table: Table) -> Result<Option<InForce>, netlink::Error> {
    let before = socket.generation()?;
    socket.replace(&table)?;
    let contents = socket.contents(&table)?;
    let generation = socket.generation()?;
    // Exactly one transaction, ours, lies between the two generations.
    let is_alone = generation == before.wrapping_add(1);
    let is_known = is_alone && contents.is_some();
    Ok(is_known.then_some(InForce { table, generation, contents }))
}
