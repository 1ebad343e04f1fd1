//! Packet filtering and address translation: one table of nftables at a time, as a whole.
//!
//! A table is replaced in one transaction, so that no packet ever meets half of it, or changed by elements of
//! its sets alone. Tables of others are neither read nor changed, but [`Connections`], which are everybody's.
//! A table's [`Contents`] are not understood but compared: what a stranger has changed differs from what was
//! there after the table was put into force.

mod changes;
mod connections;
mod encode;
mod monitor;
mod ports;
mod raw;
mod table;

use std::{
    ffi::CString,
    fmt,
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
pub use table::{Chain, Hook, LinkName, PacketRate, ProtocolPort, Rule, Set, Source, Table, Term};

use crate::{
    Error, Netns,
    datagram::{Object, attributes_in},
    socket::{KernelSocket, RefusalCause},
};
use encode::{HEADER_LEN, Message, header};

/// `NFTA_SET_ELEM_LIST_ELEMENTS`
const ELEMENTS: u16 = 3;

/// The kernel's interface to the packet filter of one network namespace: the one in which it was
/// opened.
pub struct Nftables {
    socket: KernelSocket,
}

impl fmt::Debug for Nftables {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Nftables").finish_non_exhaustive()
    }
}

/// All that the kernel has of a table, to be compared with what it had before: a hash of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents(u64);

impl Nftables {
    /// Opens the interface to the calling thread's namespace.
    ///
    /// # Errors
    /// When the process may have no more open files, or the kernel has no netfilter.
    pub fn open() -> Result<Self, Error> {
        let socket = KernelSocket::open(NETLINK_NETFILTER)
            .map_err(|error| Error::io("open a socket to nftables", &error))?;
        Ok(Self { socket })
    }

    /// Opens the interface to that namespace, which it keeps alive.
    ///
    /// # Errors
    /// The kernel's refusal, or the process may not enter the namespace.
    pub fn open_in(netns: &Netns) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    /// Puts `table` in the place of the one of its name, if there is one.
    ///
    /// # Errors
    /// The kernel's refusal; the table is as it was.
    pub fn replace(&mut self, table: &Table) -> Result<(), Error> {
        let told = |cause: RefusalCause| {
            cause.told_as(format!("replace the table {} of nftables", table.name.to_string_lossy()))
        };
        self.socket.transact(&encode::replacement(table)).map_err(told)
    }

    /// Changes the table, which is the kernel's, in one transaction, unless anybody has changed anything
    /// since that generation.
    ///
    /// # Errors
    /// The kernel's refusal; both tables are as they were.
    pub fn change(
        &mut self,
        generation: u32,
        table: &mut Table,
        changes: &Changes,
    ) -> Result<(), Error> {
        let told = |cause: RefusalCause| {
            let name = table.name.to_string_lossy();
            cause.told_as(format!("change elements of the table {name} of nftables"))
        };
        let messages = encode::changes(generation, table, changes);
        self.socket.transact(&messages).map_err(told)?;
        table.apply(changes);
        Ok(())
    }

    /// Deletes the table of that name. There may be none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn delete(&mut self, table: &str) -> Result<(), Error> {
        let name = name(table);
        let told =
            |cause: RefusalCause| cause.told_as(format!("delete the table {table} of nftables"));
        self.socket.transact(&encode::removal(&name)).map_err(told)
    }

    /// Counts the transactions of everybody in this namespace: as long as it stays the same, so does
    /// all that nftables has.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let question = Message::query(encode::GET_GENERATION, |payload| {
            drop(OpGetgenDo::encode_request(payload, &header()));
        });
        let read = |object: Object<'_>| {
            let (_header, attributes) = OpGetgenDo::decode_request(object.payload);
            attributes.get_id().map_err(|error| error.to_string())
        };
        let told =
            |cause: RefusalCause| cause.told_as("ask for the generation of nftables".to_owned());
        self.socket.get(&question, read).map_err(told)
    }

    /// What the kernel has of a table with the chains and sets of this one. `None`: it lacks some.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn contents(&mut self, table: &Table) -> Result<Option<Contents>, Error> {
        match self.read(table) {
            Ok(objects) => {
                let mut hasher = DefaultHasher::new();
                objects.hash(&mut hasher);
                Ok(Some(Contents(hasher.finish())))
            }
            Err(RefusalCause::Kernel { errno: Errno::ENOENT, .. }) => Ok(None),
            Err(cause) => Err(cause
                .told_as(format!("read the table {} of nftables", table.name.to_string_lossy()))),
        }
    }

    /// Whether there is a table of that name.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn has(&mut self, table: &str) -> Result<bool, Error> {
        match self.get(&table_question(&header(), &name(table))) {
            Ok(_) => Ok(true),
            Err(RefusalCause::Kernel { errno: Errno::ENOENT, .. }) => Ok(false),
            Err(cause) => Err(cause.told_as(format!("look for the table {table} of nftables"))),
        }
    }

    /// The rules of all tables whose names begin with `prefix`, of all families: one text each, for people.
    ///
    /// # Errors
    /// The kernel's refusal.
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
        let told = |cause: RefusalCause| cause.told_as("list the rules of nftables".to_owned());
        self.socket.list(&question, read).map_err(told)
    }

    /// The table counts its chains and sets, and chains count their rules, so that what was added
    /// is seen as well as what is missing.
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

    /// In an order of their own: the kernel's changes as its table of them grows.
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

/// Without the header, which has the number of the latest transaction.
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

/// A name is cut at a byte that can't be in one.
fn name(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}
