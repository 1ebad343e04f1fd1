//! Messages of the server: JSON-RPC 1.0, without separators.

use std::{
    cell::Cell,
    io::{self, BufReader, Read},
    rc::Rc,
};

use serde_json::{Deserializer, Value};

/// Longest message that is accepted, in bytes: enough for a hundred thousand rows. Parsed, it takes up to sixteen times
/// as much memory.
const LONGEST: u64 = 64 << 20;

/// A message of the server.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    /// The server checks that the client is alive: both values must be returned.
    Echo { id: Value, params: Value },
    /// Changed rows.
    Update(Value),
    /// The answer to a call, by its number. `Err` is the server's error.
    Answer(u64, Result<Value, Value>),
    /// Any other message.
    Other,
}

impl Message {
    fn of(mut message: Value) -> Self {
        let mut take = |key: &str| message.get_mut(key).map_or(Value::Null, Value::take);
        let (method, id, mut params) = (take("method"), take("id"), take("params"));
        match method.as_str() {
            Some("echo") => Self::Echo { id, params },
            Some("update") => Self::Update(params.get_mut(1).map_or(Value::Null, Value::take)),
            Some(_) => Self::Other,
            None => match (id.as_u64(), take("error")) {
                (Some(id), Value::Null) => Self::Answer(id, Ok(take("result"))),
                (Some(id), error) => Self::Answer(id, Err(error)),
                (None, _) => Self::Other,
            },
        }
    }
}

/// Reads messages until one is invalid or the connection ends.
pub(crate) fn messages(from: impl Read) -> impl Iterator<Item = serde_json::Result<Message>> {
    let left = Rc::new(Cell::new(LONGEST));
    let bounded = Bounded { inner: from, left: Rc::clone(&left) };
    let values = Deserializer::from_reader(BufReader::new(bounded)).into_iter();
    values.map(move |value| {
        left.set(LONGEST);
        value.map(Message::of)
    })
}

/// Limits the bytes of one message. [`messages`] resets `left` after each.
struct Bounded<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64);
        self.left.set(left.ok_or_else(|| io::Error::other("a message is too long"))?);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn all(text: &str) -> Vec<Message> {
        messages(text.as_bytes()).map_while(Result::ok).collect()
    }

    #[test]
    fn messages_need_no_separator() {
        let reported = concat!(
            r#"{"method":"echo","id":"echo","params":[]}{"id":3,"result":{"a":1},"error":null}"#,
            r#"{"method":"update","id":null,"params":["rows",{"Port":{}}]}{"id":4,"error":"no","result":null}"#,
            r#"{"method":"locked","params":[],"id":null}{"id":"x","result":1}7"#,
        );
        let expected = [
            Message::Echo { id: json!("echo"), params: json!([]) },
            Message::Answer(3, Ok(json!({"a": 1}))),
            Message::Update(json!({"Port": {}})),
            Message::Answer(4, Err(json!("no"))),
            Message::Other,
            Message::Other,
            Message::Other,
        ];
        assert_eq!(all(reported), expected);
    }

    #[test]
    fn endless_message_is_refused() {
        let endless = io::Cursor::new(b"[").chain(io::repeat(b'1'));
        let left = Rc::new(Cell::new(1 << 20));
        let mut bounded = Bounded { inner: endless, left };
        let refused = io::copy(&mut bounded, &mut io::sink()).unwrap_err();
        assert!(refused.to_string().contains("too long"), "{refused}");
    }

    #[test]
    fn deeply_nested_message_is_refused() {
        assert_eq!(all(&"[".repeat(100_000)), []);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
            let _ = messages(&bytes[..]).take_while(Result::is_ok).count();
        }
    }
}
