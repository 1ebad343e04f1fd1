//! Connection tracking: entries that must be deleted because they still translate packets to an old target.

use std::net::{IpAddr, SocketAddr};

use netlink_bindings::conntrack::{IterableTupleAttrs, Nfgenmsg, OpGetDump};
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use super::{
    ProtocolPort,
    encode::{HEADER_LEN, Message},
    expressions::number_of_family,
};
use crate::{
    datagram::{Object, attributes_in},
    error::{Error, RefusalCause},
    socket::KernelSocket,
    sysctl::Family,
};

// Messages: enum cntl_msg_types.
const SUBSYSTEM: u16 = 1;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;

// Attributes that identify an entry (original tuple, ID and zone): enum ctattr_type.
const BEGUN: u16 = 1;
const NUMBER: u16 = 12;
const ZONE: u16 = 18;

/// `CTA_FILTER_F_CTA_PROTO_NUM` and `CTA_FILTER_F_CTA_PROTO_DST_PORT`: the fields that the kernel compares.
const BY_PORT: u32 = 1 << 3 | 1 << 5;

/// A tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Destination of its first packet.
    pub to: SocketAddr,
    /// Source of the replies: `to`, unless the destination was translated.
    pub answered_from: SocketAddr,
}

/// The connection tracking interface of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Connections {
    socket: KernelSocket,
}

impl Connections {
    /// Opens the interface in the calling thread's namespace.
    ///
    /// # Errors
    /// If the process has no free file descriptor, or the kernel has no netfilter.
    pub fn open() -> Result<Self, Error> {
        let socket = KernelSocket::open(NETLINK_NETFILTER)
            .map_err(|error| Error::io("open a socket to connection tracking", &error))?;
        Ok(Self { socket })
    }

    /// Deletes the stale entries of connections to a port, in one address family. Their next packets start new
    /// connections. Returns the number of stale entries.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn forget(
        &mut self,
        family: Family,
        port: ProtocolPort,
        is_stale: impl Fn(&Connection) -> bool,
    ) -> Result<usize, Error> {
        // Kernels before 5.8 ignore the filter, and some do not compare ports of SCTP: `connection_in` compares again.
        let name_of_stale = |object: Object<'_>| {
            let connection = connection_in(&object, port);
            Ok(connection.filter(&is_stale).map(|_| name_of(&object)))
        };
        let operation =
            |what: &str| format!("{what} connections to port {} that are tracked", port.port);
        let stale = self.socket.list(&question(family, port), name_of_stale);
        let stale = stale.map_err(|cause| cause.into_error(operation("list")))?;
        for name in &stale {
            // The entry is deleted by its own identification, not by a filter: a new connection with the same addresses has another ID.
            let request = Message::query(DELETE, |payload| {
                payload.extend(header(family).as_slice());
                payload.extend(name);
            });
            let gone = self.socket.carry_out(&[request]).or_else(|refusal| match refusal.cause {
                RefusalCause::Kernel { errno: Errno::ENOENT, .. } => Ok(()),
                cause => Err(cause),
            });
            gone.map_err(|cause| cause.into_error(operation("forget")))?;
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

/// `None`: the connection is not to that port.
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

/// Copies the attributes that identify an entry, as the kernel sent them.
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
