//! What kubelets before 1.26 call our socket by.
//!
//! They send its path as `:authority`, which is none, and which HTTP/2 servers refuse. It means nothing on a socket of
//! the machine itself, so that one that is good takes its place on the way to the server.
//!
//! There is no simpler way: `h2` refuses such headers before a service of ours is asked, has no setting against it, and
//! has not taken the change that would let them pass (hyperium/h2#487). Kubelets send `localhost` from 1.26 on
//! (kubernetes/kubernetes#112597), so that this file goes with the last one before.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, copy, duplex, split},
    net::UnixStream,
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
const LOCALHOST: &[u8] = b"\x09localhost";
/// What can wait on the way.
const WAITING: usize = 64 * 1024;

/// The connection as the server is to see it.
pub(super) fn with_good_authority(kubelet: UnixStream) -> DuplexStream {
    let (served, ours) = duplex(WAITING);
    tokio::spawn(async move {
        let (mut from_kubelet, mut to_kubelet) = kubelet.into_split();
        let (mut from_server, mut to_server) = split(ours);
        // Whichever ends first ends both.
        let ended = tokio::select! {
            ended = pass_on(&mut from_kubelet, &mut to_server) => ended,
            ended = copy(&mut from_server, &mut to_kubelet) => ended.map(drop),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection of the kubelet ended");
        }
    });
    served
}

async fn pass_on(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
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
/// shorter than the other, so that the server forgets nothing that the kubelet still remembers.
fn mended(block: &[u8]) -> Option<Vec<u8>> {
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
        if is_literal && name == 0 {
            take_text(&mut rest)?;
        }
        if is_literal {
            let before_value = rest;
            take_text(&mut rest)?;
            if name == AUTHORITY {
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
        let long = [b"\x41\x7f\x01".as_slice(), &[b'/'; 128]].concat();
        for authority in [b"\x41\x04/a/b".as_slice(), b"\x01\x04/a/b", b"\x11\x04/a/b", &long] {
            let block =
                [b"\x3f\x01\x83", path.as_slice(), authority, b"\x40\x01a\x01b\xbe"].concat();
            let good = [&authority[..1], LOCALHOST].concat();
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
