//! A kubelet with hand-written HTTP/2.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::*;

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// The types of the frames on a stream until it ends.
async fn frames_of(stream: u8, connection: &mut UnixStream) -> Vec<u8> {
    let mut kinds = Vec::new();
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        connection.read_exact(&mut payload).await.unwrap();
        if head[8] == stream {
            kinds.push(head[3]);
            if head[3] == RESET || head[4] & END_STREAM != 0 {
                return kinds;
            }
        }
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Kubelet 1.20 does this; its later calls refer to the first header by its HPACK index.
#[tokio::test]
async fn kubelet_with_path_as_authority_is_answered() {
    let stage = Stage::new().with_folder();
    let registered = kubelet(&stage.plugins(), "v1beta1").registered().await;
    let path = stage.plugins().join(&registered.endpoint);
    let mut connection = UnixStream::connect(path).await.unwrap();
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let first = [
        b"\x83\x86\x44".as_slice(),
        &text("/v1beta1.DevicePlugin/GetDevicePluginOptions"),
        b"\x41",
        &text("/var/lib/kubelet/device-plugins/dpu-offload.io_gold.sock"),
        b"\x5f",
        &text("application/grpc"),
        b"\x40",
        &text("te"),
        &text("trailers"),
    ]
    .concat();
    let empty = [0; 5];
    let begun = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &first),
        frame(DATA, END_STREAM, 1, &empty),
    ];
    connection.write_all(&begun.concat()).await.unwrap();
    let answer = within(LIMIT, frames_of(1, &mut connection)).await.unwrap();
    assert_eq!(answer, [HEADERS, DATA, HEADERS]);
    let again = b"\x83\x86\xc1\xc0\xbf\xbe";
    let more = [frame(HEADERS, END_HEADERS, 3, again), frame(DATA, END_STREAM, 3, &empty)];
    connection.write_all(&more.concat()).await.unwrap();
    let answer = within(LIMIT, frames_of(3, &mut connection)).await.unwrap();
    assert_eq!(answer, [HEADERS, DATA, HEADERS]);
}
