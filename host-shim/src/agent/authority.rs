//! What clients of gRPC call a Unix socket by.
//!
//! Some send its path as `:authority`, as it is or with its slashes encoded, which is none, and which HTTP/2 servers
//! refuse: kubelets before 1.26 do (kubernetes/kubernetes#112597), and whatever else is made with gRPC of that time. It
//! means nothing on a socket of the machine itself, so that one that is good takes its place on the way to the server.
//!
//! There is no simpler way: `h2` refuses such headers before a service of ours is asked, has no setting against it, and
//! has not taken the change that would let them pass (hyperium/h2#487).

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, copy, duplex, split},
    net::UnixStream,
    time::timeout,
};

/// How a client of HTTP/2 begins: 24 bytes.
const PREFACE: usize = 24;
/// How a frame begins: its length, type, flags and stream.
const HEAD: usize = 9;
/// Longest frame that a client may send to a server that has not asked for longer ones.
const LONGEST: usize = 16_384;
/// The type of a frame with headers.
const HEADERS: u8 = 1;
/// All headers are in this frame.
const END_HEADERS: u8 = 0x4;
/// They are surrounded by something else.
const PADDED_OR_PRIORITY: u8 = 0x28;
/// The number of `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;
/// Its name, for those who spell it out.
const AUTHORITY_NAME: &[u8] = b":authority";
const LOCALHOST: &[u8] = b"\x09localhost";
/// What can wait on the way.
const WAITING: usize = 64 * 1024;
/// How long a client may take to begin.
const BEGINNING: Duration = Duration::from_secs(5);

/// The connection as the server is to see it, and what keeps it going until either side ends it.
pub(super) fn with_good_authority(client: UnixStream) -> (DuplexStream, impl Future<Output = ()>) {
    let (served, ours) = duplex(WAITING);
    (served, relay(client, ours))
}

async fn relay(client: UnixStream, ours: DuplexStream) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = split(ours);
    // Whichever ends first ends both.
    let ended = tokio::select! {
        ended = pass_on(&mut from_client, &mut to_server) => ended,
        ended = copy(&mut from_server, &mut to_client) => ended.map(drop),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of gRPC ended");
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
        let is_whole = flags & END_HEADERS != 0 && flags & PADDED_OR_PRIORITY == 0;
        if kind == HEADERS && is_whole {
            payload = mended(&payload).unwrap_or(payload);
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
            head[..3].copy_from_slice(&length[1..]);
        }
        to.write_all(&head).await?;
        to.write_all(&payload).await?;
    }
}

/// A block of headers with another `:authority`. `None`: it can't be read, which the server is to say.
///
/// What is to be remembered is remembered so, and later blocks that name it by number mean the good one. It is
/// shorter than paths are, so that the server forgets nothing that the client still remembers.
pub(super) fn mended(block: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut mended) = (block, Vec::with_capacity(block.len()));
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
                mended.extend(&field[..field.len() - before_value.len()]);
                mended.extend(LOCALHOST);
                continue;
            }
        }
        mended.extend(&field[..field.len() - rest.len()]);
    }
    Some(mended)
}

/// A number whose first byte has so many bits of it (RFC 7541, 5.1).
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

/// A text, be it compressed or not.
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
    fn the_authority_alone_is_replaced_however_it_is_written() {
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
            assert_eq!(mended(&block), Some(wanted));
        }
        assert_eq!(mended(b""), Some(Vec::new()));
    }

    #[test]
    fn what_can_not_be_read_is_left_to_the_server() {
        for block in
            [b"\x41".as_slice(), b"\x41\x05/a", b"\xff", b"\xff\xff\xff\xff\xff\xff\xff\x01"]
        {
            assert_eq!(mended(block), None);
        }
    }
}
