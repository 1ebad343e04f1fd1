//! What the server says: messages of JSON-RPC 1.0, one behind the other with nothing between.

use std::{
    cell::Cell,
    io::{self, BufReader, Read},
    rc::Rc,
};

use serde_json::{Deserializer, Value};

/// The longest message that is read, in bytes: an answer with a hundred thousand rows has room. In memory a message
/// takes up to sixteen times as much.
const LONGEST: u64 = 64 << 20;

/// A message of the server's.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    /// It wants to know whether somebody is there, and these two back.
    Echo { id: Value, params: Value },
    /// Rows have changed.
    Update(Value),
    /// The answer to a call of ours; `Err`: why there is none.
    Answer(u64, Result<Value, Value>),
    /// Something that nobody here waits for.
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

/// The messages of a server, until one is none, or the connection ends.
pub(crate) fn messages(from: impl Read) -> impl Iterator<Item = serde_json::Result<Message>> {
    let left = Rc::new(Cell::new(LONGEST));
    let bounded = Bounded { inner: from, left: Rc::clone(&left) };
    let values = Deserializer::from_reader(BufReader::new(bounded)).into_iter();
    values.map(move |value| {
        left.set(LONGEST);
        value.map(Message::of)
    })
}

/// Reads no more than what is left, which whoever reads messages sets anew with each.
struct Bounded<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64);
        self.left.set(left.ok_or_else(|| io::Error::other("a message has no end"))?);
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
    fn messages_follow_each_other_with_nothing_between() {
        let told = concat!(
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
        assert_eq!(all(told), expected);
    }

    #[test]
    fn a_message_without_an_end_is_not_read_for_ever() {
        let endless = io::Cursor::new(b"[").chain(io::repeat(b'1'));
        let left = Rc::new(Cell::new(1 << 20));
        let mut bounded = Bounded { inner: endless, left };
        let refused = io::copy(&mut bounded, &mut io::sink()).unwrap_err();
        assert!(refused.to_string().contains("no end"), "{refused}");
    }

    #[test]
    fn a_message_that_is_nested_without_end_is_refused() {
        assert_eq!(all(&"[".repeat(100_000)), []);
    }

    proptest! {
        #[test]
        fn whatever_comes_in_is_taken_or_refused(bytes: Vec<u8>) {
            let _ = messages(&bytes[..]).take_while(Result::is_ok).count();
        }
    }
}
