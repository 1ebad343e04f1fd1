//! The connections that the kernel keeps track of, to translate all their packets as it did the first.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use netlink_bindings::conntrack::{IterableTupleAttrs, Nfgenmsg, OpGetDump};
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use super::{
    ProtocolPort,
    encode::{HEADER_LEN, Message, number_of_family},
};
use crate::{
    Error, Family,
    datagram::{Object, attributes_in},
    socket::{KernelSocket, RefusalCause},
};

// The messages; see enum cntl_msg_types.
const SUBSYSTEM: u16 = 1;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;

// What names one: how it was begun, its number and the zone that it is in; see enum ctattr_type.
const BEGUN: u16 = 1;
const NUMBER: u16 = 12;
const ZONE: u16 = 18;

/// `CTA_FILTER_F_CTA_PROTO_NUM` and `CTA_FILTER_F_CTA_PROTO_DST_PORT`: what is compared.
const BY_PORT: u32 = 1 << 3 | 1 << 5;

/// A connection above IP, or what the kernel takes for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// To where its first packet was sent.
    pub to: SocketAddr,
    /// From where it is answered: `to`, unless that was translated.
    pub answered_from: SocketAddr,
}

/// The kernel's interface to the connections of one network namespace: the one in which it was opened.
pub struct Connections {
    socket: KernelSocket,
}

impl fmt::Debug for Connections {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    /// Opens the interface to the calling thread's namespace.
    ///
    /// # Errors
    /// When the process may have no more open files, or the kernel has no netfilter.
    pub fn open() -> Result<Self, Error> {
        let socket = KernelSocket::open(NETLINK_NETFILTER)
            .map_err(|error| Error::io("open a socket to connection tracking", &error))?;
        Ok(Self { socket })
    }

    /// Has the kernel forget those to that port, of a family, which are stale: their next packets begin new
    /// ones. Returns how many there were.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn forget(
        &mut self,
        family: Family,
        port: ProtocolPort,
        is_stale: impl Fn(&Connection) -> bool,
    ) -> Result<usize, Error> {
        // Kernels before 5.8 list all, and some compare no ports of SCTP.
        let name_of_stale = |object: Object<'_>| {
            let connection = connection_in(&object, port);
            Ok(connection.filter(&is_stale).map(|_| name_of(&object)))
        };
        let told =
            |what: &str| format!("{what} connections to port {} that are tracked", port.port);
        let stale = self.socket.list(&question(family, port), name_of_stale);
        let stale = stale.map_err(|cause| cause.told_as(told("list")))?;
        for name in &stale {
            let request = Message::query(DELETE, |payload| {
                payload.extend(header(family).as_slice());
                payload.extend(name);
            });
            let gone = self.socket.carry_out(&[request]).or_else(|refusal| match refusal.cause {
                RefusalCause::Kernel { errno: Errno::ENOENT, .. } => Ok(()),
                cause => Err(cause),
            });
            gone.map_err(|cause| cause.told_as(told("forget")))?;
        }
        Ok(stale.len())
    }
}

fn header(family: Family) -> Nfgenmsg {
    Nfgenmsg { nfgen_family: number_of_family(family), ..Nfgenmsg::new() }
}

fn question(family: Family, port: ProtocolPort) -> Message {
    Message::query(GET, |payload| {
        let begun = OpGetDump::encode_request(payload, &header(family)).nested_tuple_orig();
        let to = begun.nested_tuple_proto().push_proto_num(port.protocol);
        let request = to.push_proto_dst_port(port.port).end_nested().end_nested();
        drop(request.nested_filter().push_orig_flags(BY_PORT).end_nested());
    })
}

/// `None`: it is not to that port.
fn connection_in(object: &Object<'_>, port: ProtocolPort) -> Option<Connection> {
    let (_header, attributes) = OpGetDump::decode_request(object.payload);
    let begun = attributes.get_tuple_orig().ok()?;
    let protocol = begun.get_tuple_proto().ok()?;
    let to = protocol.get_proto_dst_port().ok()?;
    if (protocol.get_proto_num().ok()?, to) != (port.protocol, port.port) {
        return None;
    }
    let answer = attributes.get_tuple_reply().ok()?;
    let from = answer.get_tuple_proto().ok()?.get_proto_src_port().ok()?;
    Some(Connection {
        to: SocketAddr::new(destination(&begun)?, to),
        answered_from: SocketAddr::new(source(&answer)?, from),
    })
}

fn destination(tuple: &IterableTupleAttrs<'_>) -> Option<IpAddr> {
    let addresses = tuple.get_tuple_ip().ok()?;
    let v4 = addresses.get_ip_v4_dst().map(IpAddr::from);
    v4.or_else(|_| addresses.get_ip_v6_dst().map(IpAddr::from)).ok()
}

fn source(tuple: &IterableTupleAttrs<'_>) -> Option<IpAddr> {
    let addresses = tuple.get_tuple_ip().ok()?;
    let v4 = addresses.get_ip_v4_src().map(IpAddr::from);
    v4.or_else(|_| addresses.get_ip_v6_src().map(IpAddr::from)).ok()
}

/// The attributes that name it, as the kernel said them.
fn name_of(object: &Object<'_>) -> Vec<u8> {
    let attributes = attributes_in(object.payload.get(HEADER_LEN..).unwrap_or_default());
    let named = attributes.filter(|attribute| [BEGUN, NUMBER, ZONE].contains(&attribute.kind()));
    let padded = named.map(|attribute| {
        let mut bytes = attribute.into_inner().to_vec();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    });
    padded.flatten().collect()
}
