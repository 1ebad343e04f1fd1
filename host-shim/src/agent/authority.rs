//! Replaces an invalid `:authority` header of gRPC clients on a Unix socket.
//!
//! Some clients send the socket's path, plain or with encoded slashes, which HTTP/2 servers refuse: kubelets before
//! 1.26 (kubernetes/kubernetes#112597) and other programs with gRPC of that time. The header means nothing on a local
//! socket, so a valid one replaces it on the way to the server.
//!
//! There is no simpler way. `h2` refuses such headers before our service sees them, has no setting for it, and has not
//! merged the change that would accept them (hyperium/h2#487).

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, copy, duplex, split},
    net::UnixStream,
    time::timeout,
};

/// The length of the HTTP/2 client preface, in bytes.
const PREFACE: usize = 24;
/// The length of a frame header: length, type, flags and stream.
const HEAD: usize = 9;
/// The longest frame that a client may send unless the server allows longer ones, in bytes.
const LONGEST: usize = 16_384;
/// The type of a HEADERS frame.
const HEADERS: u8 = 1;
/// The flag of a frame that contains all headers.
const END_HEADERS: u8 = 0x4;
/// The flags of frames whose headers are surrounded by padding or priority fields.
const PADDED_OR_PRIORITY: u8 = 0x28;
/// The index of `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;
/// The header's name, for clients that do not use the index.
const AUTHORITY_NAME: &[u8] = b":authority";
const LOCALHOST: &[u8] = b"\x09localhost";
/// The relay's buffer, in bytes.
const WAITING: usize = 64 * 1024;
/// How long a client may take to send its preface.
const BEGINNING: Duration = Duration::from_secs(5);

/// The connection for the server, and the future that relays it until either side ends it.
pub(super) fn with_valid_authority(client: UnixStream) -> (DuplexStream, impl Future<Output = ()>) {
    let (served, ours) = duplex(WAITING);
    (served, relay(client, ours))
}

async fn relay(client: UnixStream, ours: DuplexStream) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = split(ours);
    // The end of one direction ends both.
    let ended = tokio::select! {
        ended = pass_on(&mut from_client, &mut to_server) => ended,
        ended = copy(&mut from_server, &mut to_client) => ended.map(drop),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a gRPC connection ended");
    }
}

async fn pass_on(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    timeout(BEGINNING, from.read_exact(&mut preface)).await??;
    to.write_all(&preface).await?;
    loop {
        let mut head = [0; HEAD];
        from.read_exact(&mut head).await?;
        let [first, second, third, kind, flags, ..] = head;
        let length = usize::from(first) << 16 | usize::from(second) << 8 | usize::from(third);
        if length > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        // Other header frames pass unchanged; the server rejects an invalid value in them.
        let is_whole = flags & END_HEADERS != 0 && flags & PADDED_OR_PRIORITY == 0;
        if kind == HEADERS && is_whole {
            payload = rewritten(&payload).unwrap_or(payload);
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
            head[..3].copy_from_slice(&length[1..]);
        }
        to.write_all(&head).await?;
        to.write_all(&payload).await?;
    }
}

/// Rewrites a header block with a valid `:authority`. `None`: the block is malformed, and the server rejects it.
///
/// The value enters HPACK's dynamic table as rewritten, so later blocks that refer to it by index get the valid one. It
/// is shorter than a path, so the server's table evicts nothing that the client still refers to.
pub(super) fn rewritten(block: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut rewritten) = (block, Vec::with_capacity(block.len()));
    while let Some(&first) = rest.first() {
        let field = rest;
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let name = take_number(&mut rest, prefix)?;
        let is_authority = match name {
            0 if is_literal => take_text(&mut rest)? == AUTHORITY_NAME,
            name => name == AUTHORITY,
        };
        if is_literal {
            let before_value = rest;
            take_text(&mut rest)?;
            if is_authority {
                rewritten.extend(&field[..field.len() - before_value.len()]);
                rewritten.extend(LOCALHOST);
                continue;
            }
        }
        rewritten.extend(&field[..field.len() - rest.len()]);
    }
    Some(rewritten)
}

/// Reads an integer with a prefix of so many bits (RFC 7541, section 5.1).
fn take_number(rest: &mut &[u8], prefix: u32) -> Option<usize> {
    let (first, mut tail) = rest.split_first()?;
    let most = (1_usize << prefix) - 1;
    let mut number = usize::from(*first) & most;
    if number == most {
        let mut shift = 0;
        loop {
            let (next, after) = tail.split_first()?;
            tail = after;
            number += usize::from(next & 0x7f).checked_shl(shift).filter(|_| shift <= 21)?;
            shift += 7;
            if next & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = tail;
    Some(number)
}

/// Reads a string, Huffman-coded or not.
fn take_text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_number(rest, 7)?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(text)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn authority_is_replaced_in_every_encoding() {
        let path = b"\x44\x02/x";
        let long = [b"\x7f\x01".as_slice(), &[b'/'; 128]].concat();
        let spelled = [b"\x40\x0a", AUTHORITY_NAME].concat();
        for (name, value) in [
            (b"\x41".as_slice(), b"\x04/a/b".as_slice()),
            (b"\x01", b"\x04/a/b"),
            (b"\x11", b"\x04/a/b"),
            (&spelled, b"\x04/a/b"),
            (b"\x41", &long),
        ] {
            let authority = [name, value].concat();
            let block =
                [b"\x3f\x01\x83", path.as_slice(), &authority, b"\x40\x01a\x01b\xbe"].concat();
            let good = [name, LOCALHOST].concat();
            let wanted = [b"\x3f\x01\x83", path.as_slice(), &good, b"\x40\x01a\x01b\xbe"].concat();
            assert_eq!(rewritten(&block), Some(wanted));
        }
        assert_eq!(rewritten(b""), Some(Vec::new()));
    }

    #[test]
    fn malformed_header_block_is_not_rewritten() {
        for block in
            [b"\x41".as_slice(), b"\x41\x05/a", b"\xff", b"\xff\xff\xff\xff\xff\xff\xff\x01"]
        {
            assert_eq!(rewritten(block), None);
        }
    }
}
