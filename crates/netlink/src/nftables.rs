//! Packet filtering and address translation with nftables: one table at a time, as a whole.
//!
//! A table is replaced in one transaction, so no packet meets a partial table. Alternatively single elements of its
//! sets change. Tables of other programs are neither read nor changed. [`Connections`] are the exception: the
//! connection table is shared.
//!
//! [`Contents`] are compared, not interpreted. A difference from what the kernel had after the last
//! [`Nftables::replace`] means that another program changed the table.

mod changes;
mod connections;
mod encode;
mod expressions;
mod monitor;
mod ports;
mod table;

use std::{
    ffi::CString,
    hash::{DefaultHasher, Hash, Hasher},
};

use netlink_bindings::nftables::{
    Nfgenmsg, OpGetchainDo, OpGetgenDo, OpGetruleDump, OpGetsetelemDump, OpGettableDo,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

pub use changes::Changes;
pub use connections::{Connection, Connections};
pub use monitor::{NftablesEvent, NftablesMonitor};
use table::name;
pub use table::{Chain, Hook, LinkName, PacketRate, ProtocolPort, Rule, Set, Source, Table, Term};

use crate::{
    datagram::{Object, attributes_in},
    error::{Error, RefusalCause},
    netns::Netns,
    socket::KernelSocket,
};
use encode::{HEADER_LEN, Message, header};

/// `NFTA_SET_ELEM_LIST_ELEMENTS`
const ELEMENTS: u16 = 3;

/// The nftables interface of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Nftables {
    socket: KernelSocket,
}

/// A hash over everything that the kernel has of a table, to detect changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents(u64);

impl Nftables {
    /// Opens the interface in the calling thread's namespace.
    ///
    /// # Errors
    /// If the process has no free file descriptor, or the kernel has no netfilter.
    pub fn open() -> Result<Self, Error> {
        let socket = KernelSocket::open(NETLINK_NETFILTER)
            .map_err(|error| Error::io("open a socket to nftables", &error))?;
        Ok(Self { socket })
    }

    /// Opens the interface in a namespace. Its socket keeps the namespace alive.
    ///
    /// # Errors
    /// If the kernel refuses the request, or the process may not enter the namespace.
    pub fn open_in(netns: &Netns) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    /// Replaces the table of this name, or creates it.
    ///
    /// # Errors
    /// If the kernel refuses. The old table is unchanged.
    pub fn replace(&mut self, table: &Table) -> Result<(), Error> {
        let name = table.name.to_string_lossy();
        let replaced = self.socket.transact(&encode::replacement(table));
        replaced.map_err(|cause| cause.into_error(format!("replace the table {name} of nftables")))
    }

    /// Changes elements of the kernel's table in one transaction, and then `table`. The kernel refuses the transaction
    /// if any program has changed nftables since `generation`.
    ///
    /// # Errors
    /// If the kernel refuses. Both tables are unchanged.
    pub fn change(
        &mut self,
        generation: u32,
        table: &mut Table,
        changes: &Changes,
    ) -> Result<(), Error> {
        let messages = encode::changes(generation, table, changes);
        self.socket.transact(&messages).map_err(|cause| {
            let name = table.name.to_string_lossy();
            cause.into_error(format!("change elements of the table {name} of nftables"))
        })?;
        table.apply(changes);
        Ok(())
    }

    /// Deletes the table of this name, if it exists.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn delete(&mut self, table: &str) -> Result<(), Error> {
        let deleted = self.socket.transact(&encode::removal(&name(table)));
        deleted.map_err(|cause| cause.into_error(format!("delete the table {table} of nftables")))
    }

    /// The kernel's transaction counter for this namespace. While it is the same, no program has changed nftables.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let question = Message::query(encode::GET_GENERATION, |payload| {
            drop(OpGetgenDo::encode_request(payload, &header()));
        });
        let read = |object: Object<'_>| {
            let (_header, attributes) = OpGetgenDo::decode_request(object.payload);
            attributes.get_id().map_err(|error| error.to_string())
        };
        let found = self.socket.get(&question, read);
        found.map_err(|cause| cause.into_error("ask for the generation of nftables"))
    }

    /// Hashes the kernel's contents of `table`. `None` if the kernel lacks the table or one of its chains or sets.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn contents(&mut self, table: &Table) -> Result<Option<Contents>, Error> {
        match self.read(table) {
            Ok(objects) => {
                let mut hasher = DefaultHasher::new();
                objects.hash(&mut hasher);
                Ok(Some(Contents(hasher.finish())))
            }
            Err(RefusalCause::Kernel { errno: Errno::ENOENT, .. }) => Ok(None),
            Err(cause) => {
                let name = table.name.to_string_lossy();
                Err(cause.into_error(format!("read the table {name} of nftables")))
            }
        }
    }

    /// Whether a table of this name exists.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn has(&mut self, table: &str) -> Result<bool, Error> {
        match self.get(&table_question(&header(), &name(table))) {
            Ok(_) => Ok(true),
            Err(RefusalCause::Kernel { errno: Errno::ENOENT, .. }) => Ok(false),
            Err(cause) => Err(cause.into_error(format!("look for the table {table} of nftables"))),
        }
    }

    /// Lists the rules of all tables whose names begin with `prefix`, of all families, as text for display.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn rules(&mut self, prefix: &str) -> Result<Vec<String>, Error> {
        let question = Message::query(encode::GET_RULE, |payload| {
            drop(OpGetruleDump::encode_request(payload, &Nfgenmsg::new()));
        });
        let read = |object: Object<'_>| {
            let (header, rule) = OpGetruleDump::decode_request(object.payload);
            let table = rule.get_table().map_err(|error| error.to_string())?;
            let is_wanted = table.to_bytes().starts_with(prefix.as_bytes());
            Ok(is_wanted.then(|| format!("family {} {rule:?}", header.nfgen_family)))
        };
        let listed = self.socket.list(&question, read);
        listed.map_err(|cause| cause.into_error("list the rules of nftables"))
    }

    /// Reads the objects of a table. The table's description counts chains and sets, and a chain's counts its rules, so
    /// additions are noticed as well as removals.
    fn read(&mut self, table: &Table) -> Result<Vec<Vec<u8>>, RefusalCause> {
        let mut objects = Vec::new();
        for header in table.headers() {
            objects.push(self.get(&table_question(&header, &table.name))?);
            let rules = Message::query(encode::GET_RULE, |payload| {
                drop(OpGetruleDump::encode_request(payload, &header).push_table(&table.name));
            });
            objects.extend(self.socket.list(&rules, |object| Ok(Some(attributes_of(&object))))?);
        }
        for chain in &table.chains {
            let question = Message::query(encode::GET_CHAIN, |payload| {
                let request = OpGetchainDo::encode_request(payload, &chain.header());
                drop(request.push_table(&table.name).push_name(chain.name));
            });
            objects.push(self.get(&question)?);
        }
        for set in table.sets.iter().filter(|set| !set.is_of_packets) {
            objects.extend(self.elements(table, set)?);
        }
        Ok(objects)
    }

    /// Returns the elements sorted, because the kernel's order changes when its hash table grows.
    fn elements(&mut self, table: &Table, set: &Set) -> Result<Vec<Vec<u8>>, RefusalCause> {
        let question = Message::query(encode::GET_ELEMENTS, |payload| {
            let request = OpGetsetelemDump::encode_request(payload, &set.header());
            drop(request.push_table(&table.name).push_set(set.name));
        });
        let listed = self.socket.list(&question, |object| Ok(Some(elements_in(&object))))?;
        let mut elements: Vec<_> = listed.into_iter().flatten().collect();
        elements.sort_unstable();
        Ok(elements)
    }

    fn get(&mut self, question: &Message) -> Result<Vec<u8>, RefusalCause> {
        self.socket.get(question, |object| Ok(attributes_of(&object)))
    }
}

fn table_question(header: &Nfgenmsg, name: &CString) -> Message {
    Message::query(encode::GET_TABLE, |payload| {
        drop(OpGettableDo::encode_request(payload, header).push_name(name));
    })
}

/// Strips the header, because it contains the number of the latest transaction.
fn attributes_of(object: &Object<'_>) -> Vec<u8> {
    object.payload.get(HEADER_LEN..).unwrap_or_default().to_vec()
}

fn elements_in(object: &Object<'_>) -> Vec<Vec<u8>> {
    let attributes = attributes_of(object);
    let lists = attributes_in(&attributes).filter(|attribute| attribute.kind() == ELEMENTS);
    lists
        .flat_map(|list| {
            let elements = attributes_in(list.into_inner().get(4..).unwrap_or_default());
            elements.map(|element| element.value().to_vec()).collect::<Vec<_>>()
        })
        .collect()
}
