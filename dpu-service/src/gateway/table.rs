//! The one table of nftables that is ours, replaced as a whole, and only when it has to be.
//!
//! As long as nobody has changed nftables, the table is as it was, and one that differs by elements
//! alone is made of it in one transaction, which the kernel refuses if somebody was faster. After somebody
//! has changed anything, it is compared with what was there when it was put into force, and replaced if it
//! differs, whatever was changed.
//!
//! What is there is read after a whole table was put into force, but after a change of elements not before the
//! next look: a pod waits for it. It is not known what was there if somebody changed nftables before that; then
//! the table is replaced once more.

use bootstrap::Chain;
use netlink::nftables::{Changes, Contents, Nftables, Set, Table};

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
    /// `None`: not read yet.
    contents: Option<Contents>,
}

impl OurTable {
    /// Puts `table` into force unless it is. Says whether a stranger is known to have changed it.
    pub(super) fn put(&mut self, table: Table) -> Result<bool, Refused> {
        let refused = |error| Refused::new("put the rules into force", error);
        let socket = open(&mut self.socket)?;
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

    /// Puts what is `wanted` into the sets of the table in force, and takes out what else has keys of
    /// `concerned`. Says whether it could: the table may not be in force as it is known.
    pub(super) fn amend(&mut self, concerned: &[Set], wanted: &[Set]) -> Result<bool, Refused> {
        let socket = open(&mut self.socket)?;
        let Some(in_force) = &mut self.in_force else { return Ok(false) };
        let is_whole = in_force.is_whole(socket);
        let is_whole = is_whole.map_err(|error| Refused::new("look at the rules", error))?;
        let changes = in_force.table.changes_among(concerned, wanted);
        Ok(is_whole && in_force.change(socket, &changes))
    }

    /// Whether it is as it was put into force. From then on it is known what is there.
    pub(super) fn is_in_force(&mut self) -> Result<bool, Refused> {
        let refused = |error| Refused::new("look at the rules", error);
        let socket = open(&mut self.socket)?;
        let Some(in_force) = &mut self.in_force else { return Ok(false) };
        in_force.read(socket).map_err(refused)?;
        in_force.is_whole(socket).map_err(refused)
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

    /// Reads what is there unless it is known, or somebody has changed anything.
    fn read(&mut self, socket: &mut Nftables) -> Result<(), netlink::Error> {
        if self.contents.is_none() && socket.generation()? == self.generation {
            let contents = socket.contents(&self.table)?;
            let is_alone = socket.generation()? == self.generation;
            self.contents = contents.filter(|_| is_alone);
        }
        Ok(())
    }

    /// Says whether the table, which nobody has changed, could be changed so.
    fn change(&mut self, socket: &mut Nftables, changes: &Changes) -> bool {
        if changes.is_empty() {
            return true;
        }
        match socket.change(self.generation, &mut self.table, changes) {
            Ok(()) => {
                // Of the kernel's numbers none is 0.
                self.generation = self.generation.wrapping_add(1).max(1);
                self.contents = None;
                true
            }
            Err(error) => {
                tracing::debug!(reason = %Chain(&error), "the rules are replaced as a whole");
                false
            }
        }
    }
}

/// `None`: it is in force, but what the kernel has of it can't be told from a stranger's change.
fn replace(socket: &mut Nftables, table: Table) -> Result<Option<InForce>, netlink::Error> {
    let before = socket.generation()?;
    socket.replace(&table)?;
    let contents = socket.contents(&table)?;
    let generation = socket.generation()?;
    let is_alone = generation == before.wrapping_add(1);
    let is_known = is_alone && contents.is_some();
    Ok(is_known.then_some(InForce { table, generation, contents }))
}
